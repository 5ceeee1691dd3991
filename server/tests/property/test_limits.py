# SPDX-License-Identifier: AGPL-3.0-only
"""Limits: buckets never let more through than they may in any window, lanes do not wait for each
other, nothing is stuck, and nothing is free after a restart.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fila.v1 import admin_pb2 as pb
from fila_server.core.schedule.why import blockers
from server.tests.core.harness import MS, Harness, S, check_consistent

QUEUES = ("one", "two")
TENANTS = ("a", "b", "c")
BUCKETS = {"mail": (10.0, 5), "pay": (2.5, 1), "llm": (100.0, 20)}
CAPS = {"cap": 3}
LIMITS = [*BUCKETS, *CAPS]


class Limits(RuleBasedStateMachine):
    """Two queues, three tenants, three buckets and a concurrency limit that they share."""

    def __init__(self) -> None:
        super().__init__()
        self.h = Harness()
        # Per bucket: (time, cost) of every delivery that took from it.
        self.taken: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.leased: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.sent = self.done = 0

    @initialize()
    def start(self) -> None:
        for queue in QUEUES:
            self.h.create(queue, visibility_timeout_ms=20_000)
        for name, (rate, burst) in BUCKETS.items():
            self.h.admin(pb.SetConfigRequest(key=f"throttle.{name}", value=f"{rate},{burst}"))
        for name, limit in CAPS.items():
            self.h.admin(pb.SetConfigRequest(key=f"concurrency:{name}:limit", value=str(limit)))

    @rule(
        queue=st.sampled_from(QUEUES),
        tenant=st.sampled_from(TENANTS),
        keys=st.lists(st.sampled_from(LIMITS), max_size=3, unique=True),
        cost=st.sampled_from([1, 1, 1, 2, 30]),
        count=st.integers(1, 8),
        weight=st.sampled_from([1, 3]),
    )
    def enqueue(
        self, queue: str, tenant: str, keys: list[str], cost: int, count: int, weight: int
    ) -> None:
        for _ in range(count):
            self.h.enqueue(
                queue, fairness_key=tenant, throttle_keys=keys, throttle_cost=cost, weight=weight
            )
            self.sent += 1

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 20))
    def receive(self, queue: str, count: int) -> None:
        messages = self.h.receive(queue, count)
        now = self.h.clock.mono_ns
        for message in messages:
            keys = tuple(message.metadata.throttle_keys)
            assert message.id not in self.leased
            self.leased[message.id] = (queue, keys)
            for key in set(keys) & set(BUCKETS):
                self.taken[key].append((now, message.metadata.throttle_cost or 1))
        if len(messages) < count:
            self.nothing_is_stuck(queue)

    def nothing_is_stuck(self, name: str) -> None:
        """Whatever was left behind is held back by a limit, or stands in line behind such."""
        queue = self.h.broker.state.queues[name]
        now = self.h.clock.mono_ns
        for key in queue.keys.values():
            for lane in key.lanes.values():
                if any(it.blocked_until(lane.cost, now) for it in lane.limiters):
                    continue
                assert blockers(lane, now), f"{key.name} {lane.lane_key} waits for nothing"

    @rule(share=st.floats(0, 1))
    def ack(self, share: float) -> None:
        for message_id in list(self.leased)[: int(len(self.leased) * share)]:
            queue, _ = self.leased.pop(message_id)
            assert self.h.ack(queue, message_id) is None
            self.done += 1

    @rule(share=st.floats(0, 1))
    def nack(self, share: float) -> None:
        for message_id in list(self.leased)[: int(len(self.leased) * share)]:
            queue, _ = self.leased.pop(message_id)
            assert self.h.nack(queue, message_id, error="no") is None

    @rule(ms=st.integers(0, 5000))
    def back_off(self, ms: int) -> None:
        """A consumer says that a provider said 429."""
        for message_id, (queue, keys) in list(self.leased.items()):
            if keys:
                del self.leased[message_id]
                fields: dict[str, Any] = {"retry_after_ms": ms, "throttle_key": keys[0]}
                assert self.h.nack(queue, message_id, **fields) is None
                break

    @rule(ms=st.sampled_from([1, 10, 99, 100, 400, 1000, 7000]))
    def wait(self, ms: int) -> None:
        self.h.clock.advance(ms * MS / S)
        self.h.tick()
        self.forget_expired()

    @rule()
    def restart(self) -> None:
        self.h.restart()
        self.h.tick()
        self.forget_expired()

    def forget_expired(self) -> None:
        held = {id for queue in QUEUES for id in self.h.broker.state.queues[queue].leases}
        self.leased = {id: where for id, where in self.leased.items() if id in held}

    @invariant()
    def buckets_hold(self) -> None:
        for name, taken in self.taken.items():
            rate, burst = BUCKETS[name]
            recent = taken[-60:]
            for start in range(len(recent)):
                total = 0.0
                for at, cost in recent[start:]:
                    # A message that costs more than the bucket holds takes all of it.
                    total += min(cost, burst)
                    window_s = (at - recent[start][0]) / S
                    assert total <= rate * window_s + burst + 1e-6

    @invariant()
    def caps_hold(self) -> None:
        for name, limit in CAPS.items():
            assert sum(name in keys for _, keys in self.leased.values()) <= limit

    @invariant()
    def memory_equals_disk_and_nothing_is_lost(self) -> None:
        if not self.h.broker.state.queues:
            return
        check_consistent(self.h)
        held = sum(self.h.broker.state.queues[queue].total for queue in QUEUES)
        assert held + self.done == self.sent

    def teardown(self) -> None:
        """With limits and time, everything comes out in the end."""
        if not self.h.broker.state.queues:
            return
        self.ack(1.0)
        for _ in range(400):
            if self.done == self.sent:
                return
            self.h.clock.advance(5)
            self.h.tick()
            self.forget_expired()
            for queue in QUEUES:
                for message in self.h.receive(queue, 100):
                    assert self.h.ack(queue, message.id) is None
                    self.done += 1
        assert self.done == self.sent, "messages are stuck"


Limits.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestLimits = Limits.TestCase
