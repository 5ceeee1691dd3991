# SPDX-License-Identifier: AGPL-3.0-only
"""How long something was held back, for those who ask afterwards why a message waited.

A lane that is parked, a queue without a consumer, a key that is paused: each is held back from time
to time. `Held` knows for any stretch of the past how much of it that was. It keeps the moments of
change; when there are many, every other one of them is let go of, so that what is long ago is known
less exactly and memory stays bounded.
"""

from __future__ import annotations

from bisect import bisect_right

_POINTS_MAX = 64


class Held:
    """The times during which one thing was held back for one cause. Times are monotonic."""

    __slots__ = ("_since_ns", "_times", "_totals")

    def __init__(self) -> None:
        self._since_ns = 0  # 0 while it is free
        self._times: list[int] = []
        self._totals: list[int] = []  # held until then, all in all

    def begin(self, now_ns: int) -> None:
        """It is held back from now on. Harmless while it is."""
        if not self._since_ns:
            self._since_ns = now_ns
            self._note(now_ns, self._totals[-1] if self._totals else 0)

    def end(self, now_ns: int) -> None:
        """It is free from now on. Harmless while it is."""
        if self._since_ns:
            total = self._totals[-1] + now_ns - self._since_ns
            self._since_ns = 0
            self._note(now_ns, total)

    def _note(self, now_ns: int, total: int) -> None:
        times, totals = self._times, self._totals
        if len(times) >= _POINTS_MAX:
            del times[1:-1:2], totals[1:-1:2]
        times.append(now_ns)
        totals.append(total)

    def between(self, start_ns: int, now_ns: int) -> int:
        """Return for how long it was held back since `start_ns`."""
        if not self._times:
            return 0
        total = self._totals[-1] + (now_ns - self._since_ns if self._since_ns else 0)
        return max(0, total - self._total_at(start_ns, now_ns))

    def _total_at(self, at_ns: int, now_ns: int) -> int:
        times, totals = self._times, self._totals
        after = bisect_right(times, at_ns)
        if after == 0:
            return 0
        if after == len(times):
            return totals[-1] + (at_ns - self._since_ns if self._since_ns else 0)
        before_ns, before = times[after - 1], totals[after - 1]
        span_ns = times[after] - before_ns
        return before + (totals[after] - before) * (at_ns - before_ns) // span_ns
