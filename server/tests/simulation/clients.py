# SPDX-License-Identifier: AGPL-3.0-only
"""Those who enqueue, consume and settle: seeded, forgetful, sometimes late, sometimes wrong.

A client knows what it was told and nothing else: frames that it took, tokens that it holds, also
from before a restart. What it does is drawn from the one random source of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from fila.v1 import service_pb2 as pb
from fila_server.core.clock import NS_PER_MS
from fila_server.core.commands import Ack, Enqueue, Extend, Nack, OpenConsumer, SettleGrants
from fila_server.core.wire.intake import Intake
from server.tests.simulation.scripts import ROUTE
from server.tests.simulation.world import World

QUEUES = ("orders", "reports")
THROTTLE_KEYS = ("acct:a", "acct:b", "gpu", "mail", "stripe")
TENANTS = ("ann", "bob", "cid", "dee")
_HELD_MAX = 40  # what clients remember; older tokens are forgotten, so their leases expire


class Held(NamedTuple):
    """A message that some client got and has not settled."""

    queue: str
    message_id: str
    token: str
    throttle_keys: tuple[str, ...]


class Consumer(NamedTuple):
    """A connection of a client."""

    id: int
    queue: str
    is_once: bool
    is_eager: bool  # takes what comes at once


class Clients:
    """Everybody who is not an operator."""

    def __init__(
        self, world: World, random: Random, throttle_keys: Sequence[str], sizes: Sequence[int]
    ) -> None:
        self._world = world
        self._random = random
        self._intake = Intake(world.config.limits)
        self._consumers: list[Consumer] = []
        self._held: list[Held] = []
        self._sent = 0
        self._sizes = sizes  # of payloads, in numbers
        # What the seed's producers are like.
        self._tenants = random.sample(TENANTS, random.randint(1, 4))
        self._key_sets = [
            tuple(random.sample(throttle_keys, min(count, len(throttle_keys))))
            for count in random.choices((0, 1, 2, 3), (2, 4, 4, 1), k=3)
        ]
        self._costs = random.choice(((1,), (1,), (1, 2), (1, 3, 10)))
        self._timed = random.choice((0.0, 0.0, 0.1, 0.4))
        self._repeated = random.choice((0.0, 0.0, 0.3))
        self._acks = random.choice((0.9, 0.6, 0.2))
        self._eager = random.choice((0.8, 0.6, 0.2))

    def forget_connections(self) -> None:
        """The broker went away. What was received is still in hand."""
        self._consumers.clear()

    # --- Producing --------------------------------------------------------------------------------

    def produce(self) -> None:
        """Send one message, or a batch for several queues."""
        count = self._random.choice((1, 1, 2, 3, 8))
        requests = [self._message() for _ in range(count)]
        batch = pb.EnqueueBatchRequest(messages=requests)
        ticket = self._world.ticket()
        self._world.ledger.requests[ticket] = requests
        self._world.tell(Enqueue(ticket, self._intake.drafts(batch.SerializeToString())))

    def _message(self) -> pb.EnqueueRequest:
        random = self._random
        self._sent += 1
        tenant = random.choice(self._tenants)
        keys = random.choice(self._key_sets)
        request = pb.EnqueueRequest(
            queue=random.choice(QUEUES),
            payload=b"%d" % self._sent * random.choice(self._sizes),
            fairness_key=tenant,
            weight=random.choice((0, 0, 1, 3)),
            throttle_keys=keys,
            throttle_cost=random.choice(self._costs),
        )
        if self._world.ledger.is_routed(request.queue, ROUTE):
            request.headers.update({"tenant": tenant, "keys": ",".join(keys)})
        if random.random() < self._timed:
            delay_ms = random.choice((0, 1, 30, 2000, 60_000))
            if random.random() < 0.3:
                due_ns = self._world.clock.wall_ns + (delay_ms - 10) * NS_PER_MS
                request.deliver_at.FromNanoseconds(due_ns)
            else:
                request.delay_ms = delay_ms
            request.ttl_ms = random.choice((0, 0, 5, 500, 20_000))
        if random.random() < self._repeated:
            request.idempotency_key = random.choice("xyz")
        return request

    # --- Consuming --------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open a stream."""
        random = self._random
        self._open(random.choice((1, 3, 8, 20)), random.choice((1, 2, 4, 20)), is_once=False)

    def poll(self) -> None:
        """Ask for a few messages, as Receive does."""
        count = self._random.randint(1, 5)
        self._open(count, count, is_once=True)

    def _open(self, credit: int, batch: int, *, is_once: bool) -> None:
        random = self._random
        if len(self._consumers) >= 6:
            self.leave()
        queue = random.choice((*QUEUES * 3, QUEUES[0] + ".dlq"))
        consumer = self._world.connect()
        visibility_ms = random.choice((0, 0, 0, 20, 3000))
        ticket = self._world.ticket()
        self._world.tell(
            OpenConsumer(ticket, consumer, queue, credit, batch, visibility_ms, is_once)
        )
        self._consumers.append(Consumer(consumer, queue, is_once, random.random() < self._eager))

    def take(self) -> None:
        """Let one client take what is under way to it."""
        waiting = [it for it in self._consumers if self._world.sinks.get(it.id)]
        if waiting:
            self._take(self._random.choice(waiting))

    def take_eagerly(self) -> None:
        """Let the clients that wait for frames have theirs."""
        for consumer in [it for it in self._consumers if it.is_eager]:
            if self._world.sinks.get(consumer.id):
                self._take(consumer)

    def _take(self, consumer: Consumer) -> None:
        for message in self._world.take(consumer.id, consumer.is_once):
            metadata = message.metadata
            keys = tuple(metadata.throttle_keys)
            self._held.append(Held(consumer.queue, message.id, metadata.lease_token, keys))
        del self._held[:-_HELD_MAX]
        if consumer.is_once:
            self._disconnect(consumer)

    def leave(self) -> None:
        """End one connection, with whatever is under way to it."""
        if self._consumers:
            self._disconnect(self._random.choice(self._consumers))

    def _disconnect(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)
        if consumer.id in self._world.sinks:  # else the broker ended it
            self._world.disconnect(consumer.id)

    # --- Settling ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Ack or nack some of what is in hand."""
        acks, nacks = [], []
        for held in self._some():
            if self._random.random() < self._acks:
                acks.append(self._ack(held))
            else:
                nacks.append(self._nack(held))
        if acks:
            self._world.tell(Ack(self._world.ticket(), acks))
        if nacks:
            self._world.tell(Nack(self._world.ticket(), nacks))

    def _some(self) -> list[Held]:
        random = self._random
        latest = self._held[-12:]
        chosen = random.sample(latest, min(len(latest), random.choice((1, 2, 4, 10))))
        for held in chosen:
            if random.random() < 0.95:  # else it is settled once more later
                self._held.remove(held)
        return chosen

    def _token(self, held: Held) -> str:
        return held.token if self._random.random() < 0.9 else ""

    def _ack(self, held: Held) -> pb.AckRequest:
        return pb.AckRequest(
            queue=held.queue, message_id=held.message_id, lease_token=self._token(held)
        )

    def _nack(self, held: Held) -> pb.NackRequest:
        random = self._random
        request = pb.NackRequest(
            queue=held.queue,
            message_id=held.message_id,
            lease_token=self._token(held),
            error=random.choice(("", "refused", "timed out")),
        )
        self._press(request, held)
        return request

    def _press(self, request: pb.NackRequest | pb.GrantNack, held: Held) -> None:
        """Let it be backpressure, perhaps, or hopeless."""
        random = self._random
        if random.random() < 0.5:
            request.retry_after_ms = random.choice((0, 0, 10, 5000, 7_200_000))
            if held.throttle_keys and random.random() < 0.4:
                request.throttle_key = random.choice(held.throttle_keys)
        elif random.random() < 0.1:
            request.dead_letter = True

    def settle_frames(self) -> None:
        """Settle a frame or two by their tokens: all that is left, or all but some."""
        chosen = self._random.sample(self._held, min(len(self._held), 2))
        items = [self._settle_frame(held) for held in chosen]
        if items:
            self._world.tell(SettleGrants(self._world.ticket(), items))

    def _settle_frame(self, held: Held) -> pb.GrantSettlement:
        random = self._random
        mine = [it for it in self._held if it.token == held.token] or [held]
        kept = random.sample(mine, random.choice((0, 0, 0, 1, len(mine) // 2)))
        request = pb.GrantSettlement(
            queue=held.queue if random.random() < 0.95 else random.choice(QUEUES),
            lease_token=held.token,
            except_message_ids=[it.message_id for it in kept],
        )
        if random.random() < 0.5:
            request.expected_messages = len(mine) - len(kept)
        how = random.random()
        if how < self._acks:
            request.ack.SetInParent()
        elif how < 0.9:
            request.nack.error = random.choice(("", "refused"))
            self._press(request.nack, held)
        else:
            request.extend.extend_ms = random.choice((0, 100, 60_000))
        if not request.HasField("extend") and random.random() < 0.95:
            self._held = [it for it in self._held if it not in mine or it in kept]
        return request

    def extend(self) -> None:
        """Ask for more time for some of what is in hand."""
        chosen = self._held[-self._random.randint(1, 3) :]
        items = [
            pb.LeaseExtension(
                queue=held.queue,
                message_id=held.message_id,
                lease_token=held.token,
                extend_ms=self._random.choice((0, 100, 60_000)),
            )
            for held in chosen
        ]
        if items:
            self._world.tell(Extend(self._world.ticket(), items))

    def forget(self) -> None:
        """A worker dies with what it holds."""
        self._held = self._held[: len(self._held) // 2]
