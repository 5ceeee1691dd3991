# SPDX-License-Identifier: AGPL-3.0-only
"""Calls that are tasks: all but those that are handed in together with others.

A conversation's credit is the edge's affair: a response that HTTP/2 has taken over lets the next
request come, and Python is not woken for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fila_server.errors import FilaError, Unauthenticated
from fila_server.limits import PIPELINE_REQUESTS_MAX
from fila_server.rpc.auth import CALLER, Authenticator
from fila_server.rpc.method import (
    Answered,
    Kind,
    Metadata,
    Method,
    decoded,
    encoded,
    postpone_cancellation,
)
from fila_server.rpc.status import DEFECT
from fila_server.transport.edge.refusal import refuse
from fila_server.transport.edge.sharing import Sharing

if TYPE_CHECKING:
    from fila_edge import Edge

log = logging.getLogger(__name__)

_OK = 0


class EdgeCall:
    """A call as its handler knows it."""

    __slots__ = ("_edge", "_metadata", "_number", "_taken", "is_finished")

    def __init__(self, edge: Edge, number: int, metadata: Metadata) -> None:
        self._edge = edge
        self._number = number
        self._metadata = metadata
        self._taken: asyncio.Future[None] | None = None
        self.is_finished = False

    def metadata(self) -> Metadata:
        return self._metadata

    async def open(self) -> None:
        self._edge.open(self._number)

    async def write(self, message: bytes) -> None:
        self._edge.write(self._number, message)
        await self._wait_for_taken()

    async def finish(self, message: bytes) -> None:
        self._edge.finish(self._number, message)
        await self._wait_for_taken()
        self.is_finished = True

    async def _wait_for_taken(self) -> None:
        taken = self._taken = asyncio.get_running_loop().create_future()
        try:
            await taken
        except asyncio.CancelledError:
            if taken.cancelled():
                raise
            postpone_cancellation()  # the caller has it, and has left since

    def taken(self) -> None:
        """Let `write` return: the peer has room for what was written."""
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)


class EdgeConversation(EdgeCall):
    """A call that brings many requests."""

    __slots__ = ("_admit", "_authorization", "_begin", "_early", "_has_ended", "_sharing")

    def __init__(
        self,
        edge: Edge,
        number: int,
        metadata: Metadata,
        admit: Callable[[], None],
        sharing: Sharing,
        authorization: str | None,
    ) -> None:
        super().__init__(edge, number, metadata)
        self._admit = admit
        self._sharing = sharing
        self._authorization = authorization
        self._begin: Callable[[bytes | FilaError], None] | None = None
        self._early: list[bytes] = []  # what came before anybody attended
        self._has_ended = asyncio.Event()
        edge.more(number, PIPELINE_REQUESTS_MAX - 1)  # the edge begins with one

    async def attend(self, begin: Callable[[bytes | FilaError], None]) -> None:
        for body in self._early:
            begin(body)
        self._early.clear()
        self._sharing.hand_in()
        self._begin = begin
        await self._has_ended.wait()

    def reply(self, message: bytes) -> None:
        self._edge.reply(self._number, message)

    def readmit(self) -> None:
        self._admit()

    def share(self, method: Method, body: bytes, answered: Answered) -> bool:
        return self._sharing.add(method, answered, body, self._authorization)

    def message(self, body: bytes | None) -> None:
        """A request has come; None says that there will be no other."""
        if body is None:
            self._has_ended.set()
        elif self._begin is None:
            self._early.append(body)
        else:
            self._begin(body)


class Calls:
    """Every call that is a task, by its number."""

    def __init__(self, edge: Edge, authenticator: Authenticator | None, sharing: Sharing) -> None:
        self._edge = edge
        self._authenticator = authenticator
        self._sharing = sharing
        self._under_way: dict[int, tuple[asyncio.Task[None], EdgeCall]] = {}

    def begin(
        self,
        number: int,
        method: Method,
        body: bytes | None,
        authorization: str | None,
        metadata: Metadata,
    ) -> None:
        admit = partial(self._admit, authorization)
        call = (
            EdgeConversation(self._edge, number, metadata, admit, self._sharing, authorization)
            if method.kind is Kind.BIDI
            else EdgeCall(self._edge, number, metadata)
        )
        task = asyncio.ensure_future(self._run(number, method, body, admit, call))
        self._under_way[number] = (task, call)

    def message(self, number: int, body: bytes | None) -> None:
        """A request of a conversation has come; None says that there will be no other."""
        found = self._under_way.get(number)
        if found is not None and isinstance(found[1], EdgeConversation):
            found[1].message(body)

    def taken(self, number: int) -> None:
        """A frame of the call has left for the wire."""
        found = self._under_way.get(number)
        if found is not None:
            found[1].taken()

    def gone(self, number: int) -> None:
        """Nobody waits for the call any more."""
        found = self._under_way.get(number)
        if found is not None:
            found[0].cancel()

    async def finish(self, grace_s: float) -> None:
        """Wait for the calls under way, and end those that take longer."""
        tasks = [task for task, _ in self._under_way.values()]
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _admit(self, authorization: str | None) -> None:
        """Make a key the caller. Raises Unauthenticated for one that is no good any more."""
        if self._authenticator is not None:
            try:
                CALLER.set(self._authenticator.caller_with(authorization))
            except Unauthenticated:  # since the edge let it in
                self._edge.forget(authorization)
                raise

    async def _run(
        self,
        number: int,
        method: Method,
        body: bytes | None,
        admit: Callable[[], None],
        call: EdgeCall,
    ) -> None:
        edge = self._edge
        try:
            admit()
            request = None if body is None else decoded(method.decode, body)
            del body
            response = await method.handler(request, call)
            if method.kind is Kind.UNARY:
                edge.answer([(number, encoded(response))])
            elif not call.is_finished:
                edge.end(number, _OK, "", "")
        except FilaError as error:
            refuse(edge, number, error)
        except Exception:
            log.exception("a defect in %s", method.name)
            refuse(edge, number, FilaError(DEFECT))
        finally:
            del self._under_way[number]
