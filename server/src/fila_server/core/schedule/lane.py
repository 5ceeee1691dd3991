# SPDX-License-Identifier: AGPL-3.0-only
"""Lanes and fairness keys: where pending messages wait.

A lane is the FIFO of one fairness key's messages with the same throttle keys and cost. Most of
them stand in `fifo`, sorted by their order because that is how they come. Those that come out
of order (a delay is over, a frame was given back) or may leave before their turn (a time to live)
stand aside, in a sorted table: both ends of both are cheap, and so is taking one out of the
middle. A message that is only on disk is represented by its number alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from fila_server.core.schedule.fifo import Fifo, Waiting
from fila_server.core.schedule.message import Message
from fila_server.core.wire.frames import DELIVERY_BYTES, framed_metadata, lane_metadata
from fila_server.core.wire.records import LaneKey, lane_head

if TYPE_CHECKING:
    from fila_server.core.schedule.held import Held
    from fila_server.core.schedule.limiter import Limiter
    from fila_server.core.schedule.line import Line
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.schedule.usage import Usage


class Lane:
    """One FIFO of pending messages. Only places and ring take messages in and out."""

    __slots__ = (
        "aside",
        "cost",
        "fifo",
        "goes_on",
        "head",
        "head_weight",
        "held_by_limit",
        "held_by_rate",
        "is_ready",
        "key",
        "lane_key",
        "level",
        "limiters",
        "line",
        "metadata",
        "metadata_room",
        "metadata_weight",
        "overhead",
        "tags",
        "throttle_keys",
        "ticket",
        "yielded",
    )

    def __init__(self, key: FairnessKey, lane_key: LaneKey, limiters: tuple[Limiter, ...]) -> None:
        self.key = key
        self.lane_key = lane_key
        self.throttle_keys, self.cost = lane_key
        self.fifo = Fifo()
        self.aside: SortedDict[int, Waiting] | None = None  # by order
        self.is_ready = False  # stands in key.ready
        # Of line.py: the line that it waits in, or was woken from and has not used yet.
        self.limiters = limiters
        self.tags = [0] * len(limiters)  # its virtual time at each limiter
        self.level = 0  # what it has had by weight, beside others in lines that it stands in
        self.line: Line | None = None
        self.ticket: tuple[int, int, int] = (0, 0, 0)  # its place in that line
        self.goes_on = False  # has had messages ever since it joined its limiters' lines
        self.yielded = False  # stepped back for others since its last delivery
        self.held_by_rate: Held | None = None  # when it was parked, since it last was empty
        self.held_by_limit: Held | None = None
        # Encodings that many messages share, each with what it was made for.
        self.head = b""
        self.head_weight = -1
        self.metadata = b""
        self.metadata_weight = 0
        self.metadata_room = 0  # bytes of the token field that follows
        # Bytes that a delivery adds to a body, at most, but for what a failure left behind.
        characters = len(key.name) + len(key.queue.name) + sum(map(len, self.throttle_keys))
        self.overhead = 4 * characters + 4 * len(self.throttle_keys) + DELIVERY_BYTES

    def __len__(self) -> int:
        return self.fifo.size + (len(self.aside) if self.aside else 0)

    def __bool__(self) -> bool:
        return self.fifo.size > 0 or bool(self.aside)

    @property
    def is_parked(self) -> bool:
        """Whether it stands in a limiter's line and takes no part in its key's turns."""
        return self.line is not None and not self.is_ready

    def record_head(self, weight: int) -> bytes:
        """Return the stored head of a plain message up to its stamp; see records.lane_head."""
        if self.head_weight != weight:
            self.head = lane_head(self.key.name, weight, self.throttle_keys, self.cost)
            self.head_weight = weight
        return self.head

    def metadata_fields(self) -> bytes:
        """Return the encoded metadata fields that all deliveries from this lane share."""
        key = self.key
        return lane_metadata(key.queue.name, key.name, key.weight, self.throttle_keys, self.cost)

    def frame_metadata(self, token_bytes: int) -> bytes:
        """Make and keep `metadata` for deliveries whose token field has so many bytes."""
        self.metadata = framed_metadata(self.metadata_fields(), token_bytes)
        self.metadata_weight = self.key.weight
        self.metadata_room = token_bytes
        return self.metadata

    # --- Order ------------------------------------------------------------------------------------

    def set_aside(self, order: int, waiting: Waiting) -> None:
        if self.aside is None:
            self.aside = SortedDict()
        self.aside[order] = waiting

    def first(self) -> Waiting | None:
        """Return the message that comes next, None when the lane is empty; its number if it has no
        object.
        """
        if self._is_next_aside():
            return self.aside.peekitem(0)[1]  # type: ignore[no-any-return, union-attr]
        return self.fifo.first() if self.fifo.size else None

    def has_ended(self, now_ns: int) -> bool:
        """Whether the message that comes next has outlived its time to live."""
        first = self.first()
        if not isinstance(first, Message) or first.extra is None:
            return False
        return 0 < first.extra.ends_ns <= now_ns

    def pop(self) -> Waiting:
        """Take out the message that comes next. The lane is not empty."""
        if self._is_next_aside():
            return self.aside.popitem(0)[1]  # type: ignore[no-any-return, union-attr]
        return self.fifo.pop(self)

    def _is_next_aside(self) -> bool:
        if not self.aside:
            return False
        return not self.fifo.size or self.aside.peekitem(0)[0] < self.fifo.first_order()

    def has(self, order: int) -> bool:
        """Whether the message of this order is here."""
        return (self.aside is not None and order in self.aside) or order in self.fifo

    def before(self, order: int) -> int:
        """Return how many come before the message of this order."""
        return self.fifo.before(order) + (self.aside.bisect_left(order) if self.aside else 0)

    def discard(self, order: int) -> Waiting | None:
        """Take the message of this order out, wherever it stands; None if it is not here."""
        if self.aside and order in self.aside:
            return self.aside.pop(order)  # type: ignore[no-any-return]
        return self.fifo.discard(order, self)


def order_of(waiting: Waiting) -> int:
    """Return the place in its lane of a message, or of the number that stands for one."""
    return waiting if isinstance(waiting, int) else waiting.order


class FairnessKey:
    """One fairness key of one queue, while it has pending messages and a little longer."""

    __slots__ = (
        "asked_weight",
        "deficit",
        "delivered",
        "held_paused",
        "in_ring",
        "is_paused",
        "lanes",
        "name",
        "pending",
        "queue",
        "ready",
        "resting",
        "reviewed",
        "usage",
        "weight",
    )

    def __init__(self, queue: Queue, name: str, usage: Usage) -> None:
        self.queue = queue
        self.name = name
        self.usage = usage  # where it is counted
        self.reviewed = 0  # traffic, when it was last looked at
        self.weight = 1
        self.asked_weight = 0  # what an enqueue said last; a setting wins over it
        self.lanes: dict[LaneKey, Lane] = {}
        self.resting: dict[LaneKey, Lane] = {}  # lanes that emptied lately
        self.is_paused = False
        self.held_paused: Held | None = None
        # Of ring.py: whose turn it is.
        self.ready: OrderedDict[Lane, None] = OrderedDict()  # lanes that are not parked
        self.in_ring = False
        self.deficit = 0  # what is left of its turn; outside the ring, of the turn that it left in
        # Of places.py.
        self.pending = 0
        self.delivered = 0

    @property
    def traffic(self) -> int:
        """Return what makes a key a busy one."""
        return self.delivered

    @property
    def turn_left(self) -> int:
        """Return the deliveries that are left of the key's turn; 0 outside the ring."""
        return self.deficit if self.in_ring else 0
