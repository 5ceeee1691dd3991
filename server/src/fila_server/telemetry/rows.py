# SPDX-License-Identifier: AGPL-3.0-only
"""A reading: rows of a metric's name, its labels and its value. Whoever reads the broker makes
them, whoever exports takes them.
"""

from __future__ import annotations

from collections.abc import Sequence


class Distribution:
    """Counts by range, as they were, in the unit that is exported."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float], counts: Sequence[int], total: float) -> None:
        self.bounds = bounds
        self.counts = counts  # one more than bounds: the last range has no end
        self.sum = total


Labels = tuple[tuple[str, str], ...]
Row = tuple[str, Labels, float | Distribution]
