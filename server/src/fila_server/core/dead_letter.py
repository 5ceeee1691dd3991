# SPDX-License-Identifier: AGPL-3.0-only
"""Dead letters: moving a message to `<queue>.dlq` and back. Each move is part of one atomic batch.

A moved message keeps its id, its number, its headers, its payload and its fairness key. It loses
its time to live: dead letters wait for a person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila.v1.admin_pb2 import QueueConfig
from fila_server.core import records
from fila_server.core.lane import lane_key_of
from fila_server.core.message import Message
from fila_server.core.queue import DEAD_LETTER_SUFFIX, Queue
from fila_server.core.records_pb2 import Head, Retry
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.effects import Effects
    from fila_server.core.state import State


def bury(
    state: State, queue: Queue, message: Message, attempts: int, error: str, effects: Effects
) -> None:
    """Move a released message to its queue's dead-letter queue, making that if need be."""
    queue.counters.dead_lettered += 1
    home = state.queues.get(queue.name + DEAD_LETTER_SUFFIX)
    if home is None:
        home = create(state, queue, effects)
    move(state, queue, home, message, attempts, error, effects)


def create(state: State, queue: Queue, effects: Effects) -> Queue:
    """Create the dead-letter queue of a queue."""
    return add_queue(state, queue.name + DEAD_LETTER_SUFFIX, QueueConfig(), queue.name, effects)


def add_queue(
    state: State, name: str, config: QueueConfig, dead_letter_of: str, effects: Effects
) -> Queue:
    """Create a queue under a number that was never used before."""
    number = state.next_queue
    state.next_queue = number + 1
    queue = Queue(number, name, config, dead_letter_of)
    configure(state, queue)
    state.queues[name] = queue
    effects.writes.append((Column.QUEUES, queue.prefix, queue.record().SerializeToString()))
    effects.writes.append((Column.STATE, records.NEXT_QUEUE, records.u64(state.next_queue)))
    return queue


def configure(state: State, queue: Queue) -> None:
    """Put a queue's settings to work. Raises InvalidScript before anything changes."""
    queue.hooks = state.compile_hooks(queue, state.config)
    defaults = state.options.scheduler
    config = queue.config
    queue.quantum = config.quantum or defaults.quantum
    queue.visibility_ms = config.visibility_timeout_ms or defaults.visibility_timeout_ms
    queue.max_messages = config.max_messages
    queue.default_ttl_ms = config.default_ttl_ms


def move(
    state: State,
    source: Queue,
    target: Queue,
    message: Message,
    attempts: int,
    error: str,
    effects: Effects,
) -> None:
    """Move a message that is in no place of `source` to the end of its lane in `target`."""
    number = message.number
    head_bytes, stamp, body = records.split(state.stored(source, [number])[0])
    head = Head.FromString(head_bytes)
    head.ClearField("deliver_at_ns")
    head.ClearField("expires_at_ns")
    key = target.prefix + records.u64(number)
    value = records.full_head(head, stamp) + body
    state.unwritten[key] = value
    had_retry = message.extra is not None and message.extra.has_retry
    state.forget(message)
    lane = target.lane(head.fairness_key, head.weight, lane_key_of(head), state.throttles)
    moved = Message(key, message.id, None, lane, stamp, state.number())
    moved.attempt = attempts
    extra = moved.details()
    extra.error = error
    extra.has_retry = True
    retry = Retry(attempt_count=attempts, order=moved.order, last_error=error)
    effects.writes.append((Column.MESSAGES, message.key, None))
    if had_retry:
        effects.writes.append((Column.RETRIES, message.key, None))
    effects.writes.append((Column.MESSAGES, key, value))
    effects.writes.append((Column.RETRIES, key, retry.SerializeToString()))
    target.largest = max(target.largest, len(body))
    target.note_error(error)
    target.counters.enqueued += 1
    state.push(lane, moved)
    state.dirty[target] = None
