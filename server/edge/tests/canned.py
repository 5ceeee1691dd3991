# SPDX-License-Identifier: AGPL-3.0-only
"""An edge with canned answers behind it: the loop that a broker has, and nothing of a broker.

As a program it prints its address, answers until its input ends, and prints its figures.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import fila_edge
from fila_edge import BIDI, CALL, SERVER_STREAM, UNARY

SETTINGS = {
    "max_request_bytes": 16 * 1024 * 1024,
    "max_stream_request_bytes": 4096,
    "max_metadata_bytes": 16_384,
    "max_connections": 5000,
    "max_concurrent_streams": 1000,
    "max_concurrent_calls": 10_000,
    "inbox_bytes": 64 * 1024 * 1024,
    "max_unread_bytes": 256 * 1024 * 1024,
    "handshake_timeout_ms": 5000,
    "arrival_timeout_ms": 60_000,
    "keepalive_time_ms": 60_000,
    "keepalive_timeout_ms": 20_000,
    "min_ping_interval_ms": 10_000,
    "watches_max": 1000,
    "reflection_streams_max": 100,
}
# Echo answers with its request, Fail with a status, Hold waits for the test; so do Stream and Talk.
ROUTES = [
    ("/t.T/Echo", UNARY),
    ("/t.T/Fail", UNARY),
    ("/t.T/Hold", UNARY),
    ("/t.T/Stream", SERVER_STREAM),
    ("/t.T/Talk", BIDI),
]
ECHO, FAIL = 0, 1
WAIT_S = 60.0


class Canned:
    """An edge and its loop. `events` has what the loop does not answer by itself."""

    def __init__(self, *, pause_s: float = 0.0, **options: Any) -> None:
        settings = {**SETTINGS, **options.pop("settings", {})}
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            self.address = f"127.0.0.1:{listener.getsockname()[1]}"
            self.edge = fila_edge.Edge(
                listeners=[listener.detach()],
                routes=ROUTES,
                metadata=["authorization", "traceparent"],
                settings=settings,
                certificates=options.pop("certificates", None),
                needs_key=options.pop("needs_key", False),
                services=["t.T"],
                reflection=options.pop("reflection", None),
            )
        assert not options, options
        self.events: list[tuple[Any, ...]] = []
        self._changed = threading.Condition()
        self._pause_s = pause_s
        self._is_closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.edge.serving(True)

    def __enter__(self) -> Canned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closing = True
        self._thread.join()
        self.edge.close()

    def wait_for(self, kind: int, **wanted: Any) -> tuple[Any, ...]:
        """Take the first event of a kind out of those that came, or wait for it."""

        def found() -> tuple[Any, ...] | None:
            for event in self.events:
                if event[0] == kind and event[1] == wanted.get("id", event[1]):
                    self.events.remove(event)
                    return event
            return None

        with self._changed:
            event = self._changed.wait_for(found, WAIT_S)
            # The predicate took the event out the moment it returned it.
            assert event, f"no event {kind} {wanted}, but {self.events[:20]}"
            return event

    def settled(self, is_so: Callable[[dict[str, int]], bool]) -> None:
        """Wait until the figures are as they should be."""
        deadline = time.monotonic() + WAIT_S
        while not is_so(self.edge.figures()):
            assert time.monotonic() < deadline, self.edge.figures()
            time.sleep(0.01)

    def _run(self) -> None:
        while not self._is_closing:
            if not select.select([self.edge.fileno()], [], [], 0.05)[0]:
                continue
            time.sleep(self._pause_s)
            rows = self.edge.take(1000)
            answers = []
            rest = []
            for row in rows:
                if row[0] == CALL and row[2] == ECHO:
                    answers.append((row[1], row[3]))
                elif row[0] == CALL and row[2] == FAIL:
                    self.edge.end(row[1], 9, "100 % é", "HOOK_FAILED")
                else:
                    rest.append(row)
            self.edge.answer(answers)
            with self._changed:
                self.events += rest
                self._changed.notify_all()


def main() -> None:
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    with Canned(**options) as canned:
        print(canned.address, flush=True)
        sys.stdin.read()
        print(json.dumps(canned.edge.figures()), flush=True)


if __name__ == "__main__":
    main()
