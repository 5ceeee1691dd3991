# SPDX-License-Identifier: AGPL-3.0-only
"""Queues that share a limiter: each in turn, and those that nobody consumes hold up nobody."""

from __future__ import annotations

from collections import Counter

import pytest

from fila.v1 import admin_pb2 as pb
from server.tests.core.harness import Harness, check_consistent
from server.tests.core.test_line import QUEUE, hold
from server.tests.core.test_line_shares import shares


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create(QUEUE)
    return harness


def test_two_queues_share_a_bucket(h: Harness) -> None:
    h.create("other")
    h.set("throttle.provider", "10,1")
    for queue in (QUEUE, "other"):
        for _ in range(200):
            h.enqueue(queue, throttle_keys=["provider"])
        h.open(queue, credit=1000)
    h.take()
    served: Counter[str] = Counter()
    for _ in range(100):
        h.clock.advance(0.1)
        h.tick()
        served += Counter(message.metadata.queue_id for message in h.take())
    assert served.total() == pytest.approx(100, abs=1)
    assert abs(served[QUEUE] - served["other"]) <= 2


def test_queues_take_turns_at_a_limiter_however_many_lanes_they_have(h: Harness) -> None:
    hold(h)
    h.create("other", visibility_timeout_ms=12 * 3600 * 1000)
    h.set("throttle.provider", "2,1")
    h.enqueue_many(QUEUE, 1000, [f"t{n}" for n in range(50)], throttle_keys=["provider"])
    h.enqueue_many("other", 1000, ["only"], throttle_keys=["provider"])
    h.open(QUEUE, credit=5000, batch=1)
    h.open("other", credit=5000, batch=1)
    taken = shares(h, 100)
    assert taken["only"] == pytest.approx(taken.total() / 2, abs=2)


def test_a_queue_that_nobody_consumes_holds_up_no_other(h: Harness) -> None:
    hold(h)
    h.create("idle", visibility_timeout_ms=12 * 3600 * 1000)
    h.set("throttle.provider", "1,1")
    for queue in ("idle", QUEUE):
        h.enqueue_many(queue, 50, ["a"], throttle_keys=["provider"])
    h.open("idle", credit=1)  # takes one, and then no more
    h.open(QUEUE, credit=100)
    assert shares(h, 20).total() == 21
    h.admin(pb.PauseRequest(queue=QUEUE))
    assert shares(h, 20).total() == 0


def test_queues_that_nobody_consumes_are_not_asked_at_every_delivery(h: Harness) -> None:
    h.set("throttle.shared", "1,1")
    idle = [f"idle-{n}" for n in range(200)]
    for queue in (*idle, "live", "late"):
        h.create(queue, visibility_timeout_ms=12 * 3600 * 1000)
        h.enqueue_many(queue, 50, ["a"], throttle_keys=["shared"])
    h.open("live", credit=100)
    for queue in idle:  # they all stand in line
        h.receive(queue)
    h.take()
    limiter = h.broker.state.throttles.limiters["shared"]
    assert len(limiter.lines) > len(idle)

    def seconds(count: int) -> list[str]:
        served = []
        for _ in range(count):
            h.clock.advance(1)
            h.tick()
            served += [message.metadata.queue_id for message in h.take()]
        return served

    assert len(seconds(20)) == 20
    assert len(limiter.lines) == 1 and len(limiter.unserved) == len(idle)
    h.open("late", credit=100)  # it takes part at once, in turn with the other
    served = seconds(20)
    assert served.count("late") == served.count("live") == 10
    check_consistent(h)


def test_a_tenant_with_large_messages_gets_its_share_of_a_limit(h: Harness) -> None:
    """Its frames are cut, and what is put back is not counted against it."""
    hold(h)
    h.set("throttle.provider", "1,8")
    for tenant, size in (("large", 900 * 1024), ("small", 1)):
        h.enqueue_many(QUEUE, 100, [tenant], payload=bytes(size), throttle_keys=["provider"])
    h.open(QUEUE, credit=5000, batch=100)
    served: Counter[str] = Counter()
    for _ in range(16):
        h.clock.advance(8)
        for _ in range(4):
            h.tick()
            served.update(message.metadata.fairness_key for message in h.take())
    assert served.total() > 100
    assert served["large"] == pytest.approx(served["small"], abs=2)
    check_consistent(h)
