# SPDX-License-Identifier: AGPL-3.0-only
"""Operating a broker: the requests of FilaAdmin and its answers as plain values. No I/O.

Fields have the names of the contract, where each is described. API keys are in `access.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict, TypeVar

from fila._connection import Call
from fila.message import Message, moment
from fila.v1 import admin_pb2

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

METHOD = "/fila.v1.FilaAdmin/"


class HookErrorPolicy(StrEnum):
    """What to do with a message whose on_enqueue hook fails."""

    DEFAULT = "default"
    REJECT = "reject"


class MessageState(StrEnum):
    """Where a message is in its life."""

    PENDING = "pending"
    DELAYED = "delayed"
    LEASED = "leased"


class WaitKind(StrEnum):
    """Why something waits."""

    THROTTLED = "throttled"
    CONCURRENCY = "concurrency"
    TURN = "turn"
    DELAYED = "delayed"
    PAUSED = "paused"
    NO_CREDIT = "no_credit"
    LEASED = "leased"
    BACKPRESSURE = "backpressure"
    HOOK_BYPASSED = "hook_bypassed"


class QueueSettings(TypedDict, total=False):
    """The settings that `create_queue` and `update_queue` take; 0 and "" mean the default."""

    on_enqueue_script: str
    on_failure_script: str
    visibility_timeout_ms: int
    max_attempts: int
    retry_delay_ms: int
    retry_delay_max_ms: int
    default_ttl_ms: int
    idempotency_window_ms: int
    max_messages: int
    on_hook_error: str
    hook_timeout_ms: int
    hook_memory_limit_bytes: int
    quantum: int


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
class QueueInfo:
    """One row of the list of queues."""

    name: str
    depth: int
    in_flight: int
    active_consumers: int
    delayed: int
    paused: bool
    dead_letter_of: str


@dataclass(frozen=True, slots=True)
class FairnessKeyStats:
    """One fairness key of a queue."""

    key: str
    pending_count: int
    current_deficit: int
    weight: int
    delivered: int
    throttled: int
    paused: bool


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
class HookStats:
    """How a queue's hooks are doing."""

    calls: int
    failures: int
    bypassed: int
    circuit_open: bool
    last_error: str


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
    delayed: int
    paused: bool
    counters: QueueCounters
    config: QueueConfig
    oldest_pending_age_ms: int
    dead_letter_of: str
    consumer_credit: int
    throttled: int
    hooks: HookStats | None


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """One message as it lies in its queue."""

    message: Message
    state: MessageState | None
    position: int


@dataclass(frozen=True, slots=True)
class PeekPage:
    """Some messages, oldest first. `next_position` is 0 when nothing follows."""

    messages: tuple[PeekedMessage, ...]
    next_position: int
    end_position: int


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One reason to wait."""

    kind: WaitKind | None
    detail: str
    throttle_key: str
    until: datetime | None
    count: int
    limit: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a message or a fairness key waits; the reason that decides comes first."""

    summary: str
    reasons: tuple[WaitReason, ...]
    estimated_at: datetime | None
    fairness_key: str
    pending_count: int
    ahead: int
    state: MessageState | None


# --- Requests -------------------------------------------------------------------------------------


def create_queue(name: str, settings: QueueSettings) -> Call[str]:
    return Call(
        METHOD + "CreateQueue",
        admin_pb2.CreateQueueRequest(name=name, config=_config(settings)),
        admin_pb2.CreateQueueResponse,
        lambda response: str(response.dead_letter_queue),
        queue=name,
    )


def update_queue(queue: str, settings: QueueSettings) -> Call[QueueConfig]:
    request = admin_pb2.UpdateQueueRequest(queue=queue, config=_config(settings))
    request.update_mask.paths.extend(settings)
    return Call(
        METHOD + "UpdateQueue",
        request,
        admin_pb2.UpdateQueueResponse,
        lambda response: read_config(response.config),
        queue=queue,
    )


def delete_queue(queue: str) -> Call[None]:
    request = admin_pb2.DeleteQueueRequest(queue=queue)
    return Call(METHOD + "DeleteQueue", request, admin_pb2.DeleteQueueResponse, nothing, queue)


def list_queues() -> Call[list[QueueInfo]]:
    return Call(
        METHOD + "ListQueues",
        admin_pb2.ListQueuesRequest(),
        admin_pb2.ListQueuesResponse,
        lambda response: [plain(QueueInfo, row) for row in response.queues],
    )


def stats(queue: str, max_keys: int | None) -> Call[QueueStats]:
    request = admin_pb2.GetStatsRequest(queue=queue, max_keys=max_keys)
    return Call(METHOD + "GetStats", request, admin_pb2.GetStatsResponse, read_stats, queue)


def peek(
    queue: str,
    limit: int,
    from_position: int,
    until_position: int,
    fairness_key: str | None,
    state: str | None,
    exclude_payload: bool,
) -> Call[PeekPage]:
    request = admin_pb2.PeekRequest(
        queue=queue,
        limit=limit,
        from_position=from_position,
        until_position=until_position,
        fairness_key=fairness_key,
        state=None if state is None else number_of(admin_pb2.MessageState, MessageState(state)),
        exclude_payload=exclude_payload,
    )
    return Call(METHOD + "Peek", request, admin_pb2.PeekResponse, read_page, queue)


def purge(queue: str, fairness_key: str | None) -> Call[int]:
    return Call(
        METHOD + "Purge",
        admin_pb2.PurgeRequest(queue=queue, fairness_key=fairness_key),
        admin_pb2.PurgeResponse,
        lambda response: int(response.purged),
        queue,
    )


def pause(queue: str, fairness_key: str | None) -> Call[None]:
    request = admin_pb2.PauseRequest(queue=queue, fairness_key=fairness_key)
    return Call(METHOD + "Pause", request, admin_pb2.PauseResponse, nothing, queue)


def resume(queue: str, fairness_key: str | None) -> Call[None]:
    request = admin_pb2.ResumeRequest(queue=queue, fairness_key=fairness_key)
    return Call(METHOD + "Resume", request, admin_pb2.ResumeResponse, nothing, queue)


def redrive(
    dlq: str,
    count: int | None,
    fairness_key: str | None,
    error_contains: str | None,
    message_ids: Iterable[str],
) -> Call[int]:
    request = admin_pb2.RedriveRequest(
        dlq_queue=dlq,
        count=count,
        fairness_key=fairness_key,
        error_contains=error_contains,
        message_ids=message_ids,
    )
    return Call(
        METHOD + "Redrive",
        request,
        admin_pb2.RedriveResponse,
        lambda response: int(response.redriven),
        dlq,
    )


def cancel(queue: str, message_id: str) -> Call[None]:
    request = admin_pb2.CancelMessageRequest(queue=queue, message_id=message_id)
    response = admin_pb2.CancelMessageResponse
    return Call(METHOD + "CancelMessage", request, response, nothing, queue, message_id)


def explain(queue: str, fairness_key: str | None, message_id: str | None) -> Call[Explanation]:
    request = admin_pb2.ExplainRequest(
        queue=queue, fairness_key=fairness_key, message_id=message_id
    )
    response = admin_pb2.ExplainResponse
    return Call(METHOD + "Explain", request, response, read_explanation, queue, message_id)


def set_config(key: str, value: str) -> Call[None]:
    request = admin_pb2.SetConfigRequest(key=key, value=value)
    return Call(METHOD + "SetConfig", request, admin_pb2.SetConfigResponse, nothing)


def get_config(key: str) -> Call[str]:
    return Call(
        METHOD + "GetConfig",
        admin_pb2.GetConfigRequest(key=key),
        admin_pb2.GetConfigResponse,
        lambda response: str(response.value),
    )


def delete_config(key: str) -> Call[None]:
    request = admin_pb2.DeleteConfigRequest(key=key)
    return Call(METHOD + "DeleteConfig", request, admin_pb2.DeleteConfigResponse, nothing)


def list_config(prefix: str) -> Call[dict[str, str]]:
    return Call(
        METHOD + "ListConfig",
        admin_pb2.ListConfigRequest(prefix=prefix),
        admin_pb2.ListConfigResponse,
        lambda response: {entry.key: entry.value for entry in response.entries},
    )


# --- Answers --------------------------------------------------------------------------------------


def nothing(_: Any) -> None:
    """Reads an answer that holds nothing."""


def plain(kind: type[T], raw: Any, /, **others: object) -> T:
    """A dataclass from the message whose fields have the same names; `others` are given already."""
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    return kind(**{name: getattr(raw, name) for name in names if name not in others}, **others)


def member(kind: type[E], enum: Any, number: int) -> E | None:
    """A member of an enum; None for "unspecified" and for what a newer broker may send."""
    try:
        return kind(enum.Name(number).removeprefix(_prefix(enum)).lower())
    except ValueError:
        return None


def number_of(enum: Any, item: StrEnum) -> Any:
    """The number that the contract gives to a member."""
    return enum.Value(_prefix(enum) + item.name)


def _prefix(enum: Any) -> str:
    return str(enum.Name(0)).removesuffix("UNSPECIFIED")


def _config(settings: QueueSettings) -> admin_pb2.QueueConfig:
    known = {field.name for field in fields(QueueConfig)}
    for name, value in settings.items():
        if name not in known:
            raise TypeError(
                f'"{name}" is not a setting of a queue; they are {", ".join(sorted(known))}'
            )
        if value is None:
            raise TypeError(f"setting {name} must not be None; 0 or an empty text mean the default")
    values: dict[str, Any] = dict(settings)
    if "on_hook_error" in values:
        policy = HookErrorPolicy(values["on_hook_error"])
        values["on_hook_error"] = number_of(admin_pb2.HookErrorPolicy, policy)
    return admin_pb2.QueueConfig(**values)


def read_config(raw: admin_pb2.QueueConfig) -> QueueConfig:
    policy = member(HookErrorPolicy, admin_pb2.HookErrorPolicy, raw.on_hook_error)
    return plain(QueueConfig, raw, on_hook_error=policy or HookErrorPolicy.DEFAULT)


def read_stats(raw: admin_pb2.GetStatsResponse) -> QueueStats:
    return plain(
        QueueStats,
        raw,
        per_key_stats=tuple(plain(FairnessKeyStats, key) for key in raw.per_key_stats),
        per_throttle_stats=tuple(
            plain(ThrottleKeyStats, key, paused_until=moment(key, "paused_until"))
            for key in raw.per_throttle_stats
        ),
        counters=plain(QueueCounters, raw.counters),
        config=read_config(raw.config),
        hooks=plain(HookStats, raw.hooks) if raw.HasField("hooks") else None,
    )


def read_page(raw: admin_pb2.PeekResponse) -> PeekPage:
    found = tuple(
        PeekedMessage(
            Message(row.message),
            member(MessageState, admin_pb2.MessageState, row.state),
            row.position,
        )
        for row in raw.messages
    )
    return plain(PeekPage, raw, messages=found)


def read_explanation(raw: admin_pb2.ExplainResponse) -> Explanation:
    reasons = tuple(
        plain(
            WaitReason,
            reason,
            kind=member(WaitKind, admin_pb2.WaitKind, reason.kind),
            until=moment(reason, "until"),
        )
        for reason in raw.reasons
    )
    return plain(
        Explanation,
        raw,
        reasons=reasons,
        estimated_at=moment(raw, "estimated_at"),
        state=member(MessageState, admin_pb2.MessageState, raw.state),
    )
