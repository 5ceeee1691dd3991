# SPDX-License-Identifier: AGPL-3.0-only
"""Reads what the broker counts: one row for each metric and set of labels.

Nothing is recorded for the sake of metrics alone; a reading copies numbers that are there. It runs
on the owner's thread, some queues at a time, with the loop going round in between, so that ten
thousand queues hold nobody up. What each name means is in telemetry/instruments.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fila_server.core.clock import NS_PER_S
from fila_server.core.schedule.usage import OTHER
from fila_server.runtime.memory import resident_bytes
from fila_server.telemetry.rows import Distribution, Labels, Row

if TYPE_CHECKING:
    from fila_server.core.schedule.histogram import Histogram
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.schedule.usage import Usage
    from fila_server.core.state import State
    from fila_server.runtime.engine import Engine

# Rows between two rounds of the loop: about a millisecond.
_ROWS = 500
_HOOKS = ("on_enqueue", "on_failure")


def _distribution(histogram: Histogram, per_unit: float = 1) -> Distribution:
    """Return a histogram as it is now, in the unit that is exported."""
    bounds = [bound / per_unit for bound in histogram.bounds]
    return Distribution(bounds, list(histogram.counts), histogram.sum / per_unit)


class Counts:
    """Reads the core, again and again. Remembers what it needs for shares."""

    def __init__(self) -> None:
        self._delivered: dict[Usage, int] = {}  # at the reading before
        self._delivered_by: dict[Queue, int] = {}

    def read(self, state: State, now_ns: int) -> Iterator[list[Row]]:
        """Yield rows, a millisecond's worth at a time."""
        delivered: dict[Usage, int] = {}
        delivered_by: dict[Queue, int] = {}
        part: list[Row] = []
        for queue in list(state.queues.values()):
            part.extend(_queue(queue))
            part.extend(self._keys(queue, delivered))
            delivered_by[queue] = queue.counters.leased
            if len(part) > _ROWS:
                yield part
                part = []
        self._delivered, self._delivered_by = delivered, delivered_by
        part.extend(_throttles(state, now_ns))
        yield part

    def _keys(self, queue: Queue, delivered: dict[Usage, int]) -> Iterator[Row]:
        """Yield what is known by fairness key, and how near each came to its fair share."""
        name = ("queue_id", queue.name)
        if queue.others.delivered or queue.others.enqueued:
            yield from _usage(queue.others, (name, ("fairness_key", OTHER)))
        made = queue.counters.leased - self._delivered_by.get(queue, 0)
        for usage in queue.usages.values():
            labels = (name, ("fairness_key", usage.key))
            yield from _usage(usage, labels)
            delivered[usage] = usage.delivered
            key = queue.keys.get(usage.key)
            if key is None or not key.in_ring or not made or not queue.active_weight:
                continue
            share = (usage.delivered - self._delivered.get(usage, 0)) / made
            fair = min(1.0, key.weight / queue.active_weight)
            yield "fila.fairness.fair_share_ratio", labels, share / fair


class Readings:
    """Reads the broker: the core, and what is around it."""

    def __init__(self, engine: Engine, edge: Callable[[], Iterable[Row]]) -> None:
        self._engine = engine
        self._edge = edge  # what only the transport knows: connections, refusals
        self._began_s = time.time()
        self._counts = Counts()

    async def read(self) -> list[Row]:
        """Return all rows as they are now, or were a moment ago."""
        rows: list[Row] = []
        for part in self._counts.read(self._engine.state, self._engine.now_ns()):
            rows.extend(part)
            await asyncio.sleep(0)
        rows.extend(self._broker())
        return rows

    def _broker(self) -> Iterator[Row]:
        engine = self._engine
        figures = engine.figures
        yield "fila.engine.group_size", (), _distribution(figures.group_items)
        yield "fila.engine.turn_units", (), _distribution(figures.turn_units)
        yield "fila.engine.turn_duration", (), _distribution(figures.turn_ms, 1000)
        yield "fila.engine.commit_duration", (), _distribution(figures.commit_ms, 1000)
        yield "fila.engine.fsync_duration", (), _distribution(figures.fsync_ms, 1000)
        yield "fila.engine.inbox_bytes", (), engine.inbox_bytes
        yield "fila.engine.hot_bytes", (), engine.state.places.hot_bytes
        space = engine.disk.space
        yield "fila.storage.disk_free_bytes", (), space.free
        yield "fila.storage.disk_floor_bytes", (), engine.disk.floor
        yield "fila.storage.disk_low", (), int(engine.disk.is_low)
        stored = engine.stored()
        yield "fila.storage.log_bytes", (), stored.log
        yield "fila.storage.table_bytes", (), stored.tables
        yield "fila.storage.buffer_bytes", (), stored.buffers
        yield "fila.storage.compaction_bytes", (), stored.compaction
        yield "fila.process.cpu_seconds", (), time.process_time()
        yield "fila.process.memory_bytes", (), resident_bytes()
        yield "fila.process.open_files", (), open_files()
        yield "fila.process.start_time_seconds", (), self._began_s
        yield "fila.consumers", (), len(engine.state.consumers)
        yield from self._edge()


def _queue(queue: Queue) -> Iterator[Row]:
    labels: Labels = (("queue_id", queue.name),)
    counters = queue.counters
    yield "fila.messages.enqueued", labels, counters.enqueued
    yield "fila.messages.leased", labels, counters.leased
    yield "fila.messages.acked", labels, counters.acked
    yield "fila.messages.nacked", labels, counters.nacked
    yield "fila.messages.expired", labels, counters.expired
    yield "fila.messages.dead_lettered", labels, counters.dead_lettered
    yield "fila.messages.timed_out", labels, counters.timed_out
    yield "fila.messages.duplicates", labels, counters.duplicates
    yield "fila.queue.depth", labels, queue.pending
    yield "fila.queue.delayed", labels, len(queue.delayed)
    yield "fila.queue.throttled", labels, min(queue.throttled, queue.pending)
    yield "fila.queue.paused", labels, int(queue.paused)
    yield "fila.queue.consumers", labels, len(queue.consumers)
    is_waiting = bool(queue.pending and queue.oldest_ns)
    age_s = max(0.0, time.time() - queue.oldest_ns / NS_PER_S) if is_waiting else 0.0
    yield "fila.queue.oldest_ready_age", labels, age_s
    yield "fila.leases.active", labels, len(queue.leases)
    yield "fila.scheduler.drr.rounds", labels, queue.rounds
    yield "fila.scheduler.drr.active_keys", labels, len(queue.ring)
    yield "fila.scheduler.drr.keys_processed", labels, queue.turns
    for cause, histogram in queue.waits.by_cause.items():
        if histogram.count:
            yield "fila.messages.wait", (*labels, ("cause", cause)), _distribution(histogram, 1000)
    hooks = queue.hooks
    if hooks is not None:
        for hook, durations in zip(_HOOKS, hooks.durations, strict=True):
            of_hook = (*labels, ("hook", hook))
            yield "fila.lua.execution_duration_us", of_hook, _distribution(durations)
        stats = hooks.stats()
        yield "fila.lua.errors", labels, stats.failures
        yield "fila.lua.bypassed", labels, stats.bypassed
        yield "fila.lua.circuit_breaker.activations", labels, hooks.activations
        yield "fila.lua.circuit_breaker.open", labels, int(stats.circuit_open)


def _usage(usage: Usage, labels: Labels) -> Iterator[Row]:
    yield "fila.fairness.throughput", labels, usage.delivered
    yield "fila.fairness.enqueued", labels, usage.enqueued
    yield "fila.fairness.acked", labels, usage.acked
    yield "fila.fairness.nacked", labels, usage.nacked
    yield "fila.fairness.dead_lettered", labels, usage.dead_lettered
    yield "fila.fairness.retried", labels, usage.retried
    yield "fila.fairness.wait_p50", labels, usage.waits.quantile(0.5) / 1000
    yield "fila.fairness.wait_p95", labels, usage.waits.quantile(0.95) / 1000


def _throttles(state: State, now_ns: int) -> Iterator[Row]:
    throttles = state.throttles
    for usage in (*throttles.usages.values(), throttles.others):
        labels: Labels = (("throttle_key", usage.key or OTHER),)
        if usage is throttles.others and not (usage.passed or usage.blocked):
            continue
        yield "fila.throttle.decisions", (*labels, ("result", "pass")), usage.passed
        yield "fila.throttle.decisions", (*labels, ("result", "hit")), usage.blocked
        limiter = throttles.limiters.get(usage.key)
        if limiter is not None and limiter.interval_ps:
            yield "fila.throttle.tokens_remaining", labels, limiter.tokens(now_ns)
        if limiter is not None:
            yield "fila.throttle.in_flight", labels, limiter.in_flight
            is_paused = limiter.is_held or limiter.paused_until_ns > now_ns
            yield "fila.throttle.paused", labels, int(is_paused)


def open_files() -> int:
    """Return how many descriptors the process has open; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
