# SPDX-License-Identifier: AGPL-3.0-only
"""Opening a consumer: what it may ask for, and where it then stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila_server.core.access import CONSUME, denial
from fila_server.core.commands import OpenConsumer
from fila_server.core.schedule.consumer import Consumer
from fila_server.errors import FilaError, InvalidArgument, Overloaded
from fila_server.limits import MAX_VISIBILITY_MS

if TYPE_CHECKING:
    from fila_server.core.state import State
    from fila_server.core.turn import Turn


def open_consumer(state: State, command: OpenConsumer, turn: Turn) -> None:
    """Let a consumer take messages; answer with None, or with the reason why it may not."""
    try:
        _open(state, command, turn)
        turn.effects.answers.append((command.ticket, None))
    except FilaError as error:
        turn.effects.answers.append((command.ticket, error))


def _open(state: State, command: OpenConsumer, turn: Turn) -> None:
    limits = state.config.limits
    if command.key_id:  # the key may have changed since the call was let in
        key = state.keyring.caller(command.key_id, turn.now.wall_ns)
        if not key.may(CONSUME, command.queue):
            raise denial(key, CONSUME, command.queue)
        state.keyring.watch(key)
    queue = state.queue(command.queue)
    credit = command.max_in_flight or limits.default_in_flight
    if credit > limits.max_in_flight:
        raise InvalidArgument(f"max_in_flight {credit} exceeds {limits.max_in_flight}")
    if command.visibility_ms > MAX_VISIBILITY_MS:
        raise InvalidArgument(
            f"visibility_timeout_ms {command.visibility_ms} exceeds {MAX_VISIBILITY_MS}"
        )
    if len(state.consumers) >= limits.max_consumers:
        raise Overloaded(f"{limits.max_consumers} consumers are connected, which is the limit")
    batch = min(max(1, command.max_batch), limits.max_frame_messages)
    consumer = Consumer(
        command.consumer,
        queue,
        credit,
        batch,
        command.visibility_ms,
        command.is_once,
        command.key_id,
    )
    state.add_consumer(consumer)
    consumer.offer()
    state.places.dirty[queue] = None
