# SPDX-License-Identifier: AGPL-3.0-only
"""Looking at messages without leasing them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from fila.v1 import admin_pb2 as pb
from fila.v1.messages_pb2 import Message as WireMessage
from fila_server.core.turn import BYTES_PER_UNIT
from fila_server.core.wire import records
from fila_server.core.wire.frames import failures_of
from fila_server.core.wire.records_pb2 import Head, Retry
from fila_server.errors import InvalidArgument, QueueNotFound
from fila_server.limits import DEFAULT_PEEK, MAX_PEEK
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.state import State
    from fila_server.core.turn import Turn

_LOOKED = 2000  # records that one peek may pass over before it answers with what it has
_AT_A_TIME = 100
_BYTES_AT_A_TIME = 256 * 1024

Row = tuple[bytes, bytes]


def peek(
    state: State, request: pb.PeekRequest, turn: Turn
) -> Generator[int, None, pb.PeekResponse]:
    """Look at messages in the order of their numbers, some records at a time."""
    queue = state.queue(request.queue)
    limit = request.limit or DEFAULT_PEEK
    if limit > MAX_PEEK:
        raise InvalidArgument(f"limit {limit} is above {MAX_PEEK}")
    if request.state not in pb.MessageState.values():
        raise InvalidArgument(f"state {request.state} is not a state of a message")
    response = pb.PeekResponse(end_position=state.next_number)
    until = request.until_position or state.next_number
    start = records.message_key(queue.number, min(request.from_position, until))
    end = records.message_key(queue.number, until)
    budget = state.config.limits.max_frame_bytes
    looked = 0
    while True:
        rows, size, following = _some(turn.batch.scan(Column.MESSAGES, start, end))
        pasts = turn.batch.get_many(Column.RETRIES, [key for key, _ in rows])
        units = len(rows) + size // BYTES_PER_UNIT
        for (key, value), past in zip(rows, pasts, strict=True):
            if len(response.messages) == limit or budget <= 0 or looked == _LOOKED:
                turn.units += units
                response.next_position = records.key_number(key)
                return response
            looked += 1
            found = _peeked(queue, request, key, value, past)
            if found is not None:
                budget -= len(value)
                response.messages.append(found)
        if following is None:
            turn.units += units
            return response
        start = following
        yield units
        if queue.is_deleted:
            raise QueueNotFound(f'queue "{queue.name}" was deleted')


def _some(rows: Iterator[Row]) -> tuple[list[Row], int, bytes | None]:
    """Return a bounded number of records, their size, and the key of the one that follows."""
    some: list[Row] = []
    size = 0
    for row in rows:
        if len(some) == _AT_A_TIME or size >= _BYTES_AT_A_TIME:
            return some, size, row[0]
        some.append(row)
        size += len(row[1])
    return some, size, None


def _peeked(
    queue: Queue, request: pb.PeekRequest, key: bytes, value: bytes, past: bytes | None
) -> pb.PeekedMessage | None:
    """Return a stored message as people may see it, or None if the request leaves it out."""
    head_bytes, stamp, body = records.split(value)
    head = Head.FromString(head_bytes)
    if request.fairness_key and head.fairness_key != request.fairness_key:
        return None
    number = records.key_number(key)
    leased = queue.leases.get(number)
    delayed = queue.delayed.get(number)
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
    _complete(message, queue, head, stamp)
    if past is not None:
        retry = Retry.FromString(past)
        message.metadata.attempt_count = retry.attempt_count
        message.metadata.last_error = retry.last_error
        message.metadata.failures.extend(failures_of(retry.failures))
    if leased is not None and leased.grant is not None:
        message.timestamps.lease_expires_at.FromNanoseconds(leased.grant.expires_ns)
    if delayed is not None and delayed.extra is not None:
        message.timestamps.deliver_at.FromNanoseconds(delayed.extra.due_ns)
    return pb.PeekedMessage(message=message, state=state_now, position=number)


def _complete(message: WireMessage, queue: Queue, head: Head, stamp: bytes) -> None:
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
