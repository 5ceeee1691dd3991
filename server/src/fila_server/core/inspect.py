# SPDX-License-Identifier: AGPL-3.0-only
"""Looking at queues without changing them: the list, the stats of one, the messages in one."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Any

from fila.v1 import admin_pb2 as pb
from fila.v1.messages_pb2 import Message as WireMessage
from fila_server.core import records
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.commands import Admin
from fila_server.core.lane import FairnessKey, order_of
from fila_server.core.message import Message
from fila_server.core.queue import Queue
from fila_server.core.records_pb2 import Head, Retry
from fila_server.core.state import State
from fila_server.errors import InvalidArgument
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.effects import Effects

_DEFAULT_KEYS = 100
_DEFAULT_PEEK = 10
_MAX_PEEK = 1000
_PEEK_LOOKED = 20_000  # rows that one peek may pass over before it answers with what it has


def list_queues(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    return pb.ListQueuesResponse(
        queues=[
            pb.QueueInfo(
                name=queue.name,
                depth=queue.pending,
                in_flight=len(queue.leases),
                active_consumers=len(queue.consumers),
                delayed=len(queue.delayed),
                paused=queue.paused,
                dead_letter_of=queue.dead_letter_of,
            )
            for _, queue in sorted(state.queues.items())
        ]
    )


def get_stats(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.GetStatsRequest = command.request  # type: ignore[assignment]
    queue = state.queue(request.queue)
    counters = queue.counters
    response = pb.GetStatsResponse(
        depth=queue.pending,
        in_flight=len(queue.leases),
        active_fairness_keys=len(queue.keys),
        active_consumers=len(queue.consumers),
        quantum=queue.quantum,
        delayed=len(queue.delayed),
        paused=queue.paused,
        counters=pb.QueueCounters(**{name: getattr(counters, name) for name in counters.__slots__}),
        config=queue.config,
        oldest_pending_age_ms=_oldest_age_ms(state, queue, now),
        dead_letter_of=queue.dead_letter_of,
        consumer_credit=sum(max(0, consumer.credit) for consumer in queue.consumers),
        throttled=queue.throttled,
    )
    busiest = nlargest(
        request.max_keys or _DEFAULT_KEYS, queue.keys.values(), key=lambda key: key.pending
    )
    response.per_key_stats.extend(_key_stats(key) for key in busiest)
    response.per_throttle_stats.extend(_throttle_stats(state, queue, now))
    if queue.hooks is not None:
        hooks = queue.hooks.stats()
        response.hooks.calls = hooks.calls
        response.hooks.failures = hooks.failures
        response.hooks.bypassed = hooks.bypassed
        response.hooks.circuit_open = hooks.circuit_open
        response.hooks.last_error = hooks.last_error
    return response


def _key_stats(key: FairnessKey) -> pb.PerFairnessKeyStats:
    return pb.PerFairnessKeyStats(
        key=key.name,
        pending_count=key.pending,
        current_deficit=key.deficit,
        weight=key.weight,
        delivered=key.delivered,
        throttled=sum(len(lane.messages) for lane in key.lanes.values() if lane.is_parked),
        paused=key.is_paused,
    )


def _throttle_stats(state: State, queue: Queue, now: Now) -> list[pb.PerThrottleKeyStats]:
    waiting: dict[str, int] = {}
    for key in queue.keys.values():
        for lane in key.lanes.values():
            for name in lane.throttle_keys:
                waiting[name] = waiting.get(name, 0) + len(lane.messages)
    for message in queue.leases.values():
        for name in message.lane.throttle_keys:
            waiting.setdefault(name, 0)
    rows = []
    for name in sorted(waiting, key=lambda name: (-waiting[name], name))[:_DEFAULT_KEYS]:
        row = pb.PerThrottleKeyStats(key=name, waiting=waiting[name])
        limiter = state.throttles.limiters.get(name)
        if limiter is not None:
            row.tokens = limiter.tokens(now.mono_ns)
            row.rate_per_second = limiter.rate
            row.burst = limiter.burst if limiter.rate else 0
            row.passed = limiter.passed_count
            row.blocked = limiter.blocked_count
            row.concurrency_limit = limiter.limit
            row.in_flight = limiter.in_flight
            if limiter.paused_until_ns > now.mono_ns:
                wall_ns = now.wall_ns + limiter.paused_until_ns - now.mono_ns
                row.paused_until.FromNanoseconds(wall_ns)
        rows.append(row)
    return rows


def _oldest_age_ms(state: State, queue: Queue, now: Now) -> int:
    """Return how long the oldest message that could be delivered has waited.

    Delayed ones do not count.
    """
    heads = [lane.messages[0] for key in queue.keys.values() for lane in key.lanes.values()]
    if not heads:
        return 0
    oldest = min(heads, key=order_of)
    if isinstance(oldest, Message):
        stamp = oldest.stamp
    else:
        stamp = records.split(state.stored(queue, [oldest])[0])[1]
    return max(0, now.wall_ns - records.stamp_ns(stamp)) // NS_PER_MS


def peek(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.PeekRequest = command.request  # type: ignore[assignment]
    queue = state.queue(request.queue)
    limit = request.limit or _DEFAULT_PEEK
    if limit > _MAX_PEEK:
        raise InvalidArgument(f"limit {limit} is above {_MAX_PEEK}")
    if request.state not in pb.MessageState.values():
        raise InvalidArgument(f"state {request.state} is not a state of a message")
    response = pb.PeekResponse(end_position=state.next_number)
    until = request.until_position or state.next_number
    start = records.message_key(queue.number, min(request.from_position, until))
    end = records.message_key(queue.number, until)
    budget = state.options.limits.max_frame_bytes
    for looked, (key, value) in enumerate(state.read.scan(Column.MESSAGES, start, end)):
        if len(response.messages) == limit or budget <= 0 or looked == _PEEK_LOOKED:
            response.next_position = records.key_number(key)
            break
        if key in state.gone:  # its time to live has just passed
            continue
        budget -= len(value)
        found = _peeked(state, queue, request, key, value)
        if found is not None:
            response.messages.append(found)
    return response


def _peeked(
    state: State, queue: Queue, request: pb.PeekRequest, key: bytes, value: bytes
) -> pb.PeekedMessage | None:
    """Return a stored message as people may see it, or None if the request leaves it out."""
    head_bytes, stamp, body = records.split(value)
    head = Head.FromString(head_bytes)
    if request.fairness_key and head.fairness_key != request.fairness_key:
        return None
    message_id = records.body_id(body)
    leased = queue.leases.get(message_id)
    delayed = queue.delayed.get(message_id)
    state_now = pb.MESSAGE_STATE_PENDING
    if leased is not None:
        state_now = pb.MESSAGE_STATE_LEASED
    elif delayed is not None:
        state_now = pb.MESSAGE_STATE_DELAYED
    if request.state and request.state != state_now:
        return None
    message = WireMessage.FromString(body)
    if request.exclude_payload:
        message.ClearField("payload")
    fill(message, queue, head, stamp)
    retry_bytes = state.read.get_many(Column.RETRIES, [key])[0]
    if retry_bytes is not None:
        retry = Retry.FromString(retry_bytes)
        message.metadata.attempt_count = retry.attempt_count
        message.metadata.last_error = retry.last_error
    if leased is not None and leased.grant is not None:
        message.timestamps.lease_expires_at.FromNanoseconds(leased.grant.expires_ns)
    if delayed is not None and delayed.extra is not None:
        message.timestamps.deliver_at.FromNanoseconds(delayed.extra.due_ns)
    return pb.PeekedMessage(message=message, state=state_now, position=records.key_number(key))


def fill(message: WireMessage, queue: Queue, head: Head, stamp: bytes) -> None:
    """Complete a message with what its head says."""
    key = queue.keys.get(head.fairness_key)
    metadata = message.metadata
    metadata.queue_id = queue.name
    metadata.fairness_key = head.fairness_key
    metadata.weight = key.weight if key is not None else head.weight or 1
    metadata.throttle_keys.extend(head.throttle_keys)
    metadata.throttle_cost = head.throttle_cost
    message.timestamps.enqueued_at.FromNanoseconds(records.stamp_ns(stamp))
    if head.expires_at_ns:
        message.timestamps.expires_at.FromNanoseconds(head.expires_at_ns)
