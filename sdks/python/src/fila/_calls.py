# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""Calls that a client promised to see through: enqueues, acks, nacks and extensions.

    begin --> (wait for room) --> encode --> share a batch --> answered
                                                ^    |
                                                '----' UNAVAILABLE, and twice does no harm

This module owns what is known of them together: how many bytes they hold, and which are not
answered yet, for `flush` and `close`. What they send is the business of `_coalesce` and `_bulk`.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from fila import _wire
from fila._coalesce import AsyncCoalescer, Coalescer
from fila._connection import AsyncConnection, Connection
from fila._endpoint import Retry
from fila._latch import Latch
from fila._wire import Item
from fila.errors import DeadlineExceededError, FilaError, UnavailableError

T = TypeVar("T")

# A hundred batches: plenty to ride out a broker's restart, and little for a process.
DEFAULT_BUFFERED_BYTES_MAX = 32 * 1024 * 1024
DEFAULT_CLOSE_TIMEOUT_S = 5.0


def _no_room() -> DeadlineExceededError:
    text = "too many bytes wait to be sent, and got no answer in time; this call was not sent"
    return DeadlineExceededError(text, code="DEADLINE_EXCEEDED")


def not_flushed() -> DeadlineExceededError:
    text = "not everything that was begun before was answered in time"
    return DeadlineExceededError(text, code="DEADLINE_EXCEEDED")


def _check(max_buffered_bytes: int) -> int:
    if max_buffered_bytes < 1:
        raise ValueError(f"max_buffered_bytes must be positive, got {max_buffered_bytes}")
    return max_buffered_bytes


class _Call:
    """One call that was begun, and the bytes that it holds."""

    __slots__ = ("size", "thread")

    def __init__(self) -> None:
        self.size = 0
        self.thread = threading.get_ident()


class _Flush:
    """Somebody who waits until others are answered."""

    def __init__(self) -> None:
        self.pending: set[_Call] = set()
        self.done = Latch()

    def ended(self, call: _Call) -> None:
        if call in self.pending:
            self.pending.discard(call)
            if not self.pending:
                self.done.open()


class Calls:
    """What threads have promised.

    A signal handler may raise anywhere in here, and may call `flush`: so everything is written down
    by single operations, without a lock, and `_end` can be run again from its beginning.
    """

    def __init__(self, connection: Connection, max_buffered_bytes: int) -> None:
        self.enqueues = Coalescer(_wire.ENQUEUE, connection)
        self.acks = Coalescer(_wire.ACK, connection)
        self.nacks = Coalescer(_wire.NACK, connection)
        self.extensions = Coalescer(_wire.EXTEND, connection)
        self._connection = connection
        self._bytes_max = _check(max_buffered_bytes)
        self._begun: dict[_Call, None] = {}
        # Who waits for room, in order; released when it is worth another look.
        self._crowd: deque[threading.Lock] = deque()
        self._flushes: list[_Flush] = []

    def send(self, coalescer: Coalescer[T], encode: Callable[[], Item], timeout: float | None) -> T:
        """Sends one item, again where that is safe, and returns its outcome or raises it."""
        call = _Call()
        retry = Retry(self._connection.backoff, self._connection.seconds(timeout))
        try:
            self._connection.check_open()
            self._begun[call] = None
            if self._crowd or self._is_full():
                self._wait_for_room(retry)
            item = encode()
            call.size = len(item.data)
            if self._crowd:
                self._let_next_in()
            return self._submit(coalescer, item, retry)
        finally:
            try:
                self._end(call)
            except BaseException:  # a signal handler raised in the middle of it
                self._end(call)
                raise

    def see_through(self, act: Callable[[], T]) -> T:
        """Does what sends requests by itself."""
        call = _Call()
        try:
            self._connection.check_open()
            self._begun[call] = None
            return act()
        finally:
            try:
                self._end(call)
            except BaseException:
                self._end(call)
                raise

    def _submit(self, coalescer: Coalescer[T], item: Item, retry: Retry) -> T:
        is_repeated = False
        while True:
            try:
                return coalescer.submit(item, retry.remaining)
            except UnavailableError:
                pause = retry.pause() if item.is_repeatable else None
                if pause is None or self._connection.closed:
                    raise
            except FilaError as error:
                if is_repeated and isinstance(error, item.forgiven):
                    return None  # type: ignore[return-value]  # an ack or a nack
                raise
            is_repeated = True
            self._connection.pause(pause)

    def _is_full(self) -> bool:
        return sum([call.size for call in list(self._begun)]) >= self._bytes_max

    def _wait_for_room(self, retry: Retry) -> None:
        woken = threading.Lock()
        woken.acquire()
        try:
            self._crowd.append(woken)
            while self._is_full() or self._crowd[0] is not woken:
                if not woken.acquire(timeout=max(retry.remaining, 0)):
                    raise _no_room()
                self._connection.check_not_closed()
        finally:
            # Who is next is let in when it is known how much this one holds, or that it left.
            with suppress(ValueError):
                self._crowd.remove(woken)

    def _let_next_in(self) -> None:
        if not self._is_full():
            with suppress(IndexError, RuntimeError):  # nobody is there, or is awake already
                self._crowd[0].release()

    def _end(self, call: _Call) -> None:
        self._begun.pop(call, None)
        if self._crowd:
            self._let_next_in()
        for flush in list(self._flushes):
            flush.ended(call)

    def flush(self, timeout: float) -> bool:
        """Waits until everything that was begun is answered; returns whether it is.

        Not for calls of this thread: a signal handler that asks has interrupted them.
        """
        mine = threading.get_ident()
        flush = _Flush()
        try:
            self._flushes.append(flush)
            flush.pending = {call for call in list(self._begun) if call.thread != mine}
            for call in list(flush.pending):
                if call not in self._begun:  # it ended before anybody knew of us
                    flush.ended(call)
            return not flush.pending or flush.done.wait(max(timeout, 0))
        finally:
            self._flushes.remove(flush)

    def close(self) -> None:
        """Nobody waits for room any more."""
        for woken in list(self._crowd):
            with suppress(RuntimeError):
                woken.release()


class AsyncCalls:
    """What tasks have promised."""

    def __init__(self, connection: AsyncConnection, max_buffered_bytes: int) -> None:
        self.enqueues = AsyncCoalescer(_wire.ENQUEUE, connection)
        self.acks = AsyncCoalescer(_wire.ACK, connection)
        self.nacks = AsyncCoalescer(_wire.NACK, connection)
        self.extensions = AsyncCoalescer(_wire.EXTEND, connection)
        self._connection = connection
        self._bytes_max = _check(max_buffered_bytes)
        self._bytes = 0
        self._begun: set[_Call] = set()
        self._crowd: deque[asyncio.Future[None]] = deque()
        self._flushes: list[tuple[set[_Call], asyncio.Event]] = []

    async def send(
        self, coalescer: AsyncCoalescer[T], encode: Callable[[], Item], timeout: float | None
    ) -> T:
        """Sends one item, again where that is safe, and returns its outcome or raises it."""
        self._connection.check_open()
        retry = Retry(self._connection.backoff, self._connection.seconds(timeout))
        call = _Call()
        self._begun.add(call)
        try:
            if self._crowd or self._bytes >= self._bytes_max:
                await self._wait_for_room(retry)
            item = encode()
            call.size = len(item.data)
            self._bytes += call.size
            if self._crowd:
                self._let_next_in()
            try:
                return await coalescer.submit(item, retry.remaining)
            except UnavailableError as error:
                return await self._repeat(coalescer, item, retry, error)
        finally:
            self._end(call)

    async def see_through(self, act: Callable[[], Awaitable[T]]) -> T:
        """Does what sends requests by itself."""
        self._connection.check_open()
        call = _Call()
        self._begun.add(call)
        try:
            return await act()
        finally:
            self._end(call)

    async def _repeat(
        self, coalescer: AsyncCoalescer[T], item: Item, retry: Retry, failure: UnavailableError
    ) -> T:
        """Sends an item again after a failure, if that is safe and there is time."""
        while True:
            pause = retry.pause() if item.is_repeatable else None
            if pause is None or self._connection.closed:
                raise failure
            await self._connection.pause(pause)
            try:
                return await coalescer.submit(item, retry.remaining)
            except UnavailableError as error:
                failure = error
            except FilaError as error:
                if isinstance(error, item.forgiven):
                    return None  # type: ignore[return-value]  # an ack or a nack
                raise

    async def _wait_for_room(self, retry: Retry) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._crowd.append(turn)
        try:
            async with asyncio.timeout(retry.remaining):
                await turn
            self._connection.check_not_closed()
        except TimeoutError:
            raise _no_room() from None
        finally:
            if turn in self._crowd:
                self._crowd.remove(turn)
            elif not turn.cancelled():
                # It was let in, and may leave again without a byte.
                asyncio.get_running_loop().call_soon(self._let_next_in)

    def _let_next_in(self) -> None:
        while self._crowd and self._bytes < self._bytes_max:
            turn = self._crowd.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _end(self, call: _Call) -> None:
        self._begun.discard(call)
        self._bytes -= call.size
        if self._crowd:
            self._let_next_in()
        for pending, done in self._flushes:
            pending.discard(call)
            if not pending:
                done.set()

    async def flush(self, timeout: float) -> bool:
        """Waits until everything that was begun is answered; returns whether it is."""
        pending, done = set(self._begun), asyncio.Event()
        if not pending:
            return True
        entry = (pending, done)
        self._flushes.append(entry)
        try:
            async with asyncio.timeout(max(timeout, 0)):
                await done.wait()
        except TimeoutError:
            pass
        finally:
            self._flushes.remove(entry)
        return not pending

    def close(self) -> None:
        """Nobody waits for room any more."""
        for turn in self._crowd:
            if not turn.done():
                turn.set_result(None)
        self._crowd.clear()
