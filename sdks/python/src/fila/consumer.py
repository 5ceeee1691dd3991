# SPDX-License-Identifier: AGPL-3.0-only
"""A stream of leased messages that outlives its connection.

    open --frame--> messages --> application          close() from anywhere ends it
     ^                |
     '-- wait <-- UNAVAILABLE, or the broker ended the stream       any other error is raised

Frames are read only when the application has taken all messages of the one before, so gRPC's flow
control and the broker's credit (`max_in_flight`) see how fast it really is. What was sent but never
handed out goes back when the consumer is closed: otherwise every restart of a worker would hide
those messages until their leases end, and count an attempt that nobody made.
"""

import asyncio
import logging
import random
import threading
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc

from fila import _wire
from fila._connection import AsyncConnection, Connection
from fila.errors import CancelledError, FilaError, UnavailableError
from fila.message import AsyncConsumeMessage, ConsumeMessage
from fila.options import Backoff
from fila.v1 import messages_pb2, service_pb2

if TYPE_CHECKING:
    from fila.aio import AsyncClient
    from fila.client import Client

# What a handler that takes 0.1 s works off before a default lease of 30 s ends. More would also
# make a quiet tenant's message wait behind more messages that were delivered before it.
DEFAULT_IN_FLIGHT_MAX = 256
# A frame costs the broker some 0.3 ms whatever it holds; a hundred messages share that.
DEFAULT_BATCH_SIZE = 100
# Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
# First come the frames that have arrived, or are about to; then the request that gives all of them
# back.
_DRAIN_S = 0.05
_RELEASE_TIMEOUT_S = 1.0

_log = logging.getLogger("fila")


class _Reconnect:
    """Decides what the end of a stream means, and how long to wait before the next one."""

    def __init__(self, queue: str, backoff: Backoff) -> None:
        self._queue = queue
        self._backoff = backoff
        self._opened_at = 0.0
        self.attempts = 0

    def opened(self) -> None:
        self._opened_at = time.monotonic()

    def received(self) -> None:
        self.attempts = 0

    def delay(self, error: FilaError | None) -> float:
        """The wait after a stream ended; None is an end without an error. Raises a final error."""
        # A broker that stops cancels streams. Nobody here did: a closed consumer does not ask.
        if error is not None and not isinstance(error, UnavailableError | CancelledError):
            raise error
        # A stream that lasted was a good one, even if its queue was empty all the time.
        if time.monotonic() - self._opened_at > self._backoff.maximum:
            self.attempts = 0
        delay = self._backoff.delay(self.attempts, random.random())
        if not self.attempts:
            why = "the broker ended it" if error is None else error.message
            _log.warning("consume stream of queue %r was lost, reconnecting: %s", self._queue, why)
        self.attempts += 1
        return delay


class Consumer:
    """Iterates over the messages of a queue as the broker leases them. One thread may iterate.

    Closing it, from any thread, ends the iteration; leaving its `with` block closes it. When the
    connection is lost the iteration goes on with a new one. It raises QueueNotFoundError,
    PermissionDeniedError and whatever else trying again would not cure.
    """

    def __init__(
        self, client: "Client", connection: Connection, queue: str, request: bytes
    ) -> None:
        self._client = client
        self._connection = connection
        self._queue = queue
        self._request = request
        self._reconnect = _Reconnect(queue, connection.backoff)
        # Received and not handed out. Both ends of close() pop from it, so nothing is taken twice.
        self._unread: deque[messages_pb2.Message] = deque()
        self._frame_size = 0  # of the frame that is being handed out
        self._closing = threading.Event()
        # Guards the two below, and the step from "not closed" to "there is a stream to cancel".
        self._lock = threading.Lock()
        self._stream: Any = None
        self._is_reading = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumeMessage:
        while not self._closing.is_set():
            try:
                return ConsumeMessage(self._unread.popleft(), self._client, self._frame_size)
            except IndexError:
                self._read_frame()
        self._release()
        raise StopIteration

    def close(self) -> None:
        """Ends the stream and gives back what was not handed out. Harmless twice."""
        with self._lock:
            is_first = not self._closing.is_set()
            self._closing.set()
            stream = self._stream
            is_reading = self._is_reading
        if stream is not None:
            # A thread that waits for a frame has taken all before it.
            if is_first and not is_reading:
                self._drain(stream)
            stream.cancel()
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # `for message in client.consume(queue): break` leaves nobody else to close it.
        if not self._closing.is_set():
            self.close()

    def _read_frame(self) -> None:
        failure: FilaError | None = None
        try:
            stream = self._begin_read()
            if stream is None:
                return
            frame = next(stream)
        except StopIteration:
            pass
        except grpc.RpcError as error:
            failure = self._connection.failure(error, self._queue)
        else:
            self._reconnect.received()
            self._frame_size = len(frame.messages)
            self._unread.extend(frame.messages)
            return
        finally:
            self._is_reading = False
        self._stream = None
        if self._closing.is_set():
            return
        try:
            self._closing.wait(self._reconnect.delay(failure))
        except FilaError as final:
            self._closing.set()
            raise final from final.__cause__

    def _begin_read(self) -> Any:
        """The stream to read from; None when it is too late."""
        with self._lock:
            if self._closing.is_set():
                return None
            self._is_reading = True
            if self._stream is None:
                self._reconnect.opened()
                # A first attempt says soon, and in the log, that nobody is there. Later ones wait
                # for the channel, which knows when it is worth trying again.
                self._stream = self._connection.stream(
                    _wire.CONSUME,
                    self._request,
                    service_pb2.ConsumeResponse,
                    wait_for_ready=self._reconnect.attempts > 0,
                )
            return self._stream

    def _drain(self, stream: Any) -> None:
        """Takes what was sent already. Ends by itself: the broker sends no more than its credit."""
        timer = threading.Timer(_DRAIN_S, stream.cancel)
        timer.start()
        try:
            for frame in stream:
                self._unread.extend(frame.messages)
        except grpc.RpcError:
            pass  # Cancelled by the timer, or lost.
        timer.cancel()

    def _release(self) -> None:
        messages = _drained(self._unread)
        if not messages or self._connection.closed:
            return
        timeout = min(_RELEASE_TIMEOUT_S, self._connection.timeout)
        try:
            for batch in _wire.split(map(_wire.release_item, messages)):
                self._connection.send(
                    _wire.NACK.method, _wire.join(batch), _wire.NACK.response, timeout, {}
                )
        except FilaError as error:
            _log.debug("messages not given back, their leases will end: %s", error)


class AsyncConsumer:
    """Iterates over the messages of a queue as the broker leases them.

    Closing it, from any task, ends the iteration; leaving its `async with` block closes it. When
    the connection is lost the iteration goes on with a new one. It raises QueueNotFoundError,
    PermissionDeniedError and whatever else trying again would not cure. Cancelling one `anext()`,
    with a timeout say, loses no message.
    """

    def __init__(
        self, client: "AsyncClient", connection: AsyncConnection, queue: str, request: bytes
    ) -> None:
        self._client = client
        self._connection = connection
        self._queue = queue
        self._request = request
        self._reconnect = _Reconnect(queue, connection.backoff)
        self._unread: deque[messages_pb2.Message] = deque()
        self._frame_size = 0  # of the frame that is being handed out
        self._is_closed = False
        self._stream: Any = None
        # A read that is under way. It is not the caller's own, because cancelling a read of gRPC
        # cancels the stream.
        self._reading: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncConsumeMessage:
        while not self._is_closed:
            if self._unread:
                return AsyncConsumeMessage(self._unread.popleft(), self._client, self._frame_size)
            if self._reading is None:
                self._reading = asyncio.get_running_loop().create_task(self._read_frame())
            reading = self._reading
            await asyncio.wait((reading,))
            if self._reading is reading:
                self._reading = None
            if not (reading.cancelled() and self._is_closed):
                reading.result()
        raise StopAsyncIteration

    async def close(self) -> None:
        """Ends the stream and gives back what was not handed out. Harmless twice."""
        is_first, self._is_closed = not self._is_closed, True
        if self._reading is not None:
            # It waits for a frame, so all before it were taken.
            self._reading.cancel()
            await asyncio.wait((self._reading,))
        elif is_first:
            await self._drain()
        if self._stream is not None:
            self._stream.cancel()
        await self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        # `async for message in client.consume(queue): break` leaves nobody else to close it.
        if self._is_closed or self._stream is None or self._connection.closed:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # Collected after its loop ended, and its stream with it.
        self._connection.spawn(self.close(), is_courtesy=True)

    async def _read_frame(self) -> None:
        failure: FilaError | None = None
        try:
            if self._stream is None:
                self._reconnect.opened()
                # As in Consumer: the first attempt is quick to fail, later ones wait.
                self._stream = self._connection.stream(
                    _wire.CONSUME,
                    self._request,
                    service_pb2.ConsumeResponse,
                    wait_for_ready=self._reconnect.attempts > 0,
                )
            frame = await self._stream.read()
        except grpc.RpcError as error:
            failure = self._connection.failure(error, self._queue)
        else:
            if frame is not grpc.aio.EOF:  # type: ignore[attr-defined]  # only in its stubs
                self._reconnect.received()
                self._frame_size = len(frame.messages)
                self._unread.extend(frame.messages)
                return
        self._stream = None
        if self._is_closed:
            return
        try:
            await asyncio.sleep(self._reconnect.delay(failure))
        except FilaError as final:
            self._is_closed = True
            raise final from final.__cause__

    async def _drain(self) -> None:
        """Takes what was sent already. Ends by itself: the broker sends no more than its credit."""
        if self._stream is None:
            return
        try:
            async with asyncio.timeout(_DRAIN_S):
                eof = grpc.aio.EOF  # type: ignore[attr-defined]  # only in its stubs
                while (frame := await self._stream.read()) is not eof:
                    self._unread.extend(frame.messages)
        except (TimeoutError, grpc.RpcError):
            pass  # Nothing more came, or the stream was lost.
        except asyncio.CancelledError:
            # gRPC says this of a stream that was cancelled, too; then nobody cancelled the caller.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise

    async def _release(self) -> None:
        messages = _drained(self._unread)
        if not messages or self._connection.closed:
            return
        timeout = min(_RELEASE_TIMEOUT_S, self._connection.timeout)
        try:
            for batch in _wire.split(map(_wire.release_item, messages)):
                await self._connection.send(
                    _wire.NACK.method, _wire.join(batch), _wire.NACK.response, timeout, {}
                )
        except FilaError as error:
            _log.debug("messages not given back, their leases will end: %s", error)


def _drained(unread: deque[messages_pb2.Message]) -> list[messages_pb2.Message]:
    messages = []
    while unread:
        try:
            messages.append(unread.popleft())
        except IndexError:  # Another thread was faster.
            break
    return messages
