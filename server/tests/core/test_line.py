# SPDX-License-Identifier: AGPL-3.0-only
"""Lanes meeting limiters, as users see it: who waits, who is woken, who gets how much."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.core.commands import CloseConsumer
from fila_server.errors import InvalidArgument
from server.tests.core.harness import Harness, check_consistent

QUEUE = "work"


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.create(QUEUE)
    return harness


def fill(h: Harness, count: int, fairness_key: str = "", **fields: Any) -> list[str]:
    return h.enqueue_many(QUEUE, count, [fairness_key], **fields)


def tenants(messages: list[Any]) -> Counter[str]:
    return Counter(message.metadata.fairness_key for message in messages)


def test_a_blocked_lane_does_not_hold_back_its_own_tenant(h: Harness) -> None:
    h.set("throttle.openai", "1,1")
    fill(h, 5, fairness_key="acme", throttle_keys=["openai"])
    fill(h, 5, fairness_key="acme", throttle_keys=["mail"])
    fill(h, 5, fairness_key="acme")
    messages = h.receive(QUEUE, 100)
    assert Counter(tuple(m.metadata.throttle_keys) for m in messages) == {
        ("openai",): 1,
        ("mail",): 5,
        (): 5,
    }
    assert h.stats(QUEUE).throttled == 4


def test_a_lane_wakes_when_its_bucket_refills_and_not_before(h: Harness) -> None:
    h.set("throttle.openai", "2,1")
    fill(h, 3, throttle_keys=["openai"])
    h.open(QUEUE)
    assert len(h.take()) == 1
    wake_ns = h.broker.next_wake_ns()
    assert wake_ns - h.clock.mono_ns == pytest.approx(500_000_000, abs=1000)
    h.clock.advance(0.499)
    h.tick()
    assert h.take() == []
    h.clock.advance(0.0011)
    h.tick()
    assert len(h.take()) == 1


def test_an_idle_broker_with_parked_lanes_has_nothing_to_do_until_the_refill(h: Harness) -> None:
    h.set("throttle.slow", "0.01,1")
    fill(h, 2, throttle_keys=["slow"])
    h.open(QUEUE)
    h.take()
    for _ in range(50):
        h.tick()
        assert not h.last.writes and not h.last.frames
    # The sweep of idempotency keys is the only other timer, and is far below one per poll.
    assert h.broker.next_wake_ns() - h.clock.mono_ns >= 5_000_000_000


def test_one_token_wakes_one_of_ten_thousand_tenants(h: Harness) -> None:
    h.set("throttle.provider", "1,1")
    for tenant in range(10_000):
        h.enqueue(QUEUE, fairness_key=f"t{tenant}", throttle_keys=["provider"])
    h.open(QUEUE, credit=1000)
    h.take()
    queue = h.broker.state.queues[QUEUE]
    (limiter,) = h.broker.state.throttles.limiters.values()
    for second in range(1, 5):  # in the fifth the broker looks over all queues
        blocked_before = limiter.blocked_count
        h.units.clear()
        h.clock.advance(1)
        h.tick()
        assert len(h.take()) == 1
        assert max(h.units) < 50
        assert h.stats(QUEUE).throttled == 10_000 - 1 - second
        assert not queue.ring  # nobody was woken in vain
        assert limiter.blocked_count == blocked_before


def test_tenants_share_a_bucket_by_weight(h: Harness) -> None:
    h.set("throttle.provider", "12,3")
    for tenant, weight in (("a", 1), ("b", 2), ("c", 3)):
        fill(h, 800, fairness_key=tenant, weight=weight, throttle_keys=["provider"])
    h.open(QUEUE, credit=5000)
    served: Counter[str] = Counter()
    for _ in range(1200):
        h.clock.advance(0.1)
        h.tick()
        served += tenants(h.take())
    total = served.total()
    assert total == pytest.approx(12 * 120, abs=2)
    for tenant, weight in (("a", 1), ("b", 2), ("c", 3)):
        assert served[tenant] / total == pytest.approx(weight / 6, rel=0.05)


def test_a_late_tenant_gets_its_share_of_a_bucket_that_others_wait_for(h: Harness) -> None:
    h.set("throttle.provider", "10,1")
    fill(h, 1000, fairness_key="early", throttle_keys=["provider"])
    h.open(QUEUE, credit=5000)
    h.clock.advance(1)
    h.tick()
    h.take()
    fill(h, 100, fairness_key="late", throttle_keys=["provider"])
    served: Counter[str] = Counter()
    for _ in range(40):
        h.clock.advance(0.1)
        h.tick()
        served += tenants(h.take())
    assert served["late"] == pytest.approx(served["early"], abs=1)


def test_two_buckets_are_taken_both_or_neither(h: Harness) -> None:
    h.set("throttle.full", "1,10")
    h.set("throttle.empty", "1,1")
    fill(h, 3, throttle_keys=["empty", "full"])
    assert len(h.receive(QUEUE, 10)) == 1
    by_name = {row.key: row for row in h.stats(QUEUE).per_throttle_stats}
    assert by_name["full"].tokens == pytest.approx(9)
    assert by_name["empty"].tokens == pytest.approx(0)
    (lane,) = h.broker.state.queues[QUEUE].keys["default"].lanes.values()
    assert lane.is_parked and lane.line is not None
    assert lane.line.limiter is h.broker.state.throttles.limiters["empty"]


def test_a_cost_is_taken_and_one_above_the_burst_takes_the_whole_bucket(h: Harness) -> None:
    h.set("throttle.tokens", "10,100")
    h.enqueue(QUEUE, throttle_keys=["tokens"], throttle_cost=30)
    h.receive(QUEUE, 1)
    assert h.stats(QUEUE).per_throttle_stats[0].tokens == pytest.approx(70)
    h.enqueue(QUEUE, throttle_keys=["tokens"], throttle_cost=1_000_000)
    assert h.receive(QUEUE, 1) == []
    h.clock.advance(3)
    assert len(h.receive(QUEUE, 1)) == 1
    assert h.stats(QUEUE).per_throttle_stats[0].tokens == pytest.approx(0)


def test_deliveries_that_never_left_give_their_tokens_back(h: Harness) -> None:
    h.set("throttle.provider", "1,5")
    fill(h, 5, throttle_keys=["provider"])
    consumer = h.open(QUEUE)
    unsent = [grant for _, grant, _ in h.frames]
    h.frames.clear()
    h.run(CloseConsumer(consumer, unsent))
    assert len(h.receive(QUEUE, 5)) == 5
    check_consistent(h)


def test_removing_a_limit_lets_everything_go(h: Harness) -> None:
    h.set("throttle.slow", "0.001,1")
    fill(h, 50, throttle_keys=["slow"])
    h.open(QUEUE)
    assert len(h.take()) == 1
    h.admin(pb.DeleteConfigRequest(key="throttle.slow"))
    assert len(h.take()) == 49


def test_a_new_limit_acts_on_what_waits_already(h: Harness) -> None:
    fill(h, 50, throttle_keys=["provider"])
    h.set("throttle.provider", "1,2")
    assert len(h.receive(QUEUE, 50)) == 2
    h.set("throttle.provider", "100,10")
    h.clock.advance(0.1)
    assert len(h.receive(QUEUE, 50)) == 10


def test_settings_survive_a_restart_and_give_no_burst(h: Harness) -> None:
    h.set("throttle.provider", "1,10")
    fill(h, 100, throttle_keys=["provider"])
    delivered = 0
    for _ in range(20):  # a crash loop
        delivered += len(h.receive(QUEUE, 100))
        h.clock.advance(0.25)
        h.restart()
    assert delivered <= 10 + 5


def test_at_most_n_messages_with_a_key_are_leased_across_queues(h: Harness) -> None:
    h.create("other")
    h.set("concurrency:gpu:limit", "3")
    fill(h, 5, throttle_keys=["gpu"])
    for _ in range(5):
        h.enqueue("other", throttle_keys=["gpu"])
    held = h.receive(QUEUE, 2) + h.receive("other", 5)
    assert len(held) == 3
    assert h.receive(QUEUE, 5) == []
    h.ack(QUEUE, held[0].id)
    assert len(h.receive("other", 5)) == 1
    h.nack(QUEUE, held[1].id)
    assert len(h.receive(QUEUE, 5)) == 1
    check_consistent(h)


def test_an_expired_lease_gives_its_slot_to_a_waiting_consumer(h: Harness) -> None:
    h.set("concurrency:gpu:limit", "1")
    fill(h, 2, throttle_keys=["gpu"])
    h.receive(QUEUE, 1, visibility_ms=1000)
    h.open(QUEUE)
    assert h.take() == []
    h.clock.advance(1.001)
    h.tick()
    assert len(h.take()) == 1


def test_concurrency_is_counted_over_a_restart(h: Harness) -> None:
    h.set("concurrency:gpu:limit", "2")
    fill(h, 5, throttle_keys=["gpu"])
    held = h.receive(QUEUE, 5)
    assert len(held) == 2
    h.restart()
    assert h.receive(QUEUE, 5) == []
    h.ack(QUEUE, held[0].id)
    assert len(h.receive(QUEUE, 5)) == 1


def test_raising_a_concurrency_limit_wakes_those_who_wait(h: Harness) -> None:
    h.set("concurrency:gpu:limit", "1")
    fill(h, 5, throttle_keys=["gpu"])
    h.open(QUEUE)
    assert len(h.take()) == 1
    h.set("concurrency:gpu:limit", "4")
    assert len(h.take()) == 3


def test_backpressure_pauses_the_bucket_for_everyone_and_burns_no_attempt(h: Harness) -> None:
    fill(h, 3, fairness_key="a", throttle_keys=["provider"])
    fill(h, 3, fairness_key="b", throttle_keys=["provider"])
    fill(h, 1, fairness_key="a")
    (message,) = h.receive(QUEUE, 1)
    said = h.nack(QUEUE, message.id, retry_after_ms=5000, throttle_key="provider", error="429")
    assert said is None
    rest = h.receive(QUEUE, 10)
    assert [list(m.metadata.throttle_keys) for m in rest] == [[]]
    h.clock.advance(4.9)
    assert h.receive(QUEUE, 10) == []
    h.restart()
    assert h.receive(QUEUE, 10) == []
    h.clock.advance(0.2)
    h.tick()
    again = h.receive(QUEUE, 10)
    assert len(again) == 6
    assert {m.metadata.attempt_count for m in again} == {0}


def test_backpressure_names_a_key_that_the_message_carries(h: Harness) -> None:
    fill(h, 1, throttle_keys=["provider"])
    (message,) = h.receive(QUEUE, 1)
    refused = h.nack(QUEUE, message.id, retry_after_ms=10, throttle_key="other")
    assert isinstance(refused, InvalidArgument) and '"other"' in refused.message
    assert h.ack(QUEUE, message.id) is None


def test_a_paused_key_holds_no_tokens_that_others_could_use(h: Harness) -> None:
    h.set("throttle.provider", "10,1")
    fill(h, 20, fairness_key="paused", throttle_keys=["provider"])
    fill(h, 20, fairness_key="awake", throttle_keys=["provider"])
    h.open(QUEUE)
    h.take()
    h.admin(pb.PauseRequest(queue=QUEUE, fairness_key="paused"))
    served: Counter[str] = Counter()
    for _ in range(10):
        h.clock.advance(0.1)
        h.tick()
        served += tenants(h.take())
    assert served == {"awake": 10}
    h.admin(pb.ResumeRequest(queue=QUEUE, fairness_key="paused"))
    for _ in range(10):
        h.clock.advance(0.1)
        h.tick()
        served += tenants(h.take())
    assert served["paused"] >= 5


def test_purging_parked_lanes_leaves_nothing_waiting(h: Harness) -> None:
    h.set("throttle.provider", "1,1")
    fill(h, 10, fairness_key="a", throttle_keys=["provider"])
    fill(h, 10, fairness_key="b", throttle_keys=["provider"])
    h.receive(QUEUE, 10)
    h.admin(pb.PurgeRequest(queue=QUEUE, fairness_key="a"))
    check_consistent(h)
    h.clock.advance(1)
    assert tenants(h.receive(QUEUE, 10)) == {"b": 1}
    h.admin(pb.PurgeRequest(queue=QUEUE))
    assert h.stats(QUEUE).throttled == 0
    check_consistent(h)


def test_deleting_a_queue_frees_what_it_held_of_a_shared_limit(h: Harness) -> None:
    h.create("other")
    h.set("concurrency:gpu:limit", "1")
    fill(h, 2, throttle_keys=["gpu"])
    h.enqueue("other", throttle_keys=["gpu"])
    assert len(h.receive(QUEUE, 1)) == 1
    h.open("other")
    assert h.take() == []
    h.admin(pb.DeleteQueueRequest(queue=QUEUE))
    assert len(h.take()) == 1


# --- Nobody waits beside a token ------------------------------------------------------------------


def hold(h: Harness) -> None:
    """Leases outlive the test, so that nothing is freed by their end."""
    h.admin(pb.DeleteQueueRequest(queue=QUEUE))
    h.create(QUEUE, visibility_timeout_ms=12 * 3600 * 1000)


def pass_seconds(h: Harness, seconds: int) -> list[tuple[int, str]]:
    """Return what streams take meanwhile: after how many seconds, whose."""
    taken = []
    for second in range(seconds + 1):
        if second:
            h.clock.advance(1)
            h.tick()
        taken += [(second, message.metadata.fairness_key) for message in h.take()]
    return taken


def test_a_lane_that_is_woken_and_cannot_go_leaves_the_token_to_the_next(h: Harness) -> None:
    hold(h)
    h.set("throttle.A", "1,1")
    h.set("concurrency:B:limit", "1")
    h.open(QUEUE)
    h.enqueue(QUEUE, fairness_key="holder", throttle_keys=["B"])  # holds B's only slot
    h.enqueue(QUEUE, fairness_key="x", throttle_keys=["A"])  # takes A's token
    h.enqueue(QUEUE, fairness_key="x", throttle_keys=["A", "B"])  # first in line at A
    h.enqueue(QUEUE, fairness_key="y", throttle_keys=["A"])  # second
    assert [key for _, key in pass_seconds(h, 0)] == ["holder", "x"]
    assert pass_seconds(h, 60) == [(1, "y")]


def test_tokens_that_a_disconnect_gives_back_wake_somebody(h: Harness) -> None:
    hold(h)
    h.set("throttle.p", "0.000277,1")  # one per hour
    gone = h.open(QUEUE, credit=1, batch=1)
    h.enqueue(QUEUE, fairness_key="a", throttle_keys=["p"])  # under way, never taken
    h.open(QUEUE, credit=10)
    h.enqueue(QUEUE, fairness_key="b", throttle_keys=["p"])
    unsent = [grant for _, grant, _ in h.frames]
    h.frames.clear()
    h.run(CloseConsumer(gone, unsent))
    assert len(h.take()) == 1
    check_consistent(h)


@pytest.mark.parametrize("how", ["cancel", "purge", "ttl", "pause"])
def test_a_head_of_line_that_goes_takes_its_timer_along(h: Harness, how: str) -> None:
    hold(h)
    h.set("throttle.p", "1,1000")
    h.open(QUEUE, credit=1000)
    h.enqueue(QUEUE, fairness_key="z", throttle_keys=["p"], throttle_cost=1000)
    ttl_ms = 5000 if how == "ttl" else 0
    heavy: dict[str, Any] = {
        "throttle_keys": ["p"],
        "throttle_cost": 1000,
        "weight": 1000,
        "ttl_ms": ttl_ms,
    }
    big = h.enqueue(QUEUE, fairness_key="big", **heavy)
    h.enqueue(QUEUE, fairness_key="small", throttle_keys=["p"])  # behind it, and costs 1
    assert [key for _, key in pass_seconds(h, 4)] == ["z"]
    if how == "cancel":
        h.admin(pb.CancelMessageRequest(queue=QUEUE, message_id=big))
    elif how == "purge":
        h.admin(pb.PurgeRequest(queue=QUEUE, fairness_key="big"))
    elif how == "pause":
        h.admin(pb.PauseRequest(queue=QUEUE, fairness_key="big"))
    ((waited, key),) = pass_seconds(h, 10)
    assert (waited <= 1, key) == (True, "small")
    check_consistent(h)


# --- Bounds ---------------------------------------------------------------------------------------


def test_a_disconnect_does_not_give_back_what_has_regenerated(h: Harness) -> None:
    h.set("throttle.p", "10,10")
    h.enqueue_many(QUEUE, 60, throttle_keys=["p"])
    stalled = h.open(QUEUE, credit=10, batch=10)
    unsent = [grant for _, grant, _ in h.frames]
    h.frames.clear()
    h.clock.advance(1)  # the bucket is full again
    h.tick()
    h.open(QUEUE, credit=100)
    taken = len(h.take())
    h.run(CloseConsumer(stalled, unsent))
    h.clock.advance(0.1)
    h.tick()
    assert taken + len(h.take()) <= 11
    check_consistent(h)


def test_a_woken_lane_that_cannot_go_leaves_its_room_to_whoever_is_first_now(h: Harness) -> None:
    """Found by the simulation: between waking and going, another queue took the tokens that a dear
    message needs, and a cheap one had come before it in line. It was not asked again.
    """
    h.set("concurrency:t:limit", "1")
    fill(h, 1, throttle_keys=["t"])
    assert len(h.receive(QUEUE, 10)) == 1
    fill(h, 1, fairness_key="dear", throttle_keys=["t"], throttle_cost=3)
    fill(h, 1, fairness_key="cheap", throttle_keys=["t"])
    assert h.receive(QUEUE, 10) == []
    lines = h.broker.state.places.lines
    queue = h.broker.state.queues[QUEUE]
    limiter = h.broker.state.throttles.limiters["t"]
    line = limiter.lines[queue]
    cheap, dear = line.waiting.values()
    assert (cheap.key.name, dear.key.name) == ("cheap", "dear")
    del line.waiting[dear.ticket]  # it was woken before the other one came
    dear.is_ready = True
    line.awake = 1
    queue.due_lines.clear()
    lines.dirty.clear()
    lines._park(dear, limiter)
    assert line in queue.due_lines and queue in lines.dirty
