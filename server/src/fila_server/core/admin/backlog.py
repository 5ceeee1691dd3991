# SPDX-License-Identifier: AGPL-3.0-only
"""Work on what waits: purging a queue, redriving dead letters, cancelling one message.

Each concerns what was there when it was asked for: messages that come later are behind a cutoff,
and a queue that was deleted meanwhile, or made again, is another one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from fila.v1 import admin_pb2 as pb
from fila_server.core.names import shown
from fila_server.core.schedule.lane import Lane, order_of
from fila_server.core.schedule.message import Message
from fila_server.core.schedule.queue import Queue, by_id
from fila_server.core.traffic import letters
from fila_server.core.traffic.failure import drop
from fila_server.core.turn import BYTES_PER_UNIT
from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import Head, Retry
from fila_server.errors import (
    HookFailed,
    InvalidArgument,
    MessageLeased,
    MessageNotFound,
    NotADeadLetterQueue,
    ParentQueueNotFound,
    QueueFull,
    QueueNotFound,
)
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.state import State
    from fila_server.core.turn import Turn

# Records that a redrive reads at a time, and the bytes beyond which they are fewer.
_SCAN = 500
_SCAN_BYTES = 1 << 20


def _check_there(queue: Queue) -> None:
    if queue.is_deleted:
        raise QueueNotFound(f'queue "{queue.name}" was deleted meanwhile')


# --- Purge ----------------------------------------------------------------------------------------


def purge(
    state: State, request: pb.PurgeRequest, turn: Turn
) -> Generator[int, None, pb.PurgeResponse]:
    queue = state.queue(request.queue)
    only = request.fairness_key
    cutoff = state.next_number
    places = state.places
    purged = 0
    # Delayed ones first: those whose time comes meanwhile are then found in their lanes.
    for message in list(queue.delayed.values()):
        yield 1
        is_meant = message.order < cutoff and (not only or message.lane.key.name == only)
        if is_meant and queue.delayed.get(message.number) is message:
            places.undelay(message)
            drop(state, message, turn)
            purged += 1
    _check_there(queue)
    keys = [queue.keys[only]] if only in queue.keys else [] if only else list(queue.keys.values())
    for key in keys:
        yield 1
        for lane in list(key.lanes.values()):
            yield 1
            while (first := lane.first()) is not None and order_of(first) < cutoff:
                waiting = places.pop(lane)
                _drop(state, queue, waiting, turn)
                purged += 1
                yield 1
    _check_there(queue)
    return pb.PurgeResponse(purged=purged)


def _drop(state: State, queue: Queue, waiting: Message | int, turn: Turn) -> None:
    """Remove the records of a message that was taken out of its lane."""
    if isinstance(waiting, Message):
        drop(state, waiting, turn)
        return
    key = records.message_key(queue.number, waiting)
    turn.write((Column.MESSAGES, key, None))
    if queue.dead_letter_of:
        turn.write((Column.RETRIES, key, None))


# --- Cancel ---------------------------------------------------------------------------------------


def cancel_message(
    state: State, request: pb.CancelMessageRequest, turn: Turn
) -> pb.CancelMessageResponse:
    queue = state.queue(request.queue)
    message_id = request.message_id
    if not message_id:
        raise InvalidArgument("message_id must not be empty")
    if by_id(queue.leases, message_id) is not None:
        raise MessageLeased(f"message {message_id} is leased; only its consumer can settle it")
    delayed = by_id(queue.delayed, message_id)
    if delayed is not None:
        state.places.undelay(delayed)
        drop(state, delayed, turn)
        return pb.CancelMessageResponse()
    found = find_pending(state, queue, message_id, turn)
    if found is None:
        raise MessageNotFound(f'no message "{shown(message_id)}" in queue "{queue.name}"')
    lane, order = found
    waiting = state.places.remove(lane, order)
    assert waiting is not None
    _drop(state, queue, waiting, turn)
    return pb.CancelMessageResponse()


def find_pending(
    state: State, queue: Queue, message_id: str, turn: Turn
) -> tuple[Lane, int] | None:
    """Return the lane of a pending message, and its order there; None if it is not pending."""
    value = state.find(turn, queue, message_id)
    if value is None:
        return None
    lane = _lane(queue, Head.FromString(records.split(value)[0]))
    if lane is None:
        return None
    number = records.id_number(message_id)
    assert number is not None
    past = turn.batch.get(Column.RETRIES, records.message_key(queue.number, number))
    order = number if past is None else Retry.FromString(past).order
    return (lane, order) if lane.has(order) else None


def _lane(queue: Queue, head: Head) -> Lane | None:
    key = queue.keys.get(head.fairness_key)
    return None if key is None else key.lanes.get(records.lane_key_of(head))


# --- Redrive --------------------------------------------------------------------------------------


def redrive(
    state: State, request: pb.RedriveRequest, turn: Turn
) -> Generator[int, None, pb.RedriveResponse]:
    """Enqueue dead letters again where they came from, oldest first."""
    source = state.queue(request.dlq_queue)
    if not source.dead_letter_of:
        raise NotADeadLetterQueue(f'"{source.name}" is not a dead-letter queue')
    target = state.queues.get(source.dead_letter_of)
    if target is None:
        raise ParentQueueNotFound(
            f'queue "{source.dead_letter_of}" no longer exists; create it again to redrive into it'
        )
    redriven = 0
    candidates = _by_id(state, source, request, turn) if request.message_ids else None
    for key, value in candidates or _all(state, source, turn):
        if value is None:
            yield 1  # looked at, and none of ours
            continue
        if request.count and redriven == request.count:
            break
        yield 1 + len(value) // BYTES_PER_UNIT
        while target.hooks is not None and not turn.has_hook_time:
            yield 0
        _check_there(source)
        _check_there(target)
        if turn.disk_full is not None:  # it filled up on the way
            if not redriven:
                raise turn.disk_full
            break
        try:
            redriven += _redrive_one(state, source, target, request, key, value, turn)
        except HookFailed:
            continue  # it stays a dead letter
        except QueueFull:
            if not redriven:
                raise
            break
    return pb.RedriveResponse(redriven=redriven)


def _by_id(
    state: State, source: Queue, request: pb.RedriveRequest, turn: Turn
) -> Iterator[tuple[bytes, bytes | None]]:
    for message_id in dict.fromkeys(request.message_ids):
        value = state.find(turn, source, message_id)
        number = records.id_number(message_id)
        yield (
            (b"", None)
            if number is None
            else (
                records.message_key(source.number, number),
                value,
            )
        )


def _all(state: State, source: Queue, turn: Turn) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the records of a queue up to what is there now, reading some at a time."""
    start, end = source.prefix, records.message_key(source.number, state.next_number)
    while True:
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        for row in turn.batch.scan(Column.MESSAGES, start, end):
            rows.append(row)
            size += len(row[1])
            if len(rows) == _SCAN or size >= _SCAN_BYTES:
                break
        else:
            yield from rows
            return
        yield from rows
        start = rows[-1][0] + b"\0"
        yield b"", None


def _redrive_one(
    state: State,
    source: Queue,
    target: Queue,
    request: pb.RedriveRequest,
    key: bytes,
    value: bytes,
    turn: Turn,
) -> bool:
    """Redrive a dead letter if it is one that was asked for and nobody holds it."""
    head = Head.FromString(records.split(value)[0])
    if request.fairness_key and head.fairness_key != request.fairness_key:
        return False
    past = turn.batch.get(Column.RETRIES, key)
    retry = Retry(order=records.key_number(key)) if past is None else Retry.FromString(past)
    if request.error_contains not in retry.last_error:
        return False
    lane = _lane(source, head)
    order = retry.order
    if lane is None or not lane.has(order):
        return False  # leased, delayed, or gone since it was read
    letters.redrive(state, target, key, value, retry, turn)
    letter = state.places.remove(lane, order)
    if isinstance(letter, Message):
        state.places.forget_life(letter)
    return True
