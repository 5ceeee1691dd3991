# SPDX-License-Identifier: AGPL-3.0-only
"""Creating, changing, deleting and listing queues."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING

from fila.v1 import admin_pb2 as pb
from fila_server.core.admin.change import Change
from fila_server.core.admin.stats import age_ms
from fila_server.core.names import shown
from fila_server.core.schedule.queue import DEAD_LETTER_SUFFIX, Queue
from fila_server.core.traffic.definition import add_queue, configure, save
from fila_server.core.traffic.letters import create
from fila_server.core.wire import records
from fila_server.errors import InvalidArgument, Overloaded, QueueAlreadyExists, QueueNotFound
from fila_server.limits import (
    MAX_ATTEMPTS,
    MAX_HOOK_MEMORY_BYTES,
    MAX_HOOK_TIMEOUT_MS,
    MAX_IDEMPOTENCY_WINDOW_MS,
    MAX_QUANTUM,
    MAX_RETRY_DELAY_MS,
    MAX_SCRIPT_BYTES,
    MAX_TTL_MS,
    MAX_VISIBILITY_MS,
)
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.state import State
    from fila_server.core.turn import Turn

_NAME = re.compile(r"[A-Za-z0-9._/-]+\Z")
_COLUMNS = (Column.MESSAGES, Column.RETRIES, Column.LEASES, Column.IDEMPOTENCY)


def create_queue(state: State, request: pb.CreateQueueRequest, turn: Turn) -> Change:
    name = request.name
    limits = state.config.limits
    if not _NAME.match(name) or len(name) > limits.max_name_bytes - len(DEAD_LETTER_SUFFIX):
        raise InvalidArgument(
            f'queue name "{shown(name)}" is not'
            f" 1 to {limits.max_name_bytes - 4} of the characters A-Z a-z 0-9 . _ - /"
        )
    if name.endswith(DEAD_LETTER_SUFFIX):
        raise InvalidArgument(f'queue name "{name}" ends in ".dlq", which names dead-letter queues')
    if name in state.queues:
        raise QueueAlreadyExists(f'queue "{name}" already exists')
    if len(state.queues) + 2 > limits.max_queues:
        raise Overloaded(f"there are {len(state.queues)} queues; the limit is {limits.max_queues}")
    _check_config(state, request.config)
    config = pb.QueueConfig()
    config.CopyFrom(request.config)
    queue = add_queue(state, name, config, "", turn)
    letters = name + DEAD_LETTER_SUFFIX
    if letters not in state.queues:
        create(state, queue, turn)
    response = pb.CreateQueueResponse(queue_id=name, dead_letter_queue=letters)
    return Change(response, None, config)


def _check_config(state: State, config: pb.QueueConfig) -> None:
    for field, high in (
        ("visibility_timeout_ms", MAX_VISIBILITY_MS),
        ("max_attempts", MAX_ATTEMPTS),
        ("retry_delay_ms", MAX_RETRY_DELAY_MS),
        ("retry_delay_max_ms", MAX_RETRY_DELAY_MS),
        ("default_ttl_ms", min(MAX_TTL_MS, state.config.limits.max_ttl_ms)),
        ("idempotency_window_ms", MAX_IDEMPOTENCY_WINDOW_MS),
        ("hook_timeout_ms", MAX_HOOK_TIMEOUT_MS),  # the hooks know how much of it they may have
        ("hook_memory_limit_bytes", MAX_HOOK_MEMORY_BYTES),
        ("quantum", MAX_QUANTUM),
    ):
        value = getattr(config, field)
        if value > high:
            raise InvalidArgument(f"{field} {value} is not between 0 and {high}")
    if config.on_hook_error not in pb.HookErrorPolicy.values():
        raise InvalidArgument(f"on_hook_error {config.on_hook_error} is not a policy")
    for field in ("on_enqueue_script", "on_failure_script"):
        size = len(getattr(config, field).encode())
        if size > MAX_SCRIPT_BYTES:
            raise InvalidArgument(f"{field} has {size} bytes; the limit is {MAX_SCRIPT_BYTES}")


def update_queue(state: State, request: pb.UpdateQueueRequest, turn: Turn) -> Change:
    queue = state.queue(request.queue)
    known = set(pb.QueueConfig.DESCRIPTOR.fields_by_name)
    if not request.update_mask.paths:
        raise InvalidArgument("update_mask must name the settings to change")
    config = pb.QueueConfig()
    config.CopyFrom(queue.config)
    for path in request.update_mask.paths:
        if path not in known:
            raise InvalidArgument(
                f'update_mask names "{shown(path)}", which is not a queue setting'
            )
        setattr(config, path, getattr(request.config, path))
    _check_config(state, config)
    if queue.dead_letter_of and (config.on_enqueue_script or config.on_failure_script):
        raise InvalidArgument(f'"{queue.name}" is a dead-letter queue, which runs no hooks')
    before, queue.config = queue.config, config
    try:
        configure(state, queue, strict=True)
    except Exception:
        queue.config = before
        raise
    save(queue, turn)
    return Change(pb.UpdateQueueResponse(config=config), before, config)


def delete_queue(state: State, request: pb.DeleteQueueRequest, turn: Turn) -> Change:
    """Remove a queue and its own dead-letter queue, unless those letters are to be kept."""
    queue = state.queue(request.queue)
    response = pb.DeleteQueueResponse(messages=queue.total)
    letters = state.queues.get(queue.name + DEAD_LETTER_SUFFIX)
    _delete(state, queue, turn)
    if letters is not None and not request.keep_dead_letters:
        response.dead_letters = letters.total
        _delete(state, letters, turn)
    return Change(response, queue.config, None)


def _delete(state: State, queue: Queue, turn: Turn) -> None:
    """Remove a queue from sight and from disk. Memory is let go of by and by."""
    del state.queues[queue.name]
    queue.is_deleted = True
    start, end = records.queue_range(queue.number)
    for column in _COLUMNS:
        turn.batch.delete_range(column, start, end)
    turn.batch.delete(Column.QUEUES, queue.prefix)
    gone = QueueNotFound(f'queue "{queue.name}" was deleted')
    for consumer in list(queue.consumers):
        turn.effects.closed.append((consumer.number, gone))
        state.end_consumer(consumer.number)
    queue.hooks = None
    state.places.dirty.pop(queue, None)
    state.deleted.append(state.places.dismantle(queue))


def list_queues(
    state: State, request: pb.ListQueuesRequest, turn: Turn
) -> Generator[int, None, pb.ListQueuesResponse]:
    response = pb.ListQueuesResponse()
    for name in sorted(state.queues):
        queue = state.queues.get(name)
        if queue is not None:  # it may have gone since
            letters = state.queues.get(name + DEAD_LETTER_SUFFIX)
            response.queues.add(
                name=queue.name,
                depth=queue.pending,
                in_flight=len(queue.leases),
                active_consumers=len(queue.consumers),
                delayed=len(queue.delayed),
                paused=queue.paused,
                dead_letter_of=queue.dead_letter_of,
                counters=queue.counters.told(),
                oldest_pending_age_ms=age_ms(queue.oldest_ns, turn) if queue.pending else 0,
                throttled=min(queue.throttled, queue.pending),
                dead_letters=letters.total if letters is not None else 0,
            )
        yield 1
    return response
