# SPDX-License-Identifier: AGPL-3.0-only
"""The demo's traffic: one thread produces for all tenants and a worker consumes, both paced.

Arrivals follow a timetable, so their order is known exactly. The worker has a fixed pace below what
arrives: with handlers to spare nobody waits, and there is nothing to schedule.
"""

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fila_server.cli.demo.score import Record, Tenant

if TYPE_CHECKING:
    from fila import Client, ConsumeMessage, WorkerEvent

QUEUE = "demo"
# What all handlers together do; low enough for two shared cores and for the eye.
CAPACITY_PER_SECOND = 500
QUIET_PER_SECOND = 10.0
NOISY_FACTOR = 50
PREMIUM_WEIGHT = 3
_HANDLERS = 2
_BATCH = 5
_PRODUCER_TICK_S = 0.02
# After the last enqueue, quiet messages under way get this long to arrive.
_GRACE_S = 1.0
_PLACE = struct.Struct(">Q")


def tenants(count: int) -> list[Tenant]:
    """One that floods, one that floods with weight 3, the others quiet."""
    flood = QUIET_PER_SECOND * NOISY_FACTOR
    return [
        Tenant("noisy", 1, flood, is_quiet=False),
        Tenant("premium", PREMIUM_WEIGHT, flood, is_quiet=False),
        *(Tenant(f"quiet-{n}", 1, QUIET_PER_SECOND, is_quiet=True) for n in range(1, count - 1)),
    ]


class Load:
    """Runs the traffic against one broker until told to stop."""

    def __init__(self, client: "Client", tenants: Sequence[Tenant]) -> None:
        self.record = Record(tenants)
        self.failure: Exception | None = None
        self._client = client
        # Nothing is taken ahead of its turn: a message that waits in the client has had its turn.
        self._worker = client.worker(
            QUEUE,
            self._handle,
            concurrency=_HANDLERS,
            batch_size=_BATCH,
            prefetch=_HANDLERS * _BATCH,
            on_event=self._see,
        )
        self._is_over = threading.Event()
        self._stop_producing = threading.Event()
        self._lock = threading.Lock()
        self._next_turn = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Traffic flows inside; on the way out the producer stops first, then the worker."""
        threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._produce, lambda: self._worker.run(signals=False))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
            self._stop_producing.set()
            self._await_quiet_messages()
        finally:
            self._stop_producing.set()
            self._is_over.set()
            self._worker.stop()
            for thread in threads:
                thread.join(timeout=5.0)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # Whatever ends a thread ends the run; the main thread raises it.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._is_over.is_set() and self.failure is None:
            self.failure = error

    def _produce(self) -> None:
        from fila import EnqueueMessage

        tenants = self.record.tenants
        start = time.monotonic()
        # Spread the first arrivals, so that quiet tenants do not arrive in step.
        due = [
            (index + 1) / len(tenants) / tenant.per_second for index, tenant in enumerate(tenants)
        ]
        while not self._stop_producing.wait(_PRODUCER_TICK_S):
            now = time.monotonic()
            batch: list[tuple[float, int]] = []
            for index, tenant in enumerate(tenants):
                while due[index] <= now - start:
                    batch.append((due[index], index))
                    due[index] += 1 / tenant.per_second
            batch.sort()
            results = self._client.enqueue_many(
                EnqueueMessage(
                    queue=QUEUE,
                    headers={"tenant": tenants[index].name},
                    payload=_PLACE.pack(self.record.arrive(index, now)),
                    fairness_key=tenants[index].name,
                    weight=tenants[index].weight,
                )
                for _, index in batch
            )
            for result in results:
                result.unwrap()

    def _handle(self, messages: "Sequence[ConsumeMessage]") -> None:
        with self._lock:
            now = time.monotonic()
            for message in messages:
                self.record.deliver(_PLACE.unpack(message.payload)[0], now)
            # Late turns are not made up for: the pace is a ceiling, as it is for real work.
            turn = max(self._next_turn, now)
            self._next_turn = turn + len(messages) / CAPACITY_PER_SECOND
        self._is_over.wait(turn - now)

    def _see(self, event: "WorkerEvent") -> None:
        if event.kind == "settle_failed" and isinstance(event.error, Exception):
            self._fail(event.error)

    def _await_quiet_messages(self) -> None:
        deadline = time.monotonic() + _GRACE_S
        while self.record.quiet_backlog and time.monotonic() < deadline:
            time.sleep(0.02)
