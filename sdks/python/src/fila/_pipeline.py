# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""Batch calls over long-lived streams, for less than what a call of its own costs.

An awaiting client has one pipeline for enqueues and one for settlements, so that neither waits for
the other. Answers come in the order of the requests. A request is *handed over* when gRPC has it:
until then it can be taken back, and goes to the next stream if this one ends; from then on nobody
knows whether the broker has seen it. docs/internals/sdks.md has the rules.

Blocking clients send calls: grpc's streams take two threads there, which cost what they save. This
module knows how requests travel, and nothing of what they are for.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from fila import _wire, errors
from fila.errors import (
    DeadlineExceededError,
    FilaError,
    InternalError,
    UnavailableError,
    UnimplementedError,
)
from fila.v1.service_pb2 import PipelineRequest, PipelineResponse

METHOD = _wire.service_method("Pipeline")
# A broker ends a stream whose message exceeds its limit. A larger request is one large message.
_REQUEST_BYTES_MAX = _wire.BATCH_BYTES_MAX

# Of one stream. The broker reads fewer ahead; more would only wait there, and a broker takes
# hundreds of small messages that nobody reads yet for a flood.
_UNANSWERED_MAX = 64

_NOT_SENT = "the deadline passed before the request was sent"
_NOT_ANSWERED = "no answer came in time; the outcome is unknown"
_ENDED = "the broker ended the stream; the outcome is unknown"


class _Route(NamedTuple):
    """How a call's requests are marked, and its answers."""

    field: str
    tag: int
    is_enqueue: bool


def _routes() -> Mapping[str, _Route]:
    """How each call's requests are marked, by its method."""
    fields: Any = PipelineRequest.DESCRIPTOR.fields
    return {
        _wire.service_method(field.message_type.name.removesuffix("Request")): _Route(
            field.name, field.number << 3 | 2, field.name == "enqueue"
        )
        for field in fields
    }


_ROUTES = _routes()


class _NotHandedOverError(Exception):
    """The stream ended first; another one can have the request."""


class _NoPipelinesError(Exception):
    """The broker knows no such call; nothing was done."""


class _GarbledError(Exception):
    """Who answers what was not asked cannot be relied on: the stream has to end."""

    @property
    def failure(self) -> InternalError:
        return InternalError(str(self), code="INTERNAL")


class Endpoint(Protocol):
    """What streams are opened to."""

    def failure(self, error: grpc.RpcError) -> FilaError: ...

    def ended(self) -> FilaError:
        """What a stream that was ended from here means."""


def _packed(route: _Route, request: bytes) -> bytes:
    head = bytearray((route.tag,))
    size = len(request)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + request


def _unpacked(route: _Route, encoded: bytes) -> Any:
    """The call's response. Raises what the call would have failed with."""
    try:
        response = PipelineResponse.FromString(encoded)
    except DecodeError as error:
        raise _GarbledError(f"the answer cannot be decoded: {error}") from None
    answer = response.WhichOneof("answer")
    if answer == "error":
        raise _wire.request_error(response.error)
    if answer != route.field:
        raise _GarbledError(f"the broker answered {answer} to {route.field}")
    return getattr(response, answer)


def _ending(error: FilaError | None, is_final: bool = True) -> Exception:
    """What a request fails with when its stream has ended.

    Another stream may have one that was not handed over, unless this one ended before its first
    answer: that is about all that waited for it.
    """
    if not is_final:
        return _NotHandedOverError()
    if error is None:
        return UnavailableError(_ENDED, code="UNAVAILABLE")
    if isinstance(error, UnimplementedError):
        return _NoPipelinesError()
    return errors.about(error, None, None)  # an object of its own for each caller


def _late(is_handed_over: bool) -> DeadlineExceededError:
    text = _NOT_ANSWERED if is_handed_over else _NOT_SENT
    return DeadlineExceededError(text, code="DEADLINE_EXCEEDED")


def _fits(request: bytes, trace: Mapping[str, str]) -> bool:
    # A trace context is metadata, and a stream has that only once.
    return not trace and len(request) <= _REQUEST_BYTES_MAX


class _Waiter:
    """A request of an awaiting caller."""

    __slots__ = ("data", "future", "is_handed_over")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.is_handed_over = False
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def expire(self) -> None:
        self.fail(_late(self.is_handed_over))

    def fail(self, error: Exception) -> None:
        if not self.future.done():  # its caller may have left
            self.future.set_exception(error)

    def settle(self, answer: bytes) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class _Stream:
    """One stream, from its opening to its end.

    Tasks of its own write and read: a caller that is cancelled while it does either would take the
    stream along.
    """

    def __init__(self, endpoint: Endpoint, call: Any) -> None:
        self._endpoint = endpoint
        self._call = call
        self._outgoing: deque[_Waiter] = deque()
        self._handed_over: deque[_Waiter] = deque()
        self._asked = asyncio.Event()
        self._is_writing = False
        self._has_answered = False
        self._failure: FilaError | None = None
        self.is_ended = False

    async def ask(self, data: bytes, timeout: float) -> bytes:
        waiter = _Waiter(data)
        self._outgoing.append(waiter)
        self._asked.set()
        timer = asyncio.get_running_loop().call_later(timeout, waiter.expire)
        try:
            return await waiter.future
        finally:
            timer.cancel()

    def give_up(self, failure: FilaError | None = None) -> None:
        """Ends it, for all that wait."""
        self.is_ended = True
        self._failure = failure
        self._call.cancel()

    async def write(self) -> None:
        try:
            with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.CancelledError):
                await self._call.initial_metadata()  # the broker says at once that it is open
                await self._write_all()
        finally:
            self._call.cancel()  # unless it is over: nobody writes any more

    async def _write_all(self) -> None:
        while not self.is_ended:
            if not self._outgoing or len(self._handed_over) >= _UNANSWERED_MAX:
                self._asked.clear()
                await self._asked.wait()
                continue
            waiter = self._outgoing[0]
            if not waiter.future.done():
                if self._call.done():
                    return  # who reads says why
                waiter.is_handed_over = True
                self._handed_over.append(waiter)
            self._outgoing.popleft()
            if waiter.is_handed_over:
                self._is_writing = True
                await self._call.write(waiter.data)
                self._is_writing = False

    async def read(self) -> None:
        failure: FilaError | None = None
        eof = grpc.aio.EOF  # type: ignore[attr-defined]  # only in its stubs
        try:
            while (answer := await self._call.read()) is not eof:
                if not self._handed_over:
                    failure = _GarbledError("an answer to nothing").failure
                    break
                self._has_answered = True
                self._handed_over.popleft().settle(answer)
                if self._outgoing:  # it may have waited for room
                    self._asked.set()
        except grpc.RpcError as error:
            failure = self._endpoint.failure(error)
            if self._is_writing and failure.code == "INTERNAL" and failure.reason is None:
                # What gRPC makes of any status that finds a write under way.
                failure = UnavailableError(_ENDED, code="UNAVAILABLE")
        except asyncio.CancelledError:
            failure = self._endpoint.ended()
        finally:
            self.is_ended = True
            self._call.cancel()  # unless it is over
            failure = self._failure or failure
            for waiter in self._handed_over:
                waiter.fail(_ending(failure))
            for waiter in self._outgoing:
                waiter.fail(_ending(failure, is_final=not self._has_answered))
            self._asked.set()


class Pipelines:
    """The pipelines of an awaiting client.

    grpc.aio forgets a stream's status if it finds a write under way. So whether the broker knows
    pipelines is asked beforehand, by a stream that carries nothing, and batches travel as calls
    until that is answered: nobody waits for it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        open_stream: Callable[[], Any],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._endpoint = endpoint
        self._open_stream = open_stream
        self._spawn = spawn
        self._streams: dict[bool, _Stream] = {}
        self._is_known = False
        self._question: Any = None  # the stream that asks
        self._has_asked = False

    async def send(
        self, method: str, request: bytes, timeout: float, trace: Mapping[str, str]
    ) -> Any:
        """Sends a batch and returns its answer; None if it has to travel as a call of its own."""
        route = _ROUTES.get(method)
        if route is None or not _fits(request, trace):
            return None
        if not self._is_known:
            if not self._has_asked:
                self._has_asked = True
                self._spawn(self._ask())
            return None
        deadline = time.monotonic() + timeout
        data = _packed(route, request)
        while True:
            stream = self._stream(route.is_enqueue)
            try:
                answer = await stream.ask(data, max(0, deadline - time.monotonic()))
            except _NotHandedOverError:
                continue
            except _NoPipelinesError:
                self._is_known = False
                return None
            try:
                return _unpacked(route, answer)
            except _GarbledError as error:
                stream.give_up(error.failure)
                raise error.failure from None

    async def _ask(self) -> None:
        self._question = self._open_stream()
        with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
            with contextlib.suppress(grpc.aio.BaseError):  # it may have been refused already
                await self._question.done_writing()
            status = await self._question.code()
            self._is_known = status is grpc.StatusCode.OK
            # Any other failure is about the moment, and the next batch asks again.
            self._has_asked = self._is_known or status is grpc.StatusCode.UNIMPLEMENTED

    def close(self) -> None:
        if self._question is not None:
            self._question.cancel()
        for stream in self._streams.values():
            stream.give_up()

    def _stream(self, is_enqueue: bool) -> _Stream:
        stream = self._streams.get(is_enqueue)
        if stream is None or stream.is_ended:
            stream = _Stream(self._endpoint, self._open_stream())
            self._streams[is_enqueue] = stream
            self._spawn(stream.read())
            self._spawn(stream.write())
        return stream
