# SPDX-License-Identifier: AGPL-3.0-only
"""Idempotency keys: stored once, remembered for as long as the queue says, then forgotten."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fila.v1.service_pb2 import EnqueueRequest
from fila_server.core.commands import Enqueue
from fila_server.core.wire.answers import Duplicate
from fila_server.errors import QueueFull
from fila_server.storage.api import Column
from server.tests.core.harness import Harness

DAY_S = 86_400


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create("q")
    return harness


def repeat(h: Harness, queue: str, numbers: Iterable[int]) -> None:
    requests = [EnqueueRequest(queue=queue, idempotency_key=f"k{number}") for number in numbers]
    h.run(Enqueue(0, h.drafts(*requests)))


def remembered(h: Harness) -> int:
    return sum(1 for _ in h.storage.scan(Column.IDEMPOTENCY, b"", b"\xff" * 9))


def test_an_idempotency_key_stores_once(h: Harness) -> None:
    first = h.enqueue("q", b"1", idempotency_key="k")
    assert h.enqueue("q", b"2", idempotency_key="k") == first
    h.create("other")
    assert h.enqueue("other", b"3", idempotency_key="k") != first
    stats = h.stats("q")
    assert (stats.depth, stats.counters.enqueued, stats.counters.duplicates) == (1, 1, 1)


def test_one_group_and_one_batch_know_their_own_keys(h: Harness) -> None:
    item = EnqueueRequest(queue="q", idempotency_key="k")
    drafts = h.drafts(item, item)
    first, second = h.run(Enqueue(0, drafts), Enqueue(1, drafts))
    assert len({*first, *second}) == 1
    assert [isinstance(result, Duplicate) for result in (*first, *second)] == [
        False,
        True,
        True,
        True,
    ]


def test_an_idempotency_key_outlives_its_message_and_the_broker(h: Harness) -> None:
    first = h.enqueue("q", idempotency_key="k")
    h.receive("q")
    assert h.ack("q", first) is None
    h.restart()
    assert h.enqueue("q", idempotency_key="k") == first
    assert h.stats("q").depth == 0


def test_an_idempotency_key_is_forgotten_after_its_window(h: Harness) -> None:
    h.create("brief", idempotency_window_ms=60_000)
    for queue, window_s in (("brief", 60), ("q", DAY_S)):
        first = h.enqueue(queue, idempotency_key="k")
        h.clock.advance(window_s - 1)
        assert h.enqueue(queue, idempotency_key="k") == first
        h.clock.advance(1)
        assert h.enqueue(queue, idempotency_key="k") != first


def test_forgotten_idempotency_keys_leave_the_disk(h: Harness) -> None:
    h.create("brief", idempotency_window_ms=1000)
    repeat(h, "brief", range(2500))
    kept = h.enqueue("q", idempotency_key="kept")
    for _ in range(10):
        h.clock.advance(11)
        h.tick()
    left = list(h.storage.scan(Column.IDEMPOTENCY, b"", b"\xff" * 9))
    assert len(left) == 1
    assert h.enqueue("q", idempotency_key="kept") == kept


def test_a_repeated_enqueue_is_a_duplicate_although_the_queue_is_full(h: Harness) -> None:
    """A client that did not hear the first answer must learn that its message is in."""
    h.create("small", max_messages=1)
    first = h.enqueue("small", idempotency_key="k")
    assert h.enqueue("small", idempotency_key="k") == first
    with pytest.raises(QueueFull):
        h.enqueue("small", idempotency_key="other")


def test_forgetting_keeps_up_with_any_inflow(h: Harness) -> None:
    """A thousand keys a second, each remembered for one."""
    h.create("brief", idempotency_window_ms=1000)
    repeat(h, "q", range(1500))  # remembered for a day, and always in the way
    most = 0
    for second in range(60):
        repeat(h, "brief", range(second * 1000, second * 1000 + 1000))
        h.clock.advance(1)
        h.tick()
        most = max(most, remembered(h))
    assert most <= 1500 + 15_000
    for _ in range(5):
        h.clock.advance(11)
        h.tick()
    assert remembered(h) == 1500


def test_living_keys_are_looked_at_a_slice_at_a_time(h: Harness) -> None:
    repeat(h, "q", range(5000))
    h.units.clear()
    for _ in range(30):
        h.clock.advance(1.1)
        h.tick()
    assert max(h.units) <= 1100
    assert sum(h.units) < 20_000
    assert remembered(h) == 5000


def test_a_clock_that_was_ahead_does_not_make_keys_last_for_years(h: Harness) -> None:
    h.clock.jump(3 * 365 * DAY_S)
    first = h.enqueue("q", idempotency_key="k")
    h.clock.jump(-3 * 365 * DAY_S)
    for _ in range(3):  # sweeps
        h.clock.advance(11)
        h.tick()
    assert h.enqueue("q", idempotency_key="k") == first
    h.restart()
    h.clock.advance(DAY_S)
    assert h.enqueue("q", idempotency_key="k") != first
    for _ in range(3):
        h.clock.advance(DAY_S)
        h.tick()
    assert remembered(h) == 0
