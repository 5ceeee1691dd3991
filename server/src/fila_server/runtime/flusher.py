# SPDX-License-Identifier: AGPL-3.0-only
"""The flusher: the one other thread. It makes writes durable while the owner thread goes on.

It spends its time inside fsync with the interpreter lock released. One fsync serves every group
that was written before it began.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fila_server.errors import StorageFailed
from fila_server.storage.api import Storage

Done = Callable[[StorageFailed | None], None]


class Flusher:
    """Calls `storage.sync` for whoever asks. `done` runs on the flusher's thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
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
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._stopping:
                    self._condition.wait()
                waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            failure: StorageFailed | None = None
            try:
                self._storage.sync()
            except StorageFailed as error:  # never retried: see docs/internals/architecture.md
                failure = error
            for done in waiting:
                done(failure)
