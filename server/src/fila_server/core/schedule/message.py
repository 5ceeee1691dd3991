# SPDX-License-Identifier: AGPL-3.0-only
"""A message in memory, and the grant that leases a frame of messages.

These classes hold facts only. What moves a message from place to place is in places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fila_server.core.wire.records import ID_TAG, id_text, message_key

if TYPE_CHECKING:
    from fila_server.core.schedule.consumer import Consumer
    from fila_server.core.schedule.lane import Lane
    from fila_server.core.schedule.queue import Queue


class Extra:
    """What most messages do not have. Kept apart so that the common message stays small."""

    __slots__ = ("attempt", "due_at_ns", "due_ns", "ends_ns", "expires_ns", "has_retry", "order")

    def __init__(self) -> None:
        self.order = 0  # place in the lane; 0 when that is its number
        self.attempt = 0
        self.due_ns = 0  # wall clock: delayed until then; 0 when not delayed
        self.due_at_ns = 0  # the same on the monotonic clock, which decides
        self.expires_ns = 0  # wall clock: dropped then; 0 without a time to live
        self.ends_ns = 0  # the same on the monotonic clock, which decides
        self.has_retry = False  # a RETRIES record exists: attempts, place, errors


class Origin:
    """What the messages of one group share: when they came, and the front of their ids."""

    __slots__ = ("id_field", "id_prefix", "stamp")

    def __init__(self, stamp: bytes, id_field: bytes) -> None:
        self.stamp = stamp  # enqueued_at, as records.stamp encodes it
        self.id_field = id_field  # as it begins in a body
        self.id_prefix = id_field[len(ID_TAG) :].decode("ascii")


class Message:
    """One stored message that was picked, or is not like most. Others wait without an object.

    `content` is headers and payload as they will be sent; None while only the disk has them.
    """

    __slots__ = ("content", "extra", "grant", "lane", "number", "origin")

    def __init__(self, number: int, content: bytes | None, lane: Lane, origin: Origin) -> None:
        self.number = number
        self.content = content
        self.lane = lane
        self.origin = origin
        self.grant: Grant | None = None
        self.extra: Extra | None = None

    @property
    def id(self) -> str:
        return id_text(self.origin.id_prefix, self.number)

    @property
    def key(self) -> bytes:
        """Return its key in the MESSAGES column."""
        return message_key(self.lane.key.queue.number, self.number)

    @property
    def order(self) -> int:
        """Return its place in the lane."""
        return self.number if self.extra is None else self.extra.order or self.number

    @property
    def attempt(self) -> int:
        """Return how often it has failed."""
        return 0 if self.extra is None else self.extra.attempt

    def details(self) -> Extra:
        """Return the extra part, making it when the message has none yet."""
        if self.extra is None:
            self.extra = Extra()
        return self.extra

    @property
    def is_mortal(self) -> bool:
        """Whether it has a time to live."""
        return self.extra is not None and self.extra.expires_ns > 0

    @property
    def has_retry(self) -> bool:
        return self.extra is not None and self.extra.has_retry


def token_of(number: int) -> str:
    """Return the lease token of a frame's grant, which its extensions keep."""
    return f"{number:x}"


def token_number(token: str) -> int | None:
    """Return the number of the frame's grant that such a token names; None for nonsense.

    Several texts may name one number; only one of them is its token.
    """
    try:
        return int(token[:17], 16)
    except ValueError:
        return None


class Grant:
    """One delivery frame, or one extension: messages leased until the same time under one token."""

    __slots__ = (
        "consumer",
        "deadline_ns",
        "duration_ms",
        "expires_ns",
        "is_prolonged",
        "leased_ns",
        "left",
        "messages",
        "number",
        "queue",
        "renews",
        "token",
    )

    def __init__(
        self,
        number: int,
        token: str,
        queue: Queue,
        consumer: Consumer | None,
        messages: list[Message],
        leased_ns: int,
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
        self.leased_ns = leased_ns  # monotonic
        self.deadline_ns = deadline_ns  # monotonic
        self.expires_ns = expires_ns  # wall
        self.duration_ms = duration_ms
        self.is_prolonged = False  # as a whole, by somebody who has its frame
        self.renews: Grant | None = None  # the one that held its messages, if its record stays
