# SPDX-License-Identifier: AGPL-3.0-only
"""A stream of leased messages that outlives its connection, read by a thread or a task of its own.

    open --frame--> held --> application              close from anywhere ends it
     ^                |
     '-- wait <-- UNAVAILABLE, or the broker ended the stream       any other error is raised

Frames are taken as they come, because only then is it known when their leases began; the broker's
credit (`max_in_flight`) bounds what is held, and the client's keeper extends it. What arrived but
was never handed out goes back at the end: otherwise every restart of a worker would hide those
messages until their leases end, and count an attempt that nobody made. A reader knows nothing of
the consumer or worker that takes from it, so one that is merely dropped ends it.
"""

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import grpc

from fila import _wire
from fila._connection import AsyncConnection, Connection
from fila._endpoint import LOOK_S
from fila._latch import Latch
from fila._leases import AsyncKeeper, Frame, Keeper
from fila._wire import Item
from fila.errors import CancelledError, FilaError, UnavailableError
from fila.options import Backoff
from fila.v1 import messages_pb2, service_pb2

# Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
# First come the frames that are on their way; then the request that gives all of them back.
_DRAIN_S = 0.05
_RELEASE_TIMEOUT_S = 1.0
# A stream whose headers came, and that did not fail right after them, is there again.
_PROOF_S = 0.1

# A signal that comes just before a thread begins to wait for a lock is handled when that wait ends,
# so whoever waits looks up now and then.
SIGNALS_S = 0.2

_log = logging.getLogger("fila")


class _Reconnect:
    """Decides what the end of a stream means, and how long to wait before the next one."""

    def __init__(self, queue: str, backoff: Backoff) -> None:
        self._queue = queue
        self._backoff = backoff
        self._opened_at = 0.0
        self._is_lost = False
        self.attempts = 0

    def opened(self) -> None:
        self._opened_at = time.monotonic()

    @property
    def is_lost(self) -> bool:
        """Whether the log says that the stream is lost."""
        return self._is_lost

    def found(self) -> None:
        """The broker has let the stream in."""
        if self._is_lost:
            self._is_lost = False
            _log.info("consume stream of queue %r is there again", self._queue)

    def received(self) -> None:
        self.attempts = 0
        self.found()

    def delay(self, error: FilaError | None) -> float:
        """The wait after a stream ended; None is an end without an error. Raises a final error."""
        # A broker that stops cancels streams. Nobody here did: a closed consumer does not ask.
        if error is not None and not isinstance(error, UnavailableError | CancelledError):
            raise error
        # A stream that lasted was a good one, even if its queue was empty all the time.
        if time.monotonic() - self._opened_at > self._backoff.maximum:
            self.attempts = 0
        delay = self._backoff.delay(self.attempts, random.random())
        if not self._is_lost:
            self._is_lost = True
            why = "the broker ended it" if error is None else error.message
            _log.warning("consume stream of queue %r was lost, reconnecting: %s", self._queue, why)
        self.attempts += 1
        return delay


class _Held:
    """What both kinds of reader have: the frames that arrived, and whose they are."""

    def __init__(
        self,
        connection: Connection | AsyncConnection,
        keeper: Keeper | AsyncKeeper | None,
        queue: str,
        request: bytes,
    ) -> None:
        self.keeper = keeper
        self.is_closed = False  # by the application, or because everything was handed out
        self.is_over = False  # nothing more arrives
        self.failure: Exception | None = None  # what it is over for, until it is raised
        # Messages are handed out from the first one. It stays here until it is empty, so that
        # whoever is interrupted takes no frame along.
        self.frames: deque[Frame] = deque()
        self.reconnect = _Reconnect(queue, connection.backoff)
        self._queue = queue
        self._request = request
        self._stream: Any = None

    def _arrived(self, messages: Sequence[messages_pb2.Message]) -> None:
        self.reconnect.received()
        if messages:
            frame = Frame(messages, time.monotonic())
            self.frames.append(frame)
            if self.keeper is not None:
                self.keeper.add(frame)

    def drop_empty(self) -> None:
        """Lets go of the first frame if nothing is left to hand out of it."""
        with suppress(IndexError):
            if not self.frames[0].messages:
                frame = self.frames.popleft()
                if not frame.handling:
                    self.let_go(frame)

    def keep(self, frame: Frame) -> None:
        if self.keeper is not None:
            self.keeper.keep(frame)

    def let_go(self, frame: Frame) -> None:
        if self.keeper is not None:
            self.keeper.discard(frame)

    def _cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def _releases(self) -> Iterator[Item]:
        """What gives back everything that was not handed out."""
        while self.frames:
            frame = self.frames.popleft()
            with suppress(IndexError):
                while frame.ends_at > time.monotonic():
                    yield _wire.release_item(frame.messages.popleft())
            if not frame.handling:
                self.let_go(frame)


def expired(frame: Frame, raw: messages_pb2.Message) -> None:
    """The lease of a message that was about to be handed out has ended."""
    frame.messages.appendleft(raw)
    frame.lose("its lease ended")


class Reader(_Held):
    """Reads a stream in a thread of its own.

    Messages are taken from `frames` without a lock; `wait` says when there are more. Everything
    else may be done from anywhere, a signal handler included, so nothing here waits for a lock that
    the interrupted code could hold.
    """

    def __init__(
        self,
        connection: Connection,
        keeper: Keeper | None,
        queue: str,
        request: bytes,
    ) -> None:
        super().__init__(connection, keeper, queue, request)
        self._connection = connection
        self._closing = Latch()
        self._ended = Latch()
        self._is_started = False
        self._claim = threading.Lock()  # of the one thread that reads
        self._turn = threading.Lock()  # of the one thread that waits for the next frame
        self._woken = threading.Lock()

    def wait(self) -> None:
        """Returns when there is something to hand out, or the reader is closed.

        Raises what the stream ended with, once everything was handed out.
        """
        with self._turn:
            while not self.is_closed:
                self.drop_empty()
                if self.frames:
                    return
                if not self._is_started:
                    self._start()
                if not self.is_over:
                    self._woken.acquire(timeout=SIGNALS_S)
                elif not self.frames:
                    self.stop()
                    failure, self.failure = self.failure, None
                    if failure is not None:
                        raise failure from failure.__cause__

    def is_ready(self) -> bool:
        """Whether there is something to hand out right now."""
        if not self._turn.acquire(blocking=False):
            return False  # somebody waits for it
        try:
            self.drop_empty()
            return bool(self.frames) and not self.is_closed
        finally:
            self._turn.release()

    def _start(self) -> None:
        if not self._connection.closing:
            self._connection.readers.add(self)
            # Interrupted here, another thread is started, which finds that this one reads.
            thread = threading.Thread(target=self._run, name="fila-consumer", daemon=True)
            thread.start()
        else:
            self.is_closed = True
            self._ended.open()
        self._is_started = True

    @property
    def _has_begun(self) -> bool:
        # The thread may be at work before whoever started it could write that down.
        return self._is_started or self._claim.locked()

    def stop(self) -> None:
        """Hands out nothing more. Does not wait."""
        self.is_closed = True
        self._closing.open()
        self._wake()

    def drop(self) -> None:
        """Ends without waiting for anything."""
        self.stop()
        if self._has_begun and not self._connection.is_forked:
            self._cancel()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # somebody is awake
            self._woken.release()

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._read()
        except Exception as final:  # to be raised where somebody asks for messages
            self.failure = final
        finally:
            self.is_over = True
            self._wake()
            self._closing.wait()
            self._release()
            self._connection.readers.discard(self)
            self._ended.open()

    def _read(self) -> None:
        while not self.is_closed:
            failure: FilaError | None = None
            self.reconnect.opened()
            losses = self._connection.link.losses
            try:
                # Until it is known, and in the log, that nobody is there an attempt says so soon.
                # Then they wait for the channel, which knows when it is worth trying again.
                stream = self._stream = self._connection.stream(
                    _wire.CONSUME,
                    self._request,
                    service_pb2.ConsumeResponse,
                    wait_for_ready=self._connection.link.is_unreachable,
                )
                if self.is_closed:  # whoever closed it may not have seen the stream
                    stream.cancel()
                self._prove(stream, losses)
                for frame in stream:
                    self._arrived(frame.messages)
                    self._wake()
            except grpc.RpcError as error:
                failure = self._connection.failure(error, self._queue, losses=losses)
            except FilaError as error:  # there was no stream to be had
                failure = error
            if not self.is_closed:
                delay = self.reconnect.delay(failure)
                self._closing.wait(min(delay, LOOK_S) if self._connection.may_change else delay)

    def _prove(self, stream: Any, losses: int) -> None:
        """Waits for the stream's headers, which come before anything else does."""
        stream.initial_metadata()
        if stream.is_active():
            self._connection.link.answered(losses)
        if self.reconnect.is_lost and not self._closing.wait(_PROOF_S) and stream.is_active():
            self.reconnect.found()

    def _release(self) -> None:
        timeout = min(_RELEASE_TIMEOUT_S, self._connection.timeout)
        try:
            for batch in _wire.split(self._releases()):
                self._connection.send(
                    _wire.NACK.method, _wire.join(batch), _wire.NACK.response, timeout, {}
                )
        except FilaError as error:
            _log.debug("messages not given back, their leases will end: %s", error)

    @staticmethod
    def close_all(readers: Iterable["Reader"]) -> None:
        """Ends readers side by side, and waits until what they held was given back."""
        readers = list(readers)
        begun = [it for it in readers if it._has_begun and not it._connection.is_forked]
        for reader in readers:
            reader.stop()
        try:
            deadline = time.monotonic() + _DRAIN_S
            for reader in begun:
                reader._ended.wait(max(deadline - time.monotonic(), 0))
        finally:
            for reader in begun:
                reader._cancel()
        deadline = time.monotonic() + 2 * _RELEASE_TIMEOUT_S  # which bounds what cannot be bounded
        for reader in begun:
            reader._ended.wait(max(deadline - time.monotonic(), 0))


class AsyncReader(_Held):
    """Reads a stream in a task of its own."""

    def __init__(
        self,
        connection: AsyncConnection,
        keeper: AsyncKeeper | None,
        queue: str,
        request: bytes,
    ) -> None:
        super().__init__(connection, keeper, queue, request)
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()

    async def wait(self) -> None:
        """Returns when there may be something to hand out, or the reader is closed.

        Raises what the stream ended with, once everything was handed out.
        """
        self.drop_empty()
        if self.frames or self.is_closed:
            return
        if self._task is None:
            self._connection.check_open()
            self._connection.readers.add(self)
            self._task = asyncio.get_running_loop().create_task(self._run())
        if not self.is_over:
            self._changed.clear()
            await self._changed.wait()
            return
        self.stop()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure from failure.__cause__

    def is_ready(self) -> bool:
        """Whether there is something to hand out right now."""
        self.drop_empty()
        return bool(self.frames) and not self.is_closed

    def stop(self) -> None:
        """Hands out nothing more. Does not wait."""
        self.is_closed = True
        self._closing.set()
        self._changed.set()

    def drop(self) -> None:
        """Ends without waiting for anything."""
        if self._task is None or self._connection.closed:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # Collected after its loop ended, and its stream with it.
        self.stop()
        self._cancel()

    async def _run(self) -> None:
        try:
            try:
                await self._read()
            except Exception as final:  # to be raised where somebody asks for messages
                self.failure = final
            self.is_over = True
            self._changed.set()
            await self._closing.wait()
            await self._release()
        finally:
            self._connection.readers.discard(self)

    async def _read(self) -> None:
        eof = grpc.aio.EOF  # type: ignore[attr-defined]  # only in its stubs
        while not self.is_closed:
            failure: FilaError | None = None
            self.reconnect.opened()
            losses = self._connection.link.losses
            stream = None
            try:
                # As in Reader: attempts are quick to fail until nobody is there, then they wait.
                stream = self._stream = await self._connection.stream(
                    _wire.CONSUME,
                    self._request,
                    service_pb2.ConsumeResponse,
                    wait_for_ready=self._connection.link.is_unreachable,
                )
                if self.is_closed:  # whoever closed it may not have seen the stream
                    stream.cancel()
                await self._prove(stream, losses)
                while (frame := await stream.read()) is not eof:
                    self._arrived(frame.messages)
                    self._changed.set()
            except grpc.RpcError as error:
                failure = self._connection.failure(error, self._queue, losses=losses)
            except FilaError as error:  # there was no stream to be had
                failure = error
            except asyncio.CancelledError:
                # gRPC says this of a stream that was cancelled, too; then nobody cancelled us.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                failure = CancelledError("the stream was cancelled")
            finally:
                if stream is not None:
                    stream.cancel()
            if not self.is_closed:
                delay = self.reconnect.delay(failure)
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        min(delay, LOOK_S) if self._connection.may_change else delay
                    ):
                        await self._closing.wait()

    async def _prove(self, stream: Any, losses: int) -> None:
        """Waits for the stream's headers, which come before anything else does."""
        await stream.initial_metadata()
        if not stream.done():
            self._connection.link.answered(losses)
        if not self.reconnect.is_lost:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROOF_S):
                await self._closing.wait()
        if not stream.done():
            self.reconnect.found()

    async def _release(self) -> None:
        timeout = min(_RELEASE_TIMEOUT_S, self._connection.timeout)
        try:
            for batch in _wire.split(self._releases()):
                await self._connection.send(
                    _wire.NACK.method, _wire.join(batch), _wire.NACK.response, timeout, {}
                )
        except FilaError as error:
            _log.debug("messages not given back, their leases will end: %s", error)

    @staticmethod
    async def close_all(readers: Iterable["AsyncReader"]) -> None:
        """Ends readers side by side, and waits until what they held was given back."""
        readers = list(readers)
        for reader in readers:
            reader.stop()
        tasks = [it._task for it in readers if it._task is not None]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=_DRAIN_S)
        finally:
            for reader in readers:
                reader._cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2 * _RELEASE_TIMEOUT_S)
