# SPDX-License-Identifier: AGPL-3.0-only
"""A simple model of a broker: a message is a row with a place, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """One message as the model sees it."""

    id: str
    queue: str
    key: str
    payload: bytes
    number: int
    place: str = "pending"  # pending, delayed, leased, gone
    attempts: int = 0
    token: str = ""
    deadline_ns: int = 0  # monotonic end of the lease
    due_ns: int = 0  # monotonic end of the delay
    expires_ns: int = 0  # monotonic end of life
    was_extended: bool = False  # by its consumer, which must have received it then
    was_moved: bool = False  # delivered, delayed or redriven before: FIFO no longer binds it


@dataclass
class Model:
    rows: dict[str, Row] = field(default_factory=dict)

    def at(self, place: str, queue: str | None = None) -> list[Row]:
        return [
            row
            for row in self.rows.values()
            if row.place == place and (queue is None or row.queue == queue)
        ]
