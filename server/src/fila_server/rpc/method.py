# SPDX-License-Identifier: AGPL-3.0-only
"""The seam between what a call means and how it travels.

The rest of this room says what each method of the contract means, as a table of these. A transport
brings bodies in and takes responses out, and turns what a handler raises into a status. It knows
nothing else of a method, and a handler knows nothing else of its transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from fila_server.core.commands import Command, Ticket
from fila_server.errors import FilaError, InvalidArgument, MessageTooLarge
from fila_server.limits import STREAM_REQUEST_BYTES

Metadata = Iterable[tuple[str, str | bytes]]
Part = TypeVar("Part")


class Call(Protocol):
    """A call under way, as its handler sees it."""

    def metadata(self) -> Metadata:
        """Return what the client sent along with the call."""

    async def open(self) -> None:
        """Send the response's headers, and nothing else yet."""

    async def write(self, message: bytes) -> None:
        """Send one of the responses; return when the transport has taken it over.

        Whether it was is certain, also where the caller leaves at that moment: then this returns
        all the same, and the next thing that the handler waits for is cancelled.
        """

    async def finish(self, message: bytes) -> None:
        """Send the last response, and with it the status; return when it was taken over."""


Answered = Callable[[bytes | FilaError], None]  # gets a call's response, or what it failed with


class Conversation(Call, Protocol):
    """A call that brings many requests, each with one response."""

    async def attend(self, begin: Callable[[bytes | FilaError], None]) -> None:
        """Hand the requests to `begin` as they come, and return after the last.

        At most PIPELINE_REQUESTS_MAX are without a response, and take up their bytes. An error
        stands for a request that there was no room for.
        """

    def reply(self, message: bytes) -> None:
        """Send the response to the oldest request without one."""

    def readmit(self) -> None:
        """Check the call's key again, and make it the caller. Raises Unauthenticated."""

    def share(self, method: Method, body: bytes, answered: Answered) -> bool:
        """Hand a small request of a method in together with other calls, if that can be done."""


Handler = Callable[[Any, Any], Awaitable[Any]]  # of a request and its Call
Decode = Callable[[bytes], Any]


class Kind(Enum):
    """How many requests and responses a call has."""

    UNARY = auto()  # one of each: the handler returns its response, as a message or encoded
    STREAMING = auto()  # one request: the handler writes the responses by itself
    BIDI = auto()  # many requests, each with one response: the handler gets a Conversation


class Shared(NamedTuple):
    """How calls about few messages are handed in together, as one command.

    Only what is usual is done so: `items` may return None, and what it raises is of no account. Its
    handler sees to any other call.
    """

    command: Callable[[Ticket, Sequence[Any]], Command]
    permission: int
    queue_of: Callable[[Any], str]
    size_of: Callable[[Any], int]  # of an item's message, in bytes
    items: Callable[[bytes], Sequence[Any] | None]  # of an encoded request
    encode: Callable[[Sequence[Any]], bytes | FilaError]  # the response, of the items' results


class Method(NamedTuple):
    """One RPC."""

    path: str
    handler: Handler
    decode: Decode  # raises DecodeError
    kind: Kind = Kind.UNARY
    shared: Shared | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def streaming(path: str, handler: Handler, decode: Decode) -> Method:
    """Return a method that writes by itself.

    Its calls may last for ever, so their requests are small ones.
    """

    def decode_small(body: bytes) -> Any:
        if len(body) > STREAM_REQUEST_BYTES:
            raise MessageTooLarge(f"a request of {len(body)} bytes exceeds {STREAM_REQUEST_BYTES}")
        return decode(body)

    return Method(path, handler, decode_small, Kind.STREAMING)


def bidi(path: str, handler: Handler) -> Method:
    """Return a method that reads its requests by itself; it gets None as the request."""
    return Method(path, handler, _no_body, Kind.BIDI)


def _no_body(body: bytes) -> None:
    raise AssertionError("a call that brings many requests has no body of its own")


def postpone_cancellation() -> None:
    """Let the handler, which is being cancelled, go on until it waits the next time."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def is_being_cancelled() -> bool:
    """Whether the handler's caller has left."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def encoded(response: Any) -> bytes:
    """Return what a handler returned as it is sent."""
    return response if response.__class__ is bytes else response.SerializeToString()


def decoded(decode: Decode, body: bytes) -> Any:
    """Return the request that a body holds. Raises InvalidArgument for one that holds none."""
    try:
        return decode(body)
    except DecodeError as error:
        raise undecodable(error) from None


def parsed(parts: Iterator[Part]) -> Iterator[Part]:
    """Yield the parts of a request as they are read. Raises InvalidArgument as `decoded` does."""
    try:
        yield from parts
    except DecodeError as error:
        raise undecodable(error) from None


def undecodable(error: DecodeError) -> InvalidArgument:
    return InvalidArgument(f"the request cannot be decoded: {error}")
