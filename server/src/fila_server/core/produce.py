# SPDX-License-Identifier: AGPL-3.0-only
"""Enqueueing: check a message, ask the hook, encode it once, put it in its lane.

This runs per message. Checks that need the payload or the headers read are made on sizes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila_server.core import records
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.commands import Duplicate, Enqueue
from fila_server.core.message import Message
from fila_server.core.records_pb2 import Head, SeenKey
from fila_server.core.state import State, shown
from fila_server.errors import FilaError, InvalidArgument, MessageTooLarge, QueueFull
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila.v1.service_pb2 import EnqueueRequest
    from fila_server.config import LimitsConfig
    from fila_server.core.effects import Effects
    from fila_server.core.lane import Lane
    from fila_server.core.queue import Queue

DEFAULT_KEY = "default"
MAX_WEIGHT = 1000
MAX_COST = 1_000_000
_DAY_MS = 86_400_000
_SWEEP_SLICE = 1000


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


def _accept(
    state: State, queue: Queue, item: EnqueueRequest, now: Now, effects: Effects
) -> str:
    config = queue.config
    if config.max_messages and queue.total >= config.max_messages:
        raise QueueFull(f'queue "{queue.name}" holds {queue.total} messages, its maximum')
    due_ns, expires_ns = _times(state, queue, item, now)
    idempotency_key = item.idempotency_key
    if idempotency_key:
        seen = _seen(state, queue, idempotency_key, now)
        if seen is not None:
            queue.counters.duplicates += 1
            return Duplicate(seen)
    lane, weight = _lane(state, queue, item, now)
    number = state.number()
    message_id = f"{state.prefix}{number:012x}"
    body = _body(item, message_id)
    if len(body) > queue.largest:
        queue.largest = len(body)
    key = queue.prefix + records.u64(number)
    if due_ns or expires_ns:
        value = _store_special(state, lane, weight, key, message_id, body, due_ns, expires_ns, now)
    else:
        value = lane.record_head(state.stamp, weight) + body
        _store_plain(state, lane, number, key, message_id, body, value)
    effects.writes.append((Column.MESSAGES, key, value))
    if idempotency_key:
        _remember(state, queue, idempotency_key, message_id, now, effects)
    queue.counters.enqueued += 1
    return message_id


def _store_plain(
    state: State, lane: Lane, number: int, key: bytes, message_id: str, body: bytes, value: bytes
) -> None:
    if state.hot_bytes > state.options.scheduler.hot_bytes:
        state.unwritten[key] = value  # born cold: memory keeps its number only
        state.push(lane, number)
    else:
        state.hot_bytes += len(body)
        state.push(lane, Message(key, message_id, body, lane, state.stamp, number))
    state.dirty[lane.key.queue] = None


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
    """Return the wall times before which the message is not delivered and at which it is dropped."""
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
        ttl_ms = queue.config.default_ttl_ms
    if ttl_ms:
        if ttl_ms > limits.max_ttl_ms:
            raise InvalidArgument(f"ttl_ms {ttl_ms} exceeds {limits.max_ttl_ms}")
        expires_ns = now.wall_ns + ttl_ms * NS_PER_MS
    return due_ns, expires_ns


def _lane(state: State, queue: Queue, item: EnqueueRequest, now: Now) -> tuple[Lane, int]:
    """Return the message's lane and the weight it gives its key (0 for none), by hook or by request."""
    limits = state.options.limits
    fairness_key = item.fairness_key
    weight = item.weight
    keys: tuple[str, ...] = ()
    cost = item.throttle_cost
    if fairness_key:
        if len(fairness_key) * 4 > limits.max_fairness_key_bytes:
            check_key("fairness_key", fairness_key, limits)
        item.ClearField("fairness_key")
    else:
        fairness_key = DEFAULT_KEY
    if weight:
        if weight > MAX_WEIGHT:
            raise InvalidArgument(f"weight {weight} is not between 1 and {MAX_WEIGHT}")
        item.ClearField("weight")
    if cost:
        if cost > MAX_COST:
            raise InvalidArgument(f"throttle_cost {cost} is not between 1 and {MAX_COST}")
        item.ClearField("throttle_cost")
    if item.throttle_keys:
        keys = _throttle_keys(item, limits)
        item.ClearField("throttle_keys")
    check_size(item, limits)
    hooks = queue.hooks
    if hooks is not None and hooks.has_enqueue:
        decision = hooks.on_enqueue(item.headers, len(item.payload), now.mono_ns)
        if decision is None:
            fairness_key, weight, keys, cost = DEFAULT_KEY, 1, (), 1
        else:
            fairness_key, weight, keys, cost = decision  # type: ignore[misc]
    return queue.lane(fairness_key, weight, keys, cost or 1, state.throttles), weight


def _throttle_keys(item: EnqueueRequest, limits: LimitsConfig) -> tuple[str, ...]:
    keys = tuple(sorted(set(item.throttle_keys)))
    if len(keys) > limits.max_throttle_keys:
        raise InvalidArgument(f"{len(keys)} throttle_keys exceed {limits.max_throttle_keys}")
    for key in keys:
        check_key("throttle_keys", key, limits)
    return keys


def check_key(field: str, key: str, limits: LimitsConfig) -> None:
    """Refuse an empty or overlong fairness or throttle key."""
    size = len(key.encode())
    if not 1 <= size <= limits.max_fairness_key_bytes:
        raise InvalidArgument(
            f'{field} "{shown(key)}" has {size} bytes; 1 to {limits.max_fairness_key_bytes} are allowed'
        )


def check_size(item: EnqueueRequest, limits: LimitsConfig) -> None:
    """Refuse a payload or headers beyond the limits."""
    payload = len(item.payload)
    if payload > limits.max_payload_bytes:
        raise MessageTooLarge(f"payload has {payload} bytes; the limit is {limits.max_payload_bytes}")
    headers = item.headers
    count = len(headers)
    if count > limits.max_headers:
        raise MessageTooLarge(f"{count} headers exceed the limit of {limits.max_headers}")
    if count and item.ByteSize() - payload > limits.max_header_bytes:
        size = sum(len(k.encode()) + len(v.encode()) for k, v in headers.items())
        if size > limits.max_header_bytes:
            raise MessageTooLarge(
                f"headers have {size} bytes; the limit is {limits.max_header_bytes}"
            )


def _body(item: EnqueueRequest, message_id: str) -> bytes:
    """Encode what consumers will get. Tags 1 to 3 of a request are those of a message, id for queue."""
    if item.idempotency_key:
        item.ClearField("idempotency_key")
    item.queue = message_id
    return item.SerializeToString()


# --- Idempotency keys ------------------------------------------------------------------------------


def _seen(state: State, queue: Queue, idempotency_key: str, now: Now) -> str | None:
    """Return the message that an earlier enqueue with this key made, if the window is still open."""
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
    looked = 0
    for key, value in state.read.scan(Column.IDEMPOTENCY, cursor, b"\xff" * 5):
        if looked == _SWEEP_SLICE:
            return key
        looked += 1
        if SeenKey.FromString(value).expires_at_ns <= now.wall_ns:
            effects.writes.append((Column.IDEMPOTENCY, key, None))
    return b""
