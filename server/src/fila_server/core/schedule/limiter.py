# SPDX-License-Identifier: AGPL-3.0-only
"""Limiters: one per throttle key in use, with a token bucket, a concurrency limit and a pause.

A key that nobody configured has a limiter too: it lets everything through, counts what is leased,
and is there when somebody sets a limit. Limiters that nothing refers to are forgotten once their
bucket is full again. Who waits at one is the business of line.py.

The bucket is kept as the time at which it will be full again (the "theoretical arrival time" of
GCRA): one integer, exact, and easy to store. Times here are picoseconds on the monotonic clock,
so that rates above a million per second stay exact.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from fila_server.core.clock import NS_PER_S
from fila_server.core.schedule.deadlines import Deadlines
from fila_server.core.schedule.pace import Pace
from fila_server.core.schedule.usage import ThrottleUsage, Usages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fila_server.core.schedule.lane import Lane
    from fila_server.core.schedule.line import Line
    from fila_server.core.schedule.queue import Queue

_PS_PER_NS = 1000
FOREVER = 1 << 62  # blocked until something is released, not until a time
_PLENTY = 1 << 30


class Limiter:
    """The limits of one throttle key. `full_ps` is when the bucket will be full again."""

    __slots__ = (
        "blocked",
        "blocked_count",
        "burst",
        "burst_ps",
        "clock",
        "full_ps",
        "in_flight",
        "interval_ps",
        "is_free",
        "is_held",
        "is_paused",
        "is_stored",
        "lanes",
        "level",
        "limit",
        "lines",
        "name",
        "passed",
        "passed_count",
        "pattern",
        "pause_ms",
        "paused_until_ns",
        "rate",
        "rated_ns",
        "reviewed",
        "unserved",
        "usage",
    )

    def __init__(self, name: str, usage: ThrottleUsage | None = None) -> None:
        self.name = name
        self.usage = usage or ThrottleUsage(name)  # where it is counted, also after its end
        self.reviewed = 0  # traffic, when it was last looked at
        self.pattern = ""  # of the setting that applies; empty for one of its own, or none
        self.rate = 0.0
        self.burst = 0.0
        self.interval_ps = 0  # time that one token takes to arrive; 0 means no rate limit
        self.burst_ps = 0
        self.full_ps = 0
        self.rated_ns = 0  # when rate or burst were set last
        self.limit = 0  # most leased messages at a time; 0 means no limit
        self.paused_until_ns = 0  # backpressure, or an operator's pause with an end
        self.pause_ms = 0  # how long that pause was meant to be
        self.is_held = False  # an operator's pause without an end
        self.is_paused = False  # an operator's pause, with an end or without
        self.is_free = True  # nothing limits it: a delivery need not ask
        self.is_stored = False  # the store has a record of it
        self.in_flight = 0
        self.lanes: dict[Lane, None] = {}  # that carry its key, resting ones too
        self.passed_count = 0
        self.blocked_count = 0
        self.passed = Pace()
        self.blocked = Pace()
        # Of line.py.
        self.lines: dict[Queue, Line] = {}  # longest waiting first
        self.unserved: dict[Queue, Line] = {}  # whose queues could deliver nothing, all due
        self.clock = 0  # virtual time: the largest tag that was served
        self.level = 0  # the most that a lane which was served has had by weight

    @property
    def traffic(self) -> int:
        """Return what makes a key a busy one."""
        return self.passed_count + self.blocked_count

    @property
    def is_set(self) -> bool:
        """Whether a setting limits it."""
        return bool(self.interval_ps or self.limit)

    def configure(self, rate: float, burst: float, limit: int, pattern: str, now_ns: int) -> bool:
        """Put settings to work, keeping the tokens that are there. Return whether any changed."""
        self.pattern = pattern
        has_changed = (rate, burst, limit) != (self.rate, self.burst, self.limit)
        if (rate, burst) != (self.rate, self.burst):
            tokens = self.tokens(now_ns) if self.interval_ps else burst
            self.rated_ns = now_ns
            self.rate, self.burst = rate, burst
            # Rounded up, so that rounding never lets more through than the rate allows.
            self.interval_ps = ceil(NS_PER_S * _PS_PER_NS / rate) if rate else 0
            self.burst_ps = int(burst * self.interval_ps)
            missing = max(0.0, burst - tokens)
            self.full_ps = now_ns * _PS_PER_NS + ceil(missing * self.interval_ps)
        self.limit = limit
        self._judge()
        return has_changed

    def pause(
        self, until_ns: int, pause_ms: int, now_ns: int, *, by_operator: bool = False
    ) -> None:
        """Let nothing through until then; a later end wins."""
        if self.paused_until_ns <= now_ns:
            self.is_paused = self.is_held  # an operator's pause that is over is nobody's
        self.is_paused |= by_operator
        if until_ns > self.paused_until_ns:
            self.paused_until_ns = until_ns
            self.pause_ms = pause_ms
        self._judge()

    def hold(self) -> None:
        """Let nothing through until somebody resumes it."""
        self.is_held = self.is_paused = True
        self._judge()

    def resume(self) -> None:
        self.paused_until_ns = self.pause_ms = 0
        self.is_held = self.is_paused = False
        self._judge()

    def _judge(self) -> None:
        self.is_free = not (self.interval_ps or self.limit or self.paused_until_ns or self.is_held)

    def tokens(self, now_ns: int) -> float:
        """Return the tokens in the bucket."""
        if not self.interval_ps:
            return self.burst
        missing_ps = max(0, self.full_ps - now_ns * _PS_PER_NS)
        return (self.burst_ps - missing_ps) / self.interval_ps

    def price_ps(self, cost: int) -> int:
        """Return what a delivery takes; one that costs more than the bucket holds takes all."""
        return min(cost * self.interval_ps, self.burst_ps)

    def blocked_until(self, cost: int, now_ns: int) -> int:
        """Return 0 if a delivery may take `cost` now, else when to ask again."""
        if self.is_held:
            return FOREVER
        if self.paused_until_ns > now_ns:
            return self.paused_until_ns
        if self.limit and self.in_flight >= self.limit:
            return FOREVER
        if self.interval_ps:
            now_ps = now_ns * _PS_PER_NS
            full_ps = self.full_ps if self.full_ps > now_ps else now_ps
            over_ps = full_ps + min(cost * self.interval_ps, self.burst_ps) - now_ps - self.burst_ps
            if over_ps > 0:
                return now_ns - (-over_ps // _PS_PER_NS)
        return 0

    def room(self, cost: int, now_ns: int) -> int:
        """Return how many deliveries of `cost` could pass now."""
        if self.blocked_until(cost, now_ns):
            return 0
        room = self.limit - self.in_flight if self.limit else _PLENTY
        if self.interval_ps:
            missing_ps = max(0, self.full_ps - now_ns * _PS_PER_NS)
            room = min(room, (self.burst_ps - missing_ps) // self.price_ps(cost))
        return room

    def take(self, cost: int, now_ns: int) -> None:
        """Account for one delivery that `blocked_until` allowed."""
        self.in_flight += 1
        self.passed_count += 1
        self.usage.passed += 1
        self.passed.count(1, now_ns)
        if self.interval_ps:
            now_ps = now_ns * _PS_PER_NS
            full_ps = self.full_ps if self.full_ps > now_ps else now_ps
            self.full_ps = full_ps + min(cost * self.interval_ps, self.burst_ps)

    def give_back(self, count: int, cost: int, taken_ns: int, now_ns: int) -> None:
        """Return tokens of deliveries that reached nobody. What is leased is not touched here.

        Tokens that have arrived since would have overflowed the bucket had these not been taken, as
        far as anybody can tell now; so that much stays taken, and the bound holds. So do tokens
        that were taken under another rate or burst, when they were worth something else.
        """
        self.passed_count -= count
        if self.interval_ps and taken_ns >= self.rated_ns:
            elapsed_ps = (now_ns - taken_ns) * _PS_PER_NS
            self.full_ps -= max(0, count * self.price_ps(cost) - elapsed_ps)

    def idle_at_ns(self) -> int:
        """Return when nothing but its settings will be worth remembering."""
        return max(-(-self.full_ps // _PS_PER_NS) if self.interval_ps else 0, self.paused_until_ns)


# What the settings say of a throttle key: rate, burst, concurrency limit, pattern.
Terms = tuple[float, float, int, str]


class Throttles:
    """All limiters, and when those with a line are due to be looked at."""

    def __init__(self, terms_of: Callable[[str], Terms], usages_max: int = 0) -> None:
        self._terms_of = terms_of
        self.counted: Usages[ThrottleUsage] = Usages(usages_max)
        self.usages: dict[str, ThrottleUsage] = {}  # of keys that are counted by themselves
        self.others = ThrottleUsage("")  # of all other keys
        self.is_deleted = False
        self.limiters: dict[str, Limiter] = {}
        self.timers: Deadlines[Limiter] = Deadlines()
        self.idle: Deadlines[Limiter] = Deadlines()  # nothing refers to them; see `forgotten`
        self.touched: dict[Limiter, None] = {}  # to store with this turn

    def limiter(self, name: str, now_ns: int) -> Limiter:
        """Return the limiter of a throttle key, making it when it is the first to be asked for."""
        found = self.limiters.get(name)
        if found is None:
            found = self.limiters[name] = Limiter(name, self.counted.of(self, name))
            found.configure(*self._terms_of(name), now_ns)
        return found

    def in_use(self, name: str) -> Iterator[Limiter]:
        """Yield the limiter of a throttle key while there is one."""
        if name in self.limiters:
            yield self.limiters[name]

    def used(self, lane: Lane) -> None:
        """Note that a lane refers to its limiters."""
        for limiter in lane.limiters:
            limiter.lanes[lane] = None

    def unused(self, lane: Lane) -> None:
        """Note that a lane is gone."""
        for limiter in lane.limiters:
            del limiter.lanes[lane]
            self.rest(limiter)

    def rest(self, limiter: Limiter) -> None:
        """Forget the limiter when it has nothing left to remember, if nothing refers to it."""
        if not limiter.lanes and not limiter.in_flight and not limiter.is_held:
            self.idle.set(limiter, limiter.idle_at_ns())

    def forgotten(self, now_ns: int, limit: int) -> list[Limiter]:
        """Drop limiters that have been idle until their time; return them."""
        gone = []
        for limiter in self.idle.due(now_ns, limit):
            if limiter.lanes or limiter.in_flight or limiter.is_held:
                continue
            if limiter.idle_at_ns() > now_ns:
                self.idle.set(limiter, limiter.idle_at_ns())
                continue
            self.timers.discard(limiter)
            if self.limiters.get(limiter.name) is limiter:
                del self.limiters[limiter.name]
                self.counted.look(self, limiter)
                gone.append(limiter)
        return gone
