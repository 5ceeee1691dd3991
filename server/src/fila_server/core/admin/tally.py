# SPDX-License-Identifier: AGPL-3.0-only
"""What is added up over the lanes of a queue, for stats and for the review, and the first of many
by some order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, TypeVar

from fila_server.core.schedule.fifo import Waiting
from fila_server.core.schedule.lane import Lane, order_of
from fila_server.core.schedule.message import Message
from fila_server.core.schedule.why import blockers
from fila_server.core.wire import records
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.turn import Turn


_AT_A_TIME = 500

T = TypeVar("T")


def smallest(
    things: list[T], wanted: int, rank: Callable[[T], Any]
) -> Generator[int, None, list[T]]:
    """Return the things with the smallest ranks in order, looking at some at a time."""
    first: list[T] = []
    for at in range(0, len(things), _AT_A_TIME):
        first += things[at : at + _AT_A_TIME]
        if len(first) > 2 * max(wanted, _AT_A_TIME):
            first = nsmallest(wanted, first, key=rank)
        yield min(_AT_A_TIME, len(things) - at)
    return nsmallest(wanted, first, key=rank)


class Tally:
    """Sums over lanes."""

    __slots__ = ("oldest", "throttled", "throttled_of", "waiting_of")

    def __init__(self) -> None:
        self.throttled = 0
        self.throttled_of: dict[str, int] = {}  # by fairness key
        self.waiting_of: dict[str, int] = {}  # by throttle key
        self.oldest: Waiting | None = None

    def add(self, lane: Lane, now_ns: int) -> None:
        count = len(lane)
        for name in lane.throttle_keys:
            self.waiting_of[name] = self.waiting_of.get(name, 0) + count
        if lane.limiters and blockers(lane, now_ns):
            self.throttled += count
            self.throttled_of[lane.key.name] = self.throttled_of.get(lane.key.name, 0) + count
        first = lane.first()
        if first is not None and (self.oldest is None or order_of(first) < order_of(self.oldest)):
            self.oldest = first


def enqueued_ns(queue: Queue, waiting: Waiting | None, turn: Turn) -> int:
    """Return when a waiting message was enqueued; 0 for none, or one that has gone since."""
    if waiting is None:
        return 0
    if isinstance(waiting, Message):
        return records.stamp_ns(waiting.origin.stamp)
    value = turn.batch.get(Column.MESSAGES, records.message_key(queue.number, waiting))
    return records.stamp_ns(records.split(value)[1]) if value is not None else 0
