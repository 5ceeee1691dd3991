# SPDX-License-Identifier: AGPL-3.0-only
"""The flusher: the one other thread. It makes writes durable while the owner thread goes on.

It spends its time inside fsync with the interpreter lock released. One fsync serves every group
that was written before it began. While nobody asks for one, it lets the store take note of what
work in the background has written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fila_server.core.clock import NS_PER_MS
from fila_server.core.schedule.histogram import Histogram
from fila_server.errors import StorageFailed
from fila_server.storage.api import Storage

# So long may the loss of a file that was just written out go unnoticed, if there are no syncs.
_IDLE_S = 1.0

Done = Callable[[StorageFailed | None], None]


class Flusher:
    """Calls `storage.sync` for whoever asks. `done` runs on the flusher's thread."""

    def __init__(self, storage: Storage, took_ms: Histogram) -> None:
        self._storage = storage
        self._took_ms = took_ms
        self._waiting: list[Done] = []
        self._stopping = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="fila-flusher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def flush(self, done: Done) -> None:
        """Make everything written so far durable, then call `done`, with the error if it failed."""
        with self._condition:
            self._waiting.append(done)
            self._condition.notify()

    def stop(self) -> None:
        """Finish what was asked for, then end the thread."""
        self.abandon()
        if self._thread.is_alive():  # else it was never started
            self._thread.join()

    def abandon(self) -> None:
        """Let the thread end when it can: the disk that it waits for may never answer."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._stopping, _IDLE_S)
                waiting, self._waiting = self._waiting, []
                is_stopping = self._stopping
            if not waiting:
                if is_stopping:
                    return
                self._settle()
                continue
            failure: StorageFailed | None = None
            began_ns = time.perf_counter_ns()
            try:
                self._storage.sync()
                self._took_ms.add((time.perf_counter_ns() - began_ns) / NS_PER_MS)
            except StorageFailed as error:  # never retried: see docs/internals/architecture.md
                failure = error
            for done in waiting:
                done(failure)

    def _settle(self) -> None:
        try:
            self._storage.settle()
        except StorageFailed:
            pass  # The next call of the owner raises it again.
