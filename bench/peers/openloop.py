# SPDX-License-Identifier: AGPL-3.0-only
"""Messages at a fixed rate, whatever becomes of them, and how long after its time each one came.

Every message carries the moment at which it was due. Senders are threads with connections of their
own; when all of them are held up, what leaves late counts as late.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.peers.figures import Latencies, due_ns
from bench.peers.peer import Client, Outgoing

STAMP_BYTES = 8
LEAD_NS = 200_000_000  # until all threads are at work


class OpenLoop:
    """One run of a rate against one queue."""

    def __init__(self, receiver: Client, senders: Sequence[Client], spec: dict[str, Any]) -> None:
        self.delivered = Latencies()
        self.confirmed = Latencies()
        self._receiver = receiver
        self._senders = senders
        self._queue: str = spec["queue"]
        self._rate: float = spec["rate"]
        self._count: int = spec["messages"]
        self._filler = b"x" * (spec["bytes"] - STAMP_BYTES)
        self._numbers = iter(range(self._count))
        self._lock = threading.Lock()
        self._began_ns = 0
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Send all and receive all. Raises what a thread raised."""
        self._began_ns = time.monotonic_ns() + LEAD_NS
        receiver = self._thread(self._receive)
        senders = [self._thread(lambda each=each: self._send(each)) for each in self._senders]  # type: ignore[misc]
        for thread in (*senders, receiver):
            while thread.is_alive() and self._failure is None:
                thread.join(0.1)
        if self._failure is not None:
            raise self._failure

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def watched() -> None:
            try:
                work()
            except BaseException as error:
                self._failure = error

        thread = threading.Thread(target=watched, daemon=True)
        thread.start()
        return thread

    def _send(self, sender: Client) -> None:
        while True:
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            due = due_ns(self._began_ns, number, self._rate)
            time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
            sender.send(self._queue, Outgoing(due.to_bytes(STAMP_BYTES) + self._filler))
            now = time.monotonic_ns()
            with self._lock:
                self.confirmed.record(due, now)

    def _receive(self) -> None:
        left = self._count
        for found in self._receiver.listen(self._queue):
            now = time.monotonic_ns()
            for delivery in found:
                self.delivered.record(int.from_bytes(delivery.payload[:STAMP_BYTES]), now)
            if found:
                self._receiver.ack(self._queue, found)
            left -= len(found)
            if left <= 0:
                return
