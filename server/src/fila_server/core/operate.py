# SPDX-License-Identifier: AGPL-3.0-only
"""Operating the broker: queues and their settings, runtime configuration, pausing, purging,
redriving.

Work that grows with a backlog is done a slice per group, so that it never holds others up.
"""

from __future__ import annotations

import re
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from fila.v1 import admin_pb2 as pb
from fila_server.core import parking, records, settings
from fila_server.core.clock import Now
from fila_server.core.commands import Admin
from fila_server.core.dead_letter import add_queue, configure, create, move
from fila_server.core.intake import check_key
from fila_server.core.lane import Lane, lane_key_of, order_of
from fila_server.core.message import Message
from fila_server.core.names import shown
from fila_server.core.queue import DEAD_LETTER_SUFFIX, Queue
from fila_server.core.records_pb2 import Head
from fila_server.core.settle import MAX_VISIBILITY_MS, drop
from fila_server.core.state import State
from fila_server.errors import (
    ConfigNotFound,
    InvalidArgument,
    MessageLeased,
    MessageNotFound,
    NotADeadLetterQueue,
    Overloaded,
    ParentQueueNotFound,
    QueueAlreadyExists,
    QueueNotFound,
)
from fila_server.storage.api import Column, Until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fila_server.core.effects import Effects

_NAME = re.compile(r"[A-Za-z0-9._/-]+\Z")
_SLICE = 2000
MAX_SCRIPT_BYTES = 65536


def create_queue(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.CreateQueueRequest = command.request  # type: ignore[assignment]
    name = request.name
    limits = state.options.limits
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
    _check_config(request.config)
    config = pb.QueueConfig()
    config.CopyFrom(request.config)
    queue = add_queue(state, name, config, "", effects)
    _load_weights(state, queue)
    if name + DEAD_LETTER_SUFFIX not in state.queues:
        create(state, queue, effects)
    return pb.CreateQueueResponse(dead_letter_queue=name + DEAD_LETTER_SUFFIX)


def _load_weights(state: State, queue: Queue) -> None:
    prefix = f"weight:{queue.name}:"
    for key, value in state.config.items():
        if key.startswith(prefix):
            queue.weights[key.removeprefix(prefix)] = int(value)


def _check_config(config: pb.QueueConfig) -> None:
    for field, low, high in (
        ("visibility_timeout_ms", 0, MAX_VISIBILITY_MS),
        ("max_attempts", 0, 1_000_000),
        ("retry_delay_ms", 0, 30 * 86_400_000),
        ("retry_delay_max_ms", 0, 30 * 86_400_000),
        ("default_ttl_ms", 0, 3650 * 86_400_000),
        ("idempotency_window_ms", 0, 30 * 86_400_000),
        ("hook_timeout_ms", 0, 10_000),
        ("hook_memory_limit_bytes", 0, 64 << 20),
        ("quantum", 0, 1000),
    ):
        value = getattr(config, field)
        if not low <= value <= high:
            raise InvalidArgument(f"{field} {value} is not between {low} and {high}")
    if config.on_hook_error not in pb.HookErrorPolicy.values():
        raise InvalidArgument(f"on_hook_error {config.on_hook_error} is not a policy")
    for field in ("on_enqueue_script", "on_failure_script"):
        size = len(getattr(config, field).encode())
        if size > MAX_SCRIPT_BYTES:
            raise InvalidArgument(f"{field} has {size} bytes; the limit is {MAX_SCRIPT_BYTES}")


def update_queue(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.UpdateQueueRequest = command.request  # type: ignore[assignment]
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
    _check_config(config)
    if queue.dead_letter_of and (config.on_enqueue_script or config.on_failure_script):
        raise InvalidArgument(f'"{queue.name}" is a dead-letter queue, which runs no hooks')
    before, queue.config = queue.config, config
    try:
        configure(state, queue)
    except Exception:
        queue.config = before
        raise
    _save(queue, effects)
    return pb.UpdateQueueResponse(config=config)


def _save(queue: Queue, effects: Effects) -> None:
    effects.writes.append((Column.QUEUES, queue.prefix, queue.record().SerializeToString()))


def delete_queue(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.DeleteQueueRequest = command.request  # type: ignore[assignment]
    queue = state.queue(request.queue)
    del state.queues[queue.name]
    state.dirty.pop(queue, None)
    start, end = records.queue_range(queue.number)
    for column in (Column.MESSAGES, Column.RETRIES, Column.LEASES, Column.IDEMPOTENCY):
        effects.writes.append((column, start, Until(end)))
    effects.writes.append((Column.QUEUES, queue.prefix, None))
    gone = QueueNotFound(f'queue "{queue.name}" was deleted')
    state.consumer_count -= len(queue.consumers)
    for consumer in queue.consumers:
        consumer.is_open = False
        effects.closed.append((consumer, gone))
    grants = {message.grant for message in queue.leases.values() if message.grant is not None}
    for grant in grants:
        grant.left = 0
        grant.messages = []
    state.leases.vanished(len(grants))
    for message in queue.leases.values():
        state.forget(message)
        for limiter in state.throttles.limiters_of(message.lane.throttle_keys):
            limiter.in_flight -= 0 if queue.dead_letter_of else 1
            for waiting in parking.mark_due(limiter):
                state.dirty[waiting] = None
    for limiter in state.throttles.limiters.values():
        limiter.lines.pop(queue, None)
    for key in queue.keys.values():
        for lane in key.lanes.values():
            _forget_lane(state, lane)
    for message in queue.delayed.values():
        state.forget(message)
    count = len(queue.delayed)
    queue.delayed.clear()
    state.delayed.vanished(count)
    state.dirty.pop(queue, None)
    queue.keys.clear()
    queue.consumers.clear()
    return pb.DeleteQueueResponse()


def _forget_lane(state: State, lane: Lane) -> None:
    for message in lane.messages:
        if isinstance(message, Message):
            state.forget(message)
            if message.body is not None:
                state.hot_bytes -= len(message.body)


def pause(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.PauseRequest = command.request  # type: ignore[assignment]
    queue = state.queue(request.queue)
    if request.fairness_key:
        limits = state.options.limits
        check_key("fairness_key", request.fairness_key, limits)
        if len(queue.paused_keys) >= limits.max_paused_keys:
            raise Overloaded(
                f'{len(queue.paused_keys)} keys of queue "{queue.name}" are paused, which is the'
                " limit; pause the queue instead"
            )
        queue.paused_keys.add(request.fairness_key)
        key = queue.keys.get(request.fairness_key)
        if key is not None:
            parking.pause(key)
    else:
        queue.paused = True
    _save(queue, effects)
    return pb.PauseResponse()


def resume(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.ResumeRequest = command.request  # type: ignore[assignment]
    queue = state.queue(request.queue)
    if request.fairness_key:
        queue.paused_keys.discard(request.fairness_key)
        key = queue.keys.get(request.fairness_key)
        if key is not None:
            key.is_paused = False
            parking.join(key)
    else:
        queue.paused = False
    state.dirty[queue] = None
    _save(queue, effects)
    return pb.ResumeResponse()


def cancel_message(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.CancelMessageRequest = command.request  # type: ignore[assignment]
    queue = state.queue(request.queue)
    message_id = request.message_id
    if not message_id:
        raise InvalidArgument("message_id must not be empty")
    if message_id in queue.leases:
        raise MessageLeased(f"message {message_id} is leased; only its consumer can settle it")
    message = queue.delayed.pop(message_id, None)
    if message is None:
        message = _take_pending(state, queue, message_id)
    else:
        state.delayed.vanished()
    drop(state, message, effects)
    return pb.CancelMessageResponse()


def _take_pending(state: State, queue: Queue, message_id: str) -> Message:
    value = state.find(queue, message_id)
    lane = None if value is None else find_lane(queue, Head.FromString(records.split(value)[0]))
    if lane is not None:
        number = int(message_id[24:], 16)
        for waiting in lane.messages:
            if isinstance(waiting, int):
                if waiting == number:
                    key = records.message_key(queue.number, number)
                    message = Message(key, message_id, None, lane, b"", number)
                    lane.messages[lane.messages.index(waiting)] = message
                    state.take_out(message)
                    return message
            elif waiting.id == message_id:
                state.take_out(waiting)
                return waiting
    raise MessageNotFound(f'no message "{shown(message_id)}" in queue "{queue.name}"')


def find_lane(queue: Queue, head: Head) -> Lane | None:
    """Return the lane that holds messages with such a head, if there is one."""
    key = queue.keys.get(head.fairness_key)
    if key is None:
        return None
    return key.lanes.get(lane_key_of(head))


def purge(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.PurgeRequest = command.request  # type: ignore[assignment]
    queue = state.queue(request.queue)
    done = command.progress or 0
    left = _SLICE
    only = request.fairness_key
    keys = [queue.keys[only]] if only in queue.keys else [] if only else list(queue.keys.values())
    for key in keys:
        for lane in list(key.lanes.values()):
            left -= _purge_lane(state, lane, left, effects)
            if left == 0:
                break
        if left == 0:
            break
    chosen = (it for it in queue.delayed.values() if not only or it.lane.key.name == only)
    for message in list(islice(chosen, left)):
        del queue.delayed[message.id]
        state.delayed.vanished()
        drop(state, message, effects)
        left -= 1
    done += _SLICE - left
    if left == 0:
        command.progress = done
        effects.resume.append(command)
        return None
    return pb.PurgeResponse(purged=done)


def _purge_lane(state: State, lane: Lane, limit: int, effects: Effects) -> int:
    queue = lane.key.queue
    count = min(limit, len(lane.messages))
    for _ in range(count):
        message = lane.messages.popleft()
        if isinstance(message, int):
            key = records.message_key(queue.number, message)
            effects.writes.append((Column.MESSAGES, key, None))
            state.gone.add(key)
        else:
            drop(state, message, effects)
            if message.body is not None:
                state.hot_bytes -= len(message.body)
                message.body = None
    lane.key.pending -= count
    queue.pending -= count
    if lane.is_parked:
        queue.throttled -= count
    if not lane.messages:
        state.retire(lane)
    return count


def redrive(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.RedriveRequest = command.request  # type: ignore[assignment]
    source = state.queue(request.dlq_queue)
    if not source.dead_letter_of:
        raise NotADeadLetterQueue(f'"{source.name}" is not a dead-letter queue')
    target = state.queues.get(source.dead_letter_of)
    if target is None:
        raise ParentQueueNotFound(
            f'queue "{source.dead_letter_of}" no longer exists; create it again to redrive into it'
        )
    done = command.progress or 0
    wanted = request.count - done if request.count else _SLICE
    chosen = _choose(state, source, request, min(wanted, _SLICE))
    for message in chosen:
        move(state, source, target, message, 0, "", effects)
    done += len(chosen)
    if len(chosen) == _SLICE and done != request.count:
        command.progress = done
        effects.resume.append(command)
        return None
    return pb.RedriveResponse(redriven=done)


def _choose(state: State, source: Queue, request: pb.RedriveRequest, limit: int) -> list[Message]:
    """Take matching pending messages out of a dead-letter queue, longest dead first."""
    ids = set(request.message_ids)
    lanes = [
        lane
        for key in source.keys.values()
        if not request.fairness_key or key.name == request.fairness_key
        for lane in key.lanes.values()
    ]
    chosen: list[Message] = []
    for lane, waiting in merge(*(_in_line(lane) for lane in lanes), key=_place):
        if len(chosen) == limit:
            break
        message = waiting if isinstance(waiting, Message) else _thawed(state, lane, waiting)
        error = message.extra.error if message.extra is not None else ""
        if request.error_contains in error and (not ids or message.id in ids):
            chosen.append(message)
    _remove(state, source, chosen)
    return chosen


def _in_line(lane: Lane) -> Iterator[tuple[Lane, Message | int]]:
    return ((lane, waiting) for waiting in lane.messages)


def _place(found: tuple[Lane, Message | int]) -> int:
    return order_of(found[1])


def _thawed(state: State, lane: Lane, number: int) -> Message:
    """Return a message of which memory has the number only: somebody enqueued it here."""
    queue = lane.key.queue
    _, stamp, body = records.split(state.stored(queue, [number])[0])
    key = records.message_key(queue.number, number)
    return Message(key, records.body_id(body), None, lane, stamp, number)


def _remove(state: State, source: Queue, chosen: list[Message]) -> None:
    """Take pending messages out of their lanes, a pass per lane."""
    by_lane: dict[Lane, set[int]] = {}
    for message in chosen:
        by_lane.setdefault(message.lane, set()).add(message.order)
        if message.body is not None:
            state.hot_bytes -= len(message.body)
    for lane, leaving in by_lane.items():
        messages = lane.messages
        count = len(leaving)
        while messages and order_of(messages[0]) in leaving:
            leaving.discard(order_of(messages.popleft()))
        if leaving:
            kept = [message for message in messages if order_of(message) not in leaving]
            messages.clear()
            messages.extend(kept)
        lane.key.pending -= count
        source.pending -= count
        if not messages:
            lane.key.ready.remove(lane)
            lane.is_ready = False
            source.dropped(lane)
            if not lane.key.ready and lane.key.in_ring:
                lane.key.in_ring = False
                source.ring.remove(lane.key)


# --- Runtime configuration ------------------------------------------------------------------------


def set_config(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.SetConfigRequest = command.request  # type: ignore[assignment]
    key, value = request.key, request.value
    limits = state.options.limits
    size = len(key.encode())
    if not 1 <= size <= limits.max_config_key_bytes:
        raise InvalidArgument(
            f'config key "{shown(key)}" has {size} bytes;'
            f" 1 to {limits.max_config_key_bytes} are allowed"
        )
    if key not in state.config and len(state.config) >= limits.max_config_entries:
        raise Overloaded(f"there are {len(state.config)} runtime settings, which is the limit")
    size = len(value.encode())
    if size > limits.max_config_value_bytes:
        raise InvalidArgument(
            f'the value of "{shown(key)}" has {size} bytes;'
            f" the limit is {limits.max_config_value_bytes}"
        )
    setting = settings.parse_key(key)
    if setting is not None:
        settings.check(setting, key, value)
    state.config[key] = value
    _changed(state, key, value, setting, now)
    effects.writes.append((Column.STATE, records.CONFIG + key.encode(), value.encode()))
    return pb.SetConfigResponse()


def delete_config(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.DeleteConfigRequest = command.request  # type: ignore[assignment]
    key = request.key
    if state.config.pop(key, None) is None:
        raise ConfigNotFound(f'no configuration entry "{shown(key)}"')
    _changed(state, key, None, settings.parse_key(key), now)
    effects.writes.append((Column.STATE, records.CONFIG + key.encode(), None))
    return pb.DeleteConfigResponse()


def _changed(
    state: State, key: str, value: str | None, setting: settings.Setting | None, now: Now
) -> None:
    if setting is not None:
        settings.apply(state, setting, now)
    for queue in state.queues.values():
        if queue.hooks is not None:
            queue.hooks.set_config(key, value)


def get_config(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.GetConfigRequest = command.request  # type: ignore[assignment]
    value = state.config.get(request.key)
    if value is None:
        raise ConfigNotFound(f'no configuration entry "{shown(request.key)}"')
    return pb.GetConfigResponse(value=value)


def list_config(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.ListConfigRequest = command.request  # type: ignore[assignment]
    entries = [
        pb.ConfigEntry(key=key, value=state.config[key])
        for key in sorted(state.config)
        if key.startswith(request.prefix)
    ]
    return pb.ListConfigResponse(entries=entries, total_count=len(entries))
