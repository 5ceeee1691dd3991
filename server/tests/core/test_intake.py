# SPDX-License-Identifier: AGPL-3.0-only
"""Requests taken apart by hand say the same as protobuf says."""

import hypothesis.strategies as st
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings

from fila.v1.service_pb2 import EnqueueBatchRequest, EnqueueRequest
from fila_server.config import LimitsConfig
from fila_server.core.wire.cuts import DraftBatch
from fila_server.core.wire.intake import Draft, Intake, Terms
from fila_server.core.wire.varint import varint
from fila_server.errors import InvalidArgument, MessageTooLarge

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
requests = st.builds(
    EnqueueRequest,
    queue=texts,
    headers=st.dictionaries(texts, texts, max_size=4),
    payload=st.one_of(st.binary(max_size=300), st.just(b"y" * 20_000)),
    fairness_key=texts,
    weight=st.integers(0, 1000),
    throttle_keys=st.lists(texts.filter(bool), max_size=3),
    throttle_cost=st.integers(0, 1000),
    delay_ms=st.sampled_from([0, 1, 5000]),
    ttl_ms=st.sampled_from([0, 7]),
    idempotency_key=texts,
)


def intake() -> Intake:
    return Intake(LimitsConfig())


def terms_of(draft: Draft) -> Terms:
    assert isinstance(draft[2], Terms), draft[2]
    return draft[2]


@settings(deadline=None)
@given(st.lists(requests, max_size=5))
def test_drafts_hold_what_the_requests_say(items: list[EnqueueRequest]) -> None:
    taken = intake()
    for number in range(3):  # the second time from what it remembers, then with all forgotten
        if number == 2:
            taken._known.clear()
        drafts = taken.drafts(EnqueueBatchRequest(messages=items).SerializeToString())
        assert len(drafts) == len(items)
        for item, draft in zip(items, drafts, strict=True):
            queue, content, _ = draft
            parsed = EnqueueRequest.FromString(content)
            assert queue == item.queue
            assert (parsed.headers, parsed.payload) == (item.headers, item.payload)
            assert EnqueueRequest(headers=parsed.headers, payload=parsed.payload) == parsed
            terms = terms_of(draft)
            assert terms.fairness_key == (item.fairness_key or "default")
            assert terms.weight == item.weight
            assert terms.lane_key[0] == tuple(sorted(set(item.throttle_keys)))
            assert terms.lane_key[1] == ((item.throttle_cost or 1) if item.throttle_keys else 1)
            assert (terms.delay_ms, terms.ttl_ms) == (item.delay_ms, item.ttl_ms)
            assert terms.idempotency_key == item.idempotency_key
            assert terms.has_times == bool(item.delay_ms or item.ttl_ms)


def field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2, len(content))) + content


@pytest.mark.parametrize("order", [(3, 1, 4), (4, 3, 1), (1, 4, 3), (4, 1, 3), (3, 4, 1)])
def test_fields_in_any_order_mean_the_same(order: tuple[int, ...]) -> None:
    parts = {1: b"orders", 3: b"payload", 4: b"acme"}
    encoded = b"".join(field(number, parts[number]) for number in order)
    (queue, content, terms) = intake().draft(encoded)
    assert queue == "orders"
    assert EnqueueRequest.FromString(content).payload == b"payload"
    assert isinstance(terms, Terms) and terms.fairness_key == "acme"


def test_unknown_fields_are_left_out() -> None:
    encoded = EnqueueRequest(queue="q", payload=b"p").SerializeToString() + field(15, b"zz")
    (_, content, _) = intake().draft(encoded)
    assert content == field(3, b"p")


def test_the_queue_of_one_item_does_not_leak_into_the_next() -> None:
    batch = EnqueueBatchRequest(
        messages=[EnqueueRequest(queue="a"), EnqueueRequest(), EnqueueRequest(queue="b")]
    )
    assert [draft[0] for draft in intake().drafts(batch.SerializeToString())] == ["a", "", "b"]


@pytest.mark.parametrize("encoded", [b"\n\x05abc", b"\n\x03\n\x01\xff", b"\xff", b"\n\xff\xff"])
def test_what_is_not_a_request_is_refused(encoded: bytes) -> None:
    with pytest.raises(DecodeError):
        list(DraftBatch(intake()).read(encoded))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"weight": 1001}, "weight 1001"),
        ({"throttle_cost": 1_000_001, "throttle_keys": ["k"]}, "throttle_cost 1000001"),
        ({"fairness_key": "k" * 300}, 'fairness_key "kkk'),
        ({"throttle_keys": [""]}, 'throttle_keys ""'),
        ({"throttle_keys": [f"k{n}" for n in range(99)]}, "99 throttle_keys"),
        ({"idempotency_key": "k" * 5000}, "idempotency_key has 5000 bytes"),
        ({"delay_ms": 1, "deliver_at": {"seconds": 5}}, "exclude each other"),
        ({"deliver_at": {"seconds": 10**14}}, "deliver_at of 100000000000000 s"),
    ],
)
def test_terms_out_of_range_are_named(wrong: dict[str, object], named: str) -> None:
    request = EnqueueRequest(queue="q", **wrong)  # type: ignore[arg-type]
    (_, _, terms) = intake().draft(request.SerializeToString())
    assert isinstance(terms, InvalidArgument)
    assert named in terms.message


def test_what_is_remembered_stays_bounded() -> None:
    taken = intake()
    for number in range(10_000):
        taken.draft(EnqueueRequest(queue="q", fairness_key=f"k{number}").SerializeToString())
    assert len(taken._known) <= 4096
    # What everybody knows is forgotten with the rest, and found again.
    assert terms_of(taken.draft(EnqueueRequest(queue="q").SerializeToString())) == Terms()


def test_terms_that_few_will_repeat_are_not_remembered() -> None:
    """Bytes, not only entries, are bounded: unknown fields may be as large as a request."""
    taken = intake()
    for number in range(50):
        junk = number.to_bytes(4, "big") + bytes(1 << 18)
        unknown = varint(1000 << 3 | 2) + varint(len(junk)) + junk
        taken.draft(EnqueueRequest(queue="q", payload=b"x").SerializeToString() + unknown)
        taken.draft(EnqueueRequest(queue="q", idempotency_key=f"k{number}").SerializeToString())
    assert sum(len(encoded) for encoded in taken._known) < 100_000


# --- Sizes ----------------------------------------------------------------------------------------


def header(name: bytes, value: bytes) -> bytes:
    entry = field(1, name) + field(2, value)
    return b"\x12" + varint(len(entry)) + entry


def refused(encoded: bytes) -> str:
    (_, _, terms) = intake().draft(encoded)
    assert isinstance(terms, MessageTooLarge), terms
    return terms.message


def test_a_header_that_is_repeated_is_stored_once() -> None:
    """On the wire a map is a list; its decoder keeps the last of each name."""
    repeated = header(b"a", b"v" * 100) * 10_000 + header(b"a", b"last")
    (_, content, terms) = intake().draft(field(1, b"q") + repeated + field(3, b"x"))
    assert isinstance(terms, Terms)
    assert content == header(b"a", b"last") + field(3, b"x")


@pytest.mark.parametrize("order", ["usual", "payload first"])
def test_limits_hold_in_any_order_of_fields(order: str) -> None:
    limits = LimitsConfig()
    many = b"".join(header(b"h%d" % number, b"") for number in range(limits.max_headers + 1))
    parts = [field(1, b"q"), many, field(3, b"x")]
    if order == "payload first":
        parts.reverse()
    assert f"{limits.max_headers + 1} headers" in refused(b"".join(parts))
    payload = bytes(limits.max_payload_bytes + 1)
    assert "payload has" in refused(EnqueueRequest(queue="q", payload=payload).SerializeToString())


def test_just_as_large_as_it_may_be() -> None:
    limits = LimitsConfig()
    count = limits.max_headers
    size = limits.max_header_bytes // count
    headers = {f"{number:04d}": "v" * (size - 4) for number in range(count)}
    request = EnqueueRequest(queue="q", headers=headers, payload=bytes(limits.max_payload_bytes))
    (_, _, terms) = intake().draft(request.SerializeToString())
    assert isinstance(terms, Terms)
    request.headers["0000"] += "v" * (limits.max_header_bytes - size * count + 1)
    assert "headers have" in refused(request.SerializeToString())
