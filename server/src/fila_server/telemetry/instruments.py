# SPDX-License-Identifier: AGPL-3.0-only
"""Every metric: what it is called, what kind it is, its unit, and what it says. The reference page
and both exporters are made from this table.

Names and labels of the first block are those of the seeds; the others are built alike. A counter
counts since the broker started.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Instrument(NamedTuple):
    """One metric."""

    kind: Kind
    unit: str
    labels: tuple[str, ...]
    about: str


_QUEUE = ("queue_id",)
_KEY = ("queue_id", "fairness_key")
_THROTTLE = ("throttle_key",)


def _counter(unit: str, labels: tuple[str, ...], about: str) -> Instrument:
    return Instrument("counter", unit, labels, about)


def _gauge(unit: str, labels: tuple[str, ...], about: str) -> Instrument:
    return Instrument("gauge", unit, labels, about)


def _histogram(unit: str, labels: tuple[str, ...], about: str) -> Instrument:
    return Instrument("histogram", unit, labels, about)


INSTRUMENTS: dict[str, Instrument] = {
    "fila.messages.enqueued": _counter("{message}", _QUEUE, "Messages accepted."),
    "fila.messages.leased": _counter("{message}", _QUEUE, "Deliveries made."),
    "fila.messages.acked": _counter("{message}", _QUEUE, "Messages acked."),
    "fila.messages.nacked": _counter("{message}", _QUEUE, "Deliveries nacked."),
    "fila.queue.depth": _gauge("{message}", _QUEUE, "Messages that wait and are not delayed."),
    "fila.leases.active": _gauge("{message}", _QUEUE, "Messages that are leased."),
    "fila.fairness.throughput": _counter(
        "{message}", _KEY, 'Deliveries by fairness key; keys beyond telemetry.max_keys are "other".'
    ),
    "fila.fairness.fair_share_ratio": _gauge(
        "1", _KEY, "Deliveries since the last reading, by what the key's weight entitles it to."
    ),
    "fila.scheduler.drr.rounds": _counter("{round}", _QUEUE, "Rounds of a turn for each key."),
    "fila.scheduler.drr.active_keys": _gauge("{key}", _QUEUE, "Keys that take part in the round."),
    "fila.scheduler.drr.keys_processed": _counter("{turn}", _QUEUE, "Turns that keys have had."),
    "fila.throttle.decisions": _counter(
        "{decision}", (*_THROTTLE, "result"), "Deliveries that passed, lanes that were held (hit)."
    ),
    "fila.throttle.tokens_remaining": _gauge("{token}", _THROTTLE, "Tokens in the bucket."),
    "fila.lua.execution_duration_us": _histogram(
        "us", (*_QUEUE, "hook"), "How long hook calls took."
    ),
    "fila.lua.errors": _counter("{call}", _QUEUE, "Hook calls that failed."),
    "fila.lua.circuit_breaker.activations": _counter(
        "{activation}", _QUEUE, "Times that a failing hook was left alone."
    ),
    # --- What operators ask for beside these.
    "fila.messages.expired": _counter("{message}", _QUEUE, "Leases that ran out."),
    "fila.messages.dead_lettered": _counter("{message}", _QUEUE, "Messages dead-lettered."),
    "fila.messages.timed_out": _counter("{message}", _QUEUE, "Messages dropped by time to live."),
    "fila.messages.duplicates": _counter(
        "{message}", _QUEUE, "Enqueues answered with an earlier message by idempotency key."
    ),
    "fila.messages.wait": _histogram(
        "s",
        (*_QUEUE, "cause"),
        "How long first deliveries waited for each cause: turn, throttle, concurrency, pause, delay"
        " or no_consumer.",
    ),
    "fila.queue.delayed": _gauge("{message}", _QUEUE, "Messages that wait for their time."),
    "fila.queue.throttled": _gauge("{message}", _QUEUE, "Messages that a throttle key holds back."),
    "fila.queue.paused": _gauge("1", _QUEUE, "1 while the queue is paused."),
    "fila.queue.consumers": _gauge("{consumer}", _QUEUE, "Open consume streams."),
    "fila.queue.oldest_ready_age": _gauge(
        "s", _QUEUE, "How long the first message has waited, as of a few seconds ago."
    ),
    "fila.fairness.enqueued": _counter("{message}", _KEY, "Messages accepted, by fairness key."),
    "fila.fairness.acked": _counter("{message}", _KEY, "Messages acked, by fairness key."),
    "fila.fairness.nacked": _counter("{message}", _KEY, "Deliveries nacked, by fairness key."),
    "fila.fairness.dead_lettered": _counter(
        "{message}", _KEY, "Messages dead-lettered, by fairness key."
    ),
    "fila.fairness.retried": _counter(
        "{message}", _KEY, "Messages that came back after a failure, by fairness key."
    ),
    "fila.fairness.wait_p50": _gauge("s", _KEY, "Half of the first deliveries waited no longer."),
    "fila.fairness.wait_p95": _gauge("s", _KEY, "95 of 100 first deliveries waited no longer."),
    "fila.throttle.in_flight": _gauge("{message}", _THROTTLE, "Leased messages with this key."),
    "fila.throttle.paused": _gauge("1", _THROTTLE, "1 while nothing with this key is delivered."),
    "fila.lua.bypassed": _counter("{message}", _QUEUE, "Messages that passed by a failing hook."),
    "fila.lua.circuit_breaker.open": _gauge("1", _QUEUE, "1 while a failing hook is left alone."),
    "fila.engine.group_size": _histogram("{message}", (), "Messages handled together."),
    "fila.engine.turn_units": _histogram("{unit}", (), "Work done in one turn of the core."),
    "fila.engine.turn_duration": _histogram("s", (), "Processor time of one turn and its write."),
    "fila.engine.commit_duration": _histogram("s", (), "Processor time of a group's write."),
    "fila.engine.fsync_duration": _histogram("s", (), "How long an fsync took."),
    "fila.engine.inbox_bytes": _gauge("By", (), "Requests that wait or are under way."),
    "fila.engine.hot_bytes": _gauge("By", (), "Bodies of waiting messages held in memory."),
    "fila.storage.disk_free_bytes": _gauge("By", (), "What is free on the data volume."),
    "fila.storage.disk_floor_bytes": _gauge("By", (), "Enqueues are refused below this."),
    "fila.storage.disk_low": _gauge("1", (), "1 while enqueues are refused for want of space."),
    "fila.storage.log_bytes": _gauge("By", (), "Size of the log."),
    "fila.storage.table_bytes": _gauge("By", (), "Size of the tables."),
    "fila.storage.buffer_bytes": _gauge("By", (), "What is not in tables yet."),
    "fila.storage.compaction_bytes": _gauge("By", (), "What waits to be merged."),
    "fila.process.cpu_seconds": _counter("s", (), "Processor time."),
    "fila.process.memory_bytes": _gauge("By", (), "Memory that the process holds."),
    "fila.process.open_files": _gauge("{file}", (), "Open files and sockets."),
    "fila.process.start_time_seconds": _gauge("s", (), "When the broker started."),
    "fila.consumers": _gauge("{consumer}", (), "Open consume streams, all queues together."),
    "fila.connections": _gauge("{connection}", (), "Open connections to the gRPC port."),
    "fila.auth.refused": _counter("{call}", (), "Calls that came with no key, or a bad one."),
}
