# SPDX-License-Identifier: AGPL-3.0-only
"""Lanes that share a limiter: each gets its weight's share of it, whatever else it needs."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from server.tests.core.harness import Harness, S, check_consistent
from server.tests.core.test_line import QUEUE, fill, hold, pass_seconds, tenants


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create(QUEUE)
    return harness


def shares(h: Harness, seconds: int) -> Counter[str]:
    return Counter(key for _, key in pass_seconds(h, seconds))


@pytest.mark.parametrize(("noisy", "quiet"), [(1, 1), (1, 3), (4, 1)])
def test_what_else_a_lane_needs_changes_nothing_about_its_share(
    h: Harness, noisy: int, quiet: int
) -> None:
    """{account, provider} against {provider}: by weight, not who was woken where."""
    hold(h)
    h.set("throttle.acct:noisy", "1,1")
    h.set("throttle.provider", "1,1")
    for _ in range(400):
        h.enqueue(
            QUEUE, fairness_key="noisy", weight=noisy, throttle_keys=["acct:noisy", "provider"]
        )
        h.enqueue(QUEUE, fairness_key="quiet", weight=quiet, throttle_keys=["provider"])
    h.open(QUEUE, credit=10_000, batch=1)
    taken = shares(h, 300)
    assert taken.total() == 301
    assert taken["noisy"] == pytest.approx(301 * noisy / (noisy + quiet), rel=0.05, abs=2)


def test_a_lane_that_its_own_limit_holds_back_leaves_the_rest_to_others(h: Harness) -> None:
    """It has a share of a half, can use a tenth, and gets that tenth."""
    hold(h)
    h.set("throttle.acct:slow", "0.1,1")
    h.set("throttle.provider", "1,1")
    for _ in range(400):
        h.enqueue(QUEUE, fairness_key="slow", throttle_keys=["acct:slow", "provider"])
        h.enqueue(QUEUE, fairness_key="rest", throttle_keys=["provider"])
    h.open(QUEUE, credit=10_000, batch=1)
    taken = shares(h, 300)
    assert taken.total() == 301
    assert taken["slow"] == pytest.approx(30, abs=3)  # its bucket of 1 is full while it waits here


def test_lanes_share_tokens_not_messages(h: Harness) -> None:
    hold(h)
    h.set("throttle.tokens", "10,10")
    for _ in range(1000):
        h.enqueue(QUEUE, fairness_key="dear", throttle_keys=["tokens"], throttle_cost=5)
        h.enqueue(QUEUE, fairness_key="cheap", throttle_keys=["tokens"])
    h.open(QUEUE, credit=10_000)
    taken = shares(h, 100)
    assert taken["dear"] * 5 == pytest.approx(taken["cheap"], rel=0.05)
    assert taken["dear"] * 5 + taken["cheap"] == pytest.approx(1010, abs=5)


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("weights", [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3, "d": 4}])
@pytest.mark.parametrize(
    "limits", [{"throttle.provider": "400,20"}, {"concurrency:provider:limit": "20"}]
)
def test_many_tokens_at_a_time_are_shared_by_weight(
    h: Harness, limits: dict[str, str], weights: dict[str, int], batch: int
) -> None:
    """A broker that is busy comes late to a bucket, and a batch of acks frees many slots."""
    hold(h)
    for key, value in limits.items():
        h.set(key, value)
    for tenant, weight in weights.items():
        fill(h, 1000, tenant, weight=weight, throttle_keys=["provider"])
    h.open(QUEUE, credit=5000, batch=batch)
    served: Counter[str] = Counter()
    for _ in range(60):
        h.tick()
        messages = h.take()
        served += tenants(messages)
        for message in messages:
            h.ack(QUEUE, message.id)
        h.clock.advance(0.05)
    assert served.total() >= 1000
    for tenant, weight in weights.items():
        assert served[tenant] == pytest.approx(
            served.total() * weight / sum(weights.values()), rel=0.02
        )
    check_consistent(h)


# --- Two limiters that are shared -----------------------------------------------------------------

POOL = {"a": 1, "b": 2, "c": 3, "d": 4}  # weights of those who need the pool and the provider
REST = {"x": 1, "y": 2}  # and of those who need the provider alone


class Market:
    """Tenants that always have something waiting, and whose messages are acked a second later."""

    def __init__(self, h: Harness, batch: int = 100, **keys: list[str]) -> None:
        self.h = h
        self.weights = POOL | REST
        self.keys = {tenant: ["provider"] for tenant in REST}
        self.keys |= {tenant: ["provider", "pool"] for tenant in POOL} | keys
        self.leased: deque[tuple[int, str]] = deque()
        for tenant in self.keys:
            self.fill(tenant, 100)
        h.open(QUEUE, credit=5000, batch=batch)

    def fill(self, tenant: str, count: int) -> None:
        keys = self.keys[tenant]
        fill(self.h, count, tenant, weight=self.weights[tenant], throttle_keys=keys)

    def serve(self, seconds: float, nap: float = 0.05) -> Counter[str]:
        served: Counter[str] = Counter()
        clock = self.h.clock
        for _ in range(round(seconds / nap)):
            clock.advance(nap)
            while self.leased and self.leased[0][0] <= clock.mono_ns:
                self.h.ack(QUEUE, self.leased.popleft()[1])
            self.h.tick()
            messages = self.h.take()
            self.leased += [(clock.mono_ns + S, message.id) for message in messages]
            now = tenants(messages)
            for tenant, count in now.items():
                self.fill(tenant, count)
            served += now
        return served


def by_weight(served: Counter[str], weights: dict[str, int]) -> list[float]:
    """Return what each got of what is its share."""
    unit = sum(served[it] for it in weights) / sum(weights.values())
    return [served[it] / (weight * unit) for it, weight in weights.items()]


@pytest.mark.parametrize(
    ("nap", "batch", "order"),  # a token of the provider at a time, and many
    [
        (0.05, 1, ["provider", "pool"]),
        (0.05, 100, ["pool", "provider"]),
        (0.23, 100, ["provider", "pool"]),
    ],
)
@pytest.mark.parametrize("pool", [2.0, 6.0, 15.0, 40.0])  # much tighter, tighter, as tight, loose
@pytest.mark.parametrize("setting", ["throttle.pool", "concurrency:pool:limit"])
def test_two_limiters_that_are_shared_are_both_shared_by_weight(
    h: Harness, order: list[str], setting: str, pool: float, nap: float, batch: int
) -> None:
    """Those who need both have to wait here and there in turn, and lose nothing by it."""
    hold(h)
    h.set("throttle.provider", "20,10")
    h.set(setting, f"{pool},10" if setting == "throttle.pool" else f"{pool:.0f}")
    market = Market(h, batch, **dict.fromkeys(POOL, order))
    market.serve(10, nap)
    served = market.serve(100, nap)
    assert by_weight(served, POOL) == pytest.approx([1] * len(POOL), abs=0.1)
    assert by_weight(served, REST) == pytest.approx([1] * len(REST), abs=0.1)
    if setting == "throttle.pool":  # of which each gets all it may have
        fair = 100 * min(pool, 20 * 10 / 13)
        assert sum(served[it] for it in POOL) == pytest.approx(fair, rel=0.1)
    assert served.total() == pytest.approx(2000, rel=0.02)
    check_consistent(h)


def test_who_comes_late_to_two_shared_limiters_gets_its_share_at_once(h: Harness) -> None:
    hold(h)
    h.set("throttle.provider", "20,10")
    h.set("throttle.pool", "5,5")
    market = Market(h)
    market.serve(200)
    market.weights["late"] = 5
    market.keys["late"] = ["provider", "pool"]
    market.fill("late", 100)
    served = market.serve(60)
    assert by_weight(served, POOL | {"late": 5}) == pytest.approx([1] * 5, abs=0.1)


@pytest.mark.parametrize("raised", ["throttle.pool", "throttle.account"])
def test_what_a_limit_kept_back_for_long_is_not_made_up_for(h: Harness, raised: str) -> None:
    """It is owed a few turns, and then has its share: not all that others had meanwhile."""
    hold(h)
    h.set("throttle.provider", "20,3")
    h.set("throttle.pool", "2,2" if raised == "throttle.pool" else "8,2")
    h.set("throttle.account", "0.2,1")
    market = Market(h, d=["account", "provider", "pool"])
    market.serve(300)
    if raised == "throttle.pool":
        h.set("throttle.account", "100,1")
    h.set(raised, "100,10")
    served = market.serve(40)
    assert by_weight(served, POOL) == pytest.approx([1] * len(POOL), abs=0.25)
    owed = sum(POOL.values()) * 4
    fair = 40 * (20 * 10 / 13 if raised == "throttle.pool" else 8)
    assert sum(served[it] for it in POOL) <= fair + owed
    assert by_weight(market.serve(40), POOL) == pytest.approx([1] * len(POOL), abs=0.1)
