# SPDX-License-Identifier: AGPL-3.0-only
"""Things that happen at a time, from which things may be taken out before it.

What is far off lies in buckets of about a second, where adding and taking out cost the same with
ten and with a million. What is near is moved to a heap, a slice at a time. A thing that is taken
out of the heap leaves its entry behind, for two seconds at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

_BUCKET_BITS = 30  # of nanoseconds: 1.07 s
# Emptied buckets that are not worth clearing away. There may be one for each second of a life.
_SPARE_BUCKETS = 64


class Deadlines(Generic[T]):
    """Times of things; a thing has one time at most."""

    __slots__ = ("_buckets", "_far", "_heap", "_near", "_sequence", "_times")

    def __init__(self) -> None:
        self._times: dict[T, int] = {}
        self._far: dict[int, dict[T, None]] = {}  # bucket -> its things
        self._buckets: list[int] = []  # heap of the buckets in _far, and of some that were
        self._heap: list[tuple[int, int, T]] = []  # (time, tie-breaker, thing)
        self._near = -1  # the last bucket that belongs to the heap
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, thing: T) -> bool:
        return thing in self._times

    def time_of(self, thing: T, default: int) -> int:
        return self._times.get(thing, default)

    def set(self, thing: T, at_ns: int) -> None:
        """Let the thing be due at this time, and at no other."""
        was = self._times.get(thing)
        if was == at_ns:
            return
        if was is not None:
            self.discard(thing)
        self._times[thing] = at_ns
        bucket = at_ns >> _BUCKET_BITS
        if bucket <= self._near:
            self._push(at_ns, thing)
            return
        things = self._far.get(bucket)
        if things is None:
            self._far[bucket] = {thing: None}
            heappush(self._buckets, bucket)
        else:
            things[thing] = None

    def discard(self, thing: T) -> None:
        """Take the thing out, if it is there."""
        at_ns = self._times.pop(thing, None)
        if at_ns is not None:
            bucket = at_ns >> _BUCKET_BITS
            things = self._far.get(bucket)
            if things is not None and things.pop(thing, self) is not self and not things:
                del self._far[bucket]
                if len(self._buckets) > 2 * len(self._far) + _SPARE_BUCKETS:
                    self._buckets = list(self._far)
                    heapify(self._buckets)

    def next_ns(self) -> int | None:
        """Return when to look again: the first thing's time, or when it comes near."""
        heap, times = self._heap, self._times
        while heap and times.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        self._skip_emptied()
        if not self._buckets:
            return heap[0][0] if heap else None
        near_ns = (self._buckets[0] - 1) << _BUCKET_BITS
        return min(near_ns, heap[0][0]) if heap else near_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether there is something to do now. Asked in every turn."""
        horizon = (now_ns >> _BUCKET_BITS) + 1
        self._skip_emptied()
        if self._buckets and self._buckets[0] <= horizon:
            return True
        if horizon > self._near:
            self._near = horizon
        return bool(self._heap) and self._heap[0][0] <= now_ns

    def due(self, now_ns: int, limit: int) -> Iterator[T]:
        """Take out and yield up to `limit` things whose time has come."""
        self._bring_near((now_ns >> _BUCKET_BITS) + 1, limit)
        heap, times = self._heap, self._times
        while limit > 0 and heap and heap[0][0] <= now_ns:
            at_ns, _, thing = heappop(heap)
            if times.get(thing) == at_ns:
                del times[thing]
                limit -= 1
                yield thing

    def _bring_near(self, horizon: int, limit: int) -> None:
        """Move what is due within a second or two to the heap."""
        self._skip_emptied()
        while self._buckets and self._buckets[0] <= horizon and limit > 0:
            things = self._far[self._buckets[0]]
            while things and limit > 0:
                thing, _ = things.popitem()
                self._push(self._times[thing], thing)
                limit -= 1
            if not things:
                del self._far[heappop(self._buckets)]
                self._skip_emptied()

    def _skip_emptied(self) -> None:
        """Let go of the first buckets if nothing is left in them."""
        while self._buckets and self._buckets[0] not in self._far:
            heappop(self._buckets)

    def _push(self, at_ns: int, thing: T) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ns, self._sequence, thing))
