# SPDX-License-Identifier: AGPL-3.0-only
"""What is gone leaves nothing behind: no objects, although nobody collects garbage cycles."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from fila.v1 import admin_pb2 as pb
from fila.v1.service_pb2 import AckRequest
from fila_server.core.commands import Ack, CloseConsumer, FrameTaken
from fila_server.core.schedule.consumer import Consumer
from fila_server.core.schedule.lane import FairnessKey, Lane
from fila_server.core.schedule.limiter import Limiter
from fila_server.core.schedule.line import Line
from fila_server.core.schedule.message import Extra, Grant, Message
from fila_server.core.schedule.queue import Queue
from server.tests.core.harness import Harness, check_consistent

KINDS = (Consumer, Extra, FairnessKey, Grant, Lane, Limiter, Line, Message, Queue)


@pytest.fixture
def h() -> Iterator[Harness]:
    """A broker in a process that never collects, as the real one hardly ever does."""
    gc.collect()
    gc.disable()
    try:
        harness = Harness()
        harness.create("q")
        yield harness
    finally:
        gc.enable()


def alive() -> Counter[str]:
    return Counter(it.__class__.__name__ for it in gc.get_objects() if it.__class__ in KINDS)


def rest(h: Harness) -> None:
    """Time enough for what rests to be forgotten."""
    for _ in range(4):
        h.clock.advance(11)
        h.tick()


def drain(h: Harness, queue: str = "q") -> None:
    while messages := h.receive(queue, 1000):
        items = [AckRequest(queue=queue, message_id=message.id) for message in messages]
        h.run(Ack(0, items))


def test_keys_that_emptied_are_let_go_of(h: Harness) -> None:
    before = alive()
    for wave in range(3):
        h.enqueue_many("q", 3000, [f"{wave}-{n}" for n in range(1500)], throttle_keys=["mail"])
        drain(h)
        rest(h)
        assert alive() == before


def test_more_keys_than_may_rest_are_let_go_of_at_once(h: Harness) -> None:
    before = alive()
    h.enqueue_many("q", 9000, [f"k{n}" for n in range(9000)])
    drain(h)
    assert (alive() - before)["FairnessKey"] <= 5000
    rest(h)
    assert alive() == before


def test_lanes_of_a_key_that_stays_are_let_go_of(h: Harness) -> None:
    h.admin(pb.PauseRequest(queue="q"))
    h.enqueue("q", fairness_key="stays")
    h.admin(pb.ResumeRequest(queue="q"))
    before = alive()
    for number in range(300):
        message_id = h.enqueue("q", fairness_key="stays", throttle_keys=[f"t{number}"])
        h.admin(pb.CancelMessageRequest(queue="q", message_id=message_id))
    rest(h)
    grown = alive() - before
    assert grown["Lane"] <= 4 and grown["Limiter"] <= 4


def test_everything_of_a_deleted_queue_is_let_go_of(h: Harness) -> None:
    """Leased, delayed, mortal, parked, paused, failed, dead: all of it."""
    h.set("throttle.mail", "1,5")
    before = alive()
    for _ in range(3):
        h.create("tmp", max_attempts=2)
        stream = h.open("tmp", credit=30)
        h.enqueue_many("tmp", 400, ["a", "b"], throttle_keys=["mail"], payload=bytes(500))
        h.enqueue_many("tmp", 300, ["c"], ttl_ms=900_000)
        h.enqueue_many("tmp", 300, ["d"], delay_ms=900_000)
        h.run(FrameTaken(stream))
        for message in h.receive("tmp", 40):
            assert h.nack("tmp", message.id, error="no") is None
        for message in h.receive("tmp", 60):
            assert h.nack("tmp", message.id, error="no") is None
        h.admin(pb.PauseRequest(queue="tmp", fairness_key="a"))
        unsent = [grant for _, grant, _ in h.frames]
        h.frames.clear()
        h.closed.clear()
        h.admin(pb.DeleteQueueRequest(queue="tmp"))
        h.run(CloseConsumer(stream, unsent))
        h.closed.clear()
        rest(h)
    del message
    h.last = h.turn()
    assert alive() == before
    assert h.broker.state.places.hot_bytes == 0
    check_consistent(h)


def test_messages_and_grants_that_are_settled_are_let_go_of(h: Harness) -> None:
    before = alive()
    stream = h.open("q", credit=500, batch=50)
    for round in range(10):
        ids = h.enqueue_many("q", 200, ["a", "b"], ttl_ms=900_000 * (round % 2))
        while h.frames:
            h.take()
        for message_id in ids[::3]:
            h.extend("q", message_id, ms=60_000)
        for message_id in ids[::5]:
            assert h.nack("q", message_id) is None
        while h.frames:
            h.take()
        h.run(Ack(0, [AckRequest(queue="q", message_id=message_id) for message_id in ids]))
    h.run(CloseConsumer(stream, []))
    rest(h)
    assert alive() == before
