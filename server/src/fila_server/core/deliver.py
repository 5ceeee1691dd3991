# SPDX-License-Identifier: AGPL-3.0-only
"""Delivering: pick messages for consumers that have credit, lease them, make frames.

This runs per message. A frame is one grant: one token, one deadline, one stored record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila_server.core import records
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.fairness import Pick, pick
from fila_server.core.message import Grant, Message
from fila_server.core.parking import wake
from fila_server.core.records_pb2 import Lease
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.consumer import Consumer
    from fila_server.core.effects import Effects
    from fila_server.core.queue import Queue
    from fila_server.core.state import State


def deliver(state: State, now: Now, effects: Effects) -> None:
    """Hand out whatever can be handed out in the queues where something changed."""
    dirty, state.dirty = state.dirty, {}
    idle = 0
    while dirty and idle < 2:  # a queue that steps back twice in vain waits for a limiter's timer
        again: dict[Queue, None] = {}
        delivered = len(effects.frames)
        for queue in dirty:
            if not queue.paused:
                first = _deliver_queue(state, queue, now, effects)
                if first is not None:
                    again[first] = again[queue] = None
        idle = idle + 1 if len(effects.frames) == delivered else 0
        dirty = again


def _deliver_queue(state: State, queue: Queue, now: Now, effects: Effects) -> Queue | None:
    """Return the queue, if any, that a limiter was left to and that is to be asked first."""
    first: Queue | None = None
    throttles = state.throttles
    available = queue.available
    fit = queue.fit(state.options.limits.max_frame_bytes)
    while available:
        consumer = available[0]
        if consumer.credit <= 0 or consumer.window <= 0 or not consumer.is_open:
            available.popleft()
            consumer.is_available = False
            continue
        if queue.due_lines:
            first = wake(throttles, queue, now.mono_ns)
        if not queue.ring:
            break
        limit = min(consumer.credit, consumer.max_batch, fit)
        picked = pick(queue, limit, throttles, now.mono_ns)
        if not picked:
            break
        messages = _thaw(state, queue, picked)
        grant = lease(state, queue, consumer, messages, now, effects)
        effects.frames.append((consumer, grant, _frame(state, grant, now)))
        consumer.credit -= len(messages)
        consumer.window -= 1
        queue.counters.delivered += len(messages)
        queue.pace.delivered(len(messages), now.mono_ns)
        if consumer.is_once:
            consumer.is_open = False
        available.rotate(-1)
    if queue.total == 0:
        queue.measure_anew()
    return first


def _thaw(state: State, queue: Queue, picked: list[Pick]) -> list[Message]:
    """Return the picked messages with their bodies, reading cold ones from disk together."""
    cold = [at for at, one in enumerate(picked) if one.__class__ is tuple or one.body is None]  # type: ignore[union-attr]
    if not cold:
        return picked  # type: ignore[return-value]
    messages: list[Message] = picked  # type: ignore[assignment]
    numbers = [
        picked[at][1] if picked[at].__class__ is tuple else picked[at].number  # type: ignore[index,union-attr]
        for at in cold
    ]
    for at, number, value in zip(cold, numbers, state.stored(queue, numbers), strict=True):
        one = picked[at]
        _head, stamp, body = records.split(value)
        if isinstance(one, Message):
            one.body = body
        else:
            key = queue.prefix + records.u64(number)
            messages[at] = Message(key, records.body_id(body), body, one[0], stamp, number)
        state.hot_bytes += len(body)
    return messages


def lease(
    state: State,
    queue: Queue,
    consumer: Consumer,
    messages: list[Message],
    now: Now,
    effects: Effects,
) -> Grant:
    """Lease the messages to the consumer under a new token."""
    number = state.number()
    duration_ms = consumer.visibility_ms or queue.visibility_ms
    duration_ns = duration_ms * NS_PER_MS
    grant = Grant(
        number,
        f"{number:x}",
        queue,
        consumer,
        messages,
        now.mono_ns + duration_ns,
        now.wall_ns + duration_ns,
        duration_ms,
    )
    leases = queue.leases
    for message in messages:
        message.grant = grant
        leases[message.id] = message
    state.leases.push(grant.deadline_ns, number, grant)
    effects.writes.append(lease_record(grant))
    return grant


def lease_record(grant: Grant) -> tuple[Column, bytes, bytes]:
    record = Lease(
        token=grant.token,
        expires_at_ns=grant.expires_ns,
        duration_ms=grant.duration_ms,
        messages=[int.from_bytes(message.key[4:], "big") for message in grant.messages],
    )
    key = grant.queue.prefix + records.u64(grant.number)
    return Column.LEASES, key, record.SerializeToString()


def _frame(state: State, grant: Grant, now: Now) -> bytes:
    """Encode a ConsumeResponse (or ReceiveResponse), and let go of the messages' bodies."""
    token = records.token_field(grant.token)
    token_bytes = len(token)
    leased = records.timestamp_field(2, now.wall_ns) + records.timestamp_field(3, grant.expires_ns)
    prefix = records.frame_prefix
    parts: list[bytes] = []
    append = parts.append
    stamps: dict[bytes, bytes] = {}
    freed = 0
    for message in grant.messages:
        lane = message.lane
        if message.extra is None:
            metadata = lane.metadata
            if lane.metadata_of != (lane.key.weight, token_bytes):
                metadata = lane.frame_metadata(token_bytes)
        else:
            retry = records.retry_fields(message.attempt, message.extra.error)
            metadata = records.framed_metadata(lane.metadata_fields() + retry, token_bytes)
        stamp = message.stamp
        times = stamps.get(stamp)
        if times is None:
            times = stamps[stamp] = records.delivery_timestamps(stamp, leased)
        body = message.body
        assert body is not None
        size = len(body)
        freed += size
        append(prefix(size + len(metadata) + token_bytes + len(times)))
        append(body)
        append(metadata)
        append(token)
        append(times)
        message.body = None  # the disk has it, should it be needed again
    state.hot_bytes -= freed
    return b"".join(parts)
