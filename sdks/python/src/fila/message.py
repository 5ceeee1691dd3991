# SPDX-License-Identifier: AGPL-3.0-only
"""What goes in and what comes out: messages to enqueue, their results, messages delivered.

A delivered message keeps the protobuf object it came in and reads most fields from it on first
access; reading all of them for every message costs three times as much as parsing the frame. This
module does no I/O: settling goes through the client that received the message.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fila._answers import member, moment
from fila.errors import FilaError
from fila.v1 import messages_pb2

if TYPE_CHECKING:
    from fila.aio import AsyncClient
    from fila.client import Client

BytesLike = bytes | bytearray | memoryview


# Not frozen: that makes creating one five times slower, and bulk loads create millions.
@dataclass(slots=True)
class EnqueueMessage:
    """One message for `enqueue_many`; the fields are the arguments of `enqueue`.

    `text`, or what `json` encodes, may stand for the payload, in UTF-8.
    """

    queue: str
    headers: Mapping[str, str] | None = None
    payload: BytesLike = b""
    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: Iterable[str] = ()
    throttle_cost: int | None = None
    delay_ms: int | None = None
    deliver_at: datetime | None = None
    ttl_ms: int | None = None
    idempotency_key: str | None = None
    text: str | None = None
    json: Any = ...  # not given; None is null


@dataclass(slots=True)
class EnqueueResult:
    """What became of one message: its id, or the error that kept it from being stored."""

    message_id: str
    duplicate: bool = False
    error: FilaError | None = None

    def unwrap(self) -> str:
        """The message's id. Raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.message_id


class FailureCause(StrEnum):
    """What kind of failure it was; the last two are what dead-lettered the message."""

    NACK = "nack"
    EXPIRED = "expired"
    MAX_ATTEMPTS = "max_attempts"
    HOOK = "hook"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a message; the broker cuts the error to 256 bytes."""

    failed_at: datetime | None
    cause: FailureCause | None
    error: str


class _Source:
    # Slots outside the dataclass below, so that `dataclasses.fields` shows only what users know.
    __slots__ = ("_client", "_frame_size", "_is_settled", "_raw")
    _client: Any
    _is_settled: bool  # empty until then
    _frame_size: Any  # int: how many messages came together with it; 0 if nobody knows
    _raw: Any  # a messages_pb2.Message


@dataclass(slots=True, init=False, repr=False, eq=False)
class Message(_Source):
    """A message as the broker holds it. `Client.peek` shows these; they cannot be settled."""

    id: str
    queue: str
    headers: dict[str, str]
    payload: bytes
    fairness_key: str
    weight: int
    throttle_keys: tuple[str, ...]
    attempt_count: int
    lease_token: str
    last_error: str
    failures: tuple[Failure, ...]
    enqueued_at: datetime | None
    lease_expires_at: datetime | None

    def __init__(
        self,
        raw: messages_pb2.Message,
        client: Any = None,
        frame_size: int = 0,
        shared: tuple[str, str] | None = None,
    ) -> None:
        # Every consumer needs these; the rest waits for `__getattr__`.
        self.id = raw.id
        self.payload = raw.payload
        if shared is None:
            metadata = raw.metadata
            self.queue = metadata.queue_id
            self.lease_token = metadata.lease_token
        else:  # by all messages of a frame
            self.queue, self.lease_token = shared
        self._raw = raw
        self._client = client
        self._frame_size = frame_size

    if not TYPE_CHECKING:  # Type checkers would take it for a promise of every other attribute.

        def __getattr__(self, name: str) -> Any:
            # Python comes here only for a slot that is empty.
            fill = _FILL.get(name)
            if fill is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            fill(self, self._raw)
            return getattr(self, name)

    @property
    def text(self) -> str:
        """The payload as text. Raises ValueError if it is not UTF-8."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            text = f'payload of message "{self.id}" is not UTF-8: {error.reason} at {error.start}'
            raise ValueError(text) from None

    def json(self) -> Any:
        """What the payload says as JSON. Raises ValueError if it is not JSON in UTF-8."""
        try:
            return json.loads(self.text)
        except json.JSONDecodeError as error:
            raise ValueError(f'payload of message "{self.id}" is not JSON: {error}') from None

    def __repr__(self) -> str:
        # No payload and no headers: they must not end up in a log by accident.
        return (
            f"{type(self).__name__}(id={self.id!r}, queue={self.queue!r}, "
            f"fairness_key={self.fairness_key!r}, attempt_count={self.attempt_count})"
        )


class ConsumeMessage(Message):
    """A message leased to this client until `lease_expires_at`: ack, nack or extend it."""

    __slots__ = ()
    _client: "Client"

    def ack(self) -> None:
        """Reports that the message was processed; it is gone. Fails as `Client.ack` does."""
        self._client._ack_message(self)
        self._is_settled = True

    def nack(
        self,
        error: str = "",
        *,
        retry_after_ms: int | None = None,
        throttle_key: str | None = None,
        dead_letter: bool = False,
    ) -> None:
        """Reports that processing failed. Fails as `Client.nack` does."""
        self._client.nack(
            self.queue,
            self.id,
            error,
            self.lease_token,
            retry_after_ms=retry_after_ms,
            throttle_key=throttle_key,
            dead_letter=dead_letter,
        )
        self._is_settled = True

    def extend(self, ms: int | None = None) -> datetime:
        """Prolongs the lease to `ms` from now, and returns its new end."""
        end = self._client.extend(self.queue, self.id, self.lease_token, ms)
        self.lease_expires_at = end
        return end


class AsyncConsumeMessage(Message):
    """A message leased to this client until `lease_expires_at`: ack, nack or extend it."""

    __slots__ = ()
    _client: "AsyncClient"

    async def ack(self) -> None:
        """Reports that the message was processed; it is gone. Fails as `AsyncClient.ack` does."""
        await self._client._ack_message(self)
        self._is_settled = True

    async def nack(
        self,
        error: str = "",
        *,
        retry_after_ms: int | None = None,
        throttle_key: str | None = None,
        dead_letter: bool = False,
    ) -> None:
        """Reports that processing failed. Fails as `AsyncClient.nack` does."""
        await self._client.nack(
            self.queue,
            self.id,
            error,
            self.lease_token,
            retry_after_ms=retry_after_ms,
            throttle_key=throttle_key,
            dead_letter=dead_letter,
        )
        self._is_settled = True

    async def extend(self, ms: int | None = None) -> datetime:
        """Prolongs the lease to `ms` from now, and returns its new end."""
        end = await self._client.extend(self.queue, self.id, self.lease_token, ms)
        self.lease_expires_at = end
        return end


def note_settled(messages: Iterable[Message], outcomes: Iterable[FilaError | None]) -> None:
    """Those without an error are settled; a worker leaves them alone."""
    for message, outcome in zip(messages, outcomes, strict=True):
        if outcome is None and isinstance(message, Message):
            setattr(message, "_is_settled", True)  # noqa: B010 - a slot that mypy cannot see


def note_extended(messages: Iterable[Message], outcomes: Iterable[datetime | FilaError]) -> None:
    """Those without an error know when their lease ends."""
    for message, outcome in zip(messages, outcomes, strict=True):
        if isinstance(outcome, datetime) and isinstance(message, Message):
            message.lease_expires_at = outcome


def is_settled(message: Message) -> bool:
    return getattr(message, "_is_settled", False)


def read_failures(rows: Iterable[messages_pb2.Failure]) -> tuple[Failure, ...]:
    return tuple(
        Failure(
            moment(row, "failed_at"),
            member(FailureCause, messages_pb2.FailureCause, row.cause),
            row.error,
        )
        for row in rows
    )


def _fill_headers(message: Message, raw: messages_pb2.Message) -> None:
    message.headers = dict(raw.headers)


def _fill_metadata(message: Message, raw: messages_pb2.Message) -> None:
    metadata = raw.metadata
    message.fairness_key = metadata.fairness_key
    message.weight = metadata.weight
    message.throttle_keys = tuple(metadata.throttle_keys)
    message.attempt_count = metadata.attempt_count
    message.last_error = metadata.last_error


def _fill_failures(message: Message, raw: messages_pb2.Message) -> None:
    message.failures = read_failures(raw.metadata.failures)


def _fill_enqueued_at(message: Message, raw: messages_pb2.Message) -> None:
    message.enqueued_at = moment(raw.timestamps, "enqueued_at")


def _fill_lease_expires_at(message: Message, raw: messages_pb2.Message) -> None:
    message.lease_expires_at = moment(raw.timestamps, "lease_expires_at")


# Who reads one field of the metadata gets all of them: coming here costs more than reading four.
_FILL: dict[str, Callable[[Message, messages_pb2.Message], None]] = {
    "headers": _fill_headers,
    "fairness_key": _fill_metadata,
    "weight": _fill_metadata,
    "throttle_keys": _fill_metadata,
    "attempt_count": _fill_metadata,
    "last_error": _fill_metadata,
    "failures": _fill_failures,
    "enqueued_at": _fill_enqueued_at,
    "lease_expires_at": _fill_lease_expires_at,
}
