# SPDX-License-Identifier: AGPL-3.0-only
"""What deliveries waited for, as histograms by cause.

A message's time from enqueue to first delivery is taken apart: its own delay, then what its key or
queue was paused, its lane parked at a rate or at a concurrency limit, its queue without a consumer
that had credit; the rest was waiting for its turn. Where two held it back at once the first of
these counts. A retry is not measured: part of its time somebody held it.

Large frames are sampled: each message that is measured stands for its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila_server.core.clock import NS_PER_MS
from fila_server.core.schedule.histogram import Histogram
from fila_server.core.schedule.usage import WAIT_BOUNDS_MS
from fila_server.core.wire.records import stamp_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fila_server.core.clock import Now
    from fila_server.core.schedule.message import Message
    from fila_server.core.schedule.queue import Queue

CAUSES = ("delay", "pause", "throttle", "concurrency", "no_consumer", "turn")
# Measured per frame; measuring one takes about 5 us, a third of what a message takes in all.
_SAMPLE = 8


class Waits:
    """What the deliveries of one queue waited for."""

    __slots__ = ("by_cause",)

    def __init__(self) -> None:
        self.by_cause = {cause: Histogram(WAIT_BOUNDS_MS) for cause in CAUSES}

    def measure(self, queue: Queue, messages: Sequence[Message], now: Now) -> None:
        """Account for the messages of a frame."""
        step = -(-len(messages) // _SAMPLE)
        for at in range(0, len(messages), step):
            if not messages[at].has_retry:
                self._measure(queue, messages[at], min(step, len(messages) - at), now)

    def _measure(self, queue: Queue, message: Message, count: int, now: Now) -> None:
        left_ns = now.wall_ns - stamp_ns(message.origin.stamp)
        lane = message.lane
        key = lane.key
        key.usage.waits.add(max(0, left_ns) / NS_PER_MS, count)
        now_ns = now.mono_ns
        if left_ns <= 0:  # the wall clock stepped back
            return
        by_cause = self.by_cause
        extra = message.extra
        if extra is not None and extra.due_at_ns:
            delay_ns = min(left_ns, max(0, left_ns - (now_ns - extra.due_at_ns)))
            left_ns = _part(by_cause["delay"], delay_ns, left_ns, count)
        since_ns = now_ns - left_ns
        for cause, held in (
            ("pause", queue.held_paused),
            ("pause", key.held_paused),
            ("throttle", lane.held_by_rate),
            ("concurrency", lane.held_by_limit),
            ("no_consumer", queue.held_unserved),
        ):
            if held is not None and left_ns > 0:
                left_ns = _part(by_cause[cause], held.between(since_ns, now_ns), left_ns, count)
        by_cause["turn"].add(left_ns / NS_PER_MS, count)


def _part(histogram: Histogram, part_ns: int, left_ns: int, count: int) -> int:
    """Count a part of a wait, and return what is left to be explained."""
    part_ns = min(part_ns, left_ns)
    if part_ns > 0:
        histogram.add(part_ns / NS_PER_MS, count)
    return left_ns - part_ns
