# SPDX-License-Identifier: AGPL-3.0-only
"""Limiters: one per throttle key, with a token bucket, a concurrency limit and those who wait for
it.

A lane that meets an exhausted limiter is parked in the line of its queue at that limiter, and
nothing looks at it again until the limiter can let something through. Then as many deliveries are
passed to the front of the line as the limiter has room for, not to everybody. Each lane in line
gets its fairness key's weight per turn, so tenants share a bucket by weight. A woken lane takes
from all its limiters or from none, and parks at the one that is empty.

The bucket is kept as the time at which it will be full again (the "theoretical arrival time" of
GCRA): one integer, exact, and easy to store. Times here are picoseconds on the monotonic clock,
so that rates above a million per second stay exact.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import TYPE_CHECKING

from fila_server.core.clock import NS_PER_S

if TYPE_CHECKING:
    from fila_server.core.lane import Lane
    from fila_server.core.queue import Queue

_PS_PER_NS = 1000
FOREVER = 1 << 62  # blocked until something is released, not until a time


class Line:
    """The lanes of one queue that wait at one limiter, and the deliveries passed to woken ones."""

    __slots__ = ("awake", "lanes", "limiter", "queue")

    def __init__(self, limiter: Limiter, queue: Queue) -> None:
        self.limiter = limiter
        self.queue = queue
        self.lanes: deque[Lane] = deque()
        self.awake = 0


class Limiter:
    """The limits of one throttle key. `full_ps` is when the bucket will be full again."""

    __slots__ = (
        "blocked_count",
        "burst",
        "burst_ps",
        "full_ps",
        "in_flight",
        "interval_ps",
        "limit",
        "lines",
        "name",
        "passed_count",
        "paused_until_ns",
        "rate",
        "timer_ns",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.rate = 0.0
        self.burst = 0.0
        self.interval_ps = 0  # time that one token takes to arrive; 0 means no rate limit
        self.burst_ps = 0
        self.full_ps = 0
        self.limit = 0  # most leased messages at a time; 0 means no limit
        self.in_flight = 0
        self.paused_until_ns = 0
        self.lines: dict[Queue, Line] = {}
        self.timer_ns = 0  # when it is due to be looked at; 0 when nobody waits for a time
        self.passed_count = 0
        self.blocked_count = 0

    def set_rate(self, rate: float, burst: float, now_ns: int) -> None:
        """Change the bucket, keeping the tokens that are in it. A rate of 0 removes the limit."""
        tokens = self.tokens(now_ns) if self.interval_ps else burst
        self.rate, self.burst = rate, burst
        # Rounded up, so that rounding never lets more through than the rate allows.
        self.interval_ps = ceil(NS_PER_S * _PS_PER_NS / rate) if rate else 0
        self.burst_ps = int(burst * self.interval_ps)
        missing = max(0.0, burst - tokens)
        self.full_ps = now_ns * _PS_PER_NS + ceil(missing * self.interval_ps)

    def tokens(self, now_ns: int) -> float:
        """Return the tokens in the bucket."""
        if not self.interval_ps:
            return self.burst
        missing_ps = max(0, self.full_ps - now_ns * _PS_PER_NS)
        return (self.burst_ps - missing_ps) / self.interval_ps

    def blocked_until(self, cost: int, now_ns: int) -> int:
        """Return 0 if a delivery may take `cost` now, else when to ask again."""
        if self.paused_until_ns > now_ns:
            return self.paused_until_ns
        if self.limit and self.in_flight >= self.limit:
            return FOREVER
        if self.interval_ps:
            now_ps = now_ns * _PS_PER_NS
            full_ps = self.full_ps if self.full_ps > now_ps else now_ps
            # A message that costs more than the bucket can hold takes the whole bucket.
            over_ps = full_ps + min(cost * self.interval_ps, self.burst_ps) - now_ps - self.burst_ps
            if over_ps > 0:
                return now_ns - (-over_ps // _PS_PER_NS)
        return 0

    def take(self, cost: int, now_ns: int) -> None:
        """Account for one delivery that `blocked_until` allowed."""
        self.in_flight += 1
        self.passed_count += 1
        if self.interval_ps:
            now_ps = now_ns * _PS_PER_NS
            full_ps = self.full_ps if self.full_ps > now_ps else now_ps
            self.full_ps = full_ps + min(cost * self.interval_ps, self.burst_ps)

    def give_back(self, cost: int) -> None:
        """Undo one `take` whose delivery never reached a consumer."""
        self.in_flight -= 1
        self.passed_count -= 1
        if self.interval_ps:
            self.full_ps -= min(cost * self.interval_ps, self.burst_ps)

    def room(self, cost: int, now_ns: int) -> int:
        """Return how many deliveries of `cost` could pass now."""
        if self.blocked_until(cost, now_ns):
            return 0
        room = self.limit - self.in_flight if self.limit else 1 << 30
        if self.interval_ps:
            missing_ps = max(0, self.full_ps - now_ns * _PS_PER_NS)
            price_ps = min(cost * self.interval_ps, self.burst_ps)
            room = min(room, (self.burst_ps - missing_ps) // price_ps)
        return room

    def line(self, queue: Queue) -> Line:
        line = self.lines.get(queue)
        if line is None:
            line = self.lines[queue] = Line(self, queue)
        return line


class Throttles:
    """All limiters, and the times at which those with a line are due."""

    def __init__(self) -> None:
        self.limiters: dict[str, Limiter] = {}
        self.timers: list[
            tuple[int, str]
        ] = []  # heap of (time, limiter name); stale ones are skipped
        self.touched: dict[Limiter, None] = {}  # buckets to store with this group

    def limiters_of(self, throttle_keys: tuple[str, ...]) -> tuple[Limiter, ...]:
        get = self.limiters.get
        return tuple(found for name in throttle_keys if (found := get(name)) is not None)
