# SPDX-License-Identifier: AGPL-3.0-only
"""Work that nobody asked for and that comes back after a while, done in slices beside the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fila_server.core.turn import Turn


class Housework:
    """One kind of work: begun every so often, and gone on with until it is done."""

    __slots__ = ("_begin", "_period_ns", "_work", "next_ns")

    def __init__(self, period_ns: int, begin: Callable[[], Iterator[int]]) -> None:
        self._period_ns = period_ns
        self._begin = begin
        self._work: Iterator[int] | None = None
        self.next_ns = 0  # when it is begun again

    @property
    def is_under_way(self) -> bool:
        return self._work is not None

    def put_off(self, now_ns: int) -> None:
        self.next_ns = now_ns + self._period_ns

    def run(self, turn: Turn) -> None:
        """Begin if it is time, and do some of what is left."""
        if self._work is None:
            if self.next_ns > turn.now.mono_ns:
                return
            self.put_off(turn.now.mono_ns)
            self._work = self._begin()
        if not some(self._work, turn, turn.units + turn.room.chores):
            self._work = None


def some(work: Iterator[int], turn: Turn, stop: int) -> bool:
    """Do work that nobody waits for up to so many units; return whether there may be more."""
    for units in work:
        turn.units += units
        if turn.units >= stop:
            return True
    return False
