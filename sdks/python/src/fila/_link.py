# SPDX-License-Identifier: AGPL-3.0-only
"""Whether the broker is there, as calls and streams find it, told once per change.

    (nothing known) --answer--> connected --failure--> lost --failure--> unreachable
           |                        ^                   |                     |
           '------- failure ----> unreachable           '------ answer -------'

A failure counts that is nobody's answer: UNAVAILABLE without a reason of the broker's. Calls that
began before a loss say nothing about what follows it, so each is known by the number of losses at
its beginning. Nothing here asks the broker by itself: an idle client notices with its next call.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from fila.options import ConnectionEvent

_log = logging.getLogger("fila")


class Link:
    """What is known of one client's connection. Any thread may tell it, a signal handler too."""

    def __init__(self, target: str, on_connection: Callable[[ConnectionEvent], object] | None):
        self.is_up = False
        self.losses = 0
        self._target = target
        self._tell = on_connection
        self.is_unreachable = False
        self._away_since: float | None = None
        # A handler that interrupts a change may make one of its own.
        self._lock = threading.RLock()
        self._events: deque[ConnectionEvent] = deque()
        self._is_telling = threading.Lock()

    def answered(self, losses: int) -> None:
        """A call that began when there had been so many losses got an answer."""
        with self._lock:
            if self.is_up or losses != self.losses:
                return
            self.is_up = True
            self.is_unreachable = False
            if self._away_since is not None:
                seconds = time.monotonic() - self._away_since
                self._away_since = None
                _log.info("connected to %s after %.1f s", self._target, seconds)
            self._events.append(ConnectionEvent("connected"))
        self._deliver()

    def failed(self, losses: int, reason: str) -> None:
        """A call that began when there had been so many losses did not reach the broker."""
        with self._lock:
            if losses != self.losses or self.is_unreachable:
                return
            if self._away_since is None:
                self._away_since = time.monotonic()
            if self.is_up:
                self.is_up = False
                self.losses += 1
                _log.warning("lost the connection to %s: %s", self._target, reason)
                self._events.append(ConnectionEvent("lost", reason))
            else:
                self.is_unreachable = True
                _log.warning("cannot reach %s: %s", self._target, reason)
                self._events.append(ConnectionEvent("unreachable", reason))
        self._deliver()

    def _deliver(self) -> None:
        """Tells of events in order, whichever threads they come from, and holds up nobody."""
        while self._events and self._is_telling.acquire(blocking=False):
            try:
                event = self._events.popleft() if self._events else None
                if event is not None and self._tell is not None:
                    self._tell(event)
            except Exception:
                _log.exception("on_connection failed")
            finally:
                self._is_telling.release()
