# SPDX-License-Identifier: AGPL-3.0-only
"""What figures are made of times and counts: medians, spread, shares, limits, waits.

Pure functions, and one histogram. Latency counts from when a message was due, not from when it
left: a sender that was held up would else leave out the waits that its broker caused
(coordinated omission).
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
# From a microsecond to ten minutes, to within one part in a hundred.
LOWEST_US, HIGHEST_US, DIGITS = 1, 600_000_000, 2


class Spread(NamedTuple):
    """The middle of several rounds, and the least and most of them."""

    middle: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError without a single round."""
    if not values:
        raise ValueError("no round was measured, so there is no median")
    return Spread(median(values), min(values), max(values))


def due_ns(began_ns: int, number: int, rate: float) -> int:
    """When message `number` is due in an open loop: whatever happened to those before it."""
    return began_ns + round(number * 1e9 / rate)


def share_error(served: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """The largest error of any share, as a part of that share."""
    total, weight_total = sum(served.values()), sum(weights.values())
    return max(
        abs(served.get(name, 0) / total / (weight / weight_total) - 1)
        for name, weight in weights.items()
    )


def overshoot(times: Sequence[float], rate: float, burst: int) -> float:
    """By how many calls the worst window exceeds rate × t + burst; 0 if none does."""
    lowest, worst = 0.0, 0.0
    for count, at in enumerate(times):
        level = count - rate * (at - times[0])
        lowest = min(lowest, level)
        worst = max(worst, level + 1 - lowest - burst)
    return round(worst, 6)


class Latencies:
    """A histogram of microseconds that can be sent, merged and read."""

    def __init__(self, encoded: str | None = None) -> None:
        from hdrh.histogram import HdrHistogram

        self._histogram: Any = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
        if encoded:
            self.merge(encoded)

    def record(self, due: int, arrived: int) -> None:
        """Count one message that was due and arrived at these nanoseconds of one clock."""
        self._histogram.record_value(min(max(LOWEST_US, (arrived - due) // 1000), HIGHEST_US))

    def merge(self, encoded: str) -> None:
        self._histogram.decode_and_add(encoded)

    def encoded(self) -> str:
        text = self._histogram.encode()
        return text.decode() if isinstance(text, bytes) else str(text)

    @property
    def count(self) -> int:
        return int(self._histogram.get_total_count())

    def percentiles_us(self) -> dict[str, float]:
        found = {f"p{part:g}": self.at(part) for part in PERCENTILES}
        return {**found, "max": float(self._histogram.get_max_value())}

    def at(self, part: float) -> float:
        return float(self._histogram.get_value_at_percentile(part))
