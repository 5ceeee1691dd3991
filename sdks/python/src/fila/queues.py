# SPDX-License-Identifier: AGPL-3.0-only
"""Queues as plain values: their settings, and rows of the list. No I/O.

Fields have the names of the contract, where each is described. What a broker that is older does not
send is 0, empty or None.
"""

from dataclasses import dataclass
from enum import StrEnum

from fila._answers import member, plain
from fila.v1 import admin_pb2


class HookErrorPolicy(StrEnum):
    """What to do with a message whose on_enqueue hook fails."""

    DEFAULT = "default"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """All settings of a queue; 0 and "" mean the default."""

    on_enqueue_script: str
    on_failure_script: str
    visibility_timeout_ms: int
    max_attempts: int
    retry_delay_ms: int
    retry_delay_max_ms: int
    default_ttl_ms: int
    idempotency_window_ms: int
    max_messages: int
    on_hook_error: HookErrorPolicy
    hook_timeout_ms: int
    hook_memory_limit_bytes: int
    quantum: int


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """What happened in a queue since the broker started."""

    enqueued: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    timed_out: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One row of the list of queues."""

    name: str
    depth: int
    in_flight: int
    active_consumers: int
    leader_node_id: int
    paused: bool
    dead_letter_of: str
    delayed: int
    counters: QueueCounters
    oldest_pending_age_ms: int
    throttled: int
    dead_letters: int


def read_config(raw: admin_pb2.QueueConfig) -> QueueConfig:
    policy = member(HookErrorPolicy, admin_pb2.HookErrorPolicy, raw.on_hook_error)
    return plain(QueueConfig, raw, on_hook_error=policy or HookErrorPolicy.DEFAULT)


def read_info(raw: admin_pb2.QueueInfo) -> QueueInfo:
    return plain(QueueInfo, raw, counters=plain(QueueCounters, raw.counters))
