# SPDX-License-Identifier: AGPL-3.0-only
"""A token bucket as rule 6 states it, with two bounds on what it may hold.

`tokens` is the most there can be: the bucket refilled and drained by the deliveries that count, as
if those that were given back unsent had never been. A delivery beyond it breaks `rate × t + burst`
in some window. `surely` is what nobody may deny is there: of what is given back a broker may keep
as much as has arrived since, because that would have been lost in a full bucket. A lane that waits
beside that many tokens has been forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

from fila_server.core.clock import NS_PER_S, Now


class Take(NamedTuple):
    """Tokens of one delivery that may still be given back: its frame has not left."""

    at_ns: int
    amount: float
    grant: int
    message_id: str


class Bucket:
    """One throttle key's bucket. Full when its rate is set for the first time."""

    def __init__(self, rate: float, burst: float, now: Now) -> None:
        self.rate = rate
        self.burst = burst
        self._level = self._low = burst
        self._at_ns = self._low_ns = now.mono_ns
        self._takes: list[Take] = []
        self._former: list[Take] = []  # under another rate: nobody can say what they are worth
        self._stored(now)

    def copy(self) -> Bucket:
        twin = Bucket.__new__(Bucket)
        twin.__dict__.update(self.__dict__)
        twin._takes = self._takes.copy()
        return twin

    def price(self, cost: int) -> float:
        """Return what a delivery takes: a cost above the burst takes the whole bucket."""
        return min(float(cost), self.burst)

    def tokens(self, mono_ns: int) -> float:
        level, at_ns = self._level, self._at_ns
        for take in self._takes:
            level = self._grown(level, take.at_ns - at_ns) - take.amount
            at_ns = take.at_ns
        return self._grown(level, mono_ns - at_ns)

    def surely(self, mono_ns: int) -> float:
        return self._grown(self._low, mono_ns - self._low_ns)

    def _grown(self, level: float, elapsed_ns: int) -> float:
        return min(self.burst, level + self.rate * elapsed_ns / NS_PER_S)

    def pass_time(self, now: Now) -> None:
        """Note how far the clocks are apart: a broker may store it anew whenever it looks at it."""
        shift_ns = now.wall_ns - now.mono_ns
        if shift_ns not in self._shifts_ns:
            self._shifts_ns = [*self._shifts_ns, shift_ns]

    def take(self, cost: int, grant: int, message_id: str, now: Now) -> None:
        self._low = self.surely(now.mono_ns) - self.price(cost)
        self._low_ns = now.mono_ns
        self._takes.append(Take(now.mono_ns, self.price(cost), grant, message_id))
        self._stored(now)

    def give_back(self, grant: int, message_id: str, now: Now) -> None:
        """Undo a delivery as if it had never been."""
        mono_ns = now.mono_ns
        for take in self._takes:
            if (take.grant, take.message_id) == (grant, message_id):
                self._takes.remove(take)
                arrived = self.rate * (mono_ns - take.at_ns) / NS_PER_S
                low = self.surely(mono_ns) + max(0.0, take.amount - arrived)
                self._low, self._low_ns = min(self.burst, low), mono_ns
        for take in self._former:
            if (take.grant, take.message_id) == (grant, message_id):
                self._former.remove(take)
                self._settle_at(min(self.burst, self.tokens(mono_ns) + take.amount), mono_ns)

    def left(self, grant: int) -> None:
        """Note that the frame reached its client: its tokens stay taken."""
        kept = [take._replace(grant=0) if take.grant == grant else take for take in self._takes]
        while kept and kept[0].grant == 0:
            take = kept.pop(0)
            self._level = self._grown(self._level, take.at_ns - self._at_ns) - take.amount
            self._at_ns = take.at_ns
        self._takes = kept

    def change(self, rate: float, burst: float, now: Now) -> None:
        """Take over another rate and burst; what is in the bucket stays, if it fits."""
        level, low = self.tokens(now.mono_ns), self.surely(now.mono_ns)
        is_full = level >= self.burst  # then a broker may have forgotten it, and begins anew
        former = self._former + self._takes
        self.rate, self.burst = rate, burst
        self._settle_at(burst if is_full else min(level, burst), now.mono_ns)
        self._former = [take._replace(amount=self.price(int(take.amount))) for take in former]
        self._low, self._low_ns = min(low, burst), now.mono_ns

    def _stored(self, now: Now) -> None:
        self._shifts_ns = [now.wall_ns - now.mono_ns]
        self._is_behind = False  # a restart found the clock behind what was stored

    def _settle_at(self, level: float, mono_ns: int) -> None:
        self._level, self._at_ns = level, mono_ns
        self._former = self._former + self._takes
        self._takes = []

    def restart(self, before: Now, now: Now) -> None:
        """Go on after a restart, when only the wall clock tells how much time has passed.

        A clock that was set since the bucket was stored makes that uncertain.
        """
        moved_ns = now.wall_ns - before.mono_ns
        elapsed = [now.wall_ns - before.wall_ns, *(moved_ns - it for it in self._shifts_ns)]
        level = self.tokens(before.mono_ns)
        if level < self.burst:  # of a full bucket nothing is stored
            level = self._grown(level, max(elapsed))
        low = self._grown(self.surely(before.mono_ns), min(elapsed))
        self._settle_at(max(0.0, level), now.mono_ns)
        self._former = []
        self._is_behind = self._is_behind or level < 0 or low < 0
        self._low, self._low_ns = 0.0 if self._is_behind else low, now.mono_ns
        self._shifts_ns = [now.wall_ns - now.mono_ns]
