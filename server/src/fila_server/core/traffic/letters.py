# SPDX-License-Identifier: AGPL-3.0-only
"""Dead letters: moving a message to `<queue>.dlq` and back. Each move is part of one atomic batch.

A moved message keeps its id, its number, its headers, its payload, its fairness key and its past.
It loses its time to live: dead letters wait for a person. A dead letter's place is its number, so
memory needs to know nothing else of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila.v1.admin_pb2 import QueueConfig
from fila.v1.service_pb2 import EnqueueRequest
from fila_server.core.clock import NS_PER_MS
from fila_server.core.schedule.message import Message, Origin
from fila_server.core.schedule.queue import DEAD_LETTER_SUFFIX, Queue
from fila_server.core.traffic import enqueue
from fila_server.core.traffic.definition import add_queue
from fila_server.core.turn import BYTES_PER_UNIT
from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import Head, Retry
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.state import State
    from fila_server.core.turn import Turn


def bury(state: State, message: Message, retry: Retry, turn: Turn) -> None:
    """Move a released message to its queue's dead-letter queue, making that if need be."""
    queue = message.lane.key.queue
    queue.counters.dead_lettered += 1
    message.lane.key.usage.dead_lettered += 1
    home = state.queues.get(queue.name + DEAD_LETTER_SUFFIX)
    if home is None:
        home = create(state, queue, turn)
    head_bytes, stamp, body = records.split(state.stored(turn, queue, [message.key])[0])
    head = Head.FromString(head_bytes)
    head.ClearField("deliver_at_ns")
    head.ClearField("expires_at_ns")
    head.ClearField("ttl_ms")
    number = message.number
    key = records.message_key(home.number, number)
    forget(state, message, turn)
    retry.order = number
    retry.since = state.number()
    turn.batch.put(Column.MESSAGES, key, records.full_head(head, stamp) + body)
    turn.batch.put(Column.RETRIES, key, retry.SerializeToString())
    turn.units += len(body) // BYTES_PER_UNIT
    home.grew(len(body))
    home.counters.enqueued += 1
    places = state.places
    lane_key = records.lane_key_of(head)
    lane = places.lane(home, head.fairness_key, head.weight, lane_key, turn.now.mono_ns)
    lane.key.usage.enqueued += 1
    places.insert(lane, number, number)


def forget(state: State, message: Message, turn: Turn) -> None:
    """Remove a message's records where it was."""
    state.places.forget_life(message)
    turn.batch.delete(Column.MESSAGES, message.key)
    if message.has_retry:
        turn.batch.delete(Column.RETRIES, message.key)


def create(state: State, queue: Queue, turn: Turn) -> Queue:
    """Create the dead-letter queue of a queue."""
    return add_queue(state, queue.name + DEAD_LETTER_SUFFIX, QueueConfig(), queue.name, turn)


def redrive(
    state: State, target: Queue, key: bytes, value: bytes, retry: Retry, turn: Turn
) -> None:
    """Enqueue a dead letter again where it came from. The caller has taken it out of its lane.

    Raises FilaError, with nothing changed, if the queue does not take it.
    """
    head_bytes, stamp, body = records.split(value)
    head = Head.FromString(head_bytes)
    enqueue.check_room(target)
    weight, name, lane_key = head.weight, head.fairness_key, records.lane_key_of(head)
    hooks = target.hooks
    if hooks is not None and hooks.has_on_enqueue:
        item = EnqueueRequest.FromString(body)
        name, weight, lane_key = enqueue.ask_hook(hooks, item, turn)
    places = state.places
    lane = places.lane(target, name, weight, lane_key, turn.now.mono_ns)
    expires_ns = 0
    if target.default_ttl_ms:
        expires_ns = turn.now.wall_ns + target.default_ttl_ms * NS_PER_MS
    number = records.key_number(key)
    message = Message(number, None, lane, Origin(stamp, records.cut(body)[0]))
    extra = message.details()
    extra.order = state.number()
    extra.has_retry = True
    again = Retry(order=message.order, last_error=retry.last_error, failures=retry.failures)
    turn.batch.delete(Column.MESSAGES, key)
    turn.batch.delete(Column.RETRIES, key)
    head_bytes = enqueue.full_head(lane, weight, 0, expires_ns, target.default_ttl_ms)
    turn.batch.put(Column.MESSAGES, message.key, head_bytes + stamp + body)
    turn.batch.put(Column.RETRIES, message.key, again.SerializeToString())
    target.grew(len(body))
    target.counters.enqueued += 1
    lane.key.usage.enqueued += 1
    enqueue.admit(state, message, 0, expires_ns, turn)
