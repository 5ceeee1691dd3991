# SPDX-License-Identifier: AGPL-3.0-only
"""What the demo measures: who sent, who got, who waited. Pure arithmetic; time comes in as numbers.

Every message carries its place in the order of arrival. Two things follow from the record of
arrivals and deliveries alone:

- *Entitlement*: the deliveries of the run, as `shares.py` divides them.
- *FIFO wait*: had the same deliveries gone out in order of arrival, the message in place k would
  have taken the k-th of them. Places beyond the last delivery are taken to go on at the run's rate.
"""

import bisect
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fila_server.cli.shares import entitlements

# "Recent" in the live view: short enough to follow a change, long enough to hold some messages.
RECENT_S = 5.0
_ALWAYS = float("-inf")


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of the demo, and what it does."""

    name: str
    weight: int
    per_second: float
    is_quiet: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """The middle and the bad end of some waits."""

    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class TenantScore:
    """What one tenant sent, got and waited for; no waits without a delivery."""

    tenant: Tenant
    enqueued: int
    delivered: int
    share: float
    entitlement: float
    waits: Waits | None


class Record:
    """Arrivals in order, deliveries in order, and the counts that follow from them.

    One thread calls `arrive`; calls of `deliver` come one at a time, with times that never go back.
    Reading at the same time is safe: lists only grow.
    """

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        self.tenants = tenants
        self.arrivals: list[tuple[int, float]] = []
        self.deliveries: list[tuple[int, float]] = []
        self._enqueued = [0] * len(tenants)
        self._delivered = [0] * len(tenants)
        self._seen: set[int] = set()

    def arrive(self, tenant: int, at: float) -> int:
        """Notes an arrival and returns its place."""
        self.arrivals.append((tenant, at))
        self._enqueued[tenant] += 1
        return len(self.arrivals) - 1

    def deliver(self, place: int, at: float) -> None:
        """Notes a delivery; only the first of each message counts."""
        if place not in self._seen:
            self._seen.add(place)
            self.deliveries.append((place, at))
            self._delivered[self.arrivals[place][0]] += 1

    @property
    def backlog(self) -> int:
        return len(self.arrivals) - len(self.deliveries)

    @property
    def quiet_backlog(self) -> int:
        quiet = [index for index, tenant in enumerate(self.tenants) if tenant.is_quiet]
        return sum(self._enqueued[index] - self._delivered[index] for index in quiet)

    def scores(self, since_s: float = _ALWAYS) -> list[TenantScore]:
        """Totals of every tenant; its waits only over deliveries since then."""
        waits: list[list[float]] = [[] for _ in self.tenants]
        for place, at in self._delivered_since(since_s):
            tenant, sent_at = self.arrivals[place]
            waits[tenant].append(at - sent_at)
        delivered = list(self._delivered)
        total = sum(delivered) or 1
        weights = [tenant.weight for tenant in self.tenants]
        entitled = entitlements(total, self._enqueued, weights)
        return [
            TenantScore(
                tenant=tenant,
                enqueued=self._enqueued[index],
                delivered=delivered[index],
                share=delivered[index] / total,
                entitlement=entitled[index] / total,
                waits=percentiles(waits[index]),
            )
            for index, tenant in enumerate(self.tenants)
        ]

    def quiet_waits(self, since_s: float = _ALWAYS) -> Waits | None:
        """How long the quiet tenants' messages waited."""
        return percentiles([at - sent_at for _, sent_at, at in self._quiet_deliveries(since_s)])

    def quiet_fifo_waits(self, since_s: float = _ALWAYS) -> Waits | None:
        """How long the same messages would have waited in order of arrival; computed."""
        slots = len(self.deliveries)
        if slots < 2:
            return None
        first, last = self.deliveries[0][1], self.deliveries[slots - 1][1]
        per_delivery = (last - first) / (slots - 1)
        waits = []
        for place, sent_at, _ in self._quiet_deliveries(since_s):
            beyond = place - slots + 1
            slot = self.deliveries[place][1] if beyond <= 0 else last + beyond * per_delivery
            waits.append(slot - sent_at)
        return percentiles(waits)

    def delivered_per_second(self, since_s: float, now_s: float) -> float:
        """The pace of deliveries between two times."""
        return len(self._delivered_since(since_s)) / max(now_s - since_s, 1e-9)

    def _quiet_deliveries(self, since_s: float) -> Iterator[tuple[int, float, float]]:
        for place, at in self._delivered_since(since_s):
            tenant, sent_at = self.arrivals[place]
            if self.tenants[tenant].is_quiet:
                yield place, sent_at, at

    def _delivered_since(self, since_s: float) -> list[tuple[int, float]]:
        start = bisect.bisect_left(self.deliveries, since_s, key=operator.itemgetter(1))
        return self.deliveries[start:]


def percentiles(waits: Sequence[float]) -> Waits | None:
    """The nearest-rank p50 and p95; None of nothing."""
    if not waits:
        return None
    ranked = sorted(waits)
    last = len(ranked) - 1
    return Waits(p50_s=ranked[round(last * 0.50)], p95_s=ranked[round(last * 0.95)])
