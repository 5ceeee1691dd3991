# SPDX-License-Identifier: AGPL-3.0-only
"""A queue's definition: making one, storing it, putting its settings to work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila.v1.admin_pb2 import QueueConfig
from fila_server.core.schedule.queue import Queue
from fila_server.core.wire import records
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.state import State
    from fila_server.core.turn import Turn


def add_queue(
    state: State, name: str, config: QueueConfig, dead_letter_of: str, turn: Turn
) -> Queue:
    """Create a queue under a number that was never used before. Raises InvalidScript."""
    queue = Queue(state.next_queue, name, config, dead_letter_of)
    configure(state, queue, strict=True)
    state.next_queue += 1
    state.queues[name] = queue
    save(queue, turn)
    turn.batch.put(Column.STATE, records.NEXT_QUEUE, records.u64(state.next_queue))
    return queue


def configure(state: State, queue: Queue, *, strict: bool) -> None:
    """Put a queue's settings to work. When strict, raises InvalidScript and changes nothing."""
    config = queue.config
    queue.hooks = state.compile_hooks(queue.name, config, state.settings.values, strict)
    defaults = state.config.scheduler
    queue.quantum = config.quantum or defaults.quantum
    queue.visibility_ms = config.visibility_timeout_ms or defaults.visibility_timeout_ms
    queue.max_messages = config.max_messages
    queue.default_ttl_ms = config.default_ttl_ms


def save(queue: Queue, turn: Turn) -> None:
    turn.batch.put(Column.QUEUES, queue.prefix, queue.record().SerializeToString())
