# SPDX-License-Identifier: AGPL-3.0-only
"""Leases that a client keeps: who holds messages of a frame need not hurry.

    arrives --> extended at half of its lease, again and again, while something of it is held
                  |
                  '--> lost: the broker says so, or nobody could extend it in time

A frame is the unit: its messages share a token and an end, so one record and one item of a request
do for all of them, and nothing here happens per message. Times are this machine's monotonic ones:
only the length of a lease is the broker's.

`Frame` and `renewal` know no threads and no loop. `Keeper` runs them in a thread and `AsyncKeeper`
in a task, one for a client, which ends when there is nothing left to keep.
"""

import asyncio
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from fila import _grants, _wire
from fila._connection import AsyncConnection, Connection
from fila._grants import Request
from fila._wire import Item
from fila.errors import FilaError, UnimplementedError
from fila.v1 import messages_pb2

C = TypeVar("C", Connection, AsyncConnection)

# The keeper looks at its frames no more often than so many times in a lease, however many there
# are and whenever they came: those that are due soon after each other go into one request.
_LOOKS_PER_LEASE = 20
# After a request that failed.
_PAUSE_S = 1.0
_PAUSES_PER_LEASE = 10

_log = logging.getLogger("fila")


class Frame:
    """Messages that came under one lease, and what of them is held here."""

    __slots__ = (
        "all",
        "ends_at",
        "extend_at",
        "handling",
        "lease_s",
        "messages",
        "queue",
        "shared",
        "size",
        "token",
    )

    def __init__(self, messages: Sequence[messages_pb2.Message], arrived_at: float) -> None:
        first = messages[0]
        self.queue = first.metadata.queue_id
        self.token = first.metadata.lease_token
        self.size = len(messages)
        # What its messages have in common, read once for all of them; a broker that knows no grants
        # gives each a token of its own.
        is_grant = self.token == messages[-1].metadata.lease_token
        self.shared = (self.queue, self.token) if is_grant else None
        self.all = messages
        self.lease_s = _lease_s(first.timestamps)
        # Not handed out yet. Threads take from it without a lock.
        self.messages = deque(messages)
        # Handed to a worker's handlers and not settled, by id; empty for a plain consumer.
        self.handling: dict[str, messages_pb2.Message] = {}
        self.starts(arrived_at)

    def starts(self, at: float) -> None:
        """A lease of full length began at this time."""
        self.ends_at = at + self.lease_s
        self.extend_at = at + self.lease_s / 2

    @property
    def lease_ms(self) -> int:
        return max(1, round(self.lease_s * 1000))

    def held(self) -> list[messages_pb2.Message]:
        return [*self.handling.copy().values(), *self.messages.copy()]

    def extend_item(self) -> Item:
        """What extends the leases of all that is held. What was handed out is the application's,
        which may have extended it for longer.
        """
        held = {raw.id for raw in self.held()}
        others = [raw.id for raw in self.all if raw.id not in held]
        return _grants.extend_item(self.queue, self.token, self.lease_ms, others)

    def lose(self, why: str) -> None:
        """Drops what was not handed out: it is not ours any more."""
        self.ends_at = self.extend_at = -math.inf
        count = 0
        with suppress(IndexError):
            while True:
                self.messages.popleft()
                count += 1
        if count:
            _log.debug("%d messages of queue %r were dropped: %s", count, self.queue, why)

    def lose_one(self, message_id: str) -> None:
        for raw in self.messages.copy():
            if raw.id == message_id:
                with suppress(ValueError, IndexError):  # somebody took it
                    self.messages.remove(raw)
                    _log.debug("1 message of queue %r was dropped: its lease ended", self.queue)

    def postpone(self, now: float) -> None:
        pause = min(_PAUSE_S, self.lease_s / _PAUSES_PER_LEASE)
        self.extend_at = min(now + pause, self.ends_at)


def _lease_s(times: messages_pb2.MessageTimestamps) -> float:
    """How long a lease lasts; without end where the broker does not say."""
    if not times.HasField("leased_at") or not times.HasField("lease_expires_at"):
        return math.inf
    begin, end = times.leased_at, times.lease_expires_at
    seconds = end.seconds - begin.seconds + (end.nanos - begin.nanos) / 1e9
    return seconds if seconds > 0 else math.inf


def renewal(frames: Sequence[Frame], peer: _grants.Peer) -> Generator[Request, Any, None]:
    """The requests that extend frames, one after the other, and what follows for each frame.

    Whoever sends them throws into it what a request failed with.
    """
    sent_at = time.monotonic()
    if peer.has_grants:
        items = [it.extend_item() for it in frames]
        try:
            answer = yield Request(
                _grants.SETTLE.method, _wire.join(items), _grants.SETTLE.response
            )
        except UnimplementedError:
            peer.has_grants = False
        except FilaError as error:
            _postpone(frames, error)
            return
        else:
            outcomes = _grants.SETTLE.outcomes(answer, items)
            for frame, outcome in zip(frames, outcomes, strict=True):
                if isinstance(outcome, FilaError):
                    frame.lose(outcome.message)
                else:
                    frame.starts(sent_at)
            return
    yield from _one_by_one(frames)


def _one_by_one(frames: Sequence[Frame]) -> Generator[Request, Any, None]:
    """As `renewal`, for a broker that knows no grants."""
    held = [
        (frame, _wire.extend_item(frame.queue, raw.id, raw.metadata.lease_token, frame.lease_ms))
        for frame in frames
        for raw in frame.held()
    ]
    sent_at = time.monotonic()
    outcomes: list[Any] = []
    for batch in _wire.split(item for _, item in held):
        try:
            answer = yield Request(_wire.EXTEND.method, _wire.join(batch), _wire.EXTEND.response)
        except FilaError as error:
            _postpone(frames, error)
            return
        outcomes += _wire.EXTEND.outcomes(answer, batch)
    for frame in frames:
        frame.starts(sent_at)
    for (frame, item), outcome in zip(held, outcomes, strict=True):
        # A message that was settled meanwhile is no loss, and says nothing of its neighbours.
        if isinstance(outcome, FilaError) and item.message_id is not None:
            frame.lose_one(item.message_id)


def _postpone(frames: Iterable[Frame], error: FilaError) -> None:
    now = time.monotonic()
    for frame in frames:
        frame.postpone(now)
    _log.debug("leases not extended yet: %s", error)


class _Kept(ABC, Generic[C]):
    """The frames of one client, and when to look at them again."""

    def __init__(self, connection: C) -> None:
        self._connection: C = connection
        # Filled and emptied without a lock, by single operations.
        self._frames: dict[Frame, None] = {}
        self._looks_at = math.inf
        self._is_closed = False

    def close(self) -> None:
        """Keeps nothing any more."""
        self._is_closed = True
        self._wake()

    def add(self, frame: Frame) -> None:
        if frame.lease_s < math.inf:
            self._frames[frame] = None
            if frame.extend_at < self._looks_at:
                self._wake()

    def keep(self, frame: Frame) -> None:
        if frame not in self._frames:
            self.add(frame)

    def discard(self, frame: Frame) -> None:
        """Nothing of it is held any more."""
        self._frames.pop(frame, None)

    @abstractmethod
    def _wake(self) -> None:
        """Lets it look at its frames now."""

    def _due(self, now: float) -> list[list[Frame]]:
        """Frames that are to be extended now, by request."""
        due = []
        for frame in list(self._frames):
            if frame.ends_at <= now:
                frame.lose("its lease ended")
                self.discard(frame)
            elif frame.extend_at <= now + frame.lease_s / _LOOKS_PER_LEASE and (
                frame.messages or frame.handling
            ):
                due.append(frame)
        requests: list[list[Frame]] = []
        room = 0  # an item and the messages that it leaves out count alike
        for frame in due:
            if frame.size > room:
                requests.append([])
                room = _wire.BATCH_ITEMS_MAX
            requests[-1].append(frame)
            room -= frame.size
        return requests

    def _pause(self, now: float) -> float | None:
        """How long there is nothing to do; None when there is nothing to keep."""
        frames = list(self._frames)
        if not frames:
            return None
        shortest = min(frame.lease_s for frame in frames)
        soonest = min(frame.extend_at for frame in frames)
        return max(soonest - now, shortest / _LOOKS_PER_LEASE)

    def _timeout(self, frames: Iterable[Frame]) -> float:
        # Nobody waits for an answer that comes too late.
        soonest = min(frame.ends_at for frame in frames)
        left = max(soonest - time.monotonic(), 0.001)
        return float(min(self._connection.timeout, left))


class Keeper(_Kept[Connection]):
    """Keeps leases from a thread."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._lock = threading.Lock()  # of what is begun and ended in threads of consumers
        self._is_running = False
        self._woken = threading.Lock()

    def add(self, frame: Frame) -> None:
        super().add(frame)
        if not self._is_running and self._frames:
            with self._lock:
                if not self._is_running:
                    self._is_running = True
                    threading.Thread(target=self._run, name="fila-leases", daemon=True).start()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is awake
            self._woken.release()

    def _run(self) -> None:
        while not self._is_closed:
            for frames in self._due(time.monotonic()):
                self._extend(frames)
            self._looks_at = math.inf  # who comes from here on wakes it
            pause = self._pause(time.monotonic())
            if pause is None:
                with self._lock:
                    self._is_running = False
                    if not self._frames:  # in this order: who adds one looks the other way around
                        return
                    self._is_running = True
                continue
            self._looks_at = time.monotonic() + pause
            self._woken.acquire(timeout=min(pause, threading.TIMEOUT_MAX))

    def _extend(self, frames: Sequence[Frame]) -> None:
        steps = renewal(frames, self._connection)
        answer: Any = None
        with suppress(StopIteration):
            while True:
                failed = isinstance(answer, FilaError)
                request = steps.throw(answer) if failed else steps.send(answer)
                try:
                    answer = self._connection.send(*request, self._timeout(frames), {})
                except FilaError as error:
                    answer = error


class AsyncKeeper(_Kept[AsyncConnection]):
    """Keeps leases from a task."""

    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__(connection)
        self._is_running = False
        self._woken = asyncio.Event()

    def add(self, frame: Frame) -> None:
        super().add(frame)
        if not self._is_running and self._frames:
            self._is_running = True
            self._connection.spawn(self._run())

    def _wake(self) -> None:
        self._woken.set()

    async def _run(self) -> None:
        try:
            while not self._is_closed:
                for frames in self._due(time.monotonic()):
                    await self._extend(frames)
                pause = self._pause(time.monotonic())
                if pause is None:
                    return
                self._looks_at = time.monotonic() + pause
                self._woken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
        finally:
            self._is_running = False
            self._looks_at = math.inf

    async def _extend(self, frames: Sequence[Frame]) -> None:
        steps = renewal(frames, self._connection)
        answer: Any = None
        with suppress(StopIteration):
            while True:
                failed = isinstance(answer, FilaError)
                request = steps.throw(answer) if failed else steps.send(answer)
                try:
                    answer = await self._connection.send(*request, self._timeout(frames), {})
                except FilaError as error:
                    answer = error
