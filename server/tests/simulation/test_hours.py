# SPDX-License-Identifier: AGPL-3.0-only
"""Hours of traffic under a virtual clock: tenants, providers, failing workers, crashes.

Each run is made of one seed, which a failing test names. What must hold: no provider sees more than
its limit, no tenant starves, whatever was enqueued is acked or dead-lettered in the end.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict

import pytest

from fila.v1 import admin_pb2 as pb
from fila_server.core.commands import FrameTaken
from server.tests.core.harness import Harness, S, check_consistent

QUEUE = "mail"
TENANTS = [f"tenant-{n}" for n in range(40)]
PROVIDERS = {"smtp": (20.0, 10), "stripe": (5.0, 5), "llm": (1.0, 3)}
CAP = ("gpu", 4)
HOURS = 3


class Traffic:
    """Producers, consumers and providers, one event at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.h = Harness(hot_bytes=20_000)
        self.h.create(QUEUE, visibility_timeout_ms=30_000, max_attempts=4, retry_delay_ms=2000)
        for name, (rate, burst) in PROVIDERS.items():
            self.set(f"throttle.{name}", f"{rate},{burst}")
        self.set(f"concurrency:{CAP[0]}:limit", str(CAP[1]))
        self.end_ns = self.h.clock.mono_ns + HOURS * 3600 * S
        self.events: list[tuple[int, int, str, tuple[object, ...]]] = []
        self.serial = 0
        self.sent: set[str] = set()
        self.acked: set[str] = set()
        self.passed: dict[str, list[int]] = defaultdict(list)
        self.waits: Counter[str] = Counter()
        self.held: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.consumers = [self.h.open(QUEUE, credit=20, batch=10) for _ in range(3)]

    def set(self, key: str, value: str) -> None:
        self.h.admin(pb.SetConfigRequest(key=key, value=value))

    def at(self, seconds: float, what: str, *arguments: object) -> None:
        self.serial += 1
        when = self.h.clock.mono_ns + int(seconds * S)
        heapq.heappush(self.events, (when, self.serial, what, arguments))

    def run(self) -> None:
        for tenant in TENANTS:
            self.at(self.random.random() * 60, "produce", tenant)
        self.at(600, "crash")
        self.at(900, "noise")
        while self.events:
            when, _, what, arguments = heapq.heappop(self.events)
            self.sleep_until(when)
            getattr(self, what)(*arguments)
            self.deliver()

    def sleep_until(self, when: int) -> None:
        """Wake up whenever the broker asks for it, as the engine does."""
        while True:
            wake = min(when, self.h.broker.next_wake_ns())
            if wake > self.h.clock.mono_ns:
                self.h.clock.advance((wake - self.h.clock.mono_ns) / S)
            if self.h.clock.mono_ns >= when:
                return
            self.h.tick()
            self.deliver()

    def produce(self, tenant: str) -> None:
        for _ in range(self.random.choice([1, 1, 1, 3])):
            self.send(tenant)
        if self.h.clock.mono_ns < self.end_ns:
            self.at(self.random.expovariate(1 / 90), "produce", tenant)

    def send(self, tenant: str) -> None:
        keys = self.random.choice([[], ["smtp"], ["stripe"], ["llm", "smtp"], ["gpu"]])
        fields = {"fairness_key": tenant, "throttle_keys": keys}
        self.sent.add(self.h.enqueue(QUEUE, **fields))

    def noise(self) -> None:
        """One tenant floods the queue; nobody else may notice."""
        for _ in range(2000):
            self.send("tenant-0")

    def crash(self) -> None:
        self.h.restart()
        self.held.clear()
        self.consumers = [self.h.open(QUEUE, credit=20, batch=10) for _ in range(3)]
        if self.h.clock.mono_ns < self.end_ns:
            self.at(1800, "crash")

    def deliver(self) -> None:
        while self.h.frames:
            frames, self.h.frames = self.h.frames, []
            for consumer, _, messages in frames:
                for message in messages:
                    self.delivered(message)
                self.h.run(FrameTaken(consumer))

    def delivered(self, message: object) -> None:
        metadata = message.metadata  # type: ignore[attr-defined]
        message_id = message.id  # type: ignore[attr-defined]
        assert message_id not in self.acked, "an acked message came back"
        keys = tuple(metadata.throttle_keys)
        for key in keys:
            self.passed[key].append(self.h.clock.mono_ns)
        self.held[message_id] = (metadata.lease_token, keys)
        assert sum(CAP[0] in held for _, held in self.held.values()) <= CAP[1]
        if metadata.fairness_key != "tenant-0" and not keys and metadata.attempt_count == 0:
            sent_ns = message.timestamps.enqueued_at.ToNanoseconds()  # type: ignore[attr-defined]
            self.waits[metadata.fairness_key] = max(
                self.waits[metadata.fairness_key], self.h.clock.wall_ns - sent_ns
            )
        self.at(self.random.expovariate(1 / 0.5), "settle", message_id)

    def settle(self, message_id: str) -> None:
        if message_id not in self.held:
            return  # its consumer died in a crash
        token, _ = self.held.pop(message_id)
        chance = self.random.random()
        if chance < 0.03:
            self.h.nack(QUEUE, message_id, token, error="provider said no")
        elif chance < 0.035:
            return  # a worker that dies: the lease expires
        elif self.h.ack(QUEUE, message_id, token) is None:
            self.acked.add(message_id)


@pytest.mark.parametrize("seed", [1, 2])
def test_hours_of_traffic(seed: int) -> None:
    traffic = Traffic(seed)
    traffic.run()
    h = traffic.h
    for _ in range(2000):  # drain: leases expire, retries come due
        if h.stats(QUEUE).depth + h.stats(QUEUE).in_flight + h.stats(QUEUE).delayed == 0:
            break
        h.clock.advance(5)
        h.tick()
        traffic.deliver()
        while traffic.events:
            _, _, what, arguments = heapq.heappop(traffic.events)
            getattr(traffic, what)(*arguments)
            traffic.deliver()
    check_consistent(h)
    dead = h.stats(f"{QUEUE}.dlq").depth
    assert len(traffic.acked) + dead == len(traffic.sent), f"seed {seed}: messages are missing"
    for name, times in traffic.passed.items():
        if name in PROVIDERS:
            _check_bucket(times, *PROVIDERS[name])
    # Lanes without limits: waiting for a worker takes seconds, even while tenant-0 floods.
    assert max(traffic.waits.values()) < 30 * S, f"seed {seed}: {traffic.waits.most_common(3)}"


def _check_bucket(times: list[int], rate: float, burst: int) -> None:
    """In every window, no more than rate x t + burst: by the lowest point of a running sum."""
    lowest = 0.0
    for count, at in enumerate(times):
        level = count - rate * (at - times[0]) / S
        lowest = min(lowest, level)
        assert level + 1 - lowest <= burst + 1e-6
