# SPDX-License-Identifier: AGPL-3.0-only
"""How often something happens, for estimates. Costs an addition and a comparison each time."""

from __future__ import annotations

from fila_server.core.clock import NS_PER_S

# Long enough to see past one frame, short enough to follow consumers that come and go.
_WINDOW_NS = NS_PER_S
# A pace older than this says nothing about what comes next.
_FRESH_NS = 30 * NS_PER_S


class Pace:
    """Events per second over the last full window."""

    __slots__ = ("_count", "_measured_ns", "_per_second", "_since_ns")

    def __init__(self) -> None:
        self._since_ns = 0
        self._count = 0
        self._per_second = 0.0
        self._measured_ns = 0

    def count(self, events: int, now_ns: int) -> None:
        """Note events of now."""
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= _WINDOW_NS:
            # A window that began long ago was idle for most of it: it measures nothing.
            if self._count and elapsed_ns < _FRESH_NS:
                self._per_second = self._count * NS_PER_S / elapsed_ns
                self._measured_ns = now_ns
            self._since_ns = now_ns
            self._count = 0
        self._count += events

    def per_second(self, now_ns: int) -> float:
        """Return the pace; 0.0 when nothing happened lately."""
        return self._per_second if now_ns - self._measured_ns < _FRESH_NS else 0.0
