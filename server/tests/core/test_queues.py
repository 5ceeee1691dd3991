# SPDX-License-Identifier: AGPL-3.0-only
"""Queues as operators make, change, delete and list them."""

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from fila.v1 import admin_pb2 as pb
from fila_server.core.commands import CloseConsumer, FrameTaken
from fila_server.errors import (
    InvalidArgument,
    InvalidScript,
    MessageNotFound,
    QueueAlreadyExists,
    QueueNotFound,
)
from fila_server.storage.api import Column
from server.tests.core.harness import Harness, check_consistent


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def traces(h: Harness) -> dict[Column, int]:
    """Count what each column holds."""
    return {column: len(list(h.storage.scan(column, b"", b"\xff" * 13))) for column in Column}


def update(h: Harness, queue: str, **config: Any) -> pb.QueueConfig:
    request = pb.UpdateQueueRequest(
        queue=queue, config=pb.QueueConfig(**config), update_mask=FieldMask(paths=list(config))
    )
    response: pb.UpdateQueueResponse = h.admin(request)
    return response.config


# --- Create and update ----------------------------------------------------------------------------


def test_a_queue_comes_with_its_dead_letter_queue(h: Harness) -> None:
    response = h.admin(pb.CreateQueueRequest(name="orders"))
    assert response.dead_letter_queue == "orders.dlq"
    assert h.stats("orders.dlq").dead_letter_of == "orders"
    h.restart()
    assert h.stats("orders.dlq").dead_letter_of == "orders"
    with pytest.raises(QueueAlreadyExists, match='queue "orders" already exists'):
        h.create("orders")


@pytest.mark.parametrize("name", ["", "a b", "a\n", "é", "x" * 252, "orders.dlq", "a\x00"])
def test_bad_names(h: Harness, name: str) -> None:
    with pytest.raises(InvalidArgument, match="queue name"):
        h.create(name)


def test_an_update_changes_what_it_names(h: Harness) -> None:
    update(h, "q", max_attempts=5, visibility_timeout_ms=1000)
    config = update(h, "q", visibility_timeout_ms=2000)
    assert (config.max_attempts, config.visibility_timeout_ms) == (5, 2000)
    assert update(h, "q", max_attempts=0).max_attempts == 0
    h.restart()
    assert h.stats("q").config.visibility_timeout_ms == 2000
    h.enqueue("q")
    h.receive("q")
    h.clock.advance(2)
    assert len(h.receive("q")) == 1


def test_an_update_takes_hold_at_once(h: Harness) -> None:
    h.enqueue("q")
    update(h, "q", max_messages=1, default_ttl_ms=5000, quantum=7)
    assert h.stats("q").quantum == 7
    update(h, "q", max_messages=0)
    h.enqueue("q")
    h.clock.advance(5)
    h.tick()
    assert h.stats("q").depth == 1  # the one from before the update has no end of life


def test_a_refused_update_changes_nothing(h: Harness) -> None:
    def compile_hooks(name: str, config: pb.QueueConfig, *_: Any) -> None:
        if config.on_enqueue_script == "bad":
            raise InvalidScript("bad script")

    h = Harness(compile_hooks=compile_hooks)
    h.create("q", max_attempts=3)
    with pytest.raises(InvalidScript):
        update(h, "q", on_enqueue_script="bad", max_attempts=9)
    with pytest.raises(InvalidArgument):
        update(h, "q", quantum=1001)
    with pytest.raises(InvalidArgument, match="update_mask"):
        h.admin(pb.UpdateQueueRequest(queue="q"))
    with pytest.raises(InvalidScript):
        h.create("other", on_enqueue_script="bad")
    with pytest.raises(InvalidArgument, match="runs no hooks"):
        update(h, "q.dlq", on_enqueue_script="fine")
    assert h.stats("q").config.max_attempts == 3
    assert set(h.broker.state.queues) == {"q", "q.dlq"}
    check_consistent(h)
    h.create("other")
    check_consistent(h)


# --- Delete ---------------------------------------------------------------------------------------


def fill(h: Harness, queue: str) -> None:
    """Leave a trace of every kind: delayed, retried, leased, idempotent, mortal, paused."""
    h.enqueue(queue, idempotency_key="k", ttl_ms=10_000_000)
    h.enqueue(queue, delay_ms=10_000_000)
    failed = h.enqueue(queue, throttle_keys=["mail"], ttl_ms=10_000_000)
    for message in h.receive(queue, 3):
        if message.id == failed:
            assert h.nack(queue, failed) is None
    h.enqueue(queue, fairness_key="paused")
    h.admin(pb.PauseRequest(queue=queue, fairness_key="paused"))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_deleted_queue_leaves_no_trace(h: Harness, restarts: bool) -> None:
    h.admin(pb.SetConfigRequest(key="concurrency:mail:limit", value="5"))
    before = traces(h)
    h.create("gone")
    fill(h, "gone")
    if restarts:
        h.restart()
    h.admin(pb.DeleteQueueRequest(queue="gone"))
    places = h.broker.state.places
    assert not (places.leases or places.delayed or places.mortal or places.grants)
    after = traces(h)
    after[Column.STATE] = before[Column.STATE]  # numbers and buckets are the broker's
    assert after == before
    check_consistent(h)
    with pytest.raises(QueueNotFound):
        h.enqueue("gone")
    if restarts:
        h.restart()
    h.create("gone")
    stats = h.stats("gone")
    assert (stats.depth, stats.delayed, stats.in_flight, stats.paused) == (0, 0, 0, False)
    first = h.enqueue("gone", idempotency_key="k")
    h.enqueue("gone", fairness_key="paused")
    assert first in {message.id for message in h.receive("gone", 10)}
    assert h.stats("gone").in_flight == 2
    h.clock.advance(20_000_000)
    h.tick()
    check_consistent(h)


def test_deleting_a_queue_ends_its_consumers_and_their_leases(h: Harness) -> None:
    consumer = h.open("q", credit=2)
    first = h.enqueue("q")
    ((_, grant, _),) = h.frames
    h.admin(pb.DeleteQueueRequest(queue="q"))
    ((closed, error),) = h.closed
    assert closed == consumer and isinstance(error, QueueNotFound)
    h.run(FrameTaken(consumer), CloseConsumer(consumer, [grant]))
    assert not h.broker.state.consumers
    h.create("q")
    assert isinstance(h.ack("q", first), MessageNotFound)
    h.clock.advance(60)
    h.tick()
    assert h.receive("q", 5) == []
    check_consistent(h)


def test_a_queues_number_is_never_used_again(h: Harness) -> None:
    numbers = set()
    for _ in range(3):
        numbers.add(h.broker.state.queues["q"].number)
        h.admin(pb.DeleteQueueRequest(queue="q"))
        h.restart()
        h.create("q")
    assert len(numbers) == 3


def test_a_large_backlog_of_a_deleted_queue_is_not_kept_in_memory(h: Harness) -> None:
    h.create("large")
    for n in range(3000):
        h.enqueue("large", ttl_ms=10_000_000, delay_ms=(n % 2) * 5_000_000)
    h.admin(pb.DeleteQueueRequest(queue="large"))
    places = h.broker.state.places
    assert not (places.delayed or places.mortal)
    assert places.hot_bytes == 0


# --- List -----------------------------------------------------------------------------------------


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
