# SPDX-License-Identifier: AGPL-3.0-only
"""A real broker in a process of its own, and what tests do with its queues."""

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import fila

_READY = "FILA READY "
# A start takes a second; a loaded machine may need many.
_LIMIT_S = 120.0


class Broker:
    """One broker; its data outlive the process, so that it can be started again."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._settings = dict(settings or {})
        self._listen = "127.0.0.1:0"
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("FILA_")}
        command = [sys.executable, "-m", "fila_server.main", "--listen", self._listen]
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--data-dir", str(self._directory / "data")],
                cwd=self._directory,
                env={**kept, **self._settings},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        watchdog = threading.Timer(_LIMIT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_READY):
                self.address = self._listen = json.loads(line.removeprefix(_READY))["address"]
                break
        watchdog.cancel()
        assert self.address, (self._directory / "broker.log").read_text()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_LIMIT_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Queue:
    """A queue with a name of its own, and the options that lead Spark to it."""

    def __init__(self, client: fila.Client, address: str, **settings: int) -> None:
        self.client = client
        self.name = f"q-{uuid.uuid4().hex[:10]}"
        client.create_queue(self.name, **settings)  # type: ignore[arg-type]
        self.options = {"address": address, "queue": self.name}

    def fill(self, payloads: Iterable[str], fairness_key: str | None = None) -> None:
        messages = (
            fila.EnqueueMessage(self.name, None, text.encode(), fairness_key) for text in payloads
        )
        for result in self.client.enqueue_many(messages, timeout=60):
            result.unwrap()

    def peek(self) -> Iterator[fila.PeekedMessage]:
        position = 0
        while True:
            page = self.client.peek(self.name, 1000, from_position=position, timeout=60)
            yield from page.messages
            position = page.next_position
            if not position:
                return

    def payloads(self) -> Counter[str]:
        """What lies in the queue, as a multiset."""
        return Counter(each.message.payload.decode() for each in self.peek())

    def counts(self) -> tuple[int, int]:
        """Messages that are ready, and messages that are leased."""
        stats = self.client.stats(self.name, timeout=60)
        return stats.depth, stats.in_flight


def texts(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]
