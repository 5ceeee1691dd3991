# SPDX-License-Identifier: AGPL-3.0-only
"""Calls about few messages each, handed in together: no task, future or command of its own for any
of them. This runs per call.

Only what is usual is done here. A call that cannot be decoded, or lacks a permission, or is about
many messages, is left to its handler, which knows what to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fila_server.core.wire.intake import PIECE_BYTES, PIECE_ITEMS
from fila_server.errors import FilaError
from fila_server.rpc.auth import Authenticator
from fila_server.rpc.method import Answered, Method, Shared
from fila_server.runtime.engine import Engine
from fila_server.transport.edge.refusal import refuse

if TYPE_CHECKING:
    from fila_edge import Edge

# Who gets a call's response: the number of a call of its own, or what takes that of a request of a
# pipeline.
Seat = int | Answered


class Sharing:
    """What is handed in together, by method."""

    def __init__(
        self,
        methods: Iterable[Method],
        engine: Engine,
        edge: Edge,
        authenticator: Authenticator | None,
    ) -> None:
        self._groups = {
            method.path: _Group(method.shared, engine, edge, authenticator)
            for method in methods
            if method.shared is not None
        }

    def add(self, method: Method, seat: Seat, body: bytes, authorization: str | None) -> bool:
        """Take a call in, to be handed in soon; or return False: it is not one of these."""
        group = self._groups.get(method.path)
        return group is not None and group.add(seat, body, authorization)

    def hand_in(self) -> None:
        """Make commands of the calls that were taken in."""
        for group in self._groups.values():
            group.hand_in()

    async def finish(self, grace_s: float) -> None:
        """Wait for the calls under way, but not for longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                for group in self._groups.values():
                    await group.is_idle.wait()


class _Group:
    """The calls of one method that have come in this round."""

    def __init__(
        self, shared: Shared, engine: Engine, edge: Edge, authenticator: Authenticator | None
    ) -> None:
        self._shared = shared
        self._engine = engine
        self._edge = edge
        self._authenticator = authenticator
        self._seats: list[tuple[Seat, int]] = []  # with the number of their items
        self._items: list[Any] = []
        self._size = 0
        self._under_way = 0  # calls that were handed in and not answered
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    def add(self, seat: Seat, body: bytes, authorization: str | None) -> bool:
        shared = self._shared
        try:
            items = shared.items(body)
            if items is None:
                return False
            if self._authenticator is not None:
                caller = self._authenticator.caller_with(authorization)
                for item in items:
                    if not caller.may(shared.permission, shared.queue_of(item)):
                        return False
        except Exception:  # whatever it is, its handler meets it, too
            return False
        self._seats.append((seat, len(items)))
        self._items.extend(items)
        self._size += sum(map(shared.size_of, items))
        if len(self._items) >= PIECE_ITEMS or self._size >= PIECE_BYTES:
            self.hand_in()
        return True

    def hand_in(self) -> None:
        seats, items, size = self._seats, self._items, self._size
        if not seats:
            return
        self._seats, self._items, self._size = [], [], 0
        self._under_way += len(seats)
        self.is_idle.clear()
        try:
            self._engine.submit(
                lambda ticket: self._shared.command(ticket, items),
                partial(self._answer, seats),
                size,
                len(seats),
            )
        except FilaError as error:
            self._answer(seats, error)

    def _answer(self, seats: list[tuple[Seat, int]], results: Any) -> None:
        edge = self._edge
        encode = self._shared.encode
        is_refused = isinstance(results, FilaError)
        replies = []
        at = 0
        for seat, count in seats:
            response = results if is_refused else encode(results[at : at + count])
            at += count
            if not isinstance(seat, int):
                seat(response)
            elif isinstance(response, FilaError):
                refuse(edge, seat, response)
            else:
                replies.append((seat, response))
        edge.answer(replies)
        self._under_way -= len(seats)
        if not self._under_way:
            self.is_idle.set()
