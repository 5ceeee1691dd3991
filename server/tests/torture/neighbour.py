# SPDX-License-Identifier: AGPL-3.0-only
"""A client that minds its own business beside the torture: enqueue, receive, ack, again and again,
in a process of its own, so that its waits are the broker's and not those of whoever tortures.

Run as a module it is that process: `python -m server.tests.torture.neighbour ADDRESS [API_KEY]`.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import fila

QUEUE = "neighbour"
PAUSE_S = 0.01
# Far beyond what anybody would wait; a call that takes longer counts as never answered.
DEADLINE_S = 60.0


class Lifecycle(NamedTuple):
    """One message enqueued, received and acked: when it began and what it took, in seconds."""

    began: float
    took: float


class Neighbour:
    """The process, seen from outside. `calls` and `errors` are filled when it has ended."""

    def __init__(self, address: str, api_key: str = "") -> None:
        command = [sys.executable, "-m", __name__, address, *([api_key] if api_key else [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has had a first answer
        self.calls: list[Lifecycle] = []
        self.errors: list[str] = []

    def end(self) -> None:
        """Let it finish what it does, and take over what it noted."""
        said, _ = self._process.communicate()
        noted = json.loads(said.splitlines()[-1])
        self.calls = [Lifecycle(*call) for call in noted["calls"]]
        self.errors = noted["errors"]

    def p50_ms(self, since: float, until: float) -> float:
        """The median of what was under way in a span of the monotonic clock."""
        return 1000 * median(self._during(since, until) or [0.0])

    def worst_ms(self, since: float, until: float) -> float:
        return 1000 * max(self._during(since, until), default=0.0)

    def _during(self, since: float, until: float) -> list[float]:
        return [it.took for it in self.calls if it.began < until and it.began + it.took > since]


@contextmanager
def neighbour(address: str, api_key: str = "") -> Iterator[Neighbour]:
    beside = Neighbour(address, api_key)
    try:
        yield beside
    finally:
        beside.end()


def serve(address: str, api_key: str) -> None:
    """Go on until standard input ends, then print what was noted."""
    told = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    calls: list[Lifecycle] = []
    errors: list[str] = []
    with fila.Client(address, api_key=api_key or None, timeout=DEADLINE_S) as client:
        while not told.is_set():
            began = time.monotonic()
            try:
                lifecycle(client)
                calls.append(Lifecycle(began, time.monotonic() - began))
            except fila.FilaError as error:
                errors.append(f"{type(error).__name__}: {error}")
                time.sleep(0.2)
            if len(calls) + len(errors) == 1:
                print("there", flush=True)
            time.sleep(PAUSE_S)
    print(json.dumps({"calls": calls, "errors": errors}), flush=True)
    os._exit(0)  # standard input may be blocked in its thread


def lifecycle(client: fila.Client) -> None:
    client.enqueue(QUEUE, None, b"mine")
    (message,) = client.receive(QUEUE, wait_ms=30_000)
    message.ack()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
