# SPDX-License-Identifier: AGPL-3.0-only
"""Requests written as no encoder of ours would write them mean what protobuf says they mean.

Protobuf's own parser is the judge. Whatever it accepts, the intake takes apart as if it had been
encoded anew, to the byte: a field out of order, written twice or hidden inside a header cannot
change a message or smuggle bytes past a limit. Whatever it refuses, the intake refuses.
"""

from __future__ import annotations

from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings

from fila.v1.service_pb2 import EnqueueBatchRequest, EnqueueRequest
from fila_server.config import LimitsConfig
from fila_server.core.wire import cuts, intake
from fila_server.core.wire.cuts import DraftBatch
from fila_server.core.wire.intake import Draft, Intake
from fila_server.errors import InvalidArgument

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
QUEUE, HEADER, PAYLOAD, DELIVER_AT = 1, 2, 3, 9
TEXTS, NUMBERS = (QUEUE, 4, 6, 11), (5, 7, 8, 10)

# One for all examples, so that what it remembers of one request can betray another.
remembering = Intake(LimitsConfig())


# --- Writing fields by hand -----------------------------------------------------------------------


def varint(value: int, padding: int = 0) -> bytes:
    """Encode a number, with so many bytes more than it needs."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(min(padding, 10 - len(out))):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def field(number: int, kind: int, content: bytes, padding: int = 0) -> bytes:
    """Encode a field; `padding` makes its tag and length longer than they need to be."""
    tag = varint(number << 3 | kind, min(padding, 4))  # tags have 32 bits
    return tag + (varint(len(content), padding) if kind == BYTES else b"") + content


paddings = st.sampled_from([0, 0, 0, 0, 1, 4])
numbers = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)).map(varint)
texts = st.one_of(
    st.sampled_from([b"", b"a", b"acme", b"orders", "é".encode(), b"x" * 200]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(str.encode),
    st.just(b"\xff"),  # not UTF-8
)
payloads = st.one_of(st.binary(max_size=20), st.sampled_from([b"y" * 127, b"y" * 128, b"z" * 3000]))


def fields(number: st.SearchStrategy[int], kind: int, content: st.SearchStrategy[bytes]) -> Fields:
    return st.builds(field, number, st.just(kind), content, paddings)


Fields = st.SearchStrategy[bytes]
unknown_numbers = st.one_of(st.integers(12, 40), st.sampled_from([1000, 2**29 - 1]))
unknown = st.one_of(
    fields(unknown_numbers, VARINT, numbers),
    fields(unknown_numbers, FIXED64, st.binary(min_size=8, max_size=8)),
    fields(unknown_numbers, FIXED32, st.binary(min_size=4, max_size=4)),
    fields(unknown_numbers, BYTES, st.binary(max_size=30)),
    st.binary(max_size=4).map(
        lambda inside: field(15, GROUP, field(1, BYTES, inside)) + field(15, END_GROUP, b"")
    ),
)
# Numbers of the contract under another wire type: unknown fields too, as far as protobuf goes.
mistyped = st.one_of(
    fields(st.integers(1, 11), FIXED32, st.binary(min_size=4, max_size=4)),
    fields(st.sampled_from([1, 2, 3, 4, 6, 9, 11]), VARINT, numbers),
    fields(st.sampled_from(NUMBERS), BYTES, st.binary(max_size=8)),
)


def joined(part: Fields, most: int) -> Fields:
    return st.lists(part, max_size=most).map(b"".join)


header_parts = st.one_of(
    fields(st.just(1), BYTES, texts), fields(st.just(2), BYTES, texts), unknown
)
headers = fields(
    st.just(HEADER),
    BYTES,
    st.one_of(
        st.builds(lambda k, v: field(1, BYTES, k) + field(2, BYTES, v), texts, texts),
        joined(header_parts, 4),
    ),
)
times = joined(
    st.one_of(fields(st.just(1), VARINT, numbers), fields(st.just(2), VARINT, numbers)), 3
)
known = st.one_of(
    fields(st.sampled_from(TEXTS), BYTES, texts),
    headers,
    fields(st.just(PAYLOAD), BYTES, payloads),
    fields(st.sampled_from(NUMBERS), VARINT, numbers),
    fields(st.just(DELIVER_AT), BYTES, times),
)
usual_order = st.builds(
    lambda *parts: b"".join(parts),
    fields(st.just(QUEUE), BYTES, texts),
    joined(headers, 3),
    fields(st.just(PAYLOAD), BYTES, payloads),
    joined(st.one_of(fields(st.sampled_from(TEXTS[1:]), BYTES, texts), unknown), 3),
)
requests = st.one_of(
    usual_order,
    joined(known, 6),
    joined(st.one_of(known, unknown, mistyped), 8),
    st.binary(max_size=12),
)
batches = joined(st.one_of(fields(st.just(1), BYTES, requests), unknown, mistyped), 4)


@st.composite
def cut(draw: st.DrawFn, encoded: Fields) -> bytes:
    whole = draw(encoded)
    return whole[: draw(st.integers(0, len(whole)))]


# --- The judge ------------------------------------------------------------------------------------


def check(encoded: bytes) -> None:
    """Hold the intake's view of an encoded batch to protobuf's."""
    try:
        batch = EnqueueBatchRequest.FromString(encoded)
    except DecodeError:
        with pytest.raises(DecodeError):
            drafts_of(encoded)
        return
    batch.DiscardUnknownFields()
    drafts = drafts_of(encoded)
    anew = Intake(LimitsConfig()).drafts(batch.SerializeToString())
    assert len(drafts) == len(anew) == len(batch.messages)
    for item, draft, same in zip(batch.messages, drafts, anew, strict=True):
        check_content(item, draft)
        assert draft[0] == item.queue
        assert terms_of(draft) == terms_of(same)


def check_content(item: EnqueueRequest, draft: Draft) -> None:
    """What will be stored and sent is the headers and the payload, and not a byte beside them."""
    content = EnqueueRequest(headers=item.headers, payload=item.payload)
    assert EnqueueRequest.FromString(draft[1]) == content
    assert len(draft[1]) == content.ByteSize()


def drafts_of(encoded: bytes) -> list[Draft]:
    """Return the drafts, which are the same whether the batch is cut or not."""
    whole = read(encoded)
    with patch.object(cuts, "BLOCK_BYTES", 8), patch.object(intake, "PIECE_ITEMS", 2):
        cut = read(encoded)
    assert list(map(told, cut)) == list(map(told, whole))
    return whole


def read(encoded: bytes) -> list[Draft]:
    batch = DraftBatch(remembering)
    parsed = [item for part in batch.read(encoded) for item in part.messages]
    drafts = [draft for piece, _ in batch for draft in piece]
    assert len(batch) == len(parsed) == len(drafts)
    return drafts


def told(draft: Draft) -> object:
    return draft[:2], terms_of(draft)


def terms_of(draft: Draft) -> object:
    return draft[2].message if isinstance(draft[2], InvalidArgument) else draft[2]


def one(*parts: bytes) -> bytes:
    return field(1, BYTES, b"".join(parts))


def header(key: bytes, value: bytes, hidden: bytes = b"") -> bytes:
    return field(HEADER, BYTES, field(1, BYTES, key) + field(2, BYTES, value) + hidden)


NAMED = field(QUEUE, BYTES, b"q")


@settings(max_examples=400)
@given(batches)
@example(one(NAMED, header(b"k", b"1"), header(b"k", b"2"), field(PAYLOAD, BYTES, b"p")))
@example(one(NAMED, header(b"k", b"v", field(3, BYTES, b"hidden" * 9))))
@example(one(NAMED, field(PAYLOAD, BYTES, b"first"), field(PAYLOAD, BYTES, b"second")))
@example(one(NAMED, field(PAYLOAD, BYTES, b"")))
@example(one(NAMED, field(PAYLOAD, BYTES, b"p", padding=3)))
@example(one(NAMED, field(QUEUE, BYTES, b"other"), field(PAYLOAD, BYTES, b"p")))
@example(one(field(PAYLOAD, BYTES, b"p"), header(b"k", b"v"), NAMED))
@example(one(NAMED, field(4, BYTES, b"acme"), field(15, BYTES, b"unknown")))
@example(one(field(PAYLOAD, BYTES, b"p"), field(9, VARINT, b"\0"), field(PAYLOAD, BYTES, b"")))
@example(one(NAMED, field(9, VARINT, b"\0"), field(QUEUE, BYTES, b"")))
# A header that some parsers see and others do not, as long as headers without values are short.
@example(
    one(
        *(field(HEADER, BYTES, field(1, BYTES, b"%d" % n)) for n in range(7)),
        header(b"tenant", b"x", field(3, VARINT, b"\1")),
    )
)
def test_what_protobuf_accepts_means_the_same_and_what_it_refuses_is_refused(
    encoded: bytes,
) -> None:
    check(encoded)


@settings(max_examples=150)
@given(cut(batches))
def test_a_batch_that_was_cut_is_read_as_protobuf_reads_it(encoded: bytes) -> None:
    check(encoded)


@settings(max_examples=150)
@given(requests)
def test_a_lone_request_is_a_batch_of_one(encoded: bytes) -> None:
    check(one(encoded))
    try:
        EnqueueRequest.FromString(encoded)
    except DecodeError:
        with pytest.raises(DecodeError):
            remembering.draft(encoded)
        return
    draft = remembering.draft(encoded)
    (same,) = drafts_of(one(encoded))
    assert told(draft) == told(same)
