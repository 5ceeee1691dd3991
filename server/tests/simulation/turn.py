# SPDX-License-Identifier: AGPL-3.0-only
"""One turn of the broker as its clients see it, and a consumer as its client knows it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from fila.v1.messages_pb2 import Message
from fila_server.core.clock import Now

if TYPE_CHECKING:
    from fila_server.core.commands import OpenConsumer
    from server.tests.simulation.model import Home


class Turn(NamedTuple):
    """One group: what was asked, and all that came of it."""

    commands: list[Any]
    now: Now
    effects: Any
    frames: list[tuple[int, int, list[Message]]]


class Consumer:
    """A stream or a Receive, as its client knows it."""

    def __init__(self, command: OpenConsumer, home: Home, credit: int) -> None:
        self.id = command.consumer
        self.queue = home.number
        self.credit = credit
        self.max_batch = max(1, command.max_batch)
        self.visibility_ms = command.visibility_ms
        self.is_once = command.is_once
        self.under_way: deque[int] = deque()  # grants whose frames were not reported as taken
        self.is_done = False  # a Receive that was answered
