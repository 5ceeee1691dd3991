# SPDX-License-Identifier: AGPL-3.0-only
"""Dead letters and back: moved whole, once, oldest first, and never lost in between."""

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import NackRequest
from fila_server.core.commands import Nack
from fila_server.errors import NotADeadLetterQueue, ParentQueueNotFound, QueueNotFound
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, check_consistent


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q", max_attempts=1)
    return harness


def bury(h: Harness, count: int, error: str = "boom", **fields: Any) -> list[str]:
    """Dead-letter some messages and return their ids in that order."""
    ids = [h.enqueue("q", **fields) for _ in range(count)]
    while messages := h.receive("q", 1000):
        items = [NackRequest(queue="q", message_id=it.id, error=error) for it in messages]
        h.ask(lambda ticket, items=items: Nack(ticket, items))  # type: ignore[misc]
    return ids


def redrive(h: Harness, count: int = 0, **filters: Any) -> int:
    request = pb.RedriveRequest(dlq_queue="q.dlq", count=count, **filters)
    return int(h.admin(request).redriven)


def test_a_message_is_dead_after_its_last_attempt(h: Harness) -> None:
    h.create("three", max_attempts=3)
    message_id = h.enqueue("three", b"payload", headers={"a": "b"}, fairness_key="k")
    for attempt in range(3):
        (message,) = h.receive("three")
        assert message.metadata.attempt_count == attempt
        assert h.nack("three", message_id, error=f"failure {attempt}") is None
    assert h.receive("three") == []
    (dead,) = h.receive("three.dlq")
    assert (dead.id, dead.payload, dict(dead.headers)) == (message_id, b"payload", {"a": "b"})
    metadata = dead.metadata
    assert (metadata.attempt_count, metadata.last_error) == (3, "failure 2")
    assert (metadata.fairness_key, metadata.queue_id) == ("k", "three.dlq")
    assert h.stats("three").counters.dead_lettered == 1
    check_consistent(h)


def test_an_expired_lease_counts_towards_the_last_attempt(h: Harness) -> None:
    h.enqueue("q")
    h.receive("q")
    h.clock.advance(30)
    (dead,) = h.receive("q.dlq")
    assert dead.metadata.last_error == "lease expired"


def test_a_dead_letter_has_no_end_of_life_and_no_throttle(h: Harness) -> None:
    h.admin(pb.SetConfigRequest(key="throttle:mail:rate", value="1"))
    bury(h, 1, ttl_ms=5000, throttle_keys=["mail"])
    h.clock.advance(10_000)
    h.restart()
    (dead,) = h.receive("q.dlq", 5)
    assert dead.metadata.throttle_keys == ["mail"]
    check_consistent(h)


def test_a_dead_letter_that_fails_stays_dead(h: Harness) -> None:
    bury(h, 1)
    for attempt in (1, 2, 3):
        (dead,) = h.receive("q.dlq")
        assert dead.metadata.attempt_count == attempt
        assert h.nack("q.dlq", dead.id) is None
    assert "q.dlq.dlq" not in h.broker.state.queues


def test_a_dead_letter_queue_that_was_deleted_is_made_again(h: Harness) -> None:
    bury(h, 1)
    h.admin(pb.DeleteQueueRequest(queue="q.dlq"))
    (message_id,) = bury(h, 1)
    assert [dead.id for dead in h.receive("q.dlq", 5)] == [message_id]
    check_consistent(h)


def test_redrive_moves_the_oldest_first_and_resets_attempts(h: Harness) -> None:
    first = bury(h, 3, fairness_key="b")
    second = bury(h, 2, fairness_key="a")
    assert redrive(h, 4) == 4
    assert (h.stats("q").depth, h.stats("q.dlq").depth) == (4, 1)
    messages = h.receive("q", 10)
    assert {message.id for message in messages} == {*first, second[0]}
    for message in messages:
        assert (message.metadata.attempt_count, message.metadata.last_error) == (0, "boom")
    assert [m.id for m in messages if m.metadata.fairness_key == "b"] == first
    check_consistent(h)
    assert redrive(h) == 1
    assert redrive(h) == 0


def test_dead_letters_stand_in_the_order_of_their_enqueues(h: Harness) -> None:
    ids = [h.enqueue("q") for _ in range(3)]
    h.receive("q", 3)
    for message_id in (ids[2], ids[0], ids[1]):
        assert h.nack("q", message_id) is None
    assert redrive(h, 2) == 2
    assert [message.id for message in h.receive("q", 5)] == ids[:2]
    assert [message.id for message in h.receive("q.dlq", 5)] == ids[2:]


def test_redrive_leaves_leased_and_delayed_dead_letters_alone(h: Harness) -> None:
    ids = bury(h, 3)
    leased, delayed = h.receive("q.dlq", 2)
    assert h.nack("q.dlq", delayed.id, retry_after_ms=60_000) is None
    assert redrive(h) == 1
    assert [message.id for message in h.receive("q", 5)] == [ids[2]]
    assert h.ack("q", ids[2]) is None
    assert h.ack("q.dlq", leased.id) is None
    h.clock.advance(60)
    h.tick()
    assert redrive(h) == 1
    check_consistent(h)


def test_redrive_filters(h: Harness) -> None:
    timeouts = bury(h, 2, error="timeout after 5 s", fairness_key="a")
    refused = bury(h, 2, error="refused", fairness_key="b")
    assert redrive(h, error_contains="nothing") == 0
    assert redrive(h, fairness_key="c") == 0
    assert redrive(h, message_ids=["unknown"]) == 0
    assert redrive(h, error_contains="timeout", count=1) == 1
    assert redrive(h, fairness_key="b", message_ids=[*refused[1:], *timeouts]) == 1
    assert {m.id for m in h.receive("q", 10)} == {timeouts[0], refused[1]}
    assert redrive(h) == 2
    check_consistent(h)


def test_redrive_of_many_goes_in_slices_and_counts_all(h: Harness) -> None:
    ids = bury(h, 4500)
    assert redrive(h, 4100) == 4100
    assert [message.id for message in h.receive("q", 5000)] == ids[:4100]
    assert redrive(h) == 400
    check_consistent(h)


def test_redrive_needs_a_dead_letter_queue_and_its_parent(h: Harness) -> None:
    with pytest.raises(NotADeadLetterQueue, match='"q" is not a dead-letter queue'):
        h.admin(pb.RedriveRequest(dlq_queue="q"))
    with pytest.raises(QueueNotFound):
        h.admin(pb.RedriveRequest(dlq_queue="nobody.dlq"))
    ids = bury(h, 2)
    h.admin(pb.DeleteQueueRequest(queue="q", keep_dead_letters=True))
    with pytest.raises(ParentQueueNotFound, match='queue "q" no longer exists'):
        redrive(h)
    h.restart()
    assert h.stats("q.dlq").depth == 2
    h.create("q")
    assert redrive(h) == 2
    assert [message.id for message in h.receive("q", 5)] == ids


@pytest.mark.parametrize("hot_bytes", [0, 1 << 20])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_enqueued_to_a_dead_letter_queue_is_redriven_too(
    hot_bytes: int, restarts: bool
) -> None:
    """Nobody failed it, so the store has no retry of it and memory perhaps only its number."""
    h = Harness(hot_bytes=hot_bytes)
    h.create("q", max_attempts=1)
    direct = [h.enqueue("q.dlq", b"direct", headers={"n": str(n)}) for n in range(2)]
    buried = bury(h, 1)
    late = h.enqueue("q.dlq", b"late")
    if restarts:
        h.restart()
    check_consistent(h)
    assert redrive(h, error_contains="boom") == 1
    assert redrive(h, message_ids=[late]) == 1
    assert redrive(h) == 2
    assert [message.id for message in h.receive("q", 5)] == [*buried, late, *direct]
    check_consistent(h)


def test_a_move_is_in_one_batch_and_a_restart_finds_it_once(h: Harness) -> None:
    ids = bury(h, 3)
    h.restart()
    redrive(h, 2)
    h.restart(power=True)
    assert [message.id for message in h.receive("q", 5)] == ids[:2]
    assert [message.id for message in h.receive("q.dlq", 5)] == ids[2:]
    assert len(list(h.storage.scan(Column.MESSAGES, b"", b"\xff" * 13))) == 3


@pytest.mark.parametrize("restarts", [False, True])
def test_memory_keeps_the_numbers_only_of_dead_letters(h: Harness, restarts: bool) -> None:
    """Their errors, attempts and bodies are on disk."""
    ids = bury(h, 200, error="Traceback " * 400, payload=bytes(1000))
    if restarts:
        h.restart()
    (key,) = h.broker.state.queues["q.dlq"].keys.values()
    (lane,) = key.lanes.values()
    assert [type(it) for it in (lane.aside or {}).values()] == [int] * 200
    assert not lane.fifo.size
    assert h.broker.state.places.hot_bytes == 0
    letters = h.receive("q.dlq", 200)
    assert [letter.id for letter in letters] == ids
    assert {letter.metadata.attempt_count for letter in letters} == {1}
    assert {len(letter.metadata.last_error) for letter in letters} == {4000}
    check_consistent(h)


def test_a_letter_among_many_is_redriven_by_its_id(h: Harness) -> None:
    ids = bury(h, 1000)
    h.units.clear()
    assert redrive(h, message_ids=[ids[-1]]) == 1
    assert max(h.units) < 20
    assert [message.id for message in h.receive("q", 5)] == [ids[-1]]


def test_letters_of_a_queue_go_with_it_unless_they_are_to_be_kept(h: Harness) -> None:
    bury(h, 2)
    h.enqueue("q")
    answer = h.admin(pb.DeleteQueueRequest(queue="q", keep_dead_letters=True))
    assert (answer.messages, answer.dead_letters) == (1, 0)
    assert h.stats("q.dlq").depth == 2
    h.create("q", max_attempts=1)  # takes the letters on
    assert h.stats("q.dlq").depth == 2
    h.enqueue_many("q", 3)
    answer = h.admin(pb.DeleteQueueRequest(queue="q"))
    assert (answer.messages, answer.dead_letters) == (3, 2)
    with pytest.raises(QueueNotFound):
        h.stats("q.dlq")
    h.restart()
    assert not h.broker.state.queues
    assert not list(h.storage.scan(Column.MESSAGES, b"", b"\xff" * 13))
    assert not list(h.storage.scan(Column.RETRIES, b"", b"\xff" * 13))


def test_a_letter_that_comes_back_is_not_under_a_lease_of_its_first_stay(h: Harness) -> None:
    """Found by the simulation: the record of a frame that is partly settled still names it."""
    h.create("frail", max_attempts=1)
    h.enqueue_many("frail", 2)
    for message in h.receive("frail", 2):
        h.nack("frail", message.id)
    first, _ = h.receive("frail.dlq", 2)
    assert h.nack("frail.dlq", first.id, first.metadata.lease_token) is None
    assert h.admin(pb.RedriveRequest(dlq_queue="frail.dlq")).redriven == 1
    (again,) = h.receive("frail")
    assert again.id == first.id
    assert h.nack("frail", again.id) is None
    check_consistent(h)
