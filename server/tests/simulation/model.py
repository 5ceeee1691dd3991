# SPDX-License-Identifier: AGPL-3.0-only
"""What must be true of a broker, as plain values: queues, messages, leases, limits.

A model is what one group of commands left on disk. It is copied after each group, because a crash
goes back to one of them. What moves a message from place to place is in ledger; nothing here knows
the broker.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

from fila.v1 import admin_pb2 as pb
from fila_server.core.clock import Now
from server.tests.simulation.bucket import Bucket

PENDING, DELAYED, LEASED = "pending", "delayed", "leased"
LaneName = tuple[int, str, tuple[str, ...], int]  # queue, fairness key, throttle keys, cost


class Deadline(NamedTuple):
    """A time: on the monotonic clock, which decides, and as it is stored for a restart."""

    mono_ns: int
    wall_ns: int
    span_ns: int

    @classmethod
    def after(cls, now: Now, span_ns: int) -> Deadline:
        return cls(now.mono_ns + span_ns, now.wall_ns + span_ns, span_ns)

    def restarted(self, now: Now) -> Deadline:
        """A clock that is behind must not make anything last longer than it was meant to."""
        left_ns = min(max(0, self.wall_ns - now.wall_ns), self.span_ns)
        return self._replace(mono_ns=now.mono_ns + left_ns)


class Rest(NamedTuple):
    """A throttle key that nothing passes until some time between two."""

    until: Deadline
    latest_ns: int
    is_known: bool = True

    @classmethod
    def after(cls, now: Now, span_ns: int) -> Rest:
        until = Deadline.after(now, span_ns)
        return cls(until, until.mono_ns)

    def restarted(self, before: Now, now: Now) -> Rest:
        """Such a time is stored anew whenever its bucket is, by the wall clock of that moment.

        So a clock that was set since leaves nothing but the longest that it can last.
        """
        drift_ns = (before.wall_ns - before.mono_ns) - (self.until.wall_ns - self.until.mono_ns)
        if self.is_known and not drift_ns:
            until = self.until.restarted(now)
            return Rest(until, until.mono_ns)
        until = self.until._replace(mono_ns=now.mono_ns)
        return Rest(until, now.mono_ns + self.until.span_ns, is_known=False)


_OVER = Rest(Deadline(0, 0, 0), 0)


class Lease(NamedTuple):
    """Who holds a message, and until when."""

    grant: int
    token: str
    consumer: int  # 0 for nobody that is still connected
    deadline: Deadline


class Letter(NamedTuple):
    """One message that exists, in exactly one place."""

    id: str
    queue: int
    key: str
    throttle_keys: tuple[str, ...]
    cost: int
    payload: bytes
    headers: tuple[tuple[str, str], ...]
    place: str = PENDING
    attempts: int = 0
    error: str = ""
    failures: tuple[tuple[int, str], ...] = ()  # the last five: cause and text
    since: int = 0  # the turn that put it where it is
    is_fresh: bool = True  # no delivery of it was ever seen by a client
    due: Deadline | None = None
    ends: Deadline | None = None
    lease: Lease | None = None
    doom: tuple[int, ...] = ()  # tickets of purges and redrives that may have taken it already

    @property
    def number(self) -> int:
        return int(self.id[24:], 16)

    @property
    def lane(self) -> LaneName:
        return self.queue, self.key, self.throttle_keys, self.cost


class Home(NamedTuple):
    """One queue from its creation to its deletion; a name may have several, one after another."""

    number: int
    name: str
    config: pb.QueueConfig
    parent: str = ""  # of which queue it holds the dead letters
    is_paused: bool = False
    paused_keys: frozenset[str] = frozenset()


class Seen(NamedTuple):
    """An idempotency key that was used."""

    message_id: str
    until_wall_ns: int
    window_ns: int
    certain_wall_ns: int  # until then nobody may forget it
    is_certain: bool = True  # the clock has not passed that

    @classmethod
    def at(cls, now: Now, message_id: str, window_ns: int) -> Self:
        until_ns = now.wall_ns + window_ns
        return cls(message_id, until_ns, window_ns, until_ns)

    def passed(self, now: Now) -> Self:
        """Return what is known later. A clock that was set back lets the window begin again."""
        certain_ns = min(self.certain_wall_ns, now.wall_ns + self.window_ns)
        is_certain = self.is_certain and certain_ns > now.wall_ns
        return self._replace(certain_wall_ns=certain_ns, is_certain=is_certain)

    def binds(self, now: Now, *, is_duplicate: bool) -> bool:
        """Tell whether another enqueue must be refused as a duplicate, or was and might be."""
        return self.until_wall_ns > now.wall_ns and (self.is_certain or is_duplicate)


class Limits(NamedTuple):
    """What the settings say of one throttle key; 0 means no limit."""

    rate: float = 0.0
    burst: float = 0.0
    concurrency: int = 0


class Model:
    """Everything that a restart brings back."""

    def __init__(self) -> None:
        self.homes: dict[str, Home] = {}
        self.letters: dict[str, Letter] = {}
        self.gone: dict[str, str] = {}  # messages that were, and how they went
        self.settings: dict[str, str] = {}
        self.throttle_keys: set[str] = set()  # those that messages have carried
        self.buckets: dict[str, Bucket] = {}  # of those that have a rate
        # Throttle keys that nothing passes: until when, and None for until they are resumed.
        self.backpressure: dict[str, Rest] = {}
        self.pauses: dict[str, Rest | None] = {}
        self.seen: dict[tuple[int, str], Seen] = {}
        self._limits: dict[str, Limits] = {}  # looked up before, as long as no setting changes

    def copy(self) -> Model:
        twin = Model()
        twin.homes = self.homes.copy()
        twin.letters = self.letters.copy()
        twin.gone = self.gone.copy()
        twin.settings = self.settings.copy()
        twin.throttle_keys = self.throttle_keys.copy()
        twin.buckets = {name: bucket.copy() for name, bucket in self.buckets.items()}
        twin.backpressure = self.backpressure.copy()
        twin.pauses = self.pauses.copy()
        twin.seen = self.seen.copy()
        twin._limits = self._limits
        return twin

    def set(self, key: str, value: str) -> None:
        """Change a setting; an empty value removes it."""
        self._limits = {}
        if value:
            self.settings[key] = value
        else:
            self.settings.pop(key, None)

    def rests_ns(self, throttle_key: str) -> tuple[int, int] | None:
        """Return until when nothing passes the throttle key, at least and at most.

        None if until it is resumed.
        """
        pause = self.pauses.get(throttle_key, _OVER)
        if pause is None:
            return None
        other = self.backpressure.get(throttle_key, _OVER)
        least_ns = max(pause.until.mono_ns, other.until.mono_ns)
        return least_ns, max(pause.latest_ns, other.latest_ns)

    def home(self, number: int) -> Home | None:
        return next((home for home in self.homes.values() if home.number == number), None)

    def of(self, home: Home) -> list[Letter]:
        return [letter for letter in self.letters.values() if letter.queue == home.number]

    def leased_with(self, throttle_key: str) -> int:
        """Return how many leases carry the key; dead letters are free of limits."""
        free = {home.number for home in self.homes.values() if home.parent}
        return sum(
            letter.lease is not None
            and throttle_key in letter.throttle_keys
            and letter.queue not in free
            for letter in self.letters.values()
        )

    def limits(self, throttle_key: str) -> Limits:
        """Return what applies to a throttle key: its own settings, else the longest pattern's."""
        known = self._limits.get(throttle_key)
        if known is None:
            concurrency = self._setting("concurrency:{}:limit", throttle_key) or "0"
            known = Limits(*self._rate(throttle_key), int(concurrency))
            self._limits[throttle_key] = known
        return known

    def _rate(self, throttle_key: str) -> tuple[float, float]:
        """Return rate and burst, each from the most specific setting that says something of it."""
        get = self.settings.get
        burst = 0.0
        for name in self._names(throttle_key):
            compact = get(f"throttle.{name}", "").partition(",")
            burst = burst or float(get(f"throttle:{name}:burst") or compact[2] or 0)
            rate = float(get(f"throttle:{name}:rate") or compact[0] or 0)
            if rate:
                return rate, burst or max(1, math.ceil(rate))
        return 0.0, 0.0

    def weight(self, queue: str, key: str) -> int | None:
        """Return the weight that an operator gave a fairness key, if any did."""
        found = self._setting(f"weight:{queue}:{{}}", key)
        return int(found) if found is not None else None

    def _setting(self, template: str, name: str) -> str | None:
        for candidate in self._names(name):
            found = self.settings.get(template.format(candidate))
            if found is not None:
                return found
        return None

    @staticmethod
    def _names(name: str) -> list[str]:
        return [name, *(name[:length] + "*" for length in range(len(name), -1, -1))]


def restarted(letter: Letter, now: Now) -> Letter:
    """Return a letter as a restart finds it: nobody is connected, and times are bounded."""
    if letter.lease is not None:
        deadline = letter.lease.deadline.restarted(now)
        letter = letter._replace(lease=letter.lease._replace(consumer=0, deadline=deadline))
    if letter.ends is not None:
        letter = letter._replace(ends=letter.ends.restarted(now))
    if letter.due is not None:
        due = letter.due.restarted(now)
        # The disk does not know that a delay ended: a clock that is behind begins it again.
        is_again = letter.place == PENDING and due.mono_ns > now.mono_ns
        letter = letter._replace(due=due, place=DELAYED if is_again else letter.place)
    return letter
