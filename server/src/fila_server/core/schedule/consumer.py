# SPDX-License-Identifier: AGPL-3.0-only
"""A consumer: an open stream, or one Receive call that waits. It holds the credit that bounds its
leases, and is known outside by its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fila_server.core.schedule.queue import Queue

# Frames that may be under way to one stream. Two keep the wire busy while the next frame is made;
# more would only lease messages that wait in a buffer.
FRAMES_UNDER_WAY = 2


class Consumer:
    """Whoever takes messages from one queue."""

    __slots__ = (
        "credit",
        "in_flight",
        "is_available",
        "is_once",
        "is_open",
        "key_id",
        "max_batch",
        "number",
        "queue",
        "visibility_ms",
        "window",
    )

    def __init__(
        self,
        number: int,
        queue: Queue,
        credit: int,
        max_batch: int,
        visibility_ms: int,
        is_once: bool,
        key_id: str = "",
    ) -> None:
        self.number = number
        self.queue = queue
        self.credit = credit
        self.max_batch = max_batch
        self.visibility_ms = visibility_ms  # 0 takes the queue's
        self.is_once = is_once  # a Receive: one frame and it is done
        self.key_id = key_id  # the API key that opened it; empty for none, or one that cannot end
        self.window = 1 if is_once else FRAMES_UNDER_WAY
        self.is_open = True
        self.is_available = False  # stands in queue.available
        self.in_flight = 0  # messages that it has leased

    def offer(self) -> bool:
        """Stand in line for messages if there is credit and room for a frame."""
        can_take = self.credit > 0 and self.window > 0 and self.is_open
        if can_take:
            self.queue.available[self] = None
        elif self.is_available:
            del self.queue.available[self]
        self.is_available = can_take
        return can_take

    def sent(self, count: int) -> None:
        """Account for a frame, and let the others be served first."""
        self.credit -= count
        self.in_flight += count
        self.window -= 1
        if self.is_once:
            self.is_open = False
        if self.offer():
            self.queue.available.move_to_end(self)

    def close(self) -> None:
        self.is_open = False
        self.offer()
        self.queue.consumers.pop(self, None)
