# SPDX-License-Identifier: AGPL-3.0-only
"""Looking at messages without leasing them, page by page."""

from collections.abc import Iterator
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.core.commands import Admin
from fila_server.errors import InvalidArgument
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, S


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def peek(h: Harness, **fields: Any) -> pb.PeekResponse:
    response: pb.PeekResponse = h.admin(pb.PeekRequest(queue="q", **fields))
    return response


def ids(response: pb.PeekResponse) -> list[str]:
    return [row.message.id for row in response.messages]


def test_peek_shows_every_state_without_leasing(h: Harness) -> None:
    leased = h.enqueue("q", b"1", headers={"a": "b"}, fairness_key="k", weight=2)
    h.receive("q")
    delayed = h.enqueue("q", b"2", delay_ms=5000, ttl_ms=9000)
    pending = h.enqueue("q", b"3", throttle_keys=["mail"], throttle_cost=2)
    first, second, third = peek(h).messages
    assert [row.message.id for row in (first, second, third)] == [leased, delayed, pending]
    assert [row.state for row in (first, second, third)] == [
        pb.MESSAGE_STATE_LEASED,
        pb.MESSAGE_STATE_DELAYED,
        pb.MESSAGE_STATE_PENDING,
    ]
    wall_ns = h.clock.wall_ns
    assert first.message.timestamps.lease_expires_at.ToNanoseconds() == wall_ns + 30 * S
    assert first.message.metadata.lease_token == ""
    assert (first.message.metadata.weight, dict(first.message.headers)) == (2, {"a": "b"})
    assert second.message.timestamps.deliver_at.ToNanoseconds() == wall_ns + 5 * S
    assert second.message.timestamps.expires_at.ToNanoseconds() == wall_ns + 9 * S
    assert third.message.metadata.throttle_keys == ["mail"]
    assert third.message.metadata.throttle_cost == 2
    assert first.position < second.position < third.position
    assert h.stats("q").in_flight == 1
    assert all(row.message.payload == b"" for row in peek(h, exclude_payload=True).messages)


def test_peek_shows_attempts_and_errors(h: Harness) -> None:
    message_id = h.enqueue("q")
    h.receive("q")
    assert h.nack("q", message_id, error="boom") is None
    (row,) = peek(h).messages
    assert (row.message.metadata.attempt_count, row.message.metadata.last_error) == (1, "boom")


def test_peek_filters(h: Harness) -> None:
    a = [h.enqueue("q", fairness_key="a") for _ in range(2)]
    b = h.enqueue("q", fairness_key="b", delay_ms=1000)
    assert ids(peek(h, fairness_key="a")) == a
    assert ids(peek(h, state=pb.MESSAGE_STATE_DELAYED)) == [b]
    assert ids(peek(h, state=pb.MESSAGE_STATE_LEASED)) == []
    assert ids(peek(h, fairness_key="b", state=pb.MESSAGE_STATE_PENDING)) == []


def test_peek_pages(h: Harness) -> None:
    made = [h.enqueue("q") for _ in range(25)]
    assert ids(peek(h)) == made[:10]
    seen: list[str] = []
    position = 0
    until = peek(h, limit=1).end_position
    made_later = h.enqueue("q")
    while True:
        page = peek(h, limit=7, from_position=position, until_position=until)
        seen += ids(page)
        position = page.next_position
        if not position:
            break
    assert seen == made and made_later not in seen
    assert ids(peek(h, from_position=until)) == [made_later]
    assert ids(peek(h, limit=1000)) == [*made, made_later]
    assert ids(peek(h, from_position=2**64 - 1, until_position=2**64 - 1)) == []


def test_peek_stays_below_the_size_of_a_frame(h: Harness) -> None:
    made = [h.enqueue("q", bytes(1024 * 1024)) for _ in range(8)]
    seen: list[str] = []
    position = 0
    while True:
        page = peek(h, limit=1000, from_position=position)
        assert 0 < page.ByteSize() < 5 * 1024 * 1024
        seen += ids(page)
        position = page.next_position
        if not position:
            break
    assert seen == made


def test_peek_refuses_what_it_cannot_do(h: Harness) -> None:
    with pytest.raises(InvalidArgument, match="limit 1001 is above 1000"):
        peek(h, limit=1001)
    with pytest.raises(InvalidArgument, match="state 99"):
        peek(h, state=99)


def test_a_message_whose_life_just_ended_is_not_shown(h: Harness) -> None:
    h.enqueue("q", ttl_ms=1000)
    h.clock.advance(1)
    assert ids(peek(h)) == []


@pytest.mark.parametrize("fairness_key", ["", "nobody"])
def test_large_messages_are_read_a_few_at_a_time(
    h: Harness, monkeypatch: pytest.MonkeyPatch, fairness_key: str
) -> None:
    """A hundred of the largest would be three hundred megabytes, in one turn."""
    for _ in range(60):
        h.enqueue("q", bytes(100_000))
    scan = h.storage.scan
    sizes = [0]

    def counted(column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in scan(column, start, end):
            sizes[-1] += len(value)
            yield key, value

    monkeypatch.setattr(h.storage, "scan", counted)
    h.units.clear()
    effects = h.turn(Admin(0, pb.PeekRequest(queue="q", limit=100, fairness_key=fairness_key)))
    while effects.more:
        sizes.append(0)
        effects = h.turn()
    assert sum(sizes) > 3_000_000 and max(sizes) < 1_500_000
    assert sum(h.units) * 1024 > 3_000_000
