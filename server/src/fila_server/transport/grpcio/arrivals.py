# SPDX-License-Identifier: AGPL-3.0-only
"""Requests' bodies on their way in, and the bytes that they may take up until they are answered.

gRPC tells a body's size only once all of it is there, but it takes no more than a window of a body
that nobody reads: the rest stays with the client. So a connection that sent a large body is taken
to send another one, and that is read when there is room for it. Whoever sends little never waits:
large bodies may fill a part of the budget only. A large body that nobody expected shows itself by
not being there soon; it needs a place then, or is refused.

This module knows bytes and connections, nothing of what a request means.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

import grpc

from fila_server.errors import InvalidArgument, Overloaded
from fila_server.limits import ARRIVAL_MS
from fila_server.runtime.memory import give_back
from fila_server.transport.grpcio.refusal import Context, refuse

# From this on a body is large: a batch of a thousand small messages is not.
_LARGE_BYTES = 256 * 1024
# What large bodies leave to the others, as a part of the budget.
_SMALL_SHARE = 4
# A body that is not there after this many looks is presumed to take up a part of the budget.
_LOOK_S = 0.05
_LOOKS = 3
_PRESUMED_SHARE = 16
# While others want room, one that has had some for so long and is not there gives way.
_PATIENCE_LOOKS = int(5 / _LOOK_S)
_ARRIVAL_LOOKS = int(ARRIVAL_MS / 1000 / _LOOK_S)
# When no body has been there for so long, what large ones took up is given back to the machine.
_REST_S = 1.0
# Calls that wait for room, each with a window of its body, and connections that are remembered.
_WAITING_MAX = 32
_REMEMBERED_MAX = 4096


@dataclass(slots=True, eq=False)
class _Arrival:
    """A body that is being read."""

    context: Context
    method: str
    taken: int  # bytes of the budget
    looks: int = 0
    is_refused: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    """A call in line for room. Connections take turns: this is one of its connection."""

    turn: int
    peer: str
    size: int
    room: asyncio.Future[None]


class Arrivals:
    """Reads bodies within a budget of bytes. Everything happens on the event loop's thread."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._large_max = bytes_max - bytes_max // _SMALL_SHARE
        self._presumed = bytes_max // _PRESUMED_SHARE
        self.taken = 0
        self._expected: dict[tuple[str, str], int] = {}  # by connection and method
        self._waiting: list[_Waiter] = []  # by turn
        self._turn = 0  # of who was let in last out of the line
        self._arriving: set[_Arrival] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._had_large = False
        self._endings: set[asyncio.Future[None]] = set()

    async def read(self, context: Context, method: str) -> bytes:
        """Return a request's body, which takes up its bytes until `leave`.

        Raises Overloaded when there is no room for it.
        """
        # Asking for the peer is not free, and while nobody sends large bodies nobody has to.
        peer = (context.peer(), method) if self._expected else None
        taken = self._expected.get(peer, 0) if peer is not None else 0
        if taken:
            await self._wait_for_room(context.peer(), taken)
        arrival = _Arrival(context, method, taken)
        self._arriving.add(arrival)
        self._look_later()
        try:
            body: object = await context.read()
            if not isinstance(body, bytes):
                raise InvalidArgument("the call ended before its request")
            if len(body) >= _LARGE_BYTES:
                self._expect(arrival, len(body))
            elif taken and peer is not None:
                self._expected.pop(peer, None)
            self._settle(arrival, len(body))
        except BaseException:
            self.leave(arrival.taken)
            raise
        finally:
            self._arriving.discard(arrival)
        return body

    async def read_next(self, context: Context) -> bytes | None:
        """Return the next request of a call that brings many, as `read` does; None after the last.

        Nobody can tell a request on its way from a client that has nothing to say, so it takes up
        nothing before it is there.
        """
        body: object = await context.read()
        if not isinstance(body, bytes):
            return None
        if self.taken and self.taken + len(body) > self._max:
            raise Overloaded(f"requests of {self.taken} bytes are waiting already; try again later")
        self.taken += len(body)
        return body

    def leave(self, size: int) -> None:
        """Give back what a body took up."""
        self.taken -= size
        self._let_in()
        if self._had_large and not self.taken and self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(_REST_S, self._give_back)

    def _let_in(self) -> None:
        while self._waiting and self._has_room(self._waiting[0].size):
            first = self._waiting.pop(0)
            if not first.room.done():  # it has not just left
                self._turn = first.turn
                self.taken += first.size
                first.room.set_result(None)

    def _give_back(self) -> None:
        self._rest = None
        if not self.taken:
            self._had_large = False
            asyncio.get_running_loop().run_in_executor(None, give_back)

    def _has_room(self, size: int) -> bool:
        """Return whether a large body may be read; one is, whatever its size."""
        return self.taken + size <= self._large_max or self.taken == 0

    async def _wait_for_room(self, peer: str, size: int) -> None:
        """Take bytes for a body that is expected to be large. In the line connections take turns,
        so one that asks for much holds nobody up; where it is full the last one gives way.
        """
        if not self._waiting and self._has_room(size):
            self.taken += size
            return
        turns = [waiter.turn for waiter in self._waiting if waiter.peer == peer]
        # Not the turn that it is now: whoever comes again and again would always be before others.
        turn = max(turns, default=self._turn) + 1
        full = f"{_WAITING_MAX} large requests are waiting already; try again later"
        if len(self._waiting) >= _WAITING_MAX:
            if self._waiting[-1].turn <= turn:
                raise Overloaded(full)
            last = self._waiting.pop().room
            if not last.done():
                last.set_exception(Overloaded(full))
        waiter = _Waiter(turn, peer, size, asyncio.get_running_loop().create_future())
        insort(self._waiting, waiter, key=attrgetter("turn"))
        self._let_in()  # it may stand first, and be smaller than who did
        try:
            await waiter.room
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._let_in()
            elif not waiter.room.cancelled() and not waiter.room.exception():
                self.leave(size)  # room came with the cancellation
            raise

    def _settle(self, arrival: _Arrival, size: int) -> None:
        """Let a body take up its real size."""
        others = self.taken - arrival.taken
        if size > arrival.taken and others and others + size > self._max:
            raise Overloaded(f"requests of {others} bytes are waiting already; try again later")
        self.leave(arrival.taken - size)
        arrival.taken = size

    def _expect(self, arrival: _Arrival, size: int) -> None:
        peer = (arrival.context.peer(), arrival.method)
        self._expected.pop(peer, None)  # the latest stand last
        self._expected[peer] = size
        self._had_large = True
        if len(self._expected) > _REMEMBERED_MAX:
            del self._expected[next(iter(self._expected))]

    # --- Bodies that take long --------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        """Find places for the bodies that are not there yet."""
        self._timer = None
        is_wanted = bool(self._waiting)
        for arrival in self._arriving:
            arrival.looks += 1
            if arrival.looks == _LOOKS and not arrival.taken:
                self._expect(arrival, self._presumed)
                if self._has_room(self._presumed):
                    arrival.taken = self._presumed
                    self.taken += self._presumed
                else:
                    is_wanted = True
                    self._refuse(arrival, "too many large requests are arriving; try again later")
            elif arrival.looks == _ARRIVAL_LOOKS:
                self._refuse(arrival, "the request took longer than a minute to arrive")
        if is_wanted:
            self._make_way()
        if self._arriving:
            self._look_later()

    def _make_way(self) -> None:
        """Refuse whoever has held room for the longest. gRPC does not tell if it still comes."""
        slow = (it for it in self._arriving if it.looks >= _PATIENCE_LOOKS and not it.is_refused)
        slowest = max((it for it in slow if it.taken), key=lambda it: it.looks, default=None)
        if slowest is not None:
            self._refuse(slowest, "the request comes slowly and others wait; try again later")

    def _refuse(self, arrival: _Arrival, why: str) -> None:
        """End the call; its read ends with it. A read that is cancelled leaks what arrives late."""
        arrival.is_refused = True
        ending = asyncio.ensure_future(_end(arrival.context, Overloaded(why)))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)


async def _end(context: Context, error: Overloaded) -> None:
    with contextlib.suppress(grpc.aio.BaseError):  # the abort itself, or the client has left
        await refuse(context, error)
