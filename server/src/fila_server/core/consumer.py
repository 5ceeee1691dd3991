# SPDX-License-Identifier: AGPL-3.0-only
"""A consumer: an open stream, or one Receive call that waits. It holds the credit that bounds its
leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fila_server.core.queue import Queue

# Frames that may be under way to one stream. Two keep the wire busy while the next frame is made;
# more
# would only lease messages that wait in a buffer.
FRAMES_UNDER_WAY = 2


class Consumer:
    """`sink` belongs to the runtime, which puts frames there; the core never looks inside."""

    __slots__ = (
        "credit",
        "is_available",
        "is_once",
        "is_open",
        "key_id",
        "max_batch",
        "queue",
        "sink",
        "visibility_ms",
        "window",
    )

    def __init__(
        self,
        queue: Queue,
        credit: int,
        max_batch: int,
        visibility_ms: int,
        is_once: bool,
        sink: object,
        key_id: str = "",
    ) -> None:
        self.queue = queue
        self.credit = credit
        self.max_batch = max_batch
        self.visibility_ms = visibility_ms  # 0 takes the queue's
        self.is_once = is_once  # a Receive: one frame and it is done
        self.sink = sink
        self.key_id = key_id  # the API key that opened it; empty for none, or one that cannot end
        self.window = 1 if is_once else FRAMES_UNDER_WAY
        self.is_open = True
        self.is_available = False  # stands in queue.available

    def offer(self) -> None:
        """Stand in line for messages if there is credit and room for a frame."""
        if self.credit > 0 and self.window > 0 and self.is_open and not self.is_available:
            self.is_available = True
            self.queue.available.append(self)
