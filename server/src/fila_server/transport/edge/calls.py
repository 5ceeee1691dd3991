# SPDX-License-Identifier: AGPL-3.0-only
"""Calls that are tasks: all but those that are handed in together."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from fila_server.errors import FilaError, Unauthenticated
from fila_server.rpc.auth import CALLER, Authenticator
from fila_server.rpc.method import Metadata, Method, decoded, encoded
from fila_server.rpc.status import DEFECT
from fila_server.transport.edge.refusal import refuse

if TYPE_CHECKING:
    from fila_edge import Edge

log = logging.getLogger(__name__)

_OK = 0


class EdgeCall:
    """A call as its handler knows it."""

    __slots__ = ("_edge", "_metadata", "_number", "_taken")

    def __init__(self, edge: Edge, number: int, metadata: Metadata) -> None:
        self._edge = edge
        self._number = number
        self._metadata = metadata
        self._taken: asyncio.Future[None] | None = None

    def metadata(self) -> Metadata:
        return self._metadata

    async def open(self) -> None:
        self._edge.open(self._number)

    async def write(self, message: bytes) -> None:
        self._taken = asyncio.get_running_loop().create_future()
        self._edge.write(self._number, message)
        await self._taken

    def taken(self) -> None:
        """Let `write` return: the peer has room for what was written."""
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)


class Calls:
    """Every call that is a task, by its number."""

    def __init__(self, edge: Edge, authenticator: Authenticator | None) -> None:
        self._edge = edge
        self._authenticator = authenticator
        self._under_way: dict[int, tuple[asyncio.Task[None], EdgeCall]] = {}

    def begin(
        self,
        number: int,
        method: Method,
        body: bytes,
        authorization: str | None,
        metadata: Metadata,
    ) -> None:
        call = EdgeCall(self._edge, number, metadata)
        task = asyncio.ensure_future(self._run(number, method, body, authorization, call))
        self._under_way[number] = (task, call)

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

    async def _run(
        self, number: int, method: Method, body: bytes, authorization: str | None, call: EdgeCall
    ) -> None:
        edge = self._edge
        try:
            if self._authenticator is not None:
                CALLER.set(self._authenticator.caller_with(authorization))
            request = decoded(method.decode, body)
            del body
            response = await method.handler(request, call)
            if method.is_streaming:
                edge.end(number, _OK, "", "")
            else:
                edge.answer([(number, encoded(response))])
        except Unauthenticated as error:  # since the edge let it in
            edge.forget(authorization)
            refuse(edge, number, error)
        except FilaError as error:
            refuse(edge, number, error)
        except Exception:
            log.exception("a defect in %s", method.name)
            refuse(edge, number, FilaError(DEFECT))
        finally:
            del self._under_way[number]
