# SPDX-License-Identifier: AGPL-3.0-only
"""fsync fails under load, again and again: whoever waits gets an error, the broker stops with exit
code 1 and never by a signal, and the next start has everything that was confirmed.
"""

import random
import threading
import time
from collections import Counter

import fila
from fila import Client, EnqueueMessage
from server.tests.preload import FAULTFS, compiled
from server.tests.torture.figures import Figures, Scale
from server.tests.torture.victim import Victim, folder

QUEUE = "durable"
PRODUCERS = 4
# Small, so that tables are written and fsynced all the time.
CONFIG = "[storage]\nwrite_buffer_bytes = 65536\n"
MATCHES = (".log", ".sst")
# What a caller may get: the failure, or, as the broker goes, that it is going or gone.
EXPECTED = {"StorageFailedError", "UnavailableError", "ShuttingDownError", "CancelledError"}


def run(scale: Scale) -> Figures:
    figures = Figures()
    rng = random.Random(8)
    outcomes: Counter[str] = Counter()
    kept: set[str] = set()
    codes: Counter[int] = Counter()
    with folder() as path:
        armed = path / "armed"
        faults = {"LD_PRELOAD": str(compiled(FAULTFS, path)), "FAULT_ARMED": str(armed)}
        broker = Victim(path, config=CONFIG)
        try:
            for number in range(scale.of(4, 60)):
                match = MATCHES[number % len(MATCHES)]
                with figures.scene(f"failure {number + 1}, of {match}"):
                    broker.environment = {**faults, "FAULT_MATCH": match}
                    broker.up()
                    check(broker, kept)
                    load = Load(broker.address, kept, outcomes)
                    time.sleep(rng.uniform(0.1, 0.8))
                    armed.write_text("f")
                    codes[broker.wait()] += 1
                    load.join()
                    armed.unlink()
            with figures.scene("after them all"):
                broker.up()
                check(broker, kept)
                figures.hold("it stops cleanly in the end", broker.terminate() == 0)
        finally:
            broker.close()
    figures["failures"] = codes.total()
    figures["exit codes"] = ", ".join(f"{code} x {codes[code]}" for code in sorted(codes))
    figures["confirmed"] = len(kept)
    figures["callers told"] = outcomes.total()
    figures.hold(f"exit code 1, not {dict(codes)}", set(codes) == {1})
    strange = sorted(set(outcomes) - EXPECTED)
    figures.hold(f"callers are told of the failure, not {strange}", not strange)
    figures.hold("some callers hear that the store failed", outcomes["StorageFailedError"] > 0)
    return figures.judged()


def check(broker: Victim, kept: set[str]) -> None:
    """Everything that was ever confirmed is there."""
    with Client(broker.address, timeout=60) as client:
        if not kept:
            client.create_queue(QUEUE)
            return
        found: set[str] = set()
        position = 0
        while True:
            page = client.peek(QUEUE, 1000, from_position=position)
            found |= {row.message.id for row in page.messages}
            position = page.next_position
            if not position:
                break
    assert kept <= found, f"{len(kept - found)} confirmed messages lost"


class Load:
    """Producers and a consumer that go on until the broker fails them."""

    def __init__(self, address: str, kept: set[str], outcomes: Counter[str]) -> None:
        self._kept, self._outcomes = kept, outcomes
        self._lock = threading.Lock()
        self._client = Client(address, timeout=60)
        jobs = [self._singly] * (PRODUCERS - 1) + [self._together, self._consume]
        self._threads = [threading.Thread(target=job, daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until everybody has an answer. A consumer may be waiting for a new broker."""
        for thread in self._threads[:-1]:
            thread.join(90)
            assert not thread.is_alive(), "a caller was left without an answer"
        self._client.close()
        self._threads[-1].join(90)
        assert not self._threads[-1].is_alive(), "a consumer hangs"

    def _singly(self) -> None:
        while True:
            try:
                self._confirm(self._client.enqueue(QUEUE))
            except fila.FilaError as error:
                self._tell(error)
                return

    def _together(self) -> None:
        while True:
            for result in self._client.enqueue_many([EnqueueMessage(QUEUE)] * 20):
                if result.error is not None:
                    self._tell(result.error)
                    return
                self._confirm(result.message_id)

    def _consume(self) -> None:
        try:
            for _ in self._client.consume(QUEUE, max_in_flight=1000):
                pass  # never acked: everything that was confirmed must stay
        except fila.ClientClosedError:
            pass
        except fila.FilaError as error:
            self._tell(error)

    def _confirm(self, message_id: str) -> None:
        with self._lock:
            self._kept.add(message_id)

    def _tell(self, error: fila.FilaError) -> None:
        with self._lock:
            self._outcomes[type(error).__name__] += 1
