# SPDX-License-Identifier: AGPL-3.0-only
"""Commands under way: work that a turn may not finish goes on in the next, in turn with the others.

A command's work is a generator that yields how many units it has just done. Each gets a slice, then
the next one is served, so a small command that arrives beside a large one is done in its first
turn. What a generator returns is the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

from fila_server.core.commands import Ticket
from fila_server.core.turn import COMMAND_UNITS, Turn
from fila_server.errors import FilaError

Work = Generator[int, None, Any]


class Chore(NamedTuple):
    """A command's work, and who waits for it."""

    ticket: Ticket
    work: Work
    is_read: bool = False
    answers_itself: bool = False  # what moves messages answers as it sees fit


class Chores:
    """All work under way, longest unserved first."""

    def __init__(self) -> None:
        self._waiting: deque[Chore] = deque()
        self._stop = 0  # units at which this turn has begun enough

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def open(self, turn: Turn) -> None:
        """Begin to take the turn's commands."""
        self._stop = turn.units + COMMAND_UNITS

    def begin(self, chore: Chore, turn: Turn, *, can_wait: bool) -> None:
        """Do a first slice of the work now. What can wait does so when the turn is full."""
        if (can_wait and turn.units >= self._stop) or self._slice(chore, turn.room.slice, turn):
            self._waiting.append(chore)

    def go_on(self, turn: Turn) -> None:
        """Do as much as a turn has room for, some of each."""
        stop = turn.units + turn.room.chores
        for _ in range(len(self._waiting)):
            if turn.units >= stop:
                return
            chore = self._waiting.popleft()
            if self._slice(chore, min(turn.room.slice, stop - turn.units), turn):
                self._waiting.append(chore)

    def _slice(self, chore: Chore, limit: int, turn: Turn) -> bool:
        """Work for some units; return whether there is more to do."""
        stop = turn.units + limit
        step = chore.work.__next__
        try:
            while True:
                hook_ns = turn.hook_ns
                units = step()
                turn.units += units
                if turn.units >= stop:
                    return True
                if not turn.has_hook_time and (turn.hook_ns > hook_ns or not units):
                    return True  # its hooks have to wait for the next turn
        except StopIteration as end:
            if not chore.answers_itself:
                _answer(chore, end.value, turn)
        except FilaError as error:
            turn.effects.answers.append((chore.ticket, error))
        except Exception as defect:
            if not chore.is_read:
                raise
            _confess(chore.ticket, defect, turn)
        return False


def _answer(chore: Chore, answer: Any, turn: Turn) -> None:
    effects = turn.effects
    (effects.answers if chore.is_read else effects.durable_answers).append((chore.ticket, answer))


def _confess(ticket: Ticket, defect: Exception, turn: Turn) -> None:
    """Answer a call that only reads and met a defect: nothing changed, so the broker goes on."""
    turn.effects.defects.append(defect)
    turn.effects.answers.append(
        (ticket, FilaError("internal error; the broker's log has the details"))
    )
