# SPDX-License-Identifier: AGPL-3.0-only
"""Fair shares: any weights, any order of arrival, joins and leaves in mid-round, and always looked
at in a window much smaller than the backlog.

The bound: while two keys both have messages waiting, what they were served, divided by their
weights, never drifts apart by more than two turns. A share is then off by at most two turns in any
window, which is below 5 % from a few dozen rounds on.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from fila.v1 import admin_pb2 as pb
from fila_server.config import LimitsConfig
from server.tests.core.harness import Harness

QUEUE = "work"
KEYS = "abcdef"


class Watched:
    """A queue whose deliveries are compared pair by pair."""

    def __init__(self, quantum: int) -> None:
        self.h = Harness()
        self.h.create(QUEUE, quantum=quantum)
        self.quantum = quantum
        self.waiting = dict.fromkeys(KEYS, 0)
        self.weights = dict.fromkeys(KEYS, 1)
        self.served = dict.fromkeys(KEYS, 0)
        # What both had been served when the later of the two became active.
        self.since: dict[tuple[str, str], tuple[int, int]] = {}
        self.starving = dict.fromkeys(KEYS, 0)

    def restart_pairs(self, key: str) -> None:
        for other in KEYS:
            for pair in ((key, other), (other, key)):
                self.since[pair] = (self.served[pair[0]], self.served[pair[1]])
        self.starving[key] = 0

    def enqueue(self, key: str, count: int, weight: int) -> None:
        if not self.waiting[key] or weight != self.weights[key]:
            self.weights[key] = weight
            self.restart_pairs(key)
        for _ in range(count):
            self.h.enqueue(QUEUE, fairness_key=key, weight=weight)
        self.waiting[key] += count

    def deliver(self, count: int) -> None:
        messages = self.h.receive(QUEUE, count)
        assert len(messages) == min(count, sum(self.waiting.values()))
        for message in messages:
            self.delivered(message.metadata.fairness_key)
            assert self.h.ack(QUEUE, message.id) is None

    def delivered(self, key: str) -> None:
        self.served[key] += 1
        self.waiting[key] -= 1
        active = [other for other in KEYS if self.waiting[other]]
        a_round = sum(self.weights[other] for other in active) * self.quantum
        for other in active:
            self.starving[other] = 0 if other == key else self.starving[other] + 1
            # Whoever has something to send is served within two rounds of everybody's turns.
            assert self.starving[other] <= 2 * a_round + self.quantum * 1000
            self.compare(key, other)
        self.starving[key] = 0

    def compare(self, key: str, other: str) -> None:
        if key == other or not self.waiting[key]:
            return
        base, other_base = self.since[key, other]
        mine = (self.served[key] - base) / self.weights[key]
        theirs = (self.served[other] - other_base) / self.weights[other]
        assert abs(mine - theirs) <= 2 * self.quantum + 1e-9


steps = st.one_of(
    st.tuples(
        st.just("enqueue"),
        st.sampled_from(KEYS),
        st.integers(1, 30),
        st.sampled_from([1, 1, 2, 3, 7]),
    ),
    st.tuples(st.just("deliver"), st.integers(1, 40)),
)


@settings(max_examples=80, deadline=None)
@given(quantum=st.sampled_from([1, 1, 2, 5]), program=st.lists(steps, max_size=40))
def test_no_two_keys_drift_apart(quantum: int, program: list[tuple[object, ...]]) -> None:
    watched = Watched(quantum)
    for name, *arguments in program:
        getattr(watched, str(name))(*arguments)


@settings(max_examples=25, deadline=None)
@given(weights=st.lists(st.integers(1, 10), min_size=2, max_size=8))
def test_shares_are_within_five_percent_in_a_window_of_the_backlog(weights: list[int]) -> None:
    h = Harness()
    h.create(QUEUE)
    rounds = 40
    for number, weight in enumerate(weights):
        for _ in range(weight * rounds * 4):
            h.enqueue(QUEUE, fairness_key=f"k{number}", weight=weight)
    window = sum(weights) * rounds
    served = dict.fromkeys(range(len(weights)), 0)
    while sum(served.values()) < window:
        for message in h.receive(QUEUE, min(100, window - sum(served.values()))):
            served[int(message.metadata.fairness_key[1:])] += 1
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(served[number] / window - share) <= 0.05 * share


# So that two or three of the larger messages fill a frame.
SMALL_FRAMES = LimitsConfig(
    max_payload_bytes=9000, max_header_bytes=0, max_headers=0, max_frame_bytes=21_000
)
sized = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from([(), ("smtp",)]),
    st.sampled_from([1, 1, 100, 4000, 8000]),
)


def order_of_delivery(
    messages: list[tuple[str, tuple[str, ...], int]],
    weights: dict[str, int],
    quantum: int,
    limits: LimitsConfig,
) -> list[str]:
    h = Harness(hot_bytes=0, limits=limits)
    h.create(QUEUE, quantum=quantum)
    for number, (key, throttle_keys, size) in enumerate(messages):
        terms = {"fairness_key": key, "weight": weights[key], "throttle_keys": throttle_keys}
        h.enqueue(QUEUE, b"%04d" % number + bytes(size), **terms)
    found = []
    while frame := h.receive(QUEUE, 20):
        found += [message.payload[:4].decode() for message in frame]
    return found


@settings(max_examples=150, deadline=None)
@given(
    messages=st.lists(sized, max_size=60),
    weights=st.fixed_dictionaries({key: st.integers(1, 5) for key in KEYS}),
    quantum=st.sampled_from([1, 1, 2, 5]),
)
@example([("a", (), 1)] * 60 + [("b", (), 8000)] * 60, dict.fromkeys(KEYS, 1) | {"b": 3}, 1)
@example([("a", (), 8000)] * 60 + [("b", (), 1)] * 60, dict.fromkeys(KEYS, 3) | {"b": 1}, 2)
def test_the_order_of_delivery_does_not_depend_on_sizes(
    messages: list[tuple[str, tuple[str, ...], int]], weights: dict[str, int], quantum: int
) -> None:
    """Frames are cut where they are full; what did not fit has not had its turn."""
    cut = order_of_delivery(messages, weights, quantum, SMALL_FRAMES)
    assert cut == order_of_delivery(messages, weights, quantum, LimitsConfig())


@pytest.mark.parametrize("tenants", [2, 50, 10_000])
def test_a_quiet_tenant_is_served_within_one_round(tenants: int) -> None:
    h = Harness()
    h.create(QUEUE)
    for _ in range(3):
        for tenant in range(tenants):
            h.enqueue(QUEUE, fairness_key=f"noisy-{tenant}")
    h.receive(QUEUE, 1)
    h.enqueue(QUEUE, fairness_key="quiet")
    place = 0
    while True:
        place += 1
        (message,) = h.receive(QUEUE, 1)
        if message.metadata.fairness_key == "quiet":
            break
    # It joins the round in progress, so it waits for one turn of each other key at most.
    assert place <= tenants + 1


def test_a_weight_set_at_run_time_acts_on_the_backlog() -> None:
    h = Harness()
    h.create(QUEUE)
    for number in range(400):
        h.enqueue(QUEUE, fairness_key="ab"[number % 2])
    h.admin(pb.SetConfigRequest(key=f"weight:{QUEUE}:b", value="3"))
    served = [message.metadata.fairness_key for message in h.receive(QUEUE, 80)]
    assert served.count("b") == 60
    h.admin(pb.DeleteConfigRequest(key=f"weight:{QUEUE}:b"))
    served = [message.metadata.fairness_key for message in h.receive(QUEUE, 80)]
    assert 39 <= served.count("b") <= 41


def test_a_key_that_was_throttled_has_hoarded_nothing() -> None:
    h = Harness()
    h.create(QUEUE)
    h.admin(pb.SetConfigRequest(key="throttle.slow", value="1,1"))
    for _ in range(60):
        h.enqueue(QUEUE, fairness_key="held", throttle_keys=["slow"])
        h.enqueue(QUEUE, fairness_key="free")
    h.receive(QUEUE, 40)
    h.clock.advance(30)
    h.admin(pb.DeleteConfigRequest(key="throttle.slow"))
    served = [message.metadata.fairness_key for message in h.receive(QUEUE, 20)]
    assert 9 <= served.count("held") <= 11


def test_idle_keys_leave_nothing_behind() -> None:
    h = Harness()
    h.create(QUEUE)
    for number in range(1000):
        h.enqueue(QUEUE, fairness_key=f"k{number}", throttle_keys=[f"t{number}"])
    for message in h.receive(QUEUE, 1000):
        h.ack(QUEUE, message.id)
    queue = h.broker.state.queues[QUEUE]
    assert not queue.keys and not queue.ring and not queue.leases
