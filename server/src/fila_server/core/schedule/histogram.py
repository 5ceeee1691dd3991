# SPDX-License-Identifier: AGPL-3.0-only
"""How often what was measured fell into which range. An addition costs a search among two dozen
bounds; the ranges are those that are exported, so nothing is counted twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts by range. A value counts in the first range whose bound it does not exceed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or one that stands for several."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def take(self, other: Histogram) -> None:
        """Take over what one with the same bounds has counted, which begins at zero again."""
        for at, count in enumerate(other.counts):
            self.counts[at] += count
        self.sum += other.sum
        other.counts = [0] * len(other.counts)
        other.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return about what this share of all values does not exceed; 0 when there are none."""
        rank = share * self.count
        if not rank:
            return 0.0
        below = 0
        low = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if below + count >= rank:
                return low + (bound - low) * (rank - below) / count
            below += count
            low = bound
        return low  # the last range has no end
