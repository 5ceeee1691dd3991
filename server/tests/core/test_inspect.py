# SPDX-License-Identifier: AGPL-3.0-only
"""Looking at queues: the list, the stats, and paging through messages."""

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.errors import InvalidArgument, QueueNotFound
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


def test_the_list_counts_every_place(h: Harness) -> None:
    h.create("a")
    for _ in range(3):
        h.enqueue("q")
    h.enqueue("q", delay_ms=1000)
    h.receive("q")
    h.open("a")
    h.admin(pb.PauseRequest(queue="a"))
    rows = h.admin(pb.ListQueuesRequest()).queues
    assert [row.name for row in rows] == ["a", "a.dlq", "q", "q.dlq"]
    a, _, q, dlq = rows
    assert (q.depth, q.in_flight, q.delayed, q.active_consumers) == (2, 1, 1, 0)
    assert (a.active_consumers, a.paused, a.dead_letter_of) == (1, True, "")
    assert dlq.dead_letter_of == "q"


def test_stats_tell_what_happened(h: Harness) -> None:
    h.create("s", max_attempts=2)
    done, dead = h.enqueue("s", fairness_key="a"), h.enqueue("s", fairness_key="b", weight=4)
    h.enqueue("s", ttl_ms=1, fairness_key="c", delay_ms=500)
    h.enqueue("s", idempotency_key="k", fairness_key="c")
    h.enqueue("s", idempotency_key="k")
    h.receive("s", 2)
    assert h.ack("s", done) is None
    assert h.nack("s", dead) is None
    h.clock.advance(1)
    assert {message.id for message in h.receive("s", 5)} >= {dead}
    h.clock.advance(30)
    h.tick()
    stats = h.stats("s")
    counters = stats.counters
    assert (counters.enqueued, counters.delivered, counters.acked) == (4, 4, 1)
    assert (counters.nacked, counters.expired, counters.dead_lettered) == (1, 2, 1)
    assert (counters.timed_out, counters.duplicates) == (1, 1)
    assert (stats.depth, stats.in_flight, stats.delayed) == (1, 0, 0)
    assert stats.active_fairness_keys == 1
    with pytest.raises(QueueNotFound):
        h.stats("nobody")


def test_stats_list_the_busiest_keys(h: Harness) -> None:
    for key, count in (("few", 1), ("many", 5), ("some", 3)):
        for _ in range(count):
            h.enqueue("q", fairness_key=key, weight=count)
    rows = h.stats("q").per_key_stats
    assert [(row.key, row.pending_count, row.weight) for row in rows] == [
        ("many", 5, 5),
        ("some", 3, 3),
        ("few", 1, 1),
    ]
    response = h.admin(pb.GetStatsRequest(queue="q", max_keys=1))
    assert [row.key for row in response.per_key_stats] == ["many"]
    assert response.active_fairness_keys == 3


def test_the_age_of_the_oldest(h: Harness) -> None:
    assert h.stats("q").oldest_pending_age_ms == 0
    h.enqueue("q", delay_ms=60_000)
    h.enqueue("q", fairness_key="a")
    h.clock.advance(3)
    h.enqueue("q", fairness_key="b")
    assert h.stats("q").oldest_pending_age_ms == 3000
    h.restart()  # only the disk knows when it came
    assert h.stats("q").oldest_pending_age_ms == 3000
    h.clock.jump(-3600)
    assert h.stats("q").oldest_pending_age_ms == 0


def test_credit_of_open_streams(h: Harness) -> None:
    h.open("q", credit=10)
    h.open("q", credit=5)
    h.enqueue("q")
    assert h.stats("q").consumer_credit == 14


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
