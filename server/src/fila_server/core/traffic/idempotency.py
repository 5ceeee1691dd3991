# SPDX-License-Identifier: AGPL-3.0-only
"""Idempotency keys: which messages earlier enqueues made, for as long as their queue remembers."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from fila_server.core.clock import NS_PER_MS, NS_PER_S
from fila_server.core.wire.records_pb2 import SeenKey
from fila_server.limits import DEFAULT_IDEMPOTENCY_WINDOW_MS, MAX_IDEMPOTENCY_WINDOW_MS
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.turn import Turn

_END = b"\xff" * 5  # after every queue's number
# Records that a slice of the sweep looks at; the pauses after one that found little, and after the
# last one.
_SLICE = 1000
_PAUSE_NS = NS_PER_S
_ROUND_PAUSE_NS = 10 * NS_PER_S
# A slice with this many to forget is followed by the next at once: forgetting keeps up with any
# inflow, and a store full of living keys is only walked through slowly.
_MANY = _SLICE // 10


def seen(turn: Turn, queue: Queue, key: str) -> str | None:
    """Return the message that an enqueue with this key made within the window."""
    value = turn.batch.get(Column.IDEMPOTENCY, queue.prefix + key.encode())
    if value is None:
        return None
    record = SeenKey.FromString(value)
    return record.message_id if record.expires_at_ns > turn.now.wall_ns else None


def remember(turn: Turn, queue: Queue, key: str, message_id: str) -> None:
    window_ms = queue.config.idempotency_window_ms or DEFAULT_IDEMPOTENCY_WINDOW_MS
    expires_ns = turn.now.wall_ns + window_ms * NS_PER_MS
    record = SeenKey(message_id=message_id, expires_at_ns=expires_ns, window_ms=window_ms)
    turn.batch.put(Column.IDEMPOTENCY, queue.prefix + key.encode(), record.SerializeToString())


class Sweep:
    """Forgets expired keys, a slice at a time, for ever."""

    def __init__(self) -> None:
        self.next_ns = 0
        self._at = b""

    def run(self, turn: Turn) -> None:
        """Look at the next slice."""
        wall_ns = turn.now.wall_ns
        rows = list(islice(turn.batch.scan(Column.IDEMPOTENCY, self._at, _END), _SLICE))
        forgotten = 0
        for key, value in rows:
            record = SeenKey.FromString(value)
            if record.expires_at_ns <= wall_ns:
                turn.batch.delete(Column.IDEMPOTENCY, key)
                forgotten += 1
                continue
            window_ms = record.window_ms or MAX_IDEMPOTENCY_WINDOW_MS
            if record.expires_at_ns > wall_ns + window_ms * NS_PER_MS:
                # The clock was ahead when it was stored: remembered from now on, not for years.
                record.expires_at_ns = wall_ns + window_ms * NS_PER_MS
                turn.batch.put(Column.IDEMPOTENCY, key, record.SerializeToString())
        turn.units += len(rows)
        is_end = len(rows) < _SLICE
        self._at = b"" if is_end else rows[-1][0] + b"\0"
        if is_end:
            pause_ns = _ROUND_PAUSE_NS
        else:
            pause_ns = 0 if forgotten >= _MANY else _PAUSE_NS
        self.next_ns = turn.now.mono_ns + pause_ns
