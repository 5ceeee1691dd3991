# SPDX-License-Identifier: AGPL-3.0-only
"""Commands that span turns take turns with each other, and a call that only reads cannot stop the
broker."""

from __future__ import annotations

from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import AckRequest, EnqueueRequest
from fila_server.core import broker
from fila_server.core.commands import Ack, Admin, CloseConsumer, Enqueue
from fila_server.core.turn import FULL, SLICE
from fila_server.errors import FilaError, QueueNotFound
from server.tests.core.harness import Harness, check_consistent


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def batch(h: Harness, count: int, queue: str = "q") -> Enqueue:
    return Enqueue(7, h.drafts(*[EnqueueRequest(queue=queue)] * count))


def tickets(h: Harness) -> list[int]:
    return [ticket for ticket, _ in (*h.last.answers, *h.last.durable_answers)]


# --- Turns ----------------------------------------------------------------------------------------


def test_a_small_command_beside_a_large_one_is_done_in_its_first_turn(h: Harness) -> None:
    small = Enqueue(1, h.drafts(EnqueueRequest(queue="q")))
    assert h.turn(batch(h, 20 * SLICE), small).more
    assert tickets(h) == [1]
    h.turn(Admin(2, pb.GetStatsRequest(queue="q")), Admin(3, pb.ListQueuesRequest()))
    assert tickets(h) == [2, 3]
    while h.last.more:
        h.turn(small)
        assert 1 in tickets(h)
    assert 7 in tickets(h)
    check_consistent(h)


def test_large_commands_get_the_same_share_of_a_turn(h: Harness) -> None:
    h.create("other")
    h.turn(batch(h, 10 * SLICE), Enqueue(8, h.drafts(*[EnqueueRequest(queue="other")] * 5000)))
    state = h.broker.state
    for _ in range(6):
        assert abs(state.queues["q"].pending - state.queues["other"].pending) <= SLICE
        h.turn()
    assert all(units <= FULL.chores + 2 * SLICE for units in h.units)


def test_as_many_large_commands_as_there_are_do_not_make_a_turn_longer(h: Harness) -> None:
    for _ in range(20):
        h.turn(batch(h, 2 * SLICE))
    h.units.clear()
    while h.last.more:
        h.turn()
    assert max(h.units) <= FULL.chores + SLICE


def test_a_batch_is_answered_when_all_of_it_is_done(h: Harness) -> None:
    (results,) = h.run(Enqueue(0, h.drafts(*[EnqueueRequest(queue="q")] * 1300)))
    assert len(set(results)) == 1300
    assert [len(it) for it in (h.receive("q", 500), h.receive("q", 1000))] == [500, 800]
    items = [AckRequest(queue="q", message_id=message_id) for message_id in results]
    (acked,) = h.run(Ack(0, items))
    assert acked == [None] * 1300
    assert h.stats("q").counters.acked == 1300


def test_what_a_turn_does_is_on_disk_with_it(h: Harness) -> None:
    """A crash between two turns of one command leaves what its turns have stored."""
    h.turn(batch(h, 4 * SLICE))
    done = h.broker.state.queues["q"].pending
    assert 0 < done < 4 * SLICE
    h.restart()
    assert h.stats("q").depth == done


# --- Errors ---------------------------------------------------------------------------------------


def broken(*_: Any) -> Any:
    raise RuntimeError("a defect")


def broken_later(*_: Any) -> Any:
    yield SLICE
    yield SLICE
    raise RuntimeError("a defect")


@pytest.mark.parametrize("handler", [broken, broken_later])
def test_a_read_that_raises_answers_internal_and_the_broker_goes_on(
    h: Harness, monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    monkeypatch.setitem(broker._READS, pb.GetStatsRequest, handler)
    h.enqueue("q")
    h.turn(Admin(0, pb.GetStatsRequest(queue="q")), Admin(1, pb.ListQueuesRequest()))
    answers = dict(h.last.answers)
    defects = list(h.last.defects)
    while h.last.more:
        h.turn()
        answers |= dict(h.last.answers)
        defects += h.last.defects
    error = answers[0]
    assert isinstance(error, FilaError) and error.reason == "INTERNAL"
    assert "a defect" not in error.message
    assert [str(defect) for defect in defects] == ["a defect"]
    assert defects[0].__traceback__ is not None
    assert len(answers[1].queues) == 2
    assert len(h.receive("q")) == 1
    check_consistent(h)


@pytest.mark.parametrize("handler", [broken, broken_later])
def test_a_change_that_raises_stops_the_broker(
    h: Harness, monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    """Memory may no longer equal the disk: the engine ends, and the next start finds the truth."""
    monkeypatch.setitem(broker._CHANGES, pb.PurgeRequest, handler)
    with pytest.raises(RuntimeError, match="a defect"):
        h.admin(pb.PurgeRequest(queue="q"))


def test_a_refusal_in_a_later_turn_is_an_answer(h: Harness) -> None:
    for _ in range(4):
        h.run(batch(h, 500))
    h.turn(Admin(0, pb.PurgeRequest(queue="q")))
    assert h.last.more
    h.turn(Admin(1, pb.DeleteQueueRequest(queue="q")))
    while h.last.more:
        h.turn()
        for ticket, answer in h.last.answers:
            assert ticket == 0 and isinstance(answer, QueueNotFound)
            return
    raise AssertionError("the purge was never answered")


# --- Reads that once raised -----------------------------------------------------------------------


def test_stats_after_a_frame_came_back_to_a_limit_that_was_set_meanwhile(h: Harness) -> None:
    consumer = h.open("q")
    h.enqueue("q", throttle_keys=["mail"])
    unsent = [grant for _, grant, _ in h.frames]
    h.set("throttle.mail", "10,10")
    h.run(CloseConsumer(consumer, unsent))
    (row,) = h.stats("q").per_throttle_stats
    assert row.passed == 0
    assert row.tokens == pytest.approx(10)


@pytest.mark.parametrize(
    ("rate", "cost", "count"), [("1e-6,1000000", 1_000_000, 3), ("1e-6", 1, 9)]
)
def test_an_explanation_of_a_time_beyond_the_year_9999(
    h: Harness, rate: str, cost: int, count: int
) -> None:
    h.set("throttle.big", rate)
    h.open("q")
    h.enqueue_many("q", count, ["b"], throttle_keys=["big"], throttle_cost=cost)
    h.clock.advance(1)
    h.tick()
    h.take()
    found = h.admin(pb.ExplainRequest(queue="q", fairness_key="b"))
    assert found.reasons[0].kind == pb.WAIT_KIND_THROTTLED
    assert found.estimated_at.ToDatetime().year <= 2262
