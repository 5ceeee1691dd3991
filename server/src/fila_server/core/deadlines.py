# SPDX-License-Identifier: AGPL-3.0-only
"""A heap of things that happen at a time, from which things may vanish before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

# Below this, vanished entries are not worth clearing away early.
_FEW = 1024


class Deadlines(Generic[T]):
    """Entries in the order of their times.

    Vanished ones are skipped, and cleared when they are the most.
    """

    __slots__ = ("_heap", "_is_live", "_vanished")

    def __init__(self, is_live: Callable[[T], bool]) -> None:
        self._heap: list[tuple[int, int, T]] = []  # (time, tie-breaker, thing)
        self._is_live = is_live
        self._vanished = 0

    def push(self, at_ns: int, order: int, thing: T) -> None:
        heappush(self._heap, (at_ns, order, thing))

    def __len__(self) -> int:
        """Return how many entries memory holds, vanished ones that were not cleared included."""
        return len(self._heap)

    def vanished(self, count: int = 1) -> None:
        """Note that the things of so many entries are no longer live."""
        self._vanished += count
        if self._vanished > _FEW and self._vanished * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if self._is_live(entry[2])]
            heapify(self._heap)
            self._vanished = 0

    def next_ns(self) -> int | None:
        """Return the time of the first live entry."""
        heap = self._heap
        while heap:
            if self._is_live(heap[0][2]):
                return heap[0][0]
            heappop(heap)
            self._vanished = max(0, self._vanished - 1)
        return None

    def due(self, now_ns: int) -> Iterator[T]:
        """Take out and yield the live things whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            thing = heappop(heap)[2]
            if self._is_live(thing):
                yield thing
            else:
                self._vanished = max(0, self._vanished - 1)

    def is_due(self, now_ns: int) -> bool:
        return bool(self._heap) and self._heap[0][0] <= now_ns
