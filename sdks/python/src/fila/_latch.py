# SPDX-License-Identifier: AGPL-3.0-only
"""A gate that opens once, for good, and that a signal handler may open.

An Event would not do: whoever sets or awaits it holds a lock of it for a moment, and a signal
handler that sets it in that moment waits for itself.
"""

import threading


class Latch:
    """Closed until it is opened; whoever waits goes on then."""

    __slots__ = ("_gate", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def open(self) -> None:
        self.is_open = True
        try:
            self._gate.release()
        except RuntimeError:  # it was open
            pass

    def wait(self, timeout: float = -1) -> bool:
        """Returns whether it is open, after at most `timeout` seconds; below 0 without end."""
        try:
            if not self.is_open:
                self._gate.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
        finally:
            if self.is_open:  # for whoever waits, too
                self.open()
        return self.is_open
