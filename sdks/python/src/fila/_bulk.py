# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""Calls that are too large for one request: split, sent one after the other, put together again.

Never two requests at once, so that messages are stored in the order of the list; and nothing is
sent after a request that failed as a whole. Encoding the next request while one is under way is no
faster: it takes gRPC's background thread, which costs more than the overlap gains.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from fila import _wire, errors, tracing
from fila._connection import AsyncConnection, Connection
from fila._wire import Batch, Item
from fila.errors import FilaError

T = TypeVar("T")


class _Outcomes(Generic[T]):
    """One outcome per item, in order, and the failure that keeps the rest from being sent."""

    def __init__(self, rpc: Batch[T]) -> None:
        self._rpc = rpc
        self.found: list[T | FilaError] = []
        self._failure: FilaError | None = None

    def answered(self, batch: Sequence[Item], response: Any) -> None:
        self.found += self._rpc.outcomes(response, batch)

    def failed(self, batch: Sequence[Item], error: FilaError) -> None:
        self._add(batch, error)
        text = f"not sent, because an earlier request of this call failed: {error.message}"
        self._failure = type(error)(text, code=error.code, reason=error.reason)

    def is_refused(self, batch: Sequence[Item]) -> bool:
        """Whether an earlier failure stands in the way; then the items have it as their outcome."""
        if self._failure is not None:
            self._add(batch, self._failure)
        return self._failure is not None

    def _add(self, batch: Sequence[Item], error: FilaError) -> None:
        self.found += [errors.about(error, item.queue, item.message_id) for item in batch]


def send_many(
    connection: Connection, rpc: Batch[T], items: Iterable[Item], timeout: float | None
) -> list[T | FilaError]:
    """Sends all items and returns one outcome for each, in order."""
    connection.check_open()
    outcomes = _Outcomes(rpc)
    for batch in _wire.split(items):
        if outcomes.is_refused(batch):
            continue
        try:
            response = _send(connection, rpc, batch, timeout)
        except FilaError as error:
            outcomes.failed(batch, error)
        else:
            outcomes.answered(batch, response)
    return outcomes.found


def _send(
    connection: Connection, rpc: Batch[T], batch: list[Item], timeout: float | None
) -> object:
    request = _wire.join(batch)
    trace = tracing.current()
    return connection.retrying(
        lambda remaining: connection.send(rpc.method, request, rpc.response, remaining, trace),
        _wire.is_repeatable(batch),
        timeout,
    )


async def send_many_async(
    connection: AsyncConnection, rpc: Batch[T], items: Iterable[Item], timeout: float | None
) -> list[T | FilaError]:
    """Sends all items and returns one outcome for each, in order."""
    connection.check_open()
    outcomes = _Outcomes(rpc)
    for batch in _wire.split(items):
        if outcomes.is_refused(batch):
            continue
        try:
            response = await _send_async(connection, rpc, batch, timeout)
        except FilaError as error:
            outcomes.failed(batch, error)
        else:
            outcomes.answered(batch, response)
    return outcomes.found


async def _send_async(
    connection: AsyncConnection, rpc: Batch[T], batch: list[Item], timeout: float | None
) -> object:
    request = _wire.join(batch)
    trace = tracing.current()
    return await connection.retrying(
        lambda remaining: connection.send(rpc.method, request, rpc.response, remaining, trace),
        _wire.is_repeatable(batch),
        timeout,
    )
