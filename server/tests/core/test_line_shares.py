# SPDX-License-Identifier: AGPL-3.0-only
"""Lanes that share a limiter: each gets its weight's share of it, whatever else it needs."""

from __future__ import annotations

from collections import Counter

import pytest

from server.tests.core.harness import Harness, check_consistent
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
