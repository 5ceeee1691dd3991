# SPDX-License-Identifier: AGPL-3.0-only
"""Enqueueing: ask the hook, store a message, put it in its lane. This runs per message."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING

from fila.v1.service_pb2 import EnqueueRequest
from fila_server.core.clock import NS_PER_MS
from fila_server.core.commands import Enqueue
from fila_server.core.names import counted
from fila_server.core.schedule.message import Message
from fila_server.core.traffic import idempotency
from fila_server.core.turn import BYTES_PER_UNIT, SLICE, Turn
from fila_server.core.wire import records
from fila_server.core.wire.answers import Duplicate
from fila_server.core.wire.cuts import DraftBatch
from fila_server.core.wire.intake import DEFAULT_KEY, Draft, Terms
from fila_server.core.wire.records import message_key
from fila_server.core.wire.records_pb2 import Head
from fila_server.errors import FilaError, InvalidArgument, QueueFull
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fila_server.core.schedule.lane import Lane
    from fila_server.core.schedule.queue import Hooks, Queue
    from fila_server.core.state import State
    from fila_server.core.wire.records import LaneKey

_MESSAGES = Column.MESSAGES  # looking it up takes a while, and this runs per message


def enqueue(state: State, command: Enqueue, turn: Turn) -> Generator[int, None, None]:
    """Store messages; answer, durably, with one result per item.

    Raises DiskFull if nothing was stored; later the rest of a batch shares that answer.
    """
    results: list[str | FilaError] = []
    denied = command.denied
    units = 0
    for drafts, size in _pieces(command.items):
        if units:
            yield units
        while turn.disk_full is None:
            done = _accept_some(state, drafts, denied, results, turn)
            if done == len(drafts):
                break
            yield done  # its hooks have to wait for the next turn
            drafts = drafts[done:]
        else:
            if not results:
                raise turn.disk_full
            results += [turn.disk_full] * (len(command.items) - len(results))
            break
        units = done + size // BYTES_PER_UNIT
    turn.units += units
    turn.effects.durable_answers.append((command.ticket, results))


def _pieces(items: Sequence[Draft] | DraftBatch) -> Iterable[tuple[Sequence[Draft], int]]:
    if isinstance(items, DraftBatch):
        return items
    return ((items[at : at + SLICE], 0) for at in range(0, len(items), SLICE))


def _accept_some(
    state: State,
    items: Sequence[Draft],
    denied: Mapping[str, FilaError] | None,
    results: list[str | FilaError],
    turn: Turn,
) -> int:
    """Enqueue until the hooks have had their share of the turn; return how many items are done."""
    append = results.append
    queues = state.queues
    done = 0
    first = state.next_number
    texts = records.number_texts(range(first, first + len(items)))
    for name, content, terms in items:
        try:
            if denied and name in denied:
                raise denied[name]
            queue = queues.get(name)
            if queue is None:
                queue = state.queue(name)
            if terms.__class__ is not Terms:
                raise terms  # type: ignore[misc]
            if queue.hooks is not None and not turn.has_hook_time:
                break
            at = 16 * (state.next_number - first)
            append(_accept(state, queue, content, terms, texts[at + 4 : at + 16], turn))
        except FilaError as error:
            append(error)
        done += 1
    return done


def _accept(state: State, queue: Queue, content: bytes, terms: Terms, text: str, turn: Turn) -> str:
    """Store one message and return its id, of which `text` is the last part."""
    fairness_key, weight, lane_key, _, _, _, idempotency_key, has_times = terms
    due_ns = expires_ns = 0
    if has_times or queue.default_ttl_ms:
        due_ns, expires_ns = _times(state, queue, terms, turn)
    if idempotency_key:
        seen = idempotency.seen(turn, queue, idempotency_key)
        if seen is not None:
            queue.counters.duplicates += 1
            return Duplicate(seen)
    if queue.max_messages:
        check_room(queue)
    hooks = queue.hooks
    if hooks is not None and hooks.has_on_enqueue:
        item = EnqueueRequest.FromString(content)
        fairness_key, weight, lane_key = ask_hook(hooks, item, turn)

    number = state.next_number
    state.next_number = number + 1
    message_id = turn.origin.id_prefix + text
    size = len(content)
    if size > queue.largest or not queue.pending:
        queue.grew(size)
    places = state.places
    lane = places.lane(queue, fairness_key, weight, lane_key, turn.now.mono_ns)
    if due_ns or expires_ns:
        head = full_head(lane, weight, due_ns, expires_ns)
        admit(state, Message(number, None, lane, turn.origin), due_ns, expires_ns, turn)
    else:
        head = lane.record_head(weight)
        if places.hot_bytes > state.config.scheduler.hot_bytes:
            places.append(lane, number)  # born cold: memory keeps its number only
        else:
            places.hot_bytes += size
            places.append(lane, number, content, turn.origin)
    value = b"".join((head, turn.front, text.encode(), content))
    turn.write((_MESSAGES, message_key(queue.number, number), value))
    if idempotency_key:
        idempotency.remember(turn, queue, idempotency_key, message_id)
    queue.counters.enqueued += 1
    lane.key.usage.enqueued += 1
    return message_id


def full_head(lane: Lane, weight: int, due_ns: int, expires_ns: int, ttl_ms: int = 0) -> bytes:
    """Return the stored head, up to its stamp, of a message that may have times of its own."""
    head = Head(
        fairness_key=lane.key.name,
        weight=weight,
        throttle_keys=lane.throttle_keys,
        throttle_cost=lane.cost if lane.cost > 1 else 0,
        deliver_at_ns=due_ns,
        expires_at_ns=expires_ns,
        ttl_ms=ttl_ms,
    )
    return records.framed_head(head)


def admit(state: State, message: Message, due_ns: int, expires_ns: int, turn: Turn) -> None:
    """Let a message that may have times of its own wait in its lane, or for its time."""
    places = state.places
    lane = message.lane
    if expires_ns:
        places.limit_life(message, expires_ns, turn.now.mono_at(expires_ns))
    if due_ns:
        places.delay(message, due_ns, turn.now.mono_at(due_ns))
        places.rest_if_empty(lane)
    elif expires_ns:
        places.insert(lane, message.order, message)
    else:
        places.append(lane, message.order, message)


def check_room(queue: Queue) -> None:
    """Refuse a message that the queue has no room for."""
    if queue.max_messages and queue.total >= queue.max_messages:
        raise QueueFull(
            f'queue "{queue.name}" holds {counted(queue.total, "message")}, its maximum'
        )


def _times(state: State, queue: Queue, terms: Terms, turn: Turn) -> tuple[int, int]:
    """Return the wall times before which a message is not delivered and when it is dropped."""
    limits = state.config.limits
    wall_ns = turn.now.wall_ns
    due_ns = expires_ns = 0
    if terms.delay_ms:
        if terms.delay_ms > limits.max_delay_ms:
            raise InvalidArgument(f"delay_ms {terms.delay_ms} exceeds {limits.max_delay_ms}")
        due_ns = wall_ns + terms.delay_ms * NS_PER_MS
    elif terms.deliver_at_ns > wall_ns:
        due_ns = terms.deliver_at_ns
        if due_ns > wall_ns + limits.max_delay_ms * NS_PER_MS:
            raise InvalidArgument(f"deliver_at is more than {limits.max_delay_ms} ms ahead")
    ttl_ms = terms.ttl_ms or queue.default_ttl_ms
    if ttl_ms:
        if ttl_ms > limits.max_ttl_ms:
            raise InvalidArgument(f"ttl_ms {ttl_ms} exceeds {limits.max_ttl_ms}")
        expires_ns = wall_ns + ttl_ms * NS_PER_MS
    return due_ns, expires_ns


def ask_hook(hooks: Hooks, item: EnqueueRequest, turn: Turn) -> tuple[str, int, LaneKey]:
    """Return the fairness key, weight and lane that the queue's hook decides on."""
    before_ns = hooks.spent_ns
    try:
        decision = hooks.on_enqueue(item.headers, len(item.payload), turn.now.mono_ns)
    finally:
        turn.hook_ns += hooks.spent_ns - before_ns
    if decision is None:
        return DEFAULT_KEY, 1, records.PLAIN
    if not decision.throttle_keys:
        return decision.fairness_key, decision.weight, records.PLAIN
    return (
        decision.fairness_key,
        decision.weight,
        (decision.throttle_keys, decision.throttle_cost or 1),
    )
