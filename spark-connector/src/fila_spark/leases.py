# SPDX-License-Identifier: AGPL-3.0-only
"""Leased messages on the driver: taking them, carrying them to the executors, keeping them leased
while Spark works on them, and ending the leases.

Knows nothing of Spark's offsets; the numbers that batches are held under are the caller's.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import ceil
from typing import NamedTuple, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

import fila
from fila_spark import schema
from fila_spark.connection import client_of, patiently
from fila_spark.options import Connection, LeaseOptions, StreamOptions
from fila_spark.report import say

_RECEIVE_ROWS_MAX = 5000  # the broker's limit for one answer

# Where the user does not say how many partitions: a partition should be worth starting.
_ROWS_PER_PARTITION = 2500
_PARTITIONS_MAX = 8

_BEATS_PER_LEASE = 3  # chances to be extended before a lease ends
# Calls at a time where the client has no call for many: those that wait together share a request.
_THREADS = 64


class Lease(NamedTuple):
    """What settles a message; the names are those of `fila.Message`."""

    queue: str
    id: str
    lease_token: str


class Rows(InputPartition):
    """Messages that travel with the plan, so that every attempt sees the same ones."""

    def __init__(self, batch: pa.RecordBatch | None) -> None:
        super().__init__(None)
        self.batch = batch


def receive(
    options: LeaseOptions | StreamOptions, rows_max: int, bytes_max: int
) -> list[fila.ConsumeMessage]:
    """Leases messages until there are enough or no more are ready; waits for the first only.

    The last answer may exceed `bytes_max`, by one frame of the broker's (4 MiB).
    """
    client = client_of(options.connection)
    found: list[fila.ConsumeMessage] = []
    size = 0

    def next_frame() -> list[fila.ConsumeMessage]:
        return client.receive(
            options.queue,
            min(rows_max - len(found), _RECEIVE_ROWS_MAX),
            wait_ms=0 if found else options.wait_ms,
            visibility_timeout_ms=options.visibility_timeout_ms,
        )

    try:
        while len(found) < rows_max and size < bytes_max:
            frame = patiently(options.connection, next_frame)
            if not frame:
                break
            found += frame
            size += sum(len(message.payload) for message in frame)
    except fila.FilaError:
        # Nobody will ever see these.
        give_back(options.connection, leases_of(found))
        raise
    return found


def leases_of(messages: Sequence[fila.ConsumeMessage]) -> list[Lease]:
    return [Lease(message.queue, message.id, message.lease_token) for message in messages]


def give_back(connection: Connection, leases: Sequence[Lease]) -> None:
    """Makes messages ready again at once, with no attempt counted, as far as that is possible."""
    client = client_of(connection)
    _each(
        leases,
        lambda lease: client.nack(lease.queue, lease.id, "", lease.lease_token, retry_after_ms=0),
    )


def spread(
    messages: Sequence[fila.Message], partitions: int | None, include_payload: bool
) -> list[InputPartition]:
    """Messages as partitions of about the same number of rows; none for no messages."""
    count = min(len(messages), partitions or _automatic(len(messages)))
    edges = [len(messages) * n // count for n in range(count + 1)] if count else []
    return [
        Rows(schema.leased_batch(messages[low:high], include_payload))
        for low, high in pairwise(edges)
    ]


def _automatic(rows: int) -> int:
    return min(_PARTITIONS_MAX, ceil(rows / _ROWS_PER_PARTITION))


def rows_of(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Rows) and partition.batch is not None:
        yield partition.batch


class HeldLeases:
    """The leases of batches under way, extended in the background until they are acked."""

    def __init__(self, connection: Connection, visibility_timeout_ms: int) -> None:
        self._connection = connection
        self._visibility_timeout_ms = visibility_timeout_ms
        self._held: dict[int, list[Lease]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._heart: threading.Thread | None = None
        self._lost = 0

    def hold(self, number: int, messages: Sequence[fila.ConsumeMessage]) -> None:
        """Keeps a batch leased from now on."""
        with self._lock:
            self._held[number] = leases_of(messages)
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="fila-heartbeat", daemon=True)
            self._heart.start()

    def ack_through(self, number: int) -> None:
        """Acks all batches up to one. Harmless twice. Raises when the broker stays away."""
        with self._lock:
            numbers = sorted(held for held in self._held if held <= number)
        for each in numbers:
            self._ack(self._held[each])
            # Not before: if the ack fails, the heart has to go on.
            with self._lock:
                del self._held[each]

    def _ack(self, leases: Sequence[Lease]) -> None:
        client = client_of(self._connection)
        waiting = list(leases)
        stale = 0

        def ack() -> None:
            nonlocal waiting, stale
            outcomes = client.ack_many(cast("list[fila.Message]", waiting))
            stale += sum(isinstance(outcome, fila.LeaseExpiredError) for outcome in outcomes)
            # A message that is gone was acked: by a request whose answer got lost.
            settled = (fila.LeaseExpiredError, fila.MessageNotFoundError)
            failed = [
                (lease, outcome)
                for lease, outcome in zip(waiting, outcomes, strict=True)
                if outcome is not None and not isinstance(outcome, settled)
            ]
            waiting = [lease for lease, _ in failed]
            if failed:
                raise failed[0][1]

        patiently(self._connection, ack)
        if stale:
            say(f"{stale} of {len(leases)} leases ended before the ack; they will come again")

    def release(self) -> None:
        """Gives everything back at once, with no attempt counted, and stops extending."""
        self._stopped.set()
        with self._lock:
            leases = [lease for batch in self._held.values() for lease in batch]
            self._held.clear()
        give_back(self._connection, leases)

    def _beat(self) -> None:
        parent = os.getppid()
        interval_s = self._visibility_timeout_ms / 1000 / _BEATS_PER_LEASE
        while not self._stopped.wait(interval_s):
            # Spark is gone, and this process with it as soon as it notices: let the leases end.
            if os.getppid() != parent:
                return
            with self._lock:
                leases = [lease for batch in self._held.values() for lease in batch]
            self._extend(leases)

    def _extend(self, leases: Sequence[Lease]) -> None:
        client = client_of(self._connection)
        failures = _each(leases, lambda lease: client.extend(*lease, self._visibility_timeout_ms))
        lost = sum(isinstance(failure, fila.LeaseExpiredError) for failure in failures)
        # Said once, not at every beat.
        if lost > self._lost:
            say(f"{lost} of {len(leases)} leases ended during a batch; they will come again")
        self._lost = lost
        # A message that is gone was acked while the heart was beating.
        known = (fila.LeaseExpiredError, fila.MessageNotFoundError)
        others = [failure for failure in failures if not isinstance(failure, known)]
        if others:
            say(f"{len(others)} leases are not extended, the next beat tries again: {others[0]}")


def _each(leases: Sequence[Lease], act: Callable[[Lease], object]) -> list[fila.FilaError]:
    """Does something to every lease, many at a time, and returns what failed."""

    def attempt(lease: Lease) -> fila.FilaError | None:
        try:
            act(lease)
        except fila.FilaError as error:
            return error
        return None

    if not leases:
        return []
    with ThreadPoolExecutor(min(_THREADS, len(leases)), "fila-leases") as threads:
        return [failure for failure in threads.map(attempt, leases) if failure is not None]
