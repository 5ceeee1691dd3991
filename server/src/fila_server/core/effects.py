# SPDX-License-Identifier: AGPL-3.0-only
"""What a turn leads to: writes, answers, frames. The engine carries it out, in that order."""

from __future__ import annotations

from typing import Any

from fila_server.core.batch import Batch
from fila_server.core.commands import Ticket
from fila_server.errors import FilaError
from fila_server.storage.api import Write


class Effects:
    """The outcome of one turn. Consumers and grants go by their numbers."""

    __slots__ = (
        "answers",
        "batch",
        "closed",
        "defects",
        "durable_answers",
        "frames",
        "more",
        "units",
        "wants_sync",
    )

    def __init__(self, batch: Batch) -> None:
        self.batch = batch  # one atomic write
        self.answers: list[tuple[Ticket, Any]] = []  # once the batch is written
        self.durable_answers: list[tuple[Ticket, Any]] = []  # once it survives power loss
        self.frames: list[tuple[int, int, bytes]] = []  # consumer, grant, encoded frame
        self.closed: list[tuple[int, FilaError]] = []  # consumers that the broker ends
        self.defects: list[Exception] = []  # of calls that only read; the broker goes on
        self.more = False  # work is left: another turn should follow at once
        self.units = 0  # work done
        self.wants_sync = False  # what is written must survive power loss before long

    @property
    def writes(self) -> list[Write]:
        return self.batch.writes
