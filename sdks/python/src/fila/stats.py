# SPDX-License-Identifier: AGPL-3.0-only
"""Numbers of one queue as plain values: who waits in it, throttle keys, consumers. No I/O.

Fields have the names of the contract, where each is described. What a broker that is older does not
send is 0, empty or None.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from fila._answers import moment, plain
from fila.queues import QueueConfig, QueueCounters, read_config
from fila.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class KeyTraffic:
    """What happened with the messages of one fairness key."""

    enqueued: int
    delivered: int
    acked: int
    nacked: int
    dead_lettered: int
    retried: int
    wait_p50_ms: int
    wait_p95_ms: int


@dataclass(frozen=True, slots=True)
class FairnessKeyStats:
    """One fairness key of a queue; its traffic where the broker counts it by itself."""

    key: str
    pending_count: int
    current_deficit: int
    weight: int
    delivered: int
    throttled: int
    paused: bool
    round_position: int | None
    traffic: KeyTraffic | None


@dataclass(frozen=True, slots=True)
class ThrottleKeyStats:
    """One throttle key: its token bucket and its concurrency limit."""

    key: str
    tokens: float
    rate_per_second: float
    burst: float
    passed: int
    blocked: int
    concurrency_limit: int
    in_flight: int
    paused_until: datetime | None
    waiting: int
    passed_per_second: float
    blocked_per_second: float
    pattern: str
    unset: bool
    paused: bool


@dataclass(frozen=True, slots=True)
class HookStats:
    """How a queue's hooks are doing."""

    calls: int
    failures: int
    bypassed: int
    circuit_open: bool
    last_error: str


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """One open consume stream."""

    number: int
    in_flight: int
    credit: int
    max_batch: int
    key_id: str


@dataclass(frozen=True, slots=True)
class WaitStats:
    """How long deliveries waited for one cause: turn, throttle, delay and the like."""

    cause: str
    count: int
    p50_ms: int
    p95_ms: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts, scheduling state and settings of one queue."""

    depth: int
    in_flight: int
    active_fairness_keys: int
    active_consumers: int
    quantum: int
    per_key_stats: tuple[FairnessKeyStats, ...]
    per_throttle_stats: tuple[ThrottleKeyStats, ...]
    leader_node_id: int
    replication_count: int
    counters: QueueCounters
    config: QueueConfig
    oldest_pending_age_ms: int
    dead_letter_of: str
    consumer_credit: int
    throttled: int
    hooks: HookStats | None
    delayed: int
    paused: bool
    round_key: str
    consumers: tuple[ConsumerStats, ...]
    waits: tuple[WaitStats, ...]


def read_stats(raw: admin_pb2.GetStatsResponse) -> QueueStats:
    return plain(
        QueueStats,
        raw,
        per_key_stats=tuple(_read_fairness_key(row) for row in raw.per_key_stats),
        per_throttle_stats=read_throttles(raw.per_throttle_stats),
        counters=plain(QueueCounters, raw.counters),
        config=read_config(raw.config),
        hooks=plain(HookStats, raw.hooks) if raw.HasField("hooks") else None,
        consumers=tuple(plain(ConsumerStats, row) for row in raw.consumers),
        waits=tuple(plain(WaitStats, row) for row in raw.waits),
    )


def _read_fairness_key(row: admin_pb2.PerFairnessKeyStats) -> FairnessKeyStats:
    return plain(
        FairnessKeyStats,
        row,
        round_position=row.round_position if row.HasField("round_position") else None,
        traffic=plain(KeyTraffic, row.traffic) if row.HasField("traffic") else None,
    )


def read_throttles(rows: Iterable[admin_pb2.PerThrottleKeyStats]) -> tuple[ThrottleKeyStats, ...]:
    return tuple(
        plain(ThrottleKeyStats, row, paused_until=moment(row, "paused_until")) for row in rows
    )
