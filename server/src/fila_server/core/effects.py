# SPDX-License-Identifier: AGPL-3.0-only
"""What a group of commands leads to: writes, answers, frames. The engine carries it out, in that
order.
"""

from __future__ import annotations

from typing import Any

from fila_server.core.commands import Command, Ticket
from fila_server.core.consumer import Consumer
from fila_server.core.message import Grant
from fila_server.errors import FilaError
from fila_server.storage.api import Write


class Effects:
    """The outcome of one group."""

    __slots__ = ("answers", "closed", "durable_answers", "frames", "resume", "writes")

    def __init__(self) -> None:
        self.writes: list[Write] = []  # one atomic batch
        self.answers: list[tuple[Ticket, Any]] = []  # once the batch is written
        self.durable_answers: list[tuple[Ticket, Any]] = []  # once it survives power loss
        self.frames: list[tuple[Consumer, Grant, bytes]] = []
        self.closed: list[tuple[Consumer, FilaError]] = []  # streams that the broker ends
        self.resume: list[Command] = []  # commands with more to do in the next group
