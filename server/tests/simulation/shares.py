# SPDX-License-Identifier: AGPL-3.0-only
"""Shares: tenants that always have something waiting, at a bucket that all of them need.

Rule 5, at every shared bucket and whatever else a lane needs: a tenant gets its weight's share, or
what its own account allows if that is less, and then the others share the rest. Some tenants carry
the provider alone, some an account of their own as well, some are spread over two queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from fila.v1 import admin_pb2, service_pb2
from fila_server.core.clock import NS_PER_S
from fila_server.core.commands import Ack, Enqueue, OpenConsumer
from fila_server.core.wire.intake import Intake
from server.tests.simulation import rules
from server.tests.simulation.broken import Broken
from server.tests.simulation.world import World

_BACKLOG = 6  # messages of each tenant that wait at any time
_ROUNDS = 16
_PROVIDER = "stripe"
_QUEUE = "orders"


class Tenant(NamedTuple):
    """A fairness key; `account` is the rate of a throttle key of its own, 0 if it has none."""

    name: str
    weight: int
    account: float


class Market:
    """One seed: its tenants, its provider, and the deliveries that each tenant got."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.random = random = Random(seed)
        self.world = World(random)
        self.world.trace = trace
        self._intake = Intake(self.world.config.limits)
        self.quantum = random.choice((1, 1, 2))
        self.rate = random.choice((1.0, 4.0, 50.0))
        # A broker that has much to do, or consumers that are slow, find many tokens at a time.
        self.is_late = random.random() < 0.4
        self.burst = 20 if self.is_late else random.choice((1, 2, 5))
        weights = [random.choice((1, 1, 2, 3)) for _ in range(random.randint(2, 4))]
        self.tenants = []
        for number, weight in enumerate(weights):
            fair = self.rate * weight / sum(weights)
            # Clearly less than its share, or clearly more: in between nobody is in the right. What
            # an account may have is lost while nobody asks for it.
            account = 0.0 if self.is_late else fair * random.choice((0.0, 0.0, 0.4, 2.0, 4.0))
            self.tenants.append(Tenant(f"t{number}", weight, account))
        self.got: Counter[str] = Counter()

    def run(self) -> None:
        """Serve for some rounds. Raises Broken if somebody got less than it may expect."""
        self._open()
        target = _ROUNDS * self.quantum * sum(tenant.weight for tenant in self.tenants)
        target = max(target, _ROUNDS * self.burst)
        began_ns = self.world.clock.mono_ns
        while sum(self.got.values()) < target:
            self._sleep()
            self._serve()
            rules.no_lane_waits(self.world)
        self._judge((self.world.clock.mono_ns - began_ns) / NS_PER_S)

    def _sleep(self) -> None:
        """Sleep until a few tokens have come, or less if the broker asks for it and is not late."""
        clock = self.world.clock
        if self.is_late:
            clock.advance(int(self.random.uniform(0.5, 1.5) * self.burst / self.rate * NS_PER_S))
            return
        nap_ns = int(self.random.uniform(0.5, 3) / self.rate * NS_PER_S)
        wake_ns = self.world.broker.next_wake_ns() - clock.mono_ns
        clock.advance(max(1, min(nap_ns, wake_ns)))

    def _open(self) -> None:
        world = self.world
        config = admin_pb2.QueueConfig(visibility_timeout_ms=3_600_000, quantum=self.quantum)
        world.admin(admin_pb2.CreateQueueRequest(name=_QUEUE, config=config))
        self._set(f"throttle.{_PROVIDER}", f"{self.rate},{self.burst}")
        for tenant in self.tenants:
            if tenant.account:
                # An account that holds less than a turn would cut every turn short.
                turn = tenant.weight * self.quantum
                self._set(f"throttle.acct:{tenant.name}", f"{tenant.account},{turn}")
            self._produce(tenant, _BACKLOG + self.burst)
        batches = (self.random.choice((1, 4)),) if self.is_late else (1, 4)
        for _ in range(self.random.randint(1, 3)):
            consumer = world.connect()
            batch = self.random.choice(batches)
            world.tell(OpenConsumer(world.ticket(), consumer, _QUEUE, 50, batch, 0, False))

    def _set(self, key: str, value: str) -> None:
        self.world.admin(admin_pb2.SetConfigRequest(key=key, value=value))

    def _produce(self, tenant: Tenant, count: int) -> None:
        keys = [_PROVIDER, *([f"acct:{tenant.name}"] if tenant.account else [])]
        request = service_pb2.EnqueueRequest(
            queue=_QUEUE, fairness_key=tenant.name, weight=tenant.weight, throttle_keys=keys
        )
        batch = service_pb2.EnqueueBatchRequest(messages=[request] * count)
        ticket = self.world.ticket()
        self.world.ledger.requests[ticket] = [request] * count
        self.world.tell(Enqueue(ticket, self._intake.drafts(batch.SerializeToString())))

    def _serve(self) -> None:
        """Deliver what can be delivered, ack it, and make up for what every tenant got."""
        world = self.world
        world.settle()
        while any(world.sinks.values()):
            acks = []
            for consumer in [it for it, sink in world.sinks.items() if sink]:
                for message in world.take(consumer, is_once=False):
                    metadata = message.metadata
                    self.got[metadata.fairness_key] += 1
                    token = metadata.lease_token
                    acks.append(
                        service_pb2.AckRequest(
                            queue=_QUEUE, message_id=message.id, lease_token=token
                        )
                    )
                    tenant = self.tenants[int(metadata.fairness_key[1:])]
                    self._produce(tenant, 1)
            world.tell(Ack(world.ticket(), acks))
            world.settle()
        world.sync()

    def _judge(self, elapsed_s: float) -> None:
        total = sum(self.got.values())
        for name, fair in self._expected(total, elapsed_s).items():
            tenant = self.tenants[int(name[1:])]
            # Two turns, the bucket's burst, and the 5 % of rule 5.
            slack = 2 * tenant.weight * self.quantum + self.burst + 0.05 * fair
            if self.got[name] < fair - slack:
                how = f"{name} got {self.got[name]} of {total}, not {fair:.1f}; {self.tenants}"
                raise Broken("5: everybody gets its weighted share", how)

    def _expected(self, total: int, elapsed_s: float) -> dict[str, float]:
        """Fill up by weight: who may have less than its share leaves the rest to the others."""
        left = float(total)
        open_ones = list(self.tenants)
        expected: dict[str, float] = {}
        while open_ones:
            unit = left / sum(tenant.weight for tenant in open_ones)
            small = [
                tenant
                for tenant in open_ones
                if tenant.account and tenant.account * elapsed_s < tenant.weight * unit
            ]
            for tenant in small or open_ones:
                share = tenant.account * elapsed_s if small else tenant.weight * unit
                expected[tenant.name] = share
            left -= sum(expected[tenant.name] for tenant in small)
            open_ones = [tenant for tenant in open_ones if tenant in small] and [
                tenant for tenant in open_ones if tenant not in small
            ]
        return expected
