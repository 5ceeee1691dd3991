# SPDX-License-Identifier: AGPL-3.0-only
"""Enqueueing: check a message, ask the hook, encode it once, put it in its lane.

This runs per message: limits are checked on the encoded size first, and a field is only looked at
more closely when it is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila_server.core import records
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.commands import Duplicate, Enqueue
from fila_server.core.lane import PLAIN
from fila_server.core.message import Message
from fila_server.core.records_pb2 import Head, SeenKey
from fila_server.core.state import State, shown
from fila_server.errors import FilaError, InvalidArgument, MessageTooLarge, QueueFull
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila.v1.service_pb2 import EnqueueRequest
    from fila_server.config import LimitsConfig
    from fila_server.core.effects import Effects
    from fila_server.core.lane import Lane, LaneKey
    from fila_server.core.queue import Queue

DEFAULT_KEY = "default"
MAX_WEIGHT = 1000
MAX_COST = 1_000_000
_DAY_MS = 86_400_000
_SHORT = 16  # characters: 64 bytes at most, within every limit that can be configured
_SWEEP_SLICE = 1000
_END = b"\xff" * 5  # after every queue's number


def enqueue(state: State, command: Enqueue, now: Now, effects: Effects) -> None:
    """Store messages; answer, durably, with one result per item."""
    results: list[str | FilaError] = []
    queues = state.queues
    for item in command.items:
        try:
            queue = queues.get(item.queue)
            if queue is None:
                queue = state.queue(item.queue)
            results.append(_accept(state, queue, item, now, effects))
        except FilaError as error:
            results.append(error)
    effects.durable_answers.append((command.ticket, results))


def _accept(state: State, queue: Queue, item: EnqueueRequest, now: Now, effects: Effects) -> str:
    """Store one message and return its id."""
    if queue.max_messages and queue.total >= queue.max_messages:
        raise QueueFull(f'queue "{queue.name}" holds {queue.total} messages, its maximum')
    due_ns = expires_ns = 0
    if item.delay_ms or item.ttl_ms or queue.default_ttl_ms or item.HasField("deliver_at"):
        due_ns, expires_ns = _times(state, queue, item, now)
    idempotency_key = item.idempotency_key
    if idempotency_key:
        seen = _seen(state, queue, idempotency_key, now)
        if seen is not None:
            queue.counters.duplicates += 1
            return Duplicate(seen)
        item.ClearField("idempotency_key")
    fairness_key = item.fairness_key
    weight = item.weight
    if fairness_key:
        if len(fairness_key) > _SHORT:
            check_key("fairness_key", fairness_key, state.options.limits)
        item.ClearField("fairness_key")
    else:
        fairness_key = DEFAULT_KEY
    if weight:
        check_weight(weight)
        item.ClearField("weight")
    lane_key = PLAIN
    if item.throttle_keys or item.throttle_cost:
        lane_key = _lane_key(item, state.options.limits)

    number = state.next_number
    state.next_number = number + 1
    message_id = f"{state.prefix}{number:012x}"
    # Tags 1 to 3 of a request are those of a message, with the id where the queue was.
    item.queue = message_id
    body = item.SerializeToString()
    size = len(body)
    if size > state.surely_small:
        check_size(item, state.options.limits)
    if queue.hooks is not None and queue.hooks.has_on_enqueue:
        fairness_key, weight, lane_key = _ask_hook(queue, item, now)
    if size > queue.largest:
        queue.largest = size

    lane = queue.lane(fairness_key, weight, lane_key, state.throttles)
    key = queue.prefix + records.u64(number)
    if due_ns or expires_ns:
        value = _store_special(state, lane, weight, key, message_id, body, due_ns, expires_ns, now)
    else:
        value = lane.record_head(state.stamp, weight) + body
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


def _times(state: State, queue: Queue, item: EnqueueRequest, now: Now) -> tuple[int, int]:
    """Return the wall times before which a message is not delivered and when it is dropped."""
    limits = state.options.limits
    due_ns = expires_ns = 0
    delay_ms = item.delay_ms
    if delay_ms:
        if delay_ms > limits.max_delay_ms:
            raise InvalidArgument(f"delay_ms {delay_ms} exceeds {limits.max_delay_ms}")
        due_ns = now.wall_ns + delay_ms * NS_PER_MS
        item.ClearField("delay_ms")
    if item.HasField("deliver_at"):
        if delay_ms:
            raise InvalidArgument("delay_ms and deliver_at exclude each other")
        due_ns = item.deliver_at.ToNanoseconds()
        if due_ns > now.wall_ns + limits.max_delay_ms * NS_PER_MS:
            raise InvalidArgument(f"deliver_at is more than {limits.max_delay_ms} ms ahead")
        if due_ns <= now.wall_ns:
            due_ns = 0
        item.ClearField("deliver_at")
    ttl_ms = item.ttl_ms
    if ttl_ms:
        item.ClearField("ttl_ms")
    else:
        ttl_ms = queue.default_ttl_ms
    if ttl_ms:
        if ttl_ms > limits.max_ttl_ms:
            raise InvalidArgument(f"ttl_ms {ttl_ms} exceeds {limits.max_ttl_ms}")
        expires_ns = now.wall_ns + ttl_ms * NS_PER_MS
    return due_ns, expires_ns


def _lane_key(item: EnqueueRequest, limits: LimitsConfig) -> LaneKey:
    keys = tuple(sorted(set(item.throttle_keys)))
    if len(keys) > limits.max_throttle_keys:
        raise InvalidArgument(f"{len(keys)} throttle_keys exceed {limits.max_throttle_keys}")
    for key in keys:
        check_key("throttle_keys", key, limits)
    cost = item.throttle_cost
    if cost > MAX_COST:
        raise InvalidArgument(f"throttle_cost {cost} is not between 1 and {MAX_COST}")
    item.ClearField("throttle_keys")
    item.ClearField("throttle_cost")
    return (keys, cost or 1) if keys else PLAIN


def _ask_hook(queue: Queue, item: EnqueueRequest, now: Now) -> tuple[str, int, LaneKey]:
    """Return the fairness key, weight and lane that the queue's hook decides on."""
    assert queue.hooks is not None
    decision = queue.hooks.on_enqueue(item.headers, len(item.payload), now.mono_ns)
    if decision is None:
        return DEFAULT_KEY, 1, PLAIN
    if not decision.throttle_keys:
        return decision.fairness_key, decision.weight, PLAIN
    return (
        decision.fairness_key,
        decision.weight,
        (decision.throttle_keys, decision.throttle_cost or 1),
    )


def check_weight(weight: int) -> None:
    if weight > MAX_WEIGHT:
        raise InvalidArgument(f"weight {weight} is not between 1 and {MAX_WEIGHT}")


def check_key(field: str, key: str, limits: LimitsConfig) -> None:
    """Refuse an empty or overlong fairness or throttle key."""
    size = len(key.encode())
    if not 1 <= size <= limits.max_fairness_key_bytes:
        raise InvalidArgument(
            f'{field} "{shown(key)}" has {size} bytes;'
            f" 1 to {limits.max_fairness_key_bytes} are allowed"
        )


def check_size(item: EnqueueRequest, limits: LimitsConfig) -> None:
    """Refuse a payload or headers beyond the limits."""
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
    encoded = idempotency_key.encode()
    limit = state.options.limits.max_idempotency_key_bytes
    if len(encoded) > limit:
        raise InvalidArgument(f"idempotency_key has {len(encoded)} bytes; the limit is {limit}")
    key = queue.prefix + encoded
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
