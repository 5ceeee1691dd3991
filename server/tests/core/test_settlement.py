# SPDX-License-Identifier: AGPL-3.0-only
"""Settling: acks are final, tokens fence, failures count, leases end on time."""

from typing import Any

import pytest

from fila.v1.service_pb2 import AckRequest, LeaseExtension, NackRequest
from fila_server.core.commands import Ack, CloseConsumer, Extend, FrameTaken, Nack
from fila_server.errors import (
    FilaError,
    InvalidArgument,
    LeaseExpired,
    MessageNotFound,
    QueueNotFound,
)
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, S, check_consistent

HOUR_S = 3600


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def leased(h: Harness, queue: str = "q", **fields: Any) -> tuple[str, str]:
    """Enqueue a message and lease it; return its id and token."""
    message_id = h.enqueue(queue, **fields)
    (message,) = h.receive(queue)
    assert message.id == message_id
    return message_id, message.metadata.lease_token


def rows(h: Harness, column: Column) -> int:
    return len(list(h.storage.scan(column, b"", b"\xff" * 13)))


# --- Ack ------------------------------------------------------------------------------------------


def test_an_ack_is_final(h: Harness) -> None:
    message_id, token = leased(h)
    assert h.ack("q", message_id, token) is None
    for again in ("", token):
        assert isinstance(h.ack("q", message_id, again), MessageNotFound)
    h.clock.advance(HOUR_S)
    h.restart()
    assert h.receive("q", 10) == []
    assert rows(h, Column.MESSAGES) == rows(h, Column.LEASES) == rows(h, Column.RETRIES) == 0


def test_an_ack_needs_no_token(h: Harness) -> None:
    message_id, _ = leased(h)
    assert h.ack("q", message_id) is None


def test_the_same_ack_twice_in_a_batch_succeeds_once(h: Harness) -> None:
    message_id, token = leased(h)
    item = AckRequest(queue="q", message_id=message_id, lease_token=token)
    (results,) = h.run(Ack(0, [item, item]))
    assert results[0] is None and isinstance(results[1], MessageNotFound)


def test_settling_what_is_not_leased(h: Harness) -> None:
    message_id = h.enqueue("q")
    for settle in (h.ack, h.nack, h.extend):
        assert isinstance(settle("q", message_id), MessageNotFound)
        assert isinstance(settle("q", message_id, "1"), LeaseExpired)
        assert isinstance(settle("q", "nonsense", "1"), MessageNotFound)
        assert isinstance(settle("q", ""), InvalidArgument)
        assert isinstance(settle("nobody", message_id), QueueNotFound)
        assert isinstance(settle("", message_id), InvalidArgument)


# --- Tokens ---------------------------------------------------------------------------------------


def test_only_the_newest_token_settles(h: Harness) -> None:
    message_id, old = leased(h)
    assert h.nack("q", message_id) is None
    (message,) = h.receive("q")
    for settle in (h.ack, h.nack, h.extend):
        assert isinstance(settle("q", message_id, old), LeaseExpired)
    assert h.ack("q", message_id, message.metadata.lease_token) is None


def test_tokens_never_repeat_across_restarts(h: Harness) -> None:
    tokens = set()
    for _ in range(5):
        message_id, token = leased(h)
        tokens.add(token)
        assert h.ack("q", message_id, token) is None
        h.restart()
    assert len(tokens) == 5


def test_a_token_outlives_a_restart(h: Harness) -> None:
    message_id, token = leased(h)
    h.restart()
    assert isinstance(h.ack("q", message_id, "0"), LeaseExpired)
    assert h.ack("q", message_id, token) is None


# --- Nack -----------------------------------------------------------------------------------------


def test_a_nack_counts_an_attempt_and_keeps_the_error(h: Harness) -> None:
    message_id, _ = leased(h)
    for attempt in (1, 2, 3):
        assert h.nack("q", message_id, error=f"failure {attempt}") is None
        (message,) = h.receive("q")
        assert message.metadata.attempt_count == attempt
        assert message.metadata.last_error == f"failure {attempt}"
    assert h.stats("q").counters.nacked == 3
    check_consistent(h)


def test_a_failed_message_waits_behind_the_others(h: Harness) -> None:
    message_id, _ = leased(h)
    other = h.enqueue("q")
    assert h.nack("q", message_id) is None
    assert [message.id for message in h.receive("q", 5)] == [other, message_id]


def test_errors_are_cut_at_a_whole_character(h: Harness) -> None:
    message_id, _ = leased(h)
    changes: list[dict[str, Any]] = [{}, {"retry_after_ms": 0}]
    for fields in changes:
        assert h.nack("q", message_id, error="€" * 5000, **fields) is None
        (message,) = h.receive("q")
        assert message.metadata.last_error == "€" * 1365  # 4095 of 4096 bytes


def test_a_retry_delay_doubles_up_to_its_maximum(h: Harness) -> None:
    h.create("slow", retry_delay_ms=1000, retry_delay_max_ms=3000)
    message_id, _ = leased(h, "slow")
    for wait_s in (1, 2, 3, 3):
        assert h.nack("slow", message_id) is None
        h.clock.advance(wait_s - 0.001)
        assert h.receive("slow") == []
        h.clock.advance(0.001)
        assert len(h.receive("slow")) == 1
    check_consistent(h)


def test_a_retry_delay_never_grows_beyond_an_hour_by_itself(h: Harness) -> None:
    h.create("slow", retry_delay_ms=1000)
    message_id, _ = leased(h, "slow")
    for _ in range(70):  # far beyond what a doubling could be stored as
        assert h.nack("slow", message_id) is None
        h.clock.advance(HOUR_S)
        assert len(h.receive("slow")) == 1


def test_a_delayed_retry_survives_a_restart(h: Harness) -> None:
    h.create("slow", retry_delay_ms=10_000)
    message_id, _ = leased(h, "slow")
    assert h.nack("slow", message_id, error="late") is None
    h.restart()
    h.clock.advance(9.9)
    assert h.receive("slow") == []
    h.clock.advance(0.1)
    (message,) = h.receive("slow")
    assert (message.metadata.attempt_count, message.metadata.last_error) == (1, "late")


# --- Backpressure ---------------------------------------------------------------------------------


def test_backpressure_counts_no_attempt(h: Harness) -> None:
    message_id, _ = leased(h)
    assert h.nack("q", message_id, retry_after_ms=2000, error="busy") is None
    assert h.receive("q") == []
    h.clock.advance(2)
    (message,) = h.receive("q")
    assert (message.metadata.attempt_count, message.metadata.last_error) == (0, "busy")


def test_what_is_given_back_unseen_returns_to_its_place(h: Harness) -> None:
    """A worker that stops gives back what it has not looked at, and nobody waits for it longer."""
    ids = h.enqueue_many("q", 6)
    first, *unseen = h.receive("q", 3)
    assert h.ack("q", first.id) is None
    for message in unseen:
        token = message.metadata.lease_token
        assert h.nack("q", message.id, token, retry_after_ms=0) is None
        check_consistent(h)
        assert isinstance(h.ack("q", message.id, token), LeaseExpired)
    h.restart()
    assert [message.id for message in h.receive("q", 9)] == ids[1:]
    assert rows(h, Column.RETRIES) == 0


def test_a_part_of_a_frame_that_is_given_back_leaves_the_rest_leased(h: Harness) -> None:
    ids = h.enqueue_many("q", 4)
    assert len(h.receive("q", 4)) == 4
    items = [NackRequest(queue="q", message_id=it, retry_after_ms=0) for it in ids[1:3]]
    (results,) = h.run(Nack(0, items))
    assert results == [None, None]
    check_consistent(h)
    h.restart()
    check_consistent(h)
    assert h.stats("q").in_flight == 2
    assert [message.id for message in h.receive("q", 9)] == ids[1:3]


def test_backpressure_never_dead_letters(h: Harness) -> None:
    h.create("strict", max_attempts=1)
    message_id, _ = leased(h, "strict")
    for _ in range(3):
        assert h.nack("strict", message_id, retry_after_ms=0) is None
        assert len(h.receive("strict")) == 1
    assert h.stats("strict.dlq").depth == 0


def test_backpressure_rests_a_throttle_key_for_everybody(h: Harness) -> None:
    message_id, _ = leased(h, throttle_keys=["mail"])
    h.enqueue("q", throttle_keys=["mail"])
    free = h.enqueue("q")
    assert h.nack("q", message_id, retry_after_ms=5000, throttle_key="mail") is None
    assert [message.id for message in h.receive("q", 5)] == [free]
    h.restart()
    assert h.receive("q", 5) == []
    h.clock.advance(5)
    assert len(h.receive("q", 5)) == 2
    check_consistent(h)


@pytest.mark.parametrize(
    "fields",
    [{"retry_after_ms": 400 * 24 * HOUR_S * 1000}, {"retry_after_ms": 1, "throttle_key": "sms"}],
)
def test_refused_backpressure_changes_nothing(h: Harness, fields: dict[str, Any]) -> None:
    message_id, token = leased(h, throttle_keys=["mail"])
    assert isinstance(h.nack("q", message_id, **fields), InvalidArgument)
    assert h.ack("q", message_id, token) is None
    check_consistent(h)


# --- Expiry ---------------------------------------------------------------------------------------


def test_a_lease_ends_on_time_and_counts_an_attempt(h: Harness) -> None:
    message_id, token = leased(h)
    h.clock.advance(29.999)
    assert h.receive("q") == []
    h.clock.advance(0.001)
    (message,) = h.receive("q")
    assert message.id == message_id
    assert (message.metadata.attempt_count, message.metadata.last_error) == (1, "lease expired")
    assert isinstance(h.ack("q", message_id, token), LeaseExpired)
    assert h.stats("q").counters.expired == 1


def test_leases_end_under_load_too(h: Harness) -> None:
    message_id, _ = leased(h)
    for _ in range(31):
        h.clock.advance(1)
        h.enqueue("q")
    assert message_id in {message.id for message in h.receive("q", 100)}


def test_a_lease_runs_on_the_monotonic_clock(h: Harness) -> None:
    leased(h)
    h.clock.jump(24 * HOUR_S)
    assert h.receive("q") == []
    h.clock.jump(-48 * HOUR_S)
    h.clock.advance(30)
    assert len(h.receive("q")) == 1


def test_the_queue_the_stream_and_the_broker_set_the_time(h: Harness) -> None:
    h.create("brief", visibility_timeout_ms=2000)
    for queue, visibility_ms, seconds in (("q", 0, 30), ("brief", 0, 2), ("brief", 7000, 7)):
        h.enqueue(queue)
        (message,) = h.receive(queue, visibility_ms=visibility_ms)
        times = message.timestamps
        lease_ns = times.lease_expires_at.ToNanoseconds() - times.leased_at.ToNanoseconds()
        assert lease_ns == seconds * S
        assert h.ack(queue, message.id) is None


# --- Extension ------------------------------------------------------------------------------------


def test_an_extension_counts_from_now(h: Harness) -> None:
    message_id, token = leased(h)
    h.clock.advance(20)
    assert h.extend("q", message_id, token, 60_000) == h.clock.wall_ns + 60 * S
    h.clock.advance(59.9)
    assert h.receive("q") == []
    h.clock.advance(0.1)
    assert len(h.receive("q")) == 1


def test_an_extension_may_shorten_a_lease_and_defaults_to_the_queues_time(h: Harness) -> None:
    message_id, token = leased(h)
    assert h.extend("q", message_id, token, 1000) == h.clock.wall_ns + S
    assert h.extend("q", message_id, token) == h.clock.wall_ns + 30 * S
    assert isinstance(h.extend("q", message_id, token, 12 * HOUR_S * 1000 + 1), InvalidArgument)
    h.clock.advance(29)
    assert h.ack("q", message_id, token) is None
    assert rows(h, Column.LEASES) == 0


def test_an_extended_lease_survives_a_restart(h: Harness) -> None:
    message_id, token = leased(h)
    h.extend("q", message_id, token, 600_000)
    h.restart()
    h.clock.advance(599)
    assert h.receive("q") == []
    assert h.ack("q", message_id, token) is None


def test_a_message_named_twice_in_a_batch_gets_the_last_extension(h: Harness) -> None:
    ids = [h.enqueue("q") for _ in range(2)]
    assert len(h.receive("q", 2)) == 2
    items = [
        LeaseExtension(queue="q", message_id=message_id, extend_ms=ms)
        for message_id, ms in ((ids[0], 1000), (ids[0], 2000), (ids[1], 2000), (ids[1], 1000))
    ]
    (results,) = h.run(Extend(0, items))
    assert not any(isinstance(result, FilaError) for result in results)
    assert rows(h, Column.LEASES) == 2
    check_consistent(h)
    h.clock.advance(1)
    assert [message.id for message in h.receive("q", 5)] == [ids[1]]
    h.clock.advance(1)
    assert [message.id for message in h.receive("q", 5)] == [ids[0]]
    for message_id in ids:
        assert h.ack("q", message_id) is None
    assert rows(h, Column.LEASES) == 0


# --- Consumers ------------------------------------------------------------------------------------


def test_credit_bounds_what_a_stream_holds_and_comes_back(h: Harness) -> None:
    consumer = h.open("q", credit=3, batch=10)
    ids = [h.enqueue("q") for _ in range(8)]
    assert [message.id for message in h.take()] == ids[:3]
    assert h.broker.state.consumers[consumer].credit == 0
    assert h.ack("q", ids[0]) is None
    assert [message.id for message in h.take()] == [ids[3]]
    assert h.nack("q", ids[1]) is None
    assert [message.id for message in h.take()] == [ids[4]]
    h.clock.advance(30)
    h.tick()
    assert len(h.take()) == 3
    assert h.broker.state.consumers[consumer].credit == 0
    check_consistent(h)


def test_a_stream_that_does_not_take_its_frames_gets_two(h: Harness) -> None:
    consumer = h.open("q", credit=100, batch=2)
    for _ in range(20):
        h.enqueue("q")
    assert [len(messages) for _, _, messages in h.frames] == [1, 1]
    h.run(FrameTaken(consumer))
    assert [len(messages) for _, _, messages in h.frames] == [1, 1, 2]
    assert h.stats("q").in_flight == 4


def test_what_never_left_goes_back_to_its_place_with_no_attempt(h: Harness) -> None:
    ids = [h.enqueue("q") for _ in range(5)]
    consumer = h.open("q", credit=4, batch=2)
    (_, _, kept), (_, unsent, given_back) = h.frames
    assert len(kept) == len(given_back) == 2
    h.run(CloseConsumer(consumer, [unsent]))
    h.frames.clear()
    stats = h.stats("q")
    assert (stats.depth, stats.in_flight, stats.active_consumers) == (3, 2, 0)
    assert stats.counters.delivered == 2
    messages = h.receive("q", 5)
    assert [message.id for message in messages] == ids[2:]
    assert all(message.metadata.attempt_count == 0 for message in messages)
    check_consistent(h)


def test_frames_to_a_consumer_that_the_broker_ended_go_back_when_it_is_closed(h: Harness) -> None:
    """Its key was revoked, say, or it left before the frame was made: no attempt is counted."""
    ids = h.enqueue_many("q", 3)
    consumer = h.open("q", credit=3, batch=3)
    ((_, grant, _),) = h.frames
    h.frames.clear()
    h.run(CloseConsumer(consumer, []))
    assert h.stats("q").in_flight == 3
    h.run(CloseConsumer(consumer, [grant]))
    h.run(CloseConsumer(consumer, [grant]))  # nothing is left of it
    messages = h.receive("q", 5)
    assert [message.id for message in messages] == ids
    assert {message.metadata.attempt_count for message in messages} == {0}
    check_consistent(h)


def test_settled_messages_do_not_go_back(h: Harness) -> None:
    ids = [h.enqueue("q") for _ in range(3)]
    consumer = h.open("q", credit=3, batch=3)
    ((_, grant, _),) = h.frames
    assert h.ack("q", ids[0]) is None
    assert isinstance(h.extend("q", ids[1], "", 60_000), int)
    h.frames.clear()
    h.run(CloseConsumer(consumer, [grant]))
    assert [message.id for message in h.receive("q", 5)] == [ids[2]]
    check_consistent(h)


def test_a_closed_consumer_gets_nothing_and_closing_twice_is_harmless(h: Harness) -> None:
    consumer = h.open("q")
    h.run(CloseConsumer(consumer, []), CloseConsumer(consumer, []), FrameTaken(consumer))
    h.enqueue("q")
    assert h.frames == []
    assert h.stats("q").active_consumers == 0
    assert not h.broker.state.consumers


def test_consumers_take_turns(h: Harness) -> None:
    consumers = [h.open("q", credit=2, batch=1) for _ in range(3)]
    for _ in range(6):
        h.enqueue("q")
    assert [frame[0] for frame in h.frames] == consumers * 2


def test_a_message_that_failed_moves_its_grants_record_on(h: Harness) -> None:
    """A grant of several messages is on disk as long as one of them is under it."""
    ids = [h.enqueue("q") for _ in range(3)]
    assert len(h.receive("q", 3)) == 3
    for count, message_id in enumerate(ids):
        assert rows(h, Column.LEASES) == 1, count
        (results,) = h.run(Nack(0, [NackRequest(queue="q", message_id=message_id)]))
        assert results == [None]
        check_consistent(h)
    assert rows(h, Column.LEASES) == 0
