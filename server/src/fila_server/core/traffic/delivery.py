# SPDX-License-Identifier: AGPL-3.0-only
"""Delivering: pick messages for consumers that have credit, lease them, make frames.

This runs per message. A frame is one grant: one token, one deadline, one stored record. Frames are
cut by the real sizes of what was picked; what does not fit goes back to its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila_server.core.clock import NS_PER_MS
from fila_server.core.schedule.message import Grant, Message, Origin, token_of
from fila_server.core.traffic import failure
from fila_server.core.turn import COPIED_PER_UNIT, Turn
from fila_server.core.wire import frames, records
from fila_server.core.wire.records_pb2 import Lease, Retry
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.schedule.consumer import Consumer
    from fila_server.core.schedule.fifo import Pick
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.state import State

# Bodies that one step of making a frame may bring into memory.
_STEP_BYTES = 32 << 20


def deliver(state: State, turn: Turn) -> None:
    """Hand out what can be handed out in the queues where something changed.

    What the turn has no units for stays dirty, for the next turn.
    """
    lines = state.places.lines
    dirty = state.places.dirty
    turn.units += lines.units  # what the commands had to do with lines
    lines.units = 0
    budget = turn.units + turn.room.deliveries
    while dirty and turn.units < budget:
        queue = next(iter(dirty))
        del dirty[queue]
        queue.note_service(turn.now.mono_ns)
        if not queue.is_deleted and queue.can_deliver:
            _deliver_queue(state, queue, turn, budget)
            queue.note_service(turn.now.mono_ns)
        if lines.deferred:  # those that they stepped back for stand before them in `dirty`
            for line in lines.deferred:
                line.queue.due_lines[line] = None
                dirty[line.queue] = None
            lines.deferred.clear()


def _deliver_queue(state: State, queue: Queue, turn: Turn, budget: int) -> None:
    """Serve the queue's consumers in turn, until none can take more or nothing is deliverable."""
    places = state.places
    lines = places.lines
    available = queue.available
    while available:
        consumer = next(iter(available))
        past: dict[Message, bytes] = {}
        picked = _pick(state, queue, consumer, past, budget - turn.units, turn)
        turn.units += len(picked) + lines.units
        lines.units = 0
        if places.ended:
            failure.drop_ended(state, turn)
        if picked:
            _send(state, queue, consumer, picked, past, turn)
        if turn.units >= budget:
            places.dirty[queue] = None
            return
        if not picked:
            break
    if not queue.due_lines:
        places.dirty.pop(queue, None)  # whatever was noted on the way has been looked at


def _send(
    state: State,
    queue: Queue,
    consumer: Consumer,
    picked: list[Message],
    past: dict[Message, bytes],
    turn: Turn,
) -> None:
    """Lease what was picked to the consumer, in one frame.

    `past` has the metadata of those that failed before.
    """
    grant = _lease(state, queue, consumer, picked, turn)
    frame = _frame(state, grant, past, turn)
    turn.effects.frames.append((consumer.number, grant.number, frame))
    turn.units += len(frame) // COPIED_PER_UNIT
    consumer.sent(len(picked))
    queue.sent(len(picked), len(frame))
    queue.counters.delivered += len(picked)
    queue.counters.leased += len(picked)
    queue.waits.measure(queue, picked, turn.now)
    queue.pace.count(len(picked), turn.now.mono_ns)


def _pick(
    state: State,
    queue: Queue,
    consumer: Consumer,
    past: dict[Message, bytes],
    patience: int,
    turn: Turn,
) -> list[Message]:
    """Return the messages of the consumer's next frame, with their bodies.

    `past` is filled with the metadata of those that failed before. After so many lanes that had
    nothing to deliver the frame is what there is; the turn's units are used up then.
    """
    places = state.places
    limits = state.config.limits
    now_ns = turn.now.mono_ns
    wanted = min(consumer.credit, consumer.max_batch)
    room = limits.max_frame_bytes
    fit = queue.fit(room, _STEP_BYTES)
    most = queue.largest + queue.widest  # that one of them takes
    messages: list[Message] = []
    lines = places.lines
    while len(messages) < wanted and lines.units < patience:
        if queue.due_lines:
            lines.look(queue, now_ns, patience)
        if not queue.ring:
            break
        most_refused = max(1, patience - lines.units)
        found = places.pick(queue, min(wanted - len(messages), fit), most_refused, now_ns)
        if not found:
            continue  # lanes were parked: their lines may be due now
        step = _whole(state, queue, found, past, turn)
        if not past and len(step) * most <= room:
            room -= len(step) * most
            messages = messages + step if messages else step
            continue
        for at, message in enumerate(step):
            size = len(message.content) + message.lane.overhead  # type: ignore[arg-type]
            if message.extra is not None:
                size += len(past.get(message, b""))
            if size > room and (messages or at):
                messages.extend(step[:at])
                _put_back(state, queue, step[at:], now_ns)
                return messages
            room -= size
        messages.extend(step)
    return messages


def _put_back(state: State, queue: Queue, messages: list[Message], now_ns: int) -> None:
    """Return picked messages to their lanes, cold: the disk has them."""
    for message in messages:
        if message.content is not None:
            state.places.hot_bytes -= len(message.content)
            message.content = None
    state.places.unpick(queue, messages, now_ns)


def _whole(
    state: State, queue: Queue, picked: list[Pick], past: dict[Message, bytes], turn: Turn
) -> list[Message]:
    """Return the picked messages with their bodies, and fill `past`: see `_pick`."""
    odd = [
        at
        for at, one in enumerate(picked)
        if one.__class__ is tuple or one.content is None or one.extra is not None  # type: ignore[union-attr]
    ]
    messages: list[Message] = picked  # type: ignore[assignment]
    if odd:
        _thaw(state, queue, picked, odd, turn)
        _recall([messages[at] for at in odd], past, turn)
    return messages


def _thaw(state: State, queue: Queue, picked: list[Pick], odd: list[int], turn: Turn) -> None:
    """Bring cold ones among the odd to memory, reading them from disk together."""
    cold = [at for at in odd if picked[at].__class__ is tuple or picked[at].content is None]  # type: ignore[union-attr]
    if not cold:
        return
    keys = [
        records.message_key(queue.number, picked[at][1])  # type: ignore[index]
        if picked[at].__class__ is tuple
        else picked[at].key  # type: ignore[union-attr]
        for at in cold
    ]
    read_bytes = 0
    origins: dict[tuple[bytes, bytes], Origin] = {}  # many came together
    for at, value in zip(cold, state.stored(turn, queue, keys), strict=True):
        one = picked[at]
        _head, stamp, body = records.split(value)
        id_field, content = records.cut(body)
        read_bytes += len(content)
        if isinstance(one, Message):
            one.content = content
        else:
            lane, number = one
            origin = origins.get((stamp, id_field))
            if origin is None:
                origin = origins[stamp, id_field] = Origin(stamp, id_field)
            one = picked[at] = Message(number, content, lane, origin)
        if queue.dead_letter_of:  # a cold dead letter may have a past
            one.details().has_retry = True
    state.places.hot_bytes += read_bytes
    turn.units += read_bytes // COPIED_PER_UNIT


def _recall(messages: list[Message], past: dict[Message, bytes], turn: Turn) -> None:
    """Read what is known of messages that failed before: only the disk has it."""
    failed = [message for message in messages if message.has_retry]
    if not failed:
        return
    turn.units += len(failed)
    values = turn.batch.get_many(Column.RETRIES, [message.key for message in failed])
    for message, value in zip(failed, values, strict=True):
        extra = message.details()
        if value is None:  # somebody enqueued it where dead letters go
            extra.has_retry = False
            continue
        retry = Retry.FromString(value)
        extra.attempt = retry.attempt_count
        past[message] = frames.retry_fields(extra.attempt, retry.last_error, retry.failures)


def _lease(
    state: State, queue: Queue, consumer: Consumer, messages: list[Message], turn: Turn
) -> Grant:
    """Lease the messages to the consumer under a new token."""
    number = state.number()
    now = turn.now
    duration_ms = consumer.visibility_ms or queue.visibility_ms
    duration_ns = duration_ms * NS_PER_MS
    grant = Grant(
        number,
        token_of(number),
        queue,
        consumer,
        messages,
        now.mono_ns,
        now.mono_ns + duration_ns,
        now.wall_ns + duration_ns,
        duration_ms,
    )
    state.places.lease(grant)
    store_lease(grant, turn)
    return grant


def store_lease(grant: Grant, turn: Turn) -> None:
    """Write down which messages are under a grant."""
    messages = grant.messages
    if grant.left < len(messages):
        messages = [message for message in messages if message.grant is grant]
    record = Lease(
        token=grant.token,
        expires_at_ns=grant.expires_ns,
        duration_ms=grant.duration_ms,
        messages=[message.number for message in messages],
    )
    turn.batch.put(Column.LEASES, lease_key(grant), record.SerializeToString())


def lease_key(grant: Grant) -> bytes:
    return grant.queue.prefix + records.u64(grant.number)


def _frame(state: State, grant: Grant, past: dict[Message, bytes], turn: Turn) -> bytes:
    """Encode a ConsumeResponse (or ReceiveResponse), and let go of the messages' contents."""
    token = frames.token_field(grant.token)
    token_bytes = len(token)
    leased = frames.timestamp_field(2, turn.now.wall_ns)
    leased += frames.timestamp_field(3, grant.expires_ns)
    prefix = frames.frame_prefix
    messages = grant.messages
    numbers = records.number_texts([message.number for message in messages]).encode()
    parts: list[bytes] = []
    extend = parts.extend
    known: dict[Origin, bytes] = {}  # those that came together share their times
    origin: Origin | None = None  # of the message before
    freed = 0
    at = 4
    for message in messages:
        lane = message.lane
        if message.extra is None or message not in past:
            metadata = lane.metadata
            if lane.metadata_weight != lane.key.weight or lane.metadata_room != token_bytes:
                metadata = lane.frame_metadata(token_bytes)
        else:
            fields = lane.metadata_fields() + past[message]
            metadata = frames.framed_metadata(fields, token_bytes)
        if origin is not message.origin:
            origin = message.origin
            times = known.get(origin) or frames.delivery_timestamps(origin.stamp, leased)
            known[origin] = times
            id_field = origin.id_field
            rest = records.ID_BYTES + token_bytes + len(times)
        content: bytes = message.content  # type: ignore[assignment]
        size = len(content)
        freed += size
        number = numbers[at : at + 12]
        at += 16
        total = prefix(size + len(metadata) + rest)
        extend((total, id_field, number, content, metadata, token, times))
        message.content = None  # the disk has it, should it be needed again
    state.places.hot_bytes -= freed
    return b"".join(parts)
