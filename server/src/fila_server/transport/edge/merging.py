# SPDX-License-Identifier: AGPL-3.0-only
"""Calls about one message each, handed in together: no task, future or command of its own for any
of them. This runs per call.

What is wrong with one of them is its own affair: it is refused here, or by its item of the
command's answer. The others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from fila_server.core.access import denial
from fila_server.core.wire.intake import PIECE_BYTES, PIECE_ITEMS
from fila_server.errors import FilaError, Unauthenticated
from fila_server.rpc.auth import Authenticator
from fila_server.rpc.method import Method, Single, undecodable
from fila_server.rpc.status import DEFECT
from fila_server.runtime.engine import Engine
from fila_server.transport.edge.refusal import refuse

if TYPE_CHECKING:
    from fila_edge import Edge

log = logging.getLogger(__name__)


class Merging:
    """The calls of one method that have come in this round."""

    def __init__(
        self,
        method: Method,
        single: Single,
        engine: Engine,
        edge: Edge,
        authenticator: Authenticator | None,
    ) -> None:
        self._method = method
        self._single = single
        self._decode: Callable[[bytes], Any] = method.decode
        self._engine = engine
        self._edge = edge
        self._authenticator = authenticator
        self._numbers: list[int] = []
        self._items: list[Any] = []
        self._size = 0
        self._under_way = 0  # calls that were handed in and not answered
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def finish(self, grace_s: float) -> None:
        """Wait for the calls under way, but not for longer."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), grace_s)

    def add(self, number: int, body: bytes, authorization: str | None) -> None:
        """Take a call in, or refuse it."""
        single = self._single
        try:
            item = self._decode(body)
            if self._authenticator is not None:
                caller = self._authenticator.caller_with(authorization)
                queue = single.queue_of(item)
                if not caller.may(single.permission, queue):
                    raise denial(caller, single.permission, queue)
        except DecodeError as error:
            refuse(self._edge, number, undecodable(error))
            return
        except FilaError as error:
            if isinstance(error, Unauthenticated):  # since the edge let it in
                self._edge.forget(authorization)
            refuse(self._edge, number, error)
            return
        except Exception:
            log.exception("a defect in %s", self._method.name)
            refuse(self._edge, number, FilaError(DEFECT))
            return
        self._numbers.append(number)
        self._items.append(item)
        self._size += single.size_of(item)
        if len(self._items) >= PIECE_ITEMS or self._size >= PIECE_BYTES:
            self.hand_in()

    def hand_in(self) -> None:
        """Make one command of the calls that were taken in."""
        numbers, items, size = self._numbers, self._items, self._size
        if not items:
            return
        self._numbers, self._items, self._size = [], [], 0
        self._under_way += len(numbers)
        self._is_idle.clear()
        try:
            self._engine.submit(
                lambda ticket: self._single.command(ticket, items),
                partial(self._answer, numbers),
                size,
                len(items),
            )
        except FilaError as error:
            self._answer(numbers, error)

    def _answer(self, numbers: list[int], results: Any) -> None:
        edge = self._edge
        self._under_way -= len(numbers)
        if not self._under_way:
            self._is_idle.set()
        if isinstance(results, FilaError):
            for number in numbers:
                refuse(edge, number, results)
            return
        encode = self._single.encode
        replies = []
        for number, result in zip(numbers, results, strict=True):
            if isinstance(result, FilaError):
                refuse(edge, number, result)
            else:
                replies.append((number, encode(result)))
        edge.answer(replies)
