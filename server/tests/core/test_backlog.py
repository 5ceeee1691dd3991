# SPDX-License-Identifier: AGPL-3.0-only
"""Work on what waits: purging, cancelling, redriving."""

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import EnqueueRequest
from fila_server.config import LuaConfig
from fila_server.core.commands import Admin, Enqueue
from fila_server.errors import (
    InvalidArgument,
    MessageLeased,
    MessageNotFound,
    QueueFull,
    QueueNotFound,
)
from fila_server.runtime.hooks import compile_hooks
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, check_consistent


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def rows(h: Harness, column: Column) -> int:
    return len(list(h.storage.scan(column, b"", b"\xff" * 13)))


# --- Purge ----------------------------------------------------------------------------------------


def test_a_purge_drops_what_waits_and_nothing_else(h: Harness) -> None:
    leased = h.enqueue("q")
    assert len(h.receive("q")) == 1
    for n in range(5):
        h.enqueue("q", fairness_key=str(n % 2), delay_ms=(n % 2) * 1000, ttl_ms=5000)
    assert h.admin(pb.PurgeRequest(queue="q")).purged == 5
    assert h.admin(pb.PurgeRequest(queue="q")).purged == 0
    check_consistent(h)
    assert h.ack("q", leased) is None
    h.clock.advance(10)
    h.restart()
    assert h.receive("q", 5) == []
    assert rows(h, Column.MESSAGES) == 0


def test_a_purge_of_one_key(h: Harness) -> None:
    for n in range(6):
        h.enqueue("q", fairness_key="ab"[n % 2], delay_ms=(n // 3) * 1000)
    assert h.admin(pb.PurgeRequest(queue="q", fairness_key="a")).purged == 3
    assert h.admin(pb.PurgeRequest(queue="q", fairness_key="unknown")).purged == 0
    assert [key.key for key in h.stats("q").per_key_stats if key.pending_count] == ["b"]
    check_consistent(h)


def test_a_purge_of_one_key_finds_it_behind_many_others(h: Harness) -> None:
    for _ in range(2100):
        h.enqueue("q", fairness_key="a", delay_ms=60_000)
    h.enqueue("q", fairness_key="b", delay_ms=60_000)
    assert h.admin(pb.PurgeRequest(queue="q", fairness_key="b")).purged == 1
    assert h.admin(pb.PurgeRequest(queue="q")).purged == 2100
    assert len(h.broker.state.places.delayed) == 0
    check_consistent(h)


def test_a_purge_of_many_goes_in_slices_and_counts_all() -> None:
    h = Harness(hot_bytes=100_000)
    h.create("q")
    for n in range(5000):
        h.enqueue("q", fairness_key=str(n % 7))
    assert h.admin(pb.PurgeRequest(queue="q")).purged == 5000
    assert h.broker.state.places.hot_bytes == 0
    check_consistent(h)


def flood(h: Harness, count: int, ticket: int = 9) -> Enqueue:
    return Enqueue(ticket, h.drafts(*[EnqueueRequest(queue="q", payload=b"new")] * count))


def test_a_purge_ends_beside_producers_that_never_stop(h: Harness) -> None:
    """It takes what was there when it was asked for, and nothing that came later."""
    h.enqueue_many("q", 4000, ["a", "b", "c"])
    h.enqueue_many("q", 500, delay_ms=60_000)
    h.turn(Admin(0, pb.PurgeRequest(queue="q")))
    confirmed = turns = 0
    done: list[pb.PurgeResponse] = []
    while not done:
        turns += 1
        assert turns < 30, "the purge does not end"
        h.turn(flood(h, 300))
        confirmed += sum(len(answer) for ticket, answer in h.last.durable_answers if ticket == 9)
        done = [answer for ticket, answer in h.last.durable_answers if ticket == 0]
    assert done[0].purged == 4500
    assert h.stats("q").depth == confirmed
    assert {message.payload for message in h.receive("q", 5000)} == {b"new"}
    check_consistent(h)


def test_a_purge_does_not_follow_a_queue_that_was_made_anew(h: Harness) -> None:
    h.enqueue_many("q", 4000)
    h.turn(Admin(0, pb.PurgeRequest(queue="q")))
    h.turn(Admin(1, pb.DeleteQueueRequest(queue="q")))
    h.turn(Admin(2, pb.CreateQueueRequest(name="q")))
    answers = dict(h.last.answers)
    h.turn(flood(h, 10))
    while h.last.more:
        h.turn()
        answers |= dict(h.last.answers)
    assert isinstance(answers[0], QueueNotFound)
    assert h.stats("q").depth == 10
    check_consistent(h)


def test_a_purge_takes_delayed_messages_whose_time_comes_meanwhile(h: Harness) -> None:
    h.enqueue_many("q", 3000, delay_ms=1000)
    h.enqueue_many("q", 3000, delay_ms=2000)
    h.turn(Admin(0, pb.PurgeRequest(queue="q")))
    purged = None
    while purged is None:
        h.clock.advance(0.5)
        h.turn()
        purged = next((it for ticket, it in h.last.durable_answers if ticket == 0), None)
    h.run()
    assert purged.purged == 6000
    assert h.broker.state.queues["q"].total == 0
    check_consistent(h)


# --- Cancel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("hot_bytes", [0, 1 << 20])
def test_cancel_drops_one_message_that_is_not_leased(hot_bytes: int) -> None:
    h = Harness(hot_bytes=hot_bytes)
    h.create("q")
    ids = [h.enqueue("q") for _ in range(3)]
    delayed = h.enqueue("q", delay_ms=1000)
    mortal = h.enqueue("q", ttl_ms=1000)
    for message_id in (ids[1], delayed, mortal):
        h.admin(pb.CancelMessageRequest(queue="q", message_id=message_id))
        check_consistent(h)
        with pytest.raises(MessageNotFound):
            h.admin(pb.CancelMessageRequest(queue="q", message_id=message_id))
    (leased,) = h.receive("q")
    with pytest.raises(MessageLeased, match="is leased; only its consumer can settle it"):
        h.admin(pb.CancelMessageRequest(queue="q", message_id=leased.id))
    h.clock.advance(2)
    h.restart()
    assert [message.id for message in h.receive("q", 5)] == [ids[2]]


def test_cancel_finds_a_retried_message_after_a_restart(h: Harness) -> None:
    message_id = h.enqueue("q", fairness_key="a", throttle_keys=["mail"])
    h.receive("q")
    assert h.nack("q", message_id) is None
    h.restart()
    h.admin(pb.CancelMessageRequest(queue="q", message_id=message_id))
    assert rows(h, Column.RETRIES) == rows(h, Column.MESSAGES) == 0
    check_consistent(h)


@pytest.mark.parametrize("message_id", ["nonsense", "f" * 44, "x" * 24 + "-1", "x" * 24 + "1_0"])
def test_cancel_of_what_is_no_id(h: Harness, message_id: str) -> None:
    with pytest.raises(MessageNotFound):
        h.admin(pb.CancelMessageRequest(queue="q", message_id=message_id))
    with pytest.raises(InvalidArgument, match="message_id must not be empty"):
        h.admin(pb.CancelMessageRequest(queue="q"))


def test_a_message_of_another_queue_is_not_cancelled(h: Harness) -> None:
    h.create("other")
    message_id = h.enqueue("other")
    with pytest.raises(MessageNotFound):
        h.admin(pb.CancelMessageRequest(queue="q", message_id=message_id))


# --- Redrive --------------------------------------------------------------------------------------


def redrive(h: Harness, **fields: Any) -> int:
    return int(h.admin(pb.RedriveRequest(dlq_queue="q.dlq", **fields)).redriven)


def test_a_redrive_ends_beside_messages_that_keep_dying(h: Harness) -> None:
    """What a consumer sends back to the dead while it runs is not redriven again."""
    letters = h.enqueue_many("q.dlq", 1200)
    h.turn(Admin(0, pb.RedriveRequest(dlq_queue="q.dlq")))
    later = 0
    while h.last.more:
        h.turn(Enqueue(9, h.drafts(*[EnqueueRequest(queue="q.dlq")] * 50)))
        later += 50
        assert later < 1000, "the redrive does not end"
    (answer,) = (it for ticket, it in h.last.durable_answers if ticket == 0)
    assert answer.redriven == len(letters)
    assert h.stats("q.dlq").depth == later
    check_consistent(h)


@pytest.mark.parametrize("gone", ["q", "q.dlq"])
def test_a_redrive_does_not_follow_queues_that_were_made_anew(h: Harness, gone: str) -> None:
    h.enqueue_many("q.dlq", 2000)
    h.turn(Admin(0, pb.RedriveRequest(dlq_queue="q.dlq")))
    h.turn(Admin(1, pb.DeleteQueueRequest(queue=gone, keep_dead_letters=True)))
    if gone == "q":
        h.turn(Admin(2, pb.CreateQueueRequest(name="q")))
    answers = dict(h.last.answers)
    while h.last.more:
        h.turn()
        answers |= dict(h.last.answers)
    assert isinstance(answers[0], QueueNotFound)
    if gone == "q":
        assert h.stats("q").depth == 0
    check_consistent(h)


def test_a_redrive_by_id_looks_at_nothing_else(h: Harness) -> None:
    ids = h.enqueue_many("q.dlq", 3000)
    h.units.clear()
    assert redrive(h, message_ids=[ids[1500], "nonsense", ids[1500], ids[7]]) == 2
    assert max(h.units) < 20
    taken = [message.id for message in h.receive("q", 5)]
    assert taken == [ids[1500], ids[7]]
    check_consistent(h)


def test_a_redrive_stops_where_the_queue_is_full(h: Harness) -> None:
    h.create("small", max_messages=3)
    h.enqueue_many("small.dlq", 5)
    assert h.admin(pb.RedriveRequest(dlq_queue="small.dlq")).redriven == 3
    with pytest.raises(QueueFull):
        h.admin(pb.RedriveRequest(dlq_queue="small.dlq"))
    assert (h.stats("small").depth, h.stats("small.dlq").depth) == (3, 2)
    check_consistent(h)


def test_a_letter_that_the_hook_refuses_stays_dead() -> None:
    script = """
    function on_enqueue(msg)
        if msg.headers.bad then error("bad") end
        return { fairness_key = "good" }
    end
    """
    h = Harness(compile_hooks=compile_hooks(LuaConfig()))
    h.create("q", on_enqueue_script=script, on_hook_error=pb.HOOK_ERROR_POLICY_REJECT)
    bad = h.enqueue("q.dlq", headers={"bad": "1"})
    good = h.enqueue("q.dlq")
    assert redrive(h) == 1
    assert [message.id for message in h.receive("q", 5)] == [good]
    assert [message.id for message in h.receive("q.dlq", 5)] == [bad]
    check_consistent(h)
