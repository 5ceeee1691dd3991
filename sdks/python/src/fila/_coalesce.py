# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""Concurrent calls of one client share batch requests. Nothing lingers.

A few requests may be under way at a time. A call that finds a free slot goes out at once, alone;
calls that find none wait, and the next free slot takes all of them (within a batch's limits). So
batches grow only because calls piled up while the broker was busy with earlier ones.

Blocking callers have no thread behind them: each batch is sent by one of its own callers, the
leader, who hands its slot on when the answer is there. The leader is the caller with the latest
deadline, so nobody ever waits for a request beyond their own timeout. Awaiting callers are served
by tasks of the loop instead, so that cancelling one of them does not touch the others.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from fila import _wire, errors, tracing
from fila._connection import AsyncConnection, Connection
from fila._wire import Batch, Item
from fila.errors import CancelledError, DeadlineExceededError, FilaError

T = TypeVar("T")

# Two keep the broker busy while an answer is on its way; with more, batches get smaller.
REQUESTS_UNDER_WAY_MAX = 2

_NOT_SENT = "no answer to earlier requests came in time; this one was not sent"
_NOT_ANSWERED = "no answer came in time; the outcome is unknown"


class _Waiting(Protocol):
    item: Item

    @property
    def is_gone(self) -> bool: ...


W = TypeVar("W", bound=_Waiting)


def take(waiting: deque[W]) -> list[W]:
    """Removes the next batch from the queue, and with it callers who no longer wait."""
    batch: list[W] = []
    size = 0
    while waiting and len(batch) < _wire.BATCH_ITEMS_MAX:
        seat = waiting[0]
        if not seat.is_gone:
            size += len(seat.item.data)
            if batch and size > _wire.BATCH_BYTES_MAX:
                break
            batch.append(seat)
        waiting.popleft()
    return batch


def _too_late(item: Item, text: str) -> DeadlineExceededError:
    return DeadlineExceededError(
        text, code="DEADLINE_EXCEEDED", queue=item.queue, message_id=item.message_id
    )


class _Seat(Generic[T]):
    """One blocked caller. What can change is guarded by the coalescer's lock."""

    __slots__ = ("batch", "deadline", "is_gone", "is_sent", "item", "outcome", "trace", "woken")

    def __init__(self, item: Item, deadline: float, trace: Mapping[str, str]) -> None:
        self.item = item
        self.deadline = deadline
        self.trace = trace
        self.is_gone = False
        self.is_sent = False
        # Set when this caller is to lead a batch; its own item is one of it.
        self.batch: list[_Seat[T]] | None = None
        # Empty until there is one; None can be one.
        self.outcome: list[T | FilaError] = []
        # Locked until there is one of the two above. A bare lock wakes a thread in four fifths of
        # the time that an Event takes, and with many threads waking is most of the work.
        self.woken = threading.Lock()
        self.woken.acquire()


class Coalescer(Generic[T]):
    """Batches the items of blocking callers for one RPC."""

    def __init__(self, batch: Batch[T], connection: Connection) -> None:
        self._rpc = batch
        self._connection = connection
        self._lock = threading.Lock()
        # Nobody waits while a slot is free.
        self._waiting: deque[_Seat[T]] = deque()
        self._free_slots = REQUESTS_UNDER_WAY_MAX

    def submit(self, item: Item, timeout: float) -> T:
        """Sends one item, with others if there are any. Raises the item's error, or the batch's."""
        seat: _Seat[T] = _Seat(item, time.monotonic() + timeout, tracing.current())
        with self._lock:
            if self._free_slots:
                self._free_slots -= 1
                seat.batch = [seat]
            else:
                self._waiting.append(seat)
        if seat.batch is None:
            self._wait(seat, timeout)
        if seat.batch is not None:
            self._lead(seat.batch, seat)
        outcome = seat.outcome[0]
        if isinstance(outcome, FilaError):
            raise outcome
        return outcome

    def _wait(self, seat: _Seat[T], timeout: float) -> None:
        """Returns when the seat has an outcome or a batch to lead."""
        is_woken = False
        try:
            is_woken = seat.woken.acquire(timeout=max(timeout, 0))
        finally:
            # Too late, or interrupted by a signal.
            if not is_woken:
                self._leave(seat)

    def _leave(self, seat: _Seat[T]) -> None:
        with self._lock:
            if seat.outcome:
                return
            seat.is_gone = True
            if seat.batch is None:
                text = _NOT_ANSWERED if seat.is_sent else _NOT_SENT
                seat.outcome.append(_too_late(seat.item, text))
                return
            # It was just made leader. Its batch goes back to the front of the queue.
            self._waiting.extendleft(reversed(seat.batch))
            seat.batch = None
            seat.outcome.append(_too_late(seat.item, _NOT_SENT))
        self._hand_on()

    def _lead(self, batch: list[_Seat[T]], leader: _Seat[T]) -> None:
        items = [seat.item for seat in batch]
        outcomes: list[T | FilaError] = [
            CancelledError("the thread that sent the batch was interrupted") for _ in items
        ]
        try:
            response = self._connection.send(
                self._rpc.method,
                _wire.join(items),
                self._rpc.response,
                leader.deadline - time.monotonic(),
                # The request can carry one trace; each message has its own in its headers.
                batch[0].trace,
            )
            outcomes = self._rpc.outcomes(response, items)
        except FilaError as error:
            outcomes = [errors.about(error, item.queue, item.message_id) for item in items]
        finally:
            # First the slot, then the answers: the next request should not wait for wake-ups.
            self._hand_on()
            with self._lock:
                for seat, outcome in zip(batch, outcomes, strict=True):
                    seat.outcome.append(outcome)
            for seat in batch:
                if seat is not leader:
                    seat.woken.release()

    def _hand_on(self) -> None:
        """Gives a slot to whoever waits, or back."""
        with self._lock:
            batch = take(self._waiting)
            if not batch:
                self._free_slots += 1
                return
            for seat in batch:
                seat.is_sent = True
            leader = max(batch, key=lambda seat: seat.deadline)
            leader.batch = batch
        leader.woken.release()


class _AsyncSeat(Generic[T]):
    """One awaiting caller."""

    __slots__ = ("deadline", "future", "is_sent", "item", "trace")

    def __init__(self, item: Item, deadline: float, trace: Mapping[str, str]) -> None:
        self.item = item
        self.deadline = deadline
        self.trace = trace
        self.is_sent = False
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    @property
    def is_gone(self) -> bool:
        return self.future.done()

    def expire(self) -> None:
        if not self.future.done():
            text = _NOT_ANSWERED if self.is_sent else _NOT_SENT
            self.future.set_exception(_too_late(self.item, text))

    def settle(self, outcome: T | FilaError) -> None:
        if self.future.done():
            return
        if isinstance(outcome, FilaError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class AsyncCoalescer(Generic[T]):
    """Batches the items of awaiting callers for one RPC."""

    def __init__(self, batch: Batch[T], connection: AsyncConnection) -> None:
        self._rpc = batch
        self._connection = connection
        self._waiting: deque[_AsyncSeat[T]] = deque()
        self._free_slots = REQUESTS_UNDER_WAY_MAX

    async def submit(self, item: Item, timeout: float) -> T:
        """Sends one item, with others if there are any. Raises the item's error, or the batch's."""
        seat: _AsyncSeat[T] = _AsyncSeat(item, time.monotonic() + timeout, tracing.current())
        timer = asyncio.get_running_loop().call_later(timeout, seat.expire)
        self._waiting.append(seat)
        if self._free_slots:
            self._free_slots -= 1
            self._connection.spawn(self._serve())
        try:
            return await seat.future
        finally:
            timer.cancel()

    async def _serve(self) -> None:
        try:
            while batch := take(self._waiting):
                for seat in batch:
                    seat.is_sent = True
                for seat, outcome in zip(batch, await self._send(batch), strict=True):
                    seat.settle(outcome)
        finally:
            self._free_slots += 1

    async def _send(self, batch: list[_AsyncSeat[T]]) -> list[T | FilaError]:
        items = [seat.item for seat in batch]
        deadline = max(seat.deadline for seat in batch)
        try:
            response = await self._connection.send(
                self._rpc.method,
                _wire.join(items),
                self._rpc.response,
                deadline - time.monotonic(),
                # The request can carry one trace; each message has its own in its headers.
                batch[0].trace,
            )
        except FilaError as error:
            return [errors.about(error, item.queue, item.message_id) for item in items]
        return self._rpc.outcomes(response, items)
