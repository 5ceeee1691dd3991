# SPDX-License-Identifier: AGPL-3.0-only
"""What clients were promised, written down outside the broker, and traffic that fills it.

The ledger is the only judge of a crash test. It holds what was sent, what was confirmed, what was
delivered and what was acked, and never asks the broker what it believes.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import fila
from fila import Client, ConsumeMessage, EnqueueMessage

QUEUE = "ledger"
VISIBILITY_MS = 3000
DRAIN_LIMIT_S = 60.0
# Producers wait when this much is unsettled, so that a run takes about as long everywhere.
BACKLOG_MAX = 3000


# Clocks of one machine agree, but for what its time service corrects meanwhile.
CLOCK_ERROR = timedelta(milliseconds=20)


@dataclass(slots=True)
class Lease:
    """One delivery: when it began and when it ends, on the broker's wall clock."""

    began: datetime
    ends: datetime
    was_given_back: bool = False


@dataclass
class Ledger:
    """Facts by message id and by payload. A payload is unique to one intended enqueue."""

    sent: set[bytes] = field(default_factory=set)
    confirmed: dict[str, bytes] = field(default_factory=dict)
    ids: dict[bytes, set[str]] = field(default_factory=dict)  # ids that a payload was seen under
    ack_sent: set[str] = field(default_factory=set)
    acked: dict[str, int] = field(default_factory=dict)  # the lease under which the ack succeeded
    leases: dict[str, dict[int, Lease]] = field(default_factory=dict)  # by token
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sending(self, payload: bytes) -> None:
        with self.lock:
            self.sent.add(payload)

    def stored(self, message_id: str, payload: bytes) -> None:
        with self.lock:
            self.confirmed[message_id] = payload
            self.ids.setdefault(payload, set()).add(message_id)

    def delivered(self, message: ConsumeMessage) -> None:
        with self.lock:
            assert message.payload in self.sent, "delivered what nobody sent"
            self.ids.setdefault(message.payload, set()).add(message.id)
            leases = self.leases.setdefault(message.id, {})
            assert token(message) not in leases, f"{message.id} leased twice under one token"
            ends = message.lease_expires_at
            assert ends is not None
            leases[token(message)] = Lease(ends - timedelta(milliseconds=VISIBILITY_MS), ends)

    def giving_back(self, message: ConsumeMessage) -> None:
        with self.lock:
            self.leases[message.id][token(message)].was_given_back = True

    def extended(self, message: ConsumeMessage, ends: datetime) -> None:
        with self.lock:
            self.leases[message.id][token(message)].ends = ends

    def acking(self, message: ConsumeMessage) -> None:
        with self.lock:
            self.ack_sent.add(message.id)

    def settled(self, message: ConsumeMessage) -> None:
        with self.lock:
            assert message.id not in self.acked, "acked twice"
            self.acked[message.id] = token(message)

    def backlog(self) -> int:
        with self.lock:
            return len(self.confirmed) - len(self.acked)

    def check(self, drained: set[str]) -> None:
        """Hold the broker to its promises, after everything that was left has been drained."""
        lost = {
            message_id: payload
            for message_id, payload in self.confirmed.items()
            if message_id not in self.ack_sent and message_id not in drained
        }
        assert not lost, f"{len(lost)} confirmed messages lost, such as {next(iter(lost.items()))}"
        back = [
            message_id
            for message_id, under in self.acked.items()
            if any(later > under for later in self.leases[message_id]) or message_id in drained
        ]
        assert not back, f"{len(back)} acked messages came back, such as {back[0]}"
        twice = [payload for payload, ids in self.ids.items() if len(ids) > 1]
        assert not twice, f"{len(twice)} enqueues made two messages, such as {twice[0]!r}"
        for message_id, leases in self.leases.items():
            for (_, earlier), (_, later) in itertools.pairwise(sorted(leases.items())):
                assert earlier.was_given_back or earlier.ends <= later.began + CLOCK_ERROR, (
                    f"{message_id} had two live leases: one until {earlier.ends}, another from"
                    f" {later.began}"
                )

    def redelivered(self) -> int:
        """How many deliveries were not the first of their message."""
        return sum(len(leases) - 1 for leases in self.leases.values())


def token(message: ConsumeMessage) -> int:
    """The place of a delivery among all deliveries: tokens are numbers that only grow."""
    assert message.lease_token is not None
    return int(message.lease_token, 16)


class Traffic:
    """Producers and consumers that go on through every crash. `rng` makes a run repeatable."""

    def __init__(self, address: str, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self.seed = seed
        self.failures: list[BaseException] = []
        self._stopping = threading.Event()
        backoff = fila.Backoff(0.01, 0.1)
        self._clients = [Client(address, backoff=backoff, timeout=10) for _ in range(2)]
        jobs: list[tuple[Callable[..., None], int]] = [
            *((self._produce_singly, n) for n in range(3)),
            (self._produce_batches, 3),
            *((self._consume, n) for n in range(4, 7)),
            (self._poll, 7),
        ]
        self._threads = [
            threading.Thread(target=self._guard, args=job, daemon=True) for job in jobs
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for client in self._clients:
            client.close()
        for thread in self._threads:
            thread.join(DRAIN_LIMIT_S)
            assert not thread.is_alive(), "a client hangs"
        if self.failures:
            raise self.failures[0]

    def _guard(self, job: Callable[..., None], number: int) -> None:
        try:
            job(number, random.Random(self.seed * 100 + number))
        except fila.ClientClosedError:
            pass
        except BaseException as error:
            self.failures.append(error)

    def _wait_for_room(self) -> None:
        while self.ledger.backlog() > BACKLOG_MAX and not self._stopping.is_set():
            time.sleep(0.01)

    def _produce_singly(self, number: int, rng: random.Random) -> None:
        client = self._clients[number % 2]
        serial = 0
        while not self._stopping.is_set():
            self._wait_for_room()
            serial += 1
            payload = f"{number}-{serial}".encode() + bytes(rng.randrange(400))
            key = f"once-{number}-{serial}" if rng.random() < 0.5 else None
            fairness_key = rng.choice(["a", "b", "c"])
            self.ledger.sending(payload)
            try:
                message_id = client.enqueue(
                    QUEUE, None, payload, fairness_key=fairness_key, idempotency_key=key
                )
            except (fila.UnavailableError, fila.DeadlineExceededError):
                time.sleep(0.02)  # stored or not: nobody knows
                continue
            self.ledger.stored(message_id, payload)

    def _produce_batches(self, number: int, rng: random.Random) -> None:
        client = self._clients[number % 2]
        serial = 0
        while not self._stopping.is_set():
            self._wait_for_room()
            batch = []
            for _ in range(rng.randrange(1, 60)):
                serial += 1
                delay_ms = rng.choice([None, None, 1, 300])
                batch.append(
                    EnqueueMessage(QUEUE, None, f"{number}-{serial}".encode(), delay_ms=delay_ms)
                )
                self.ledger.sending(bytes(batch[-1].payload))
            for message, result in zip(batch, client.enqueue_many(batch), strict=True):
                if result.error is None:
                    self.ledger.stored(result.message_id, bytes(message.payload))
            time.sleep(0.005)

    def _consume(self, number: int, rng: random.Random) -> None:
        client = self._clients[number % 2]
        with client.consume(QUEUE, max_in_flight=100, visibility_timeout_ms=VISIBILITY_MS) as found:
            for message in found:
                self.ledger.delivered(message)
                try:
                    self._settle(message, rng)
                except (fila.UnavailableError, fila.DeadlineExceededError):
                    pass
                except (fila.LeaseExpiredError, fila.MessageNotFoundError):
                    pass  # this consumer was slow, or an earlier ack of unknown outcome did it

    def _poll(self, number: int, rng: random.Random) -> None:
        client = self._clients[number % 2]
        while not self._stopping.is_set():
            try:
                found = client.receive(
                    QUEUE, rng.randrange(1, 40), wait_ms=200, visibility_timeout_ms=VISIBILITY_MS
                )
            except (fila.UnavailableError, fila.DeadlineExceededError):
                time.sleep(0.02)
                continue
            for message in found:
                self.ledger.delivered(message)
            self._ack_together(client, found)

    def _ack_together(self, client: Client, found: Sequence[ConsumeMessage]) -> None:
        for message in found:
            self.ledger.acking(message)
        for message, error in zip(found, client.ack_many(found), strict=True):
            if error is None:
                self.ledger.settled(message)

    def _settle(self, message: ConsumeMessage, rng: random.Random) -> None:
        chance = rng.random()
        if chance < 0.05:
            self.ledger.giving_back(message)
            message.nack("try again")
            return
        if chance < 0.07:
            return  # left to run out
        if chance < 0.12:
            self.ledger.extended(message, message.extend(VISIBILITY_MS))
        self.ledger.acking(message)
        message.ack()
        self.ledger.settled(message)


def drain(address: str, ledger: Ledger) -> set[str]:
    """Take everything that is left, waiting for leases to end; return the ids."""
    drained: set[str] = set()
    deadline = time.monotonic() + DRAIN_LIMIT_S
    with Client(address, timeout=30) as client:
        while True:
            messages = client.receive(QUEUE, 500, wait_ms=100)
            for message in messages:
                ledger.delivered(message)
                drained.add(message.id)
            assert client.ack_many(messages) == [None] * len(messages)
            stats = client.stats(QUEUE)
            if stats.depth == stats.in_flight == stats.delayed == 0:
                return drained
            assert time.monotonic() < deadline, f"not drained: {stats}"
