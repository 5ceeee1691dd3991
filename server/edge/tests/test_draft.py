# SPDX-License-Identifier: AGPL-3.0-only
"""The cutter against protobuf: what it takes apart says the same, and it never guesses."""

from __future__ import annotations

from typing import Any

import fila_edge
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from fila.v1.service_pb2 import EnqueueRequest
from fila_server.config import LimitsConfig
from fila_server.core.wire.intake import Intake, Terms

U32, U64 = 2**32 - 1, 2**64 - 1
TEXTS = st.text(max_size=5) | st.sampled_from(["", "q", "tenant", "é", "x" * 130])


@st.composite
def requests(draw: st.DrawFn) -> EnqueueRequest:
    """A request with any of its fields."""
    request = EnqueueRequest(
        queue=draw(TEXTS),
        headers=draw(st.dictionaries(TEXTS, TEXTS, max_size=3)),
        payload=draw(st.binary(max_size=20) | st.just(bytes(300))),
        fairness_key=draw(TEXTS),
        weight=draw(st.integers(0, U32)),
        throttle_keys=draw(st.lists(TEXTS, max_size=4)),
        throttle_cost=draw(st.integers(0, U32)),
        delay_ms=draw(st.integers(0, U64)),
        ttl_ms=draw(st.integers(0, U64)),
        idempotency_key=draw(TEXTS),
    )
    if draw(st.booleans()):
        request.deliver_at.seconds = draw(st.integers(-(2**63), 2**63 - 1))
        request.deliver_at.nanos = draw(st.integers(-(2**31), 2**31 - 1))
    return request


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request's bytes, some of them changed, cut out or doubled."""
    raw = bytearray(draw(requests()).SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        end = min(len(raw), at + draw(st.integers(0, 8)))
        raw[at:end] = draw(st.binary(max_size=4) | st.just(bytes(raw[at:end] * 2)))
    return bytes(raw)


def whole(row: tuple[Any, ...]) -> EnqueueRequest:
    """Put a request together again."""
    queue, content, terms, payload_bytes, headers, header_bytes = row
    found = EnqueueRequest.FromString(content + terms)
    assert (len(found.payload), len(found.headers)) == (payload_bytes, headers)
    kept = EnqueueRequest.FromString(content[:header_bytes])
    assert kept == EnqueueRequest(headers=found.headers)
    assert EnqueueRequest.FromString(content) == EnqueueRequest(
        headers=found.headers, payload=found.payload
    )
    found.queue = queue
    return found


@given(requests())
def test_what_protobuf_writes_is_cut(request: EnqueueRequest) -> None:
    row = fila_edge.draft(request.SerializeToString())
    assert row is not None
    assert whole(row) == request


@given(damaged() | st.binary(max_size=60))
@example(b"\x12\x08\x0a\x01k\x12\x01v\x18\x01")
@example(b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02")
def test_what_is_cut_is_what_protobuf_would_write_again(raw: bytes) -> None:
    row = fila_edge.draft(raw)
    if row is None:
        return
    request = EnqueueRequest.FromString(raw)
    assert whole(row) == request
    again = request.SerializeToString()
    assert len(again) == len(raw)
    if len(request.headers) < 2:  # their order is protobuf's own
        assert again == raw


def drafted(intake: Intake, raw: bytes) -> tuple[Any, ...]:
    """What the broker makes of a request; errors by what they say."""
    try:
        queue, content, terms = intake.draft(raw)
    except DecodeError:
        return ("no request",)
    said = terms if isinstance(terms, Terms) else (terms.reason, terms.message)
    return queue, EnqueueRequest.FromString(content), said


@given(requests().map(EnqueueRequest.SerializeToString) | damaged(), st.integers(0, 400))
def test_the_broker_makes_the_same_of_a_request_with_and_without_it(raw: bytes, most: int) -> None:
    limits = LimitsConfig(max_payload_bytes=max(1, most), max_headers=2, max_header_bytes=100)
    assert drafted(Intake(limits, fila_edge.draft), raw) == drafted(Intake(limits), raw)
