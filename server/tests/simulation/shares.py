# SPDX-License-Identifier: AGPL-3.0-only
"""Shares: tenants that always have something waiting, at a bucket that all of them need.

Rule 5, at every shared bucket and whatever else a lane needs: a tenant gets its weight's share, or
what its own account allows if that is less, and then the others share the rest. Some tenants carry
the provider alone, some an account of their own as well. In some markets a few of them share a
pool besides, a bucket or a number of slots; where it is the tighter one, its share goes by weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from fila.v1 import admin_pb2, service_pb2
from fila.v1.messages_pb2 import Message
from fila_server.core.clock import NS_PER_S
from fila_server.core.commands import Ack, Enqueue, OpenConsumer
from fila_server.core.wire.intake import Intake
from server.tests.simulation import rules
from server.tests.simulation.broken import Broken
from server.tests.simulation.world import World

_BACKLOG = 6  # messages of each tenant that wait at any time
_ROUNDS = 16
_PROVIDER = "stripe"
_POOL = "workers"
_QUEUE = "orders"


class Tenant(NamedTuple):
    """A fairness key; `account` is the rate of a throttle key of its own, 0 if it has none."""

    name: str
    weight: int
    account: float


class Pool(NamedTuple):
    """What some tenants share beside the provider: a rate, by a bucket or by slots held so long."""

    names: frozenset[str] = frozenset()
    rate: float = 0.0
    slots: int = 0  # 0 for a bucket
    is_tight: bool = False

    @property
    def hold_ns(self) -> int:
        return int(self.slots / self.rate * NS_PER_S) if self.slots else 0


class Market:
    """One seed: its tenants, its limits, and the deliveries that each tenant got."""

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
        has_pool = random.random() < 0.5
        weights = [random.choice((1, 1, 2, 3)) for _ in range(random.randint(2, 4))]
        if has_pool:
            weights += [random.choice((1, 1, 2, 4)) for _ in range(2)]
        self.tenants = []
        for number, weight in enumerate(weights):
            fair = self.rate * weight / sum(weights)
            # Clearly less than its share, or clearly more: in between nobody is in the right. What
            # an account may have is lost while nobody asks for it.
            account = 0.0 if self.is_late else fair * random.choice((0.0, 0.0, 0.4, 2.0, 4.0))
            self.tenants.append(Tenant(f"t{number}", weight, account))
        self.pool = self._drawn_pool(sum(weights)) if has_pool else Pool()
        self.got: Counter[str] = Counter()
        self._held: list[tuple[int, service_pb2.AckRequest]] = []  # when it is due; oldest first

    def _drawn_pool(self, weights: int) -> Pool:
        random = self.random
        members = random.sample(self.tenants, len(self.tenants) - random.randint(0, 2))
        fair = self.rate * sum(tenant.weight for tenant in members) / weights
        part = random.choice((0.25, 0.25, 0.5, 3.0))
        slots = random.choice((0, 0, 1, 3))
        for tenant in members:  # an account and a pool that are both tight miss each other's tokens
            self.tenants[int(tenant.name[1:])] = tenant._replace(account=0.0)
        return Pool(frozenset(it.name for it in members), fair * part, slots, part < 1)

    def run(self) -> None:
        """Serve for some rounds. Raises Broken if somebody got less than it may expect."""
        self._open()
        # Tenants of a tight pool take part in few of the provider's rounds.
        rounds = 5 * _ROUNDS if self.pool.is_tight else _ROUNDS
        target = rounds * self.quantum * sum(tenant.weight for tenant in self.tenants)
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
                # An account that holds less than a turn would cut every turn short, and one that
                # holds no more loses what comes while its tenant waits for the provider.
                burst = tenant.weight * self.quantum + 1
                self._set(f"throttle.acct:{tenant.name}", f"{tenant.account},{burst}")
            self._produce(tenant, _BACKLOG + self.burst)
        if self.pool.slots:
            self._set(f"concurrency:{_POOL}:limit", f"{self.pool.slots}")
        elif self.pool.rate:
            self._set(f"throttle.{_POOL}", f"{self.pool.rate},{self.burst + 1}")  # as above
        batches = (self.random.choice((1, 4)),) if self.is_late else (1, 4)
        for _ in range(self.random.randint(1, 3)):
            consumer = world.connect()
            batch = self.random.choice(batches)
            world.tell(OpenConsumer(world.ticket(), consumer, _QUEUE, 50, batch, 0, False))

    def _set(self, key: str, value: str) -> None:
        self.world.admin(admin_pb2.SetConfigRequest(key=key, value=value))

    def _produce(self, tenant: Tenant, count: int) -> None:
        keys = [_PROVIDER, *([f"acct:{tenant.name}"] if tenant.account else [])]
        if tenant.name in self.pool.names:
            keys.append(_POOL)
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
        self._ack()
        world.settle()
        while any(world.sinks.values()):
            for consumer in [it for it, sink in world.sinks.items() if sink]:
                for message in world.take(consumer, is_once=False):
                    self._took(message)
            self._ack()
            world.settle()
        world.sync()

    def _took(self, message: Message) -> None:
        name = message.metadata.fairness_key
        self.got[name] += 1
        hold_ns = self.pool.hold_ns if name in self.pool.names else 0
        token = message.metadata.lease_token
        ack = service_pb2.AckRequest(queue=_QUEUE, message_id=message.id, lease_token=token)
        self._held.append((self.world.clock.mono_ns + hold_ns, ack))
        self._produce(self.tenants[int(name[1:])], 1)

    def _ack(self) -> None:
        now_ns = self.world.clock.mono_ns
        acks = [ack for due_ns, ack in self._held if due_ns <= now_ns]
        self._held = [it for it in self._held if it[0] > now_ns]
        self.world.tell(Ack(self.world.ticket(), acks))

    def _judge(self, elapsed_s: float) -> None:
        total = sum(self.got.values())
        for name, fair in self._expected(total, elapsed_s).items():
            tenant = self.tenants[int(name[1:])]
            # Two turns, the bucket's burst, and the 5 % of rule 5.
            slack = 2 * tenant.weight * self.quantum + self.burst + 0.05 * fair
            if self.got[name] < fair - slack:
                market = f"{self.tenants}, {self.pool}"
                how = f"{name} got {self.got[name]} of {total}, not {fair:.1f}; {market}"
                raise Broken("5: everybody gets its weighted share", how)

    def _expected(self, total: int, elapsed_s: float) -> dict[str, float]:
        """Fill up by weight: what is full first settles the shares of those who need it, and who
        may have less than its share elsewhere leaves the rest to the others.
        """
        weights = {tenant.name: tenant.weight for tenant in self.tenants}
        limits = [(float(total), frozenset(weights))]
        limited = [tenant for tenant in self.tenants if tenant.account]
        limits += [(it.account * elapsed_s, frozenset([it.name])) for it in limited]
        if self.pool.slots:  # how soon a free slot is found is the broker's business, and the nap's
            limits.append((float(sum(self.got[name] for name in self.pool.names)), self.pool.names))
        elif self.pool.rate:
            limits.append((self.pool.rate * elapsed_s, self.pool.names))
        expected: dict[str, float] = {}
        while len(expected) < len(weights):
            units = []
            for amount, names in limits:
                open_ones = names - expected.keys()
                if open_ones:
                    left = amount - sum(expected[name] for name in names & expected.keys())
                    units.append((left / sum(weights[name] for name in open_ones), open_ones))
            unit, full = min(units, key=lambda it: it[0])
            expected |= {name: weights[name] * unit for name in full}
        return expected
