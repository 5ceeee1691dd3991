# SPDX-License-Identifier: AGPL-3.0-only
"""What happened with the messages of each fairness key and throttle key, kept after it has drained.

There may be millions of keys, so only some are counted by themselves: as many as the settings
allow, in all queues together. The others of a queue share one `Usage`, and all other throttle keys
one `ThrottleUsage`. Where a key is counted is decided when it becomes active, so counting costs no
more than an addition; now and then a `review` lets busy keys that are counted with the others
change places with those that are hardly used. No counter goes back, and none leaps, so rates and
their sums stay right: a key that is let go of takes its own along, is counted with the others from
then on, and begins at zero if it comes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from fila_server.core.schedule.histogram import Histogram

if TYPE_CHECKING:
    from typing import Self

# What all keys are called that are not counted by themselves. A key of this name is one of them.
OTHER = "other"
# In milliseconds, from what nobody notices to a day.
WAIT_BOUNDS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000),
    *(120_000, 300_000, 600_000, 1_800_000, 3_600_000, 14_400_000, 86_400_000),
)
# Keys that change places in one review: it comes every few seconds.
_MOVES = 10
# A key that is to be counted by itself has so many times the traffic of the one that makes room.
_AHEAD = 2
# Busy keys that are remembered on the way; only some of them can be taken up in the end.
_BUSY_MAX = 1000
# A message that is still leased counts where its key was counted when that last drained. So whoever
# was let go of is looked at for a while longer: half an hour at the least, and two megabytes.
_RETIRED_MAX = 4096


class Usage:
    """Counts of one fairness key, or of all keys of a queue that are not counted by themselves."""

    __slots__ = (
        "acked",
        "dead_lettered",
        "delivered",
        "enqueued",
        "key",
        "nacked",
        "retried",
        "reviewed",
        "waits",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.enqueued = 0
        self.delivered = 0
        self.acked = 0
        self.nacked = 0
        self.dead_lettered = 0
        self.retried = 0
        self.reviewed = 0  # traffic, at the last review
        self.waits = Histogram(WAIT_BOUNDS_MS)  # from enqueue to first delivery, in milliseconds

    @property
    def traffic(self) -> int:
        return self.delivered

    def take(self, other: Self) -> None:
        """Take over what another has counted, which begins at zero again."""
        self.enqueued += other.enqueued
        self.delivered += other.delivered
        self.acked += other.acked
        self.nacked += other.nacked
        self.dead_lettered += other.dead_lettered
        self.retried += other.retried
        self.waits.take(other.waits)
        other.enqueued = other.delivered = other.acked = other.nacked = 0
        other.dead_lettered = other.retried = 0


class ThrottleUsage:
    """Decisions of one limiter, or of all that are not counted by themselves."""

    __slots__ = ("blocked", "key", "passed", "reviewed")

    def __init__(self, key: str) -> None:
        self.key = key
        self.passed = 0
        self.blocked = 0
        self.reviewed = 0  # traffic, at the last review

    @property
    def traffic(self) -> int:
        return self.passed + self.blocked

    def take(self, other: Self) -> None:
        """Take over what another has counted, which begins at zero again."""
        self.passed += other.passed
        self.blocked += other.blocked
        other.passed = other.blocked = 0


U = TypeVar("U", Usage, ThrottleUsage)


class Counted(Protocol[U]):
    """A key in use: a fairness key of a queue, or a limiter."""

    name: str
    usage: U  # where it is counted
    reviewed: int  # traffic, when it was last looked at

    @property
    def traffic(self) -> int: ...


class Owner(Protocol[U]):
    """Whose keys they are: a queue, or the throttles of the broker."""

    usages: dict[str, U]  # of keys that are counted by themselves
    others: U  # of all other keys
    is_deleted: bool

    def in_use(self, name: str) -> Iterable[Counted[U]]:
        """Return what there is of a key: nothing, if it has drained long ago."""
        ...


class _Busy(NamedTuple, Generic[U]):
    """A key that might be counted by itself."""

    recent: int
    owner: Owner[U]
    name: str


class Usages(Generic[U]):
    """Which keys are counted by themselves, of one kind of key."""

    __slots__ = ("_busy", "_own", "_retired", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._own: dict[U, Owner[U]] = {}
        self._busy: list[_Busy[U]] = []
        self._retired: dict[U, Owner[U]] = {}

    def __len__(self) -> int:
        return len(self._own)

    def of(self, owner: Owner[U], name: str) -> U:
        """Return where a key that becomes active is counted."""
        usage = owner.usages.get(name)
        if usage is None:
            if len(self._own) >= self.limit or name == OTHER:
                return owner.others
            usage = self._count_alone(owner, name)
        return usage

    def _count_alone(self, owner: Owner[U], name: str) -> U:
        usage = owner.usages[name] = type(owner.others)(name)
        self._own[usage] = owner
        return usage

    def forget(self, owner: Owner[U]) -> None:
        """Let go of the keys of a queue that is gone."""
        for usage in owner.usages.values():
            self._own.pop(usage, None)
        owner.usages.clear()
        for usage in [it for it, its_owner in self._retired.items() if its_owner is owner]:
            del self._retired[usage]

    # --- Busy keys instead of idle ones -----------------------------------------------------------

    def look(self, owner: Owner[U], key: Counted[U]) -> None:
        """Note what a key has done since the last look; `review` decides what comes of it."""
        traffic = key.traffic
        recent = traffic - key.reviewed
        key.reviewed = traffic
        if recent > 0 and key.usage is owner.others and key.name != OTHER:
            self._busy.append(_Busy(recent, owner, key.name))
            if len(self._busy) > _BUSY_MAX:
                self._busy = nlargest(_MOVES, self._busy, key=_recent)

    def review(self) -> Iterator[int]:
        """Count busy keys by themselves instead of those that are hardly used."""
        idle = iter(nsmallest(_MOVES, self._own, key=_since_review))
        busy = nlargest(_MOVES, self._busy, key=_recent)
        self._busy = []
        for recent, owner, name in busy:
            if owner.is_deleted or name in owner.usages:
                continue
            if len(self._own) >= self.limit:
                usage = next(idle, None)
                if usage is None or recent <= _AHEAD * _since_review(usage):
                    break
                self._let_go(usage)
            own = self._count_alone(owner, name)
            for key in owner.in_use(name):
                key.usage = own
        for usage in self._own:
            usage.reviewed = usage.traffic
        for usage, owner in list(self._retired.items()):
            owner.others.take(usage)  # what has been settled since
            yield 1

    def _let_go(self, usage: U) -> None:
        owner = self._own.pop(usage)
        del owner.usages[usage.key]
        for key in owner.in_use(usage.key):
            key.usage = owner.others
        type(usage)("").take(usage)  # ends here; what comes late is counted with the others
        self._retired[usage] = owner
        if len(self._retired) > _RETIRED_MAX:
            del self._retired[next(iter(self._retired))]


def _recent(busy: _Busy[U]) -> int:
    return busy.recent


def _since_review(usage: U) -> int:
    return usage.traffic - usage.reviewed
