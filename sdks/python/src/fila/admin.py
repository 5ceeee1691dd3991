# SPDX-License-Identifier: AGPL-3.0-only
"""Operating a broker: the requests of FilaAdmin. No I/O.

Their answers are in `findings.py`, `queues.py` and `stats.py`, which are imported when one is
read: a program that pauses a queue needs none of their classes. Runtime configuration is in
`config.py`, API keys are in `access.py`, the broker's own state in `status.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypedDict

import fila
from fila._answers import nothing, number_of
from fila._endpoint import Call
from fila.v1 import admin_pb2

if TYPE_CHECKING:
    import fila.findings
    import fila.queues
    import fila.stats
    from fila.findings import DeletedQueue, Explanation, PeekPage, ThrottlePage
    from fila.queues import QueueConfig, QueueInfo
    from fila.stats import QueueStats

METHOD = "/fila.v1.FilaAdmin/"


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
        lambda response: fila.queues.read_config(response.config),
        queue=queue,
    )


def delete_queue(queue: str, keep_dead_letters: bool) -> Call[DeletedQueue]:
    return Call(
        METHOD + "DeleteQueue",
        admin_pb2.DeleteQueueRequest(queue=queue, keep_dead_letters=keep_dead_letters),
        admin_pb2.DeleteQueueResponse,
        fila.findings.read_deleted,
        queue,
    )


def list_queues() -> Call[list[QueueInfo]]:
    return Call(
        METHOD + "ListQueues",
        admin_pb2.ListQueuesRequest(),
        admin_pb2.ListQueuesResponse,
        lambda response: [fila.queues.read_info(row) for row in response.queues],
    )


def stats(queue: str, max_keys: int | None) -> Call[QueueStats]:
    request = admin_pb2.GetStatsRequest(queue=queue, max_keys=max_keys)
    response = admin_pb2.GetStatsResponse
    return Call(METHOD + "GetStats", request, response, fila.stats.read_stats, queue)


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
        state=None if state is None else _number_of(state),
        exclude_payload=exclude_payload,
    )
    return Call(METHOD + "Peek", request, admin_pb2.PeekResponse, fila.findings.read_page, queue)


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


def pause_throttle(key: str, duration_ms: int | None) -> Call[None]:
    request = admin_pb2.PauseRequest(throttle_key=key, duration_ms=duration_ms)
    return Call(METHOD + "Pause", request, admin_pb2.PauseResponse, nothing)


def resume_throttle(key: str) -> Call[None]:
    request = admin_pb2.ResumeRequest(throttle_key=key)
    return Call(METHOD + "Resume", request, admin_pb2.ResumeResponse, nothing)


def list_throttles(prefix: str, unset: bool, limit: int | None) -> Call[ThrottlePage]:
    return Call(
        METHOD + "ListThrottles",
        admin_pb2.ListThrottlesRequest(prefix=prefix, unset=unset, limit=limit),
        admin_pb2.ListThrottlesResponse,
        fila.findings.read_throttle_page,
    )


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
    read = fila.findings.read_explanation
    return Call(METHOD + "Explain", request, response, read, queue, message_id)


# --- Their parts ----------------------------------------------------------------------------------


def _config(settings: QueueSettings) -> admin_pb2.QueueConfig:
    known = {field.name for field in fields(fila.queues.QueueConfig)}
    for name, value in settings.items():
        if name not in known:
            raise TypeError(
                f'"{name}" is not a setting of a queue; they are {", ".join(sorted(known))}'
            )
        if value is None:
            raise TypeError(f"setting {name} must not be None; 0 or an empty text mean the default")
    values: dict[str, Any] = dict(settings)
    if "on_hook_error" in values:
        policy = fila.queues.HookErrorPolicy(values["on_hook_error"])
        values["on_hook_error"] = number_of(admin_pb2.HookErrorPolicy, policy)
    return admin_pb2.QueueConfig(**values)


def _number_of(state: str) -> Any:
    return number_of(admin_pb2.MessageState, fila.findings.MessageState(state))
