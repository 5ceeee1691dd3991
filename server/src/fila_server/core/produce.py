# SPDX-License-Identifier: AGPL-3.0-only
"""Enqueueing: check a message, ask the hook, put it in its lane.

This runs per message: limits are checked on the encoded size first, and headers are only decoded
for a hook or a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila.v1.service_pb2 import EnqueueRequest
from fila_server.core import records
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.commands import Duplicate, Enqueue
from fila_server.core.intake import DEFAULT_KEY, Terms
from fila_server.core.lane import PLAIN
from fila_server.core.message import Message
from fila_server.core.records_pb2 import Head, SeenKey
from fila_server.core.state import State
from fila_server.errors import FilaError, InvalidArgument, MessageTooLarge, QueueFull
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.config import LimitsConfig
    from fila_server.core.effects import Effects
    from fila_server.core.lane import Lane, LaneKey
    from fila_server.core.queue import Hooks, Queue

_DAY_MS = 86_400_000
_SWEEP_SLICE = 1000
_END = b"\xff" * 5  # after every queue's number


def enqueue(state: State, command: Enqueue, now: Now, effects: Effects) -> None:
    """Store messages; answer, durably, with one result per item."""
    results: list[str | FilaError] = []
    append = results.append
    queues = state.queues
    for name, content, terms in command.items:
        try:
            queue = queues.get(name)
            if queue is None:
                queue = state.queue(name)
            if terms.__class__ is not Terms:
                raise terms  # type: ignore[misc]
            append(_accept(state, queue, content, terms, now, effects))
        except FilaError as error:
            append(error)
    effects.durable_answers.append((command.ticket, results))


def _accept(
    state: State, queue: Queue, content: bytes, terms: Terms, now: Now, effects: Effects
) -> str:
    """Store one message and return its id."""
    fairness_key, weight, lane_key, _, _, _, idempotency_key, has_times = terms
    due_ns = expires_ns = 0
    if has_times or queue.default_ttl_ms:
        due_ns, expires_ns = _times(state, queue, terms, now)
    if idempotency_key:
        seen = _seen(state, queue, idempotency_key, now)
        if seen is not None:
            queue.counters.duplicates += 1
            return Duplicate(seen)
    if queue.max_messages and queue.total >= queue.max_messages:
        raise QueueFull(f'queue "{queue.name}" holds {queue.total} messages, its maximum')
    size = len(content)
    if size > state.surely_small:
        check_size(content, state.options.limits)
    hooks = queue.hooks
    if hooks is not None and hooks.has_on_enqueue:
        fairness_key, weight, lane_key = _ask_hook(hooks, content, now)

    number = state.next_number
    state.next_number = number + 1
    message_id = f"{state.prefix}{number:012x}"
    body = b"\n$" + message_id.encode() + content  # the id as field 1, where the queue was
    size += 38
    if size > queue.largest:
        queue.largest = size
    lane = queue.lane(fairness_key, weight, lane_key, state.throttles)
    key = records.message_key(queue.number, number)
    if due_ns or expires_ns:
        value = _store_special(state, lane, weight, key, message_id, body, due_ns, expires_ns, now)
    else:
        value = lane.record_head(weight) + state.stamp + body
        if state.hot_bytes > state.options.scheduler.hot_bytes:
            state.unwritten[key] = value  # born cold: memory keeps its number only
            state.push(lane, number)
        else:
            state.hot_bytes += size
            state.push(lane, Message(key, message_id, body, lane, state.stamp, number))
        state.dirty[queue] = None
    effects.writes.append((Column.MESSAGES, key, value))
    if idempotency_key:
        _remember(state, queue, idempotency_key, message_id, now, effects)
    queue.counters.enqueued += 1
    return message_id


def _store_special(
    state: State,
    lane: Lane,
    weight: int,
    key: bytes,
    message_id: str,
    body: bytes,
    due_ns: int,
    expires_ns: int,
    now: Now,
) -> bytes:
    """Hold a message that is delayed or has a time to live; return what to store."""
    head = Head(
        fairness_key=lane.key.name,
        weight=weight,
        throttle_keys=lane.throttle_keys,
        throttle_cost=lane.cost if lane.cost > 1 else 0,
        deliver_at_ns=due_ns,
        expires_at_ns=expires_ns,
    )
    number = records.key_number(key)
    message = Message(key, message_id, None, lane, state.stamp, number)
    state.unwritten[key] = value = records.full_head(head, state.stamp) + body
    if expires_ns:
        state.limit_life(message, expires_ns, now)
    if due_ns:
        state.delay(message, due_ns, now)
        if not lane.messages:
            lane.key.queue.dropped(lane)
    else:
        state.push(lane, message)
        state.dirty[lane.key.queue] = None
    return value


def _times(state: State, queue: Queue, terms: Terms, now: Now) -> tuple[int, int]:
    """Return the wall times before which a message is not delivered and when it is dropped."""
    limits = state.options.limits
    due_ns = expires_ns = 0
    if terms.delay_ms:
        if terms.delay_ms > limits.max_delay_ms:
            raise InvalidArgument(f"delay_ms {terms.delay_ms} exceeds {limits.max_delay_ms}")
        due_ns = now.wall_ns + terms.delay_ms * NS_PER_MS
    elif terms.deliver_at_ns > now.wall_ns:
        due_ns = terms.deliver_at_ns
        if due_ns > now.wall_ns + limits.max_delay_ms * NS_PER_MS:
            raise InvalidArgument(f"deliver_at is more than {limits.max_delay_ms} ms ahead")
    ttl_ms = terms.ttl_ms or queue.default_ttl_ms
    if ttl_ms:
        if ttl_ms > limits.max_ttl_ms:
            raise InvalidArgument(f"ttl_ms {ttl_ms} exceeds {limits.max_ttl_ms}")
        expires_ns = now.wall_ns + ttl_ms * NS_PER_MS
    return due_ns, expires_ns


def _ask_hook(hooks: Hooks, content: bytes, now: Now) -> tuple[str, int, LaneKey]:
    """Return the fairness key, weight and lane that the queue's hook decides on."""
    item = EnqueueRequest.FromString(content)
    decision = hooks.on_enqueue(item.headers, len(item.payload), now.mono_ns)
    if decision is None:
        return DEFAULT_KEY, 1, PLAIN
    if not decision.throttle_keys:
        return decision.fairness_key, decision.weight, PLAIN
    return (
        decision.fairness_key,
        decision.weight,
        (decision.throttle_keys, decision.throttle_cost or 1),
    )


def check_size(content: bytes, limits: LimitsConfig) -> None:
    """Refuse a payload or headers beyond the limits."""
    item = EnqueueRequest.FromString(content)
    payload = len(item.payload)
    if payload > limits.max_payload_bytes:
        raise MessageTooLarge(
            f"payload has {payload} bytes; the limit is {limits.max_payload_bytes}"
        )
    headers = item.headers
    if len(headers) > limits.max_headers:
        raise MessageTooLarge(f"{len(headers)} headers exceed the limit of {limits.max_headers}")
    if headers:
        size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
        if size > limits.max_header_bytes:
            raise MessageTooLarge(
                f"headers have {size} bytes; the limit is {limits.max_header_bytes}"
            )


# --- Idempotency keys -----------------------------------------------------------------------------


def _seen(state: State, queue: Queue, idempotency_key: str, now: Now) -> str | None:
    """Return the message that an enqueue with this key made within the window."""
    key = queue.prefix + idempotency_key.encode()
    found = state.seen.get(key)
    if found is not None:
        return found
    value = state.read.get_many(Column.IDEMPOTENCY, [key])[0]
    if value is None:
        return None
    record = SeenKey.FromString(value)
    return record.message_id if record.expires_at_ns > now.wall_ns else None


def _remember(
    state: State, queue: Queue, idempotency_key: str, message_id: str, now: Now, effects: Effects
) -> None:
    key = queue.prefix + idempotency_key.encode()
    window_ms = queue.config.idempotency_window_ms or _DAY_MS
    record = SeenKey(message_id=message_id, expires_at_ns=now.wall_ns + window_ms * NS_PER_MS)
    state.seen[key] = message_id
    effects.writes.append((Column.IDEMPOTENCY, key, record.SerializeToString()))


def forget_seen(state: State, cursor: bytes, now: Now, effects: Effects) -> bytes:
    """Drop expired idempotency keys, a slice at a time; return where the next slice starts."""
    for looked, (key, value) in enumerate(state.read.scan(Column.IDEMPOTENCY, cursor, _END)):
        if looked == _SWEEP_SLICE:
            return key
        if SeenKey.FromString(value).expires_at_ns <= now.wall_ns:
            effects.writes.append((Column.IDEMPOTENCY, key, None))
    return b""
