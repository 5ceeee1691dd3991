# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""One client's connection: what every call carries. `Connection` blocks, `AsyncConnection` awaits.

Nothing here knows which calls exist or what they are for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import grpc.aio

from fila import errors, tracing
from fila._address import Target
from fila._endpoint import Call, Endpoint, Line, Retry, Route, credentials_of
from fila._key import Metadata
from fila._latch import Latch
from fila.errors import DeadlineExceededError, FilaError, UnavailableError

T = TypeVar("T")


class Connection(Endpoint):
    """A channel for threads. Safe to share among them, and not to be carried over a fork."""

    def __init__(self, target: Target, **settings: Any) -> None:
        super().__init__(target, **settings)
        self._cut = Latch()

    def _open(self, route: Route) -> grpc.Channel:
        if route.material is None:
            channel = grpc.insecure_channel(route.target, options=self.options)
        else:
            credentials = credentials_of(route.material)
            channel = grpc.secure_channel(route.target, credentials, options=self.options)
        return grpc.intercept_channel(channel, *self._interceptors)

    def _now(self) -> Line:
        """The channel to use. Threads that look at once may open two; one of them is dropped."""
        if self._line is None or (self.may_change and self._needs_look()):
            return self._look(self._names() if self._needs_names() else None)
        return self._line

    def metadata(self, trace: Mapping[str, str]) -> Metadata:
        """What travels beside a request: the API key and the trace context."""
        own = self._keys.ask() if self._keys.is_asked else self._keys.metadata
        return (*own, *trace.items()) if trace else own

    def call(self, call: Call[T], timeout: float | None) -> T:
        """Sends one call and reads its answer. Raises what it failed with."""
        self.check_open()
        request = call.request.SerializeToString()
        try:
            response = self.send(
                call.method, request, call.response, self.seconds(timeout), tracing.current()
            )
        except FilaError as error:
            raise errors.about(error, call.queue, call.message_id) from error.__cause__
        return call.read(response)

    def send(
        self,
        method: str,
        request: bytes,
        response: Any,
        timeout: float,
        trace: Mapping[str, str],
    ) -> Any:
        """Sends one encoded request and waits for the answer."""
        self.check_not_closed()
        self.check_time(timeout)
        metadata = self.metadata(trace)
        line = self._now()
        stub = line.stubs.get(method) or line.stub(method, response)
        losses = self.link.losses
        try:
            answer = stub(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            failure = self.failure(error, losses=losses)
            raise failure from failure.__cause__
        except ValueError:
            # What gRPC says of a channel that was closed in the meantime.
            self.check_not_closed()
            raise
        if not self.link.is_up:
            self.link.answered(losses)
        return answer

    def stream(self, method: str, request: bytes, response: Any, wait_for_ready: bool) -> Any:
        """Opens a stream of answers, with no deadline; failures come from iterating it.

        It waits for a connection only where that is sure to be the right one.
        """
        self.check_open()
        metadata = self.metadata(tracing.current())
        line = self._now()
        wait = wait_for_ready and not self.may_change
        try:
            stream = line.stream(method, response)(request, metadata=metadata, wait_for_ready=wait)
        except ValueError:
            self.check_not_closed()
            raise
        # A channel that nobody holds is closed: this one is held until the stream has ended.
        stream.add_callback(lambda: line)
        return stream

    def retrying(self, send: Callable[[float], T], is_repeatable: bool, timeout: float | None) -> T:
        """Calls `send` with the time that remains; again if the broker is away and it is safe."""
        retry = Retry(self.backoff, self.seconds(timeout))
        while True:
            try:
                return send(retry.remaining)
            except UnavailableError:
                pause = retry.pause() if is_repeatable else None
                if pause is None:
                    raise
            self.pause(pause)

    def pause(self, seconds: float) -> None:
        """Waits, unless the connection is closed."""
        self._cut.wait(seconds)

    def close(self) -> None:
        """Cuts off whatever is under way."""
        self.closing = self.closed = True
        self._cut.open()
        if not self.is_forked:
            for line in list(self._lines):
                line.channel.close()


class AsyncConnection(Endpoint):
    """A channel for one event loop: the one that runs when it is first used."""

    def __init__(self, target: Target, **settings: Any) -> None:
        super().__init__(target, **settings)
        self._background: set[asyncio.Task[None]] = set()
        self._cut = asyncio.Event()
        self._asking: set[asyncio.Timeout] = set()  # for the API key, before a request is sent

    def _open(self, route: Route) -> "grpc.aio.Channel":
        if route.material is None:
            return grpc.aio.insecure_channel(
                route.target, options=self.options, interceptors=self._interceptors
            )
        return grpc.aio.secure_channel(
            route.target,
            credentials_of(route.material),
            options=self.options,
            interceptors=self._interceptors,
        )

    async def _now(self) -> Line:
        """The channel to use."""
        if not self._needs_look():
            assert self._line is not None
            return self._line
        if not self._needs_names():
            return self._look(None)
        self._put_off_look()  # so that others do not ask, too
        return self._look(await asyncio.to_thread(self._names))

    async def metadata(self, trace: Mapping[str, str]) -> Metadata:
        """What travels beside a request: the API key and the trace context."""
        own = await self._keys.ask_async() if self._keys.is_asked else self._keys.metadata
        return (*own, *trace.items()) if trace else own

    async def _metadata_within(
        self, seconds: float, trace: Mapping[str, str]
    ) -> tuple[Metadata, float]:
        """As `metadata`, within a call's deadline, and what is left of it."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds) as limit:
                self._asking.add(limit)
                try:
                    metadata = await self.metadata(trace)
                finally:
                    self._asking.discard(limit)
        except TimeoutError:
            self.check_not_closed()
            text = "the API key did not come in time; the request was not sent"
            raise DeadlineExceededError(text, code="DEADLINE_EXCEEDED") from None
        left = seconds - (time.monotonic() - began)
        self.check_time(left)
        return metadata, left

    async def call(self, call: Call[T], timeout: float | None) -> T:
        """Sends one call and reads its answer. Raises what it failed with."""
        self.check_open()
        request = call.request.SerializeToString()
        try:
            response = await self.send(
                call.method, request, call.response, self.seconds(timeout), tracing.current()
            )
        except FilaError as error:
            raise errors.about(error, call.queue, call.message_id) from error.__cause__
        return call.read(response)

    async def send(
        self,
        method: str,
        request: bytes,
        response: Any,
        timeout: float,
        trace: Mapping[str, str],
    ) -> Any:
        """Sends one encoded request and waits for the answer."""
        self.check_not_closed()
        self.check_time(timeout)
        if self._keys.is_asked:
            metadata, timeout = await self._metadata_within(timeout, trace)
        else:
            metadata = await self.metadata(trace)
        line = await self._now()
        stub = line.stubs.get(method) or line.stub(method, response)
        losses = self.link.losses
        try:
            answer = await stub(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            failure = self.failure(error, losses=losses)
            raise failure from failure.__cause__
        except asyncio.CancelledError:
            # gRPC says this too when the channel is closed; then nobody has cancelled the caller.
            task = asyncio.current_task()
            if self.closed and task is not None and not task.cancelling():
                raise self.closed_error() from None
            raise
        if not self.link.is_up:
            self.link.answered(losses)
        return answer

    async def stream(self, method: str, request: bytes, response: Any, wait_for_ready: bool) -> Any:
        """Opens a stream of answers, with no deadline; failures come from reading it.

        It waits for a connection only where that is sure to be the right one.
        """
        self.check_open()
        metadata = await self.metadata(tracing.current())
        line = await self._now()
        self.check_open()
        wait = wait_for_ready and not self.may_change
        stream = line.stream(method, response)(request, metadata=metadata, wait_for_ready=wait)
        # A channel that nobody holds is closed: this one is held until the stream has ended.
        stream.add_done_callback(lambda _: line)
        return stream

    async def retrying(
        self, send: Callable[[float], Awaitable[T]], is_repeatable: bool, timeout: float | None
    ) -> T:
        """Calls `send` with the time that remains; again if the broker is away and it is safe."""
        retry = Retry(self.backoff, self.seconds(timeout))
        while True:
            try:
                return await send(retry.remaining)
            except UnavailableError:
                pause = retry.pause() if is_repeatable else None
                if pause is None:
                    raise
            await self.pause(pause)

    async def pause(self, seconds: float) -> None:
        """Waits, unless the connection is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cut.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs something in the background. Closing cuts it short."""
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps only weak references.
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Cuts off whatever is under way."""
        self.closing = self.closed = True
        self._cut.set()
        for limit in self._asking:
            limit.reschedule(0)
        if not self.is_forked:
            for line in list(self._lines):
                await line.channel.close(None)
        if self._background and not self.is_forked:
            await asyncio.wait(self._background)
