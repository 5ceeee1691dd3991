# SPDX-License-Identifier: AGPL-3.0-only
"""The rim that every call runs inside: its body is read and decoded here, its errors become
statuses, its defects INTERNAL.

Handlers are registered as ones that take a stream of requests, because only such a handler runs
before a request is read. Clients cannot tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from fila_server.errors import FilaError, Overloaded
from fila_server.limits import PIPELINE_REQUESTS_MAX, UNREAD_BYTES
from fila_server.rpc.auth import CALLER, Authenticator
from fila_server.rpc.method import (
    Answered,
    Kind,
    Metadata,
    Method,
    decoded,
    encoded,
    is_being_cancelled,
    postpone_cancellation,
)
from fila_server.rpc.status import DEFECT
from fila_server.transport.grpcio.arrivals import Arrivals
from fila_server.transport.grpcio.refusal import Context, refuse
from fila_server.transport.grpcio.unread import Unread

log = logging.getLogger(__name__)


class GrpcioCall:
    """A call as handlers know it; those of this room may ask for grpcio's own view."""

    __slots__ = ("context",)

    def __init__(self, context: Context) -> None:
        self.context = context

    def metadata(self) -> Metadata:
        return self.context.invocation_metadata() or ()

    async def open(self) -> None:
        await self.context.send_initial_metadata(())

    async def write(self, message: bytes) -> None:
        # On its own: a write that is cancelled does not tell whether it was done, and whoever
        # leaves as soon as a message has come is faster than the word that it went.
        writing = asyncio.ensure_future(self.context.write(message))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait((writing,))  # which ends with the call, if not before
            if writing.cancelled() or writing.exception() is not None:
                raise
            postpone_cancellation()

    async def finish(self, message: bytes) -> None:
        await self.write(message)
        if is_being_cancelled():  # whoever leaves before the status has seen no response
            raise asyncio.CancelledError


class GrpcioConversation(GrpcioCall):
    """A call that brings many requests. Responses are written by a task, in the order given."""

    __slots__ = (
        "_arrivals", "_authenticator", "_open", "_replies", "_room", "_sizes", "_task", "_unread",
        "_writer", "is_cut",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        arrivals: Arrivals,
        unread: Unread,
        authenticator: Authenticator | None,
    ) -> None:
        super().__init__(context)
        self._arrivals = arrivals
        self._unread = unread
        self._authenticator = authenticator
        self._sizes: deque[int] = deque()  # of the requests without a response
        self._open = 0  # requests whose response is not written
        self._replies: deque[bytes] = deque()  # not written yet
        self._room = asyncio.Event()
        self._writer: asyncio.Future[None] | None = None
        self._task = asyncio.current_task()
        self.is_cut = False

    async def attend(self, begin: Callable[[bytes | FilaError], None]) -> None:
        sizes = self._sizes
        while True:
            while self._open >= PIPELINE_REQUESTS_MAX:
                self._room.clear()
                await self._room.wait()
            try:
                body = await self._arrivals.read_next(self.context)
            except Overloaded as error:
                self._open += 1
                sizes.append(0)
                begin(error)
                continue
            if body is None:
                return
            self._open += 1
            sizes.append(len(body))
            begin(body)

    def reply(self, message: bytes) -> None:
        self._arrivals.leave(self._sizes.popleft())
        self._replies.append(message)
        self._unread.put(self, len(message))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._replies:
            message = self._replies.popleft()
            await self.context.write(message)
            self._unread.take(self, len(message))
            self._open -= 1
            self._room.set()

    def cut(self) -> None:
        """End it: too many of its responses have not been read."""
        self.is_cut = True
        if self._task is not None:
            self._task.cancel()

    def readmit(self) -> None:
        if self._authenticator is not None:
            CALLER.set(self._authenticator.caller(self.context.invocation_metadata()))

    def share(self, method: Method, body: bytes, answered: Answered) -> bool:
        return False

    async def written(self) -> None:
        """Return when all responses have been written. Raises what gRPC failed with."""
        if self._writer is not None:
            await self._writer

    def leave(self) -> None:
        """The call is over: nothing of it takes up any bytes."""
        if self._writer is not None:
            self._writer.cancel()
        self._unread.forget(self)
        self._arrivals.leave(sum(self._sizes))
        self._sizes.clear()


class Rim:
    """Makes gRPC's handlers out of methods."""

    def __init__(self, arrivals: Arrivals, authenticator: Authenticator | None = None) -> None:
        self._arrivals = arrivals
        self._authenticator = authenticator
        self._unread = Unread(UNREAD_BYTES)

    def handlers(self, methods: Iterable[Method]) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the methods of one service as gRPC registers them."""
        made = {}
        service = ""
        for method in methods:
            service = method.path.split("/")[1]
            made[method.name] = self._handler(method)
        return grpc.method_handlers_generic_handler(service, made)

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        arrivals = self._arrivals

        async def call(context: Context) -> Any:
            body = await arrivals.read(context, method.name)
            size = len(body)
            try:
                request = decoded(method.decode, body)
                del body
                return await method.handler(request, GrpcioCall(context))
            finally:
                arrivals.leave(size)

        async def converse(context: Context) -> None:
            conversation = GrpcioConversation(context, arrivals, self._unread, self._authenticator)
            try:
                try:
                    await method.handler(None, conversation)
                except FilaError:
                    await conversation.written()
                    raise
                await conversation.written()
            except asyncio.CancelledError:
                if not conversation.is_cut:
                    raise
                raise Overloaded("too many responses are not read") from None
            finally:
                conversation.leave()

        begin = converse if method.kind is Kind.BIDI else call

        async def run(requests: Any, context: Context) -> Any:
            return await guard(method.name, context, begin(context))

        if method.kind is Kind.UNARY:
            return grpc.stream_unary_rpc_method_handler(run, response_serializer=encoded)
        return grpc.stream_stream_rpc_method_handler(run)


async def guard(method: str, context: Context, call: Awaitable[Any]) -> Any:
    """Await what a call does; end the call with a status if that fails."""
    try:
        try:
            return await call
        except FilaError as error:
            await refuse(context, error)
        except grpc.aio.BaseError:
            raise  # the call is over, and gRPC knows
        except Exception:
            log.exception("a defect in %s", method)
            await refuse(context, FilaError(DEFECT))
    except grpc.aio.InternalError:
        # The client left while something was written. gRPC would log that as an error.
        raise asyncio.CancelledError from None
