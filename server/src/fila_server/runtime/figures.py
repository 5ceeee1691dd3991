# SPDX-License-Identifier: AGPL-3.0-only
"""What the engine counts about itself: groups, commits, fsyncs and turns. Once per group, so it
costs messages nothing.
"""

from __future__ import annotations

from fila_server.core.schedule.histogram import Histogram

# Milliseconds: a turn takes a fraction of one, an fsync of a slow disk a hundred.
_TIMES_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Figures:
    """Histograms of the engine's work. `fsync_ms` is the flusher's, the rest the owner's."""

    __slots__ = ("commit_ms", "fsync_ms", "group_items", "turn_ms", "turn_units")

    def __init__(self) -> None:
        self.group_items = Histogram(_COUNTS)
        self.turn_units = Histogram(_COUNTS)
        self.turn_ms = Histogram(_TIMES_MS)
        self.commit_ms = Histogram(_TIMES_MS)
        self.fsync_ms = Histogram(_TIMES_MS)
