# SPDX-License-Identifier: AGPL-3.0-only
"""Operating queues: create, update, delete, pause, purge, cancel, runtime configuration."""

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from fila.v1 import admin_pb2 as pb
from fila_server.core.commands import CloseConsumer, FrameTaken
from fila_server.core.queue import Queue
from fila_server.errors import (
    ConfigNotFound,
    InvalidArgument,
    InvalidScript,
    MessageLeased,
    MessageNotFound,
    Overloaded,
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
    def compile_hooks(queue: Queue, config: dict[str, str]) -> None:
        if queue.config.on_enqueue_script == "bad":
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
    h.admin(pb.DeleteQueueRequest(queue="gone.dlq"))
    fill(h, "gone")
    if restarts:
        h.restart()
    h.admin(pb.DeleteQueueRequest(queue="gone"))
    state = h.broker.state
    assert len(state.leases) + len(state.delayed) + len(state.expiring) < 5
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
    assert closed is consumer and isinstance(error, QueueNotFound)
    h.run(FrameTaken(consumer), CloseConsumer(consumer, [grant]))
    assert h.broker.state.consumer_count == 0
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
    state = h.broker.state
    assert len(state.delayed) + len(state.expiring) < 2100
    assert state.hot_bytes == 0


# --- Pause ----------------------------------------------------------------------------------------


def test_a_paused_queue_takes_messages_and_acks_but_delivers_nothing(h: Harness) -> None:
    h.open("q")
    first = h.enqueue("q")
    assert len(h.take()) == 1
    h.admin(pb.PauseRequest(queue="q"))
    second = h.enqueue("q")
    assert h.frames == [] and h.receive("q") == []
    assert h.ack("q", first) is None
    h.restart()
    assert h.stats("q").paused and h.receive("q") == []
    h.open("q")
    h.admin(pb.ResumeRequest(queue="q"))
    assert [message.id for message in h.take()] == [second]
    assert not h.stats("q").paused
    check_consistent(h)


def test_a_paused_key_leaves_the_others_alone(h: Harness) -> None:
    h.enqueue("q", fairness_key="a")
    h.admin(pb.PauseRequest(queue="q", fairness_key="a"))
    h.enqueue("q", fairness_key="a")
    free = h.enqueue("q", fairness_key="b")
    assert [message.id for message in h.receive("q", 5)] == [free]
    h.restart()
    assert h.receive("q", 5) == []
    check_consistent(h)
    h.admin(pb.ResumeRequest(queue="q", fairness_key="a"))
    assert len(h.receive("q", 5)) == 2
    with pytest.raises(InvalidArgument, match="fairness_key"):
        h.admin(pb.PauseRequest(queue="q", fairness_key="k" * 257))


# --- Purge and cancel -----------------------------------------------------------------------------


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
    assert traces(h)[Column.MESSAGES] == 0


def test_a_purge_of_one_key(h: Harness) -> None:
    for n in range(6):
        h.enqueue("q", fairness_key="ab"[n % 2], delay_ms=(n // 3) * 1000)
    assert h.admin(pb.PurgeRequest(queue="q", fairness_key="a")).purged == 3
    assert h.admin(pb.PurgeRequest(queue="q", fairness_key="unknown")).purged == 0
    assert [key.key for key in h.stats("q").per_key_stats] == ["b"]
    check_consistent(h)


def test_a_purge_of_one_key_finds_it_behind_many_others(h: Harness) -> None:
    for _ in range(2100):
        h.enqueue("q", fairness_key="a", delay_ms=60_000)
    h.enqueue("q", fairness_key="b", delay_ms=60_000)
    assert h.admin(pb.PurgeRequest(queue="q", fairness_key="b")).purged == 1
    assert h.admin(pb.PurgeRequest(queue="q")).purged == 2100
    assert len(h.broker.state.delayed) < 1100
    check_consistent(h)


def test_a_purge_of_many_goes_in_slices_and_counts_all() -> None:
    h = Harness(hot_bytes=100_000)
    h.create("q")
    for n in range(5000):
        h.enqueue("q", fairness_key=str(n % 7))
    assert h.admin(pb.PurgeRequest(queue="q")).purged == 5000
    assert h.broker.state.hot_bytes == 0
    check_consistent(h)


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
    assert traces(h)[Column.RETRIES] == traces(h)[Column.MESSAGES] == 0
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


# --- Runtime configuration ------------------------------------------------------------------------


def test_entries_are_set_listed_removed_and_kept(h: Harness) -> None:
    for key, value in (("b", "2"), ("a.x", "1"), ("a.y", "")):
        h.admin(pb.SetConfigRequest(key=key, value=value))
    h.admin(pb.SetConfigRequest(key="b", value="3"))
    h.restart()
    assert h.admin(pb.GetConfigRequest(key="b")).value == "3"
    listed = h.admin(pb.ListConfigRequest())
    assert [entry.key for entry in listed.entries] == ["a.x", "a.y", "b"]
    assert h.admin(pb.ListConfigRequest(prefix="a.")).total_count == 2
    h.admin(pb.DeleteConfigRequest(key="b"))
    h.restart()
    for request in (pb.GetConfigRequest(key="b"), pb.DeleteConfigRequest(key="b")):
        with pytest.raises(ConfigNotFound, match='no configuration entry "b"'):
            h.admin(request)


def test_entries_reach_the_hooks() -> None:
    class Hooks:
        has_on_enqueue = has_on_failure = False

        def __init__(self, config: dict[str, str]) -> None:
            self.config = dict(config)

        def set_config(self, key: str, value: str | None) -> None:
            self.config[key] = str(value)

    made: list[Hooks] = []

    def compile_hooks(queue: Queue, config: dict[str, str]) -> Hooks:
        made.append(Hooks(config))
        return made[-1]

    h = Harness(compile_hooks=compile_hooks)
    h.admin(pb.SetConfigRequest(key="before", value="1"))
    h.create("q")
    h.admin(pb.SetConfigRequest(key="after", value="2"))
    h.admin(pb.DeleteConfigRequest(key="before"))
    assert made[0].config == {"before": "None", "after": "2"}
    made.clear()
    h.restart()
    assert made[0].config == {"after": "2"}


def test_the_number_of_settings_and_of_paused_keys_is_bounded() -> None:
    h = Harness()
    h.config = replace(
        h.config, limits=replace(h.config.limits, max_config_entries=2, max_paused_keys=1)
    )
    h.restart()
    h.create("q")
    for key in ("a", "b", "a"):
        h.admin(pb.SetConfigRequest(key=key, value="1"))
    with pytest.raises(Overloaded, match="2 runtime settings"):
        h.admin(pb.SetConfigRequest(key="c", value="1"))
    h.admin(pb.PauseRequest(queue="q", fairness_key="a"))
    with pytest.raises(Overloaded, match="pause the queue instead"):
        h.admin(pb.PauseRequest(queue="q", fairness_key="b"))
