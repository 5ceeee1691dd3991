# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""Concurrent calls of one client share batch requests. Nothing lingers.

A few requests may be under way at a time. A call that finds a free slot goes out at once, alone;
calls that find none wait, and the next free slot takes all of them (within a batch's limits). So
batches grow only because calls piled up while the broker was busy with earlier ones.

Blocking callers have no thread behind them: each batch is sent by one of its own callers, the
leader, who wakes the next leader when the answer is there. The leader is the caller with the latest
deadline, so nobody ever waits for a request beyond their own timeout. Awaiting callers are served
by tasks of the loop instead, so that cancelling one of them does not touch the others.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from fila import _grants, _wire, tracing
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


def peek(waiting: deque[W]) -> list[W]:
    """The next batch: from the front of the queue, within the limits, of callers who still wait."""
    while waiting and waiting[0].is_gone:
        waiting.popleft()
    batch: list[W] = []
    size = 0
    for seat in islice(waiting, _wire.BATCH_ITEMS_MAX):
        if not seat.is_gone:
            size += len(seat.item.data)
            if size > _wire.BATCH_BYTES_MAX and batch:
                break
            batch.append(seat)
    return batch


def drop(waiting: deque[W], batch: list[W]) -> None:
    """Removes a batch from the front of the queue, and with it callers who no longer wait."""
    last = batch[-1]
    while waiting.popleft() is not last:
        pass


def take(waiting: deque[W]) -> list[W]:
    batch = peek(waiting)
    if batch:
        drop(waiting, batch)
    return batch


def _too_late(item: Item, text: str) -> DeadlineExceededError:
    return DeadlineExceededError(
        text, code="DEADLINE_EXCEEDED", queue=item.queue, message_id=item.message_id
    )


class _Seat(Generic[T]):
    """One blocked caller. What can change is guarded by the coalescer's lock."""

    __slots__ = (
        "batch",
        "deadline",
        "is_gone",
        "is_sent",
        "item",
        "outcome",
        "results",
        "trace",
        "woken",
    )

    def __init__(self, item: Item, deadline: float, trace: Mapping[str, str]) -> None:
        self.item = item
        self.deadline = deadline
        self.trace = trace
        self.is_gone = False
        self.is_sent = False
        # Empty until there is one; None can be one.
        self.outcome: list[T | FilaError] = []
        # What a leader sends, its own item included, and what came of it.
        self.batch: list[_Seat[T]] = []
        self.results: list[T | FilaError] = []
        # Released when there may be an outcome, or a slot: whoever wakes looks. A bare lock wakes a
        # thread in four fifths of the time that an Event takes, and with many threads waking is
        # most of the work.
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        try:
            self.woken.release()
        except RuntimeError:  # it is awake
            pass


class Coalescer(Generic[T]):
    """Batches the items of blocking callers for one RPC.

    A signal handler may raise anywhere in here: Ctrl-C, the time limit of a task or of a test. So
    what a caller holds is written down before it is used, and `_leave`, which can be run again from
    its beginning, gives all of it back.
    """

    def __init__(self, batch: Batch[T], connection: Connection) -> None:
        self._rpc = batch
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting: deque[_Seat[T]] = deque()
        # Who holds a slot. While one is free, nobody waits but who is woken to take it.
        self._leaders: set[_Seat[T]] = set()

    def submit(self, item: Item, timeout: float) -> T:
        """Sends one item, with others if there are any. Raises the item's error, or the batch's."""
        seat: _Seat[T] = _Seat(item, time.monotonic() + timeout, tracing.current())
        try:
            if self._lead_or_wait(seat):
                self._send(seat)
        finally:
            try:
                self._leave(seat)
            except BaseException:  # a signal handler raised in the middle of it
                self._leave(seat)
                raise
        outcome = seat.outcome[0]
        if isinstance(outcome, FilaError):
            raise outcome
        return outcome

    def _lead_or_wait(self, seat: _Seat[T]) -> bool:
        """Returns True with a batch to lead, False with an outcome or when it is too late."""
        with self._lock:
            if self._free_slots and not self._waiting:
                seat.batch.append(seat)
                self._leaders.add(seat)
                return True
            self._waiting.append(seat)
        while seat.woken.acquire(timeout=max(seat.deadline - time.monotonic(), 0)):
            if seat.outcome:
                return False
            with self._lock:
                is_leader = self._free_slots and self._lead(seat)
                following = self._next_leader()
            if following is not None:
                following.wake()
            if is_leader:
                return True
        return False

    @property
    def _free_slots(self) -> int:
        return REQUESTS_UNDER_WAY_MAX - len(self._leaders)

    def _lead(self, leader: _Seat[T]) -> bool:
        """Gives the next batch to a caller, unless it is not its turn."""
        # Who came after the leader was woken may be more patient, and waits for the next one.
        patience = leader.deadline
        batch = list(takewhile(lambda seat: seat.deadline <= patience, peek(self._waiting)))
        if leader not in batch:
            return False
        leader.batch = batch
        self._leaders.add(leader)
        drop(self._waiting, batch)
        for seat in batch:
            seat.is_sent = True
        return True

    def _send(self, leader: _Seat[T]) -> None:
        batch = leader.batch
        items = [seat.item for seat in batch]
        steps = _grants.exchange(self._rpc, items, self._connection)
        answer: Any = None
        try:
            while True:
                request = (
                    steps.throw(answer) if isinstance(answer, FilaError) else steps.send(answer)
                )
                try:
                    answer = self._connection.send(
                        *request,
                        leader.deadline - time.monotonic(),
                        # The request can carry one trace; each message has its own in its headers.
                        batch[0].trace,
                    )
                except FilaError as error:
                    answer = error
        except StopIteration as end:
            leader.results = end.value

    def _leave(self, seat: _Seat[T]) -> None:
        """Ends a caller's part: what it led is settled, and its slot goes to whoever is next."""
        if seat.is_gone and seat.is_sent and not seat.batch:
            return  # its leader does
        with self._lock:
            self._settle(seat)
            self._leaders.discard(seat)
            following = self._next_leader()
        if following is not None:
            following.wake()
        # After the slot: the next request should not wait for these to wake up.
        for other in seat.batch:
            if other is not seat:
                other.wake()

    def _settle(self, seat: _Seat[T]) -> None:
        batch, results = seat.batch, seat.results
        if not batch:
            text = _NOT_ANSWERED if seat.is_sent else _NOT_SENT
            batch, results = [seat], [_too_late(seat.item, text)]
        elif not results:
            text = "the thread that sent the batch was interrupted"
            results = [CancelledError(text) for _ in batch]
        for other, result in zip(batch, results, strict=True):
            if not other.outcome:
                other.outcome.append(result)
            other.is_gone = True

    def _next_leader(self) -> _Seat[T] | None:
        """Who is to be woken, because there is a slot for it."""
        if not self._waiting or not self._free_slots:
            return None
        return max(peek(self._waiting), key=attrgetter("deadline"), default=None)


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
        # One timer for all callers, for the first deadline: one each would cost more than a seat.
        self._seats: set[_AsyncSeat[T]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    async def submit(self, item: Item, timeout: float) -> T:
        """Sends one item, with others if there are any. Raises the item's error, or the batch's."""
        seat: _AsyncSeat[T] = _AsyncSeat(item, time.monotonic() + timeout, tracing.current())
        self._seats.add(seat)
        if seat.deadline < self._looks_at:
            self._look_at(seat.deadline)
        self._waiting.append(seat)
        if self._free_slots:
            self._free_slots -= 1
            self._connection.spawn(self._serve())
        try:
            return await seat.future
        finally:
            self._seats.discard(seat)

    def _look_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = deadline
        delay = deadline - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        """Ends the waits whose time is over."""
        self._timer = None
        self._looks_at = math.inf
        now = time.monotonic()
        for seat in self._seats:
            if seat.deadline <= now:
                seat.expire()
        left = [seat.deadline for seat in self._seats if seat.deadline > now]
        if left:
            self._look_at(min(left))

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
        steps = _grants.exchange(self._rpc, items, self._connection)
        answer: Any = None
        try:
            while True:
                request = (
                    steps.throw(answer) if isinstance(answer, FilaError) else steps.send(answer)
                )
                try:
                    answer = await self._connection.send(
                        *request,
                        deadline - time.monotonic(),
                        # The request can carry one trace; each message has its own in its headers.
                        batch[0].trace,
                    )
                except FilaError as error:
                    answer = error
        except StopIteration as end:
            outcomes: list[T | FilaError] = end.value
            return outcomes
