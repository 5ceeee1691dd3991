# SPDX-License-Identifier: AGPL-3.0-only
"""Lanes and fairness keys: where pending messages wait.

A lane is the FIFO of one fairness key's messages with the same throttle keys and cost. It is
always sorted by the messages' order. A message that is only on disk is represented by its number
alone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from fila_server.core.message import Message
from fila_server.core.records import framed_metadata, lane_head, lane_metadata

if TYPE_CHECKING:
    from fila_server.core.queue import Queue
    from fila_server.core.records_pb2 import Head
    from fila_server.core.throttle import Limiter

LaneKey = tuple[tuple[str, ...], int]  # throttle keys, sorted, and cost
PLAIN: LaneKey = ((), 1)


class Lane:
    """One FIFO of pending messages; `messages` holds a Message or the bare number of a cold one."""

    __slots__ = (
        "cost",
        "head",
        "head_weight",
        "is_ready",
        "key",
        "lane_key",
        "limiters",
        "messages",
        "metadata",
        "metadata_of",
        "parked_on",
        "passes",
        "throttle_keys",
        "turn",
    )

    def __init__(self, key: FairnessKey, lane_key: LaneKey) -> None:
        self.key = key
        self.lane_key = lane_key
        self.throttle_keys, self.cost = lane_key
        self.messages: deque[Message | int] = deque()
        self.limiters: tuple[Limiter, ...] = ()
        self.parked_on: Limiter | None = None  # the limiter that it waits for
        self.passes = 0  # deliveries that a waking limiter set aside for it
        self.turn = 0  # deliveries left of its share of the limiter that it waits for
        self.is_ready = False  # stands in key.ready
        # Encodings that many messages share, each with what it was made for.
        self.head = b""
        self.head_weight = -1
        self.metadata = b""
        self.metadata_of = (0, 0)  # weight, bytes of the token field that follows

    @property
    def is_parked(self) -> bool:
        return self.parked_on is not None and not self.is_ready

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
        self.metadata_of = (self.key.weight, token_bytes)
        return self.metadata

    def insert(self, batch: list[Message]) -> None:
        """Put messages where their order belongs.

        Cheap when they belong near the front or at the end.
        """
        batch.sort(key=order_of)
        messages = self.messages
        last = batch[-1].order
        passed: list[Message | int] = []
        while messages and order_of(messages[0]) < last:
            passed.append(messages.popleft())
            if len(passed) > len(messages):  # they belong near the end: come from that side
                messages.extendleft(reversed(passed))
                self._insert_from_right(batch)
                return
        merged = sorted([*passed, *batch], key=order_of)
        messages.extendleft(reversed(merged))

    def _insert_from_right(self, batch: list[Message]) -> None:
        messages = self.messages
        first = batch[0].order
        passed: list[Message | int] = []
        while messages and order_of(messages[-1]) > first:
            passed.append(messages.pop())
        messages.extend(sorted([*passed, *batch], key=order_of))


def lane_key_of(head: Head) -> LaneKey:
    """Return the lane, within its fairness key, of a message with such a head."""
    return (tuple(head.throttle_keys), head.throttle_cost or 1) if head.throttle_keys else PLAIN


def order_of(message: Message | int) -> int:
    """Return the place in its lane of a message, or of the number that stands for one."""
    return message if isinstance(message, int) else message.order


class FairnessKey:
    """One fairness key of one queue, while it has pending messages and a little longer."""

    __slots__ = (
        "deficit",
        "delivered",
        "in_ring",
        "is_paused",
        "lanes",
        "name",
        "pending",
        "queue",
        "ready",
        "resting",
        "weight",
    )

    def __init__(self, queue: Queue, name: str) -> None:
        self.queue = queue
        self.name = name
        self.weight = 1
        self.deficit = 0
        self.lanes: dict[LaneKey, Lane] = {}
        self.resting: dict[LaneKey, Lane] = {}  # lanes that emptied lately
        self.ready: deque[Lane] = deque()  # lanes with messages that are not parked
        self.in_ring = False
        self.is_paused = False
        self.pending = 0
        self.delivered = 0
