# SPDX-License-Identifier: AGPL-3.0-only
"""Enqueueing: times, limits, and what memory keeps of a message.

What a request may hold is tested at the wire, in rpc/test_statuses.py.
"""

import uuid

import pytest

from fila_server.config import LuaConfig
from fila_server.errors import InvalidArgument, MessageTooLarge, QueueFull, QueueNotFound
from fila_server.runtime.hooks import compile_hooks
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, S, check_consistent

DAY_S = 86_400


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def test_an_id_is_a_uuid_with_the_time_in_front(h: Harness) -> None:
    first = uuid.UUID(h.enqueue("q"))
    assert (first.version, first.variant) == (7, uuid.RFC_4122)
    assert first.int >> 80 == h.clock.wall_ns // 1_000_000
    h.clock.advance(1)
    assert uuid.UUID(h.enqueue("q")).int > first.int


def test_ids_grow_although_the_wall_clock_steps_back(h: Harness) -> None:
    first = h.enqueue("q")
    h.clock.jump(-DAY_S)
    assert h.enqueue("q") > first


def test_fifo_does_not_depend_on_the_wall_clock(h: Harness) -> None:
    ids = []
    for step in (0, -3600, 7200, -DAY_S):
        h.clock.jump(step)
        ids.append(h.enqueue("q"))
    assert [message.id for message in h.receive("q", 10)] == ids


def test_unknown_and_unnamed_queue(h: Harness) -> None:
    with pytest.raises(QueueNotFound, match='queue "nobody" does not exist'):
        h.enqueue("nobody")
    with pytest.raises(InvalidArgument, match="queue must not be empty"):
        h.enqueue("")


def test_refused_items_leave_no_trace(h: Harness) -> None:
    before = len(list(h.storage.scan(Column.MESSAGES, b"", b"\xff" * 9)))
    for fields in (
        {"weight": 1001},
        {"fairness_key": "k" * 257},
        {"delay_ms": 400 * DAY_S * 1000},
        {"ttl_ms": 5000 * DAY_S * 1000},
        {"idempotency_key": "i" * 257},
        {"throttle_keys": [""]},
    ):
        with pytest.raises(InvalidArgument):
            h.enqueue("q", **fields)
    with pytest.raises(MessageTooLarge):
        h.enqueue("q", headers={str(n): "" for n in range(257)})
    assert len(list(h.storage.scan(Column.MESSAGES, b"", b"\xff" * 9))) == before
    assert h.stats("q").counters.enqueued == 0
    check_consistent(h)


def test_a_delayed_message_comes_when_its_time_has_come(h: Harness) -> None:
    message_id = h.enqueue("q", delay_ms=5000)
    assert h.stats("q").delayed == 1
    h.clock.advance(4.999)
    assert h.receive("q") == []
    h.clock.advance(0.001)
    assert [message.id for message in h.receive("q")] == [message_id]


def test_deliver_at_is_a_delay_too_and_a_past_one_is_none(h: Harness) -> None:
    late = h.enqueue("q", deliver_at={"seconds": h.clock.wall_ns // S + 10})
    now = h.enqueue("q", deliver_at={"seconds": 1})
    assert [message.id for message in h.receive("q", 5)] == [now]
    h.clock.advance(10)
    assert [message.id for message in h.receive("q", 5)] == [late]


def test_a_delay_runs_on_the_monotonic_clock(h: Harness) -> None:
    h.enqueue("q", delay_ms=5000)
    h.clock.jump(DAY_S)
    assert h.receive("q") == []
    h.clock.jump(-2 * DAY_S)
    h.clock.advance(5)
    assert len(h.receive("q")) == 1


def test_delayed_messages_keep_the_order_of_their_enqueues(h: Harness) -> None:
    ids = [h.enqueue("q", delay_ms=1000) for _ in range(3)]
    between = h.enqueue("q")
    h.clock.advance(1)
    assert [message.id for message in h.receive("q", 5)] == [*ids, between]


def test_a_message_is_dropped_at_its_end_of_life(h: Harness) -> None:
    h.enqueue("q", ttl_ms=1000)
    kept = h.enqueue("q", ttl_ms=5000)
    h.enqueue("q", ttl_ms=1000, delay_ms=3000)  # dies before its time comes
    h.clock.advance(1)
    assert [message.id for message in h.receive("q", 5)] == [kept]
    stats = h.stats("q")
    assert (stats.depth, stats.delayed, stats.counters.timed_out) == (0, 0, 2)
    check_consistent(h)


def test_the_queue_gives_messages_a_time_to_live(h: Harness) -> None:
    h.create("mortal", default_ttl_ms=1000)
    h.enqueue("mortal")
    h.enqueue("mortal", ttl_ms=9000)
    h.clock.advance(1)
    h.tick()
    assert h.stats("mortal").depth == 1


def test_a_leased_message_outlives_its_time_until_it_fails(h: Harness) -> None:
    acked, nacked = h.enqueue("q", ttl_ms=1000), h.enqueue("q", ttl_ms=1000)
    assert len(h.receive("q", 2)) == 2
    h.clock.advance(2)
    h.tick()
    assert h.stats("q").in_flight == 2
    assert h.ack("q", acked) is None
    assert h.nack("q", nacked) is None
    stats = h.stats("q")
    assert (stats.depth, stats.in_flight, stats.counters.timed_out) == (0, 0, 1)
    check_consistent(h)


def test_a_wall_clock_that_steps_ends_no_life(h: Harness) -> None:
    message_id = h.enqueue("q", ttl_ms=10_000)
    h.receive("q")
    h.clock.jump(DAY_S)
    assert h.nack("q", message_id) is None
    assert h.stats("q").depth == 1
    h.receive("q")
    h.clock.jump(-2 * DAY_S)
    h.clock.advance(10)
    assert h.nack("q", message_id) is None
    assert h.stats("q").depth == 0


def test_a_full_queue_refuses_until_there_is_room(h: Harness) -> None:
    h.create("small", max_messages=3)
    h.enqueue("small")
    h.enqueue("small", delay_ms=1000)
    h.enqueue("small")
    (leased,) = h.receive("small")
    with pytest.raises(QueueFull, match='queue "small" holds 3 messages, its maximum'):
        h.enqueue("small")
    assert h.ack("small", leased.id) is None
    h.enqueue("small")


def test_memory_keeps_the_numbers_only_of_a_large_backlog() -> None:
    h = Harness(hot_bytes=1000)
    h.create("q")
    ids = [h.enqueue("q", bytes(200)) for _ in range(50)]
    (lane,) = h.broker.state.queues["q"].keys["default"].lanes.values()
    hot = [content for _, content in lane.fifo if content is not None]
    assert 3 < len(hot) < 10
    assert h.broker.state.places.hot_bytes < 2000
    received = h.receive("q", 50)
    assert [message.id for message in received] == ids
    assert all(message.payload == bytes(200) for message in received)
    assert h.broker.state.places.hot_bytes == 0
    check_consistent(h)


# --- Hooks ----------------------------------------------------------------------------------------


def test_a_hook_that_leaves_the_weight_out_gives_one() -> None:
    """Not what an earlier message had."""
    script = """
    function on_enqueue(msg)
        return { fairness_key = "k", weight = tonumber(msg.headers.weight) }
    end
    """
    h = Harness(compile_hooks=compile_hooks(LuaConfig()))
    h.create("q", on_enqueue_script=script)
    for weight in (5, None, 3):
        h.enqueue("q", headers={} if weight is None else {"weight": str(weight)}, weight=9)
        (row,) = h.stats("q").per_key_stats
        assert row.weight == (weight or 1)
        check_consistent(h)
    h.set("weight:q:k", "7")  # wins over all
    h.enqueue("q", headers={"weight": "2"})
    (row,) = h.stats("q").per_key_stats
    assert row.weight == 7


def test_a_queue_cannot_have_more_of_the_only_thread_than_the_broker_allows() -> None:
    h = Harness(compile_hooks=compile_hooks(LuaConfig()))
    script = "function on_enqueue(m) return {} end"
    with pytest.raises(InvalidArgument, match="hook_timeout_ms 10000"):
        h.create("q", hook_timeout_ms=10_000, on_enqueue_script=script)
    assert not h.broker.state.queues
