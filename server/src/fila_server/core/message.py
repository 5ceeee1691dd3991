# SPDX-License-Identifier: AGPL-3.0-only
"""A message in memory, and the grant that leases a frame of messages.

A message is in exactly one place: a lane (pending), `Queue.delayed`, or `Queue.leases`. These
classes hold state only; what moves a message lives in produce, deliver and settle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fila_server.core.consumer import Consumer
    from fila_server.core.lane import Lane
    from fila_server.core.queue import Queue


class Extra:
    """What most messages do not have. Kept apart so that the common message stays small."""

    __slots__ = ("due_ns", "ends_ns", "error", "expires_ns", "has_retry")

    def __init__(self) -> None:
        self.error = ""
        self.due_ns = 0  # wall clock: delayed until then; 0 when not delayed
        self.expires_ns = 0  # wall clock: dropped then; 0 without a time to live
        self.ends_ns = 0  # the same on the monotonic clock, which decides
        self.has_retry = False  # a RETRIES record exists


class Message:
    """One stored message.

    `body` is its encoding as it will be sent; None while only the disk has it.
    """

    __slots__ = ("attempt", "body", "extra", "grant", "id", "key", "lane", "order", "stamp")

    def __init__(
        self, key: bytes, id: str, body: bytes | None, lane: Lane, stamp: bytes, order: int
    ) -> None:
        self.key = key  # in the MESSAGES column
        self.id = id
        self.body = body
        self.lane = lane
        self.stamp = stamp  # enqueued_at, as records.stamp encodes it
        self.order = order  # place in the lane
        self.attempt = 0
        self.grant: Grant | None = None
        self.extra: Extra | None = None

    @property
    def number(self) -> int:
        return int.from_bytes(self.key[4:], "big")

    def details(self) -> Extra:
        """Return the extra part, making it when the message has none yet."""
        if self.extra is None:
            self.extra = Extra()
        return self.extra


class Grant:
    """One delivery frame, or one extension: messages leased until the same time under one token."""

    __slots__ = (
        "consumer",
        "deadline_ns",
        "duration_ms",
        "expires_ns",
        "left",
        "messages",
        "number",
        "queue",
        "token",
    )

    def __init__(
        self,
        number: int,
        token: str,
        queue: Queue,
        consumer: Consumer | None,
        messages: list[Message],
        deadline_ns: int,
        expires_ns: int,
        duration_ms: int,
    ) -> None:
        self.number = number
        self.token = token
        self.queue = queue
        self.consumer = consumer  # None after a restart: nobody's credit to give back
        self.messages = messages
        self.left = len(messages)  # how many of them still point here
        self.deadline_ns = deadline_ns  # monotonic
        self.expires_ns = expires_ns  # wall
        self.duration_ms = duration_ms
