# SPDX-License-Identifier: AGPL-3.0-only
# ruff: noqa: ASYNC109 - a deadline travels with the request, so it is an argument
"""Calls that are too large for one request: split, sent one after the other, put together again.

Never two requests at once, so that messages are stored in the order of the list; and nothing is
sent after a request that failed as a whole. Encoding the next request while one is under way is no
faster: it takes gRPC's background thread, which costs more than the overlap gains.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from fila import _grants, _wire, errors, tracing
from fila._connection import AsyncConnection, Connection
from fila._grants import Delivery, Peer, Settled
from fila._wire import Batch, Item
from fila.errors import FilaError, UnimplementedError
from fila.message import Message

T = TypeVar("T")


class _Outcomes(Generic[T]):
    """One outcome per item, in order, and the failure that keeps the rest from being sent."""

    def __init__(self, rpc: Batch[T], failure: FilaError | None = None) -> None:
        self._rpc = rpc
        self.found: list[T | FilaError] = []
        self.failure = failure

    def answered(self, batch: Sequence[Item], response: Any) -> None:
        self.found += self._rpc.outcomes(response, batch)

    def failed(self, batch: Sequence[Item], error: FilaError) -> None:
        self._add(batch, error)
        text = f"not sent, because an earlier request of this call failed: {error.message}"
        self.failure = type(error)(text, code=error.code, reason=error.reason)

    def is_refused(self, batch: Sequence[Item]) -> bool:
        """Whether an earlier failure stands in the way; then the items have it as their outcome."""
        if self.failure is not None:
            self._add(batch, self.failure)
        return self.failure is not None

    def _add(self, batch: Sequence[Item], error: FilaError) -> None:
        self.found += [errors.about(error, item.queue, item.message_id) for item in batch]


def send_many(
    connection: Connection, rpc: Batch[T], items: Iterable[Item], timeout: float | None
) -> list[T | FilaError]:
    """Sends all items and returns one outcome for each, in order."""
    connection.check_open()
    return _send_all(connection, rpc, items, timeout, None).found


def _send_all(
    connection: Connection,
    rpc: Batch[T],
    items: Iterable[Item],
    timeout: float | None,
    failure: FilaError | None,
) -> _Outcomes[T]:
    outcomes = _Outcomes(rpc, failure)
    for batch in _wire.split(items):
        if outcomes.is_refused(batch):
            continue
        try:
            response = _send(connection, rpc, batch, timeout)
        except FilaError as error:
            outcomes.failed(batch, error)
        else:
            outcomes.answered(batch, response)
    return outcomes


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
    return (await _send_all_async(connection, rpc, items, timeout, None)).found


async def _send_all_async(
    connection: AsyncConnection,
    rpc: Batch[T],
    items: Iterable[Item],
    timeout: float | None,
    failure: FilaError | None,
) -> _Outcomes[T]:
    outcomes = _Outcomes(rpc, failure)
    for batch in _wire.split(items):
        if outcomes.is_refused(batch):
            continue
        try:
            response = await _send_async(connection, rpc, batch, timeout)
        except FilaError as error:
            outcomes.failed(batch, error)
        else:
            outcomes.answered(batch, response)
    return outcomes


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


class _Acks:
    """Acks of many messages: those that make up whole frames first, then what is left."""

    def __init__(self, peer: Peer, messages: Iterable[Message]) -> None:
        self._peer = peer
        # A program may settle by its own record of queue, id and token, as the Spark connector
        # does; nobody knows then what came together with a message, and it is acked by itself.
        self._deliveries = [
            Delivery(m.queue, m.lease_token, getattr(m, "_frame_size", 0), m.id) for m in messages
        ]
        self._frames = _grants.whole_frames(self._deliveries) if peer.has_grants else []
        self._found: dict[int, FilaError | None] = {}

    def frames(self) -> Iterator[Item]:
        return (_grants.frame_item(self._deliveries[places[0]]) for places in self._frames)

    def rest(self, outcomes: _Outcomes[Settled]) -> tuple[Iterator[Item], FilaError | None]:
        """The acks that follow what became of the frames, and what keeps them from being sent."""
        failure = outcomes.failure
        if isinstance(failure, UnimplementedError):
            self._peer.has_grants = False
            failure = None
        else:
            found = _grants.settled(self._deliveries, self._frames, outcomes.found)
            self._found = dict(found)
        left = (it for at, it in enumerate(self._deliveries) if at not in self._found)
        return (
            _wire.ack_item(it.queue, it.message_id or "", it.lease_token) for it in left
        ), failure

    def all(self, rest: Iterable[FilaError | None]) -> list[FilaError | None]:
        others = iter(rest)
        return [
            self._found[at] if at in self._found else next(others)
            for at in range(len(self._deliveries))
        ]


def ack_many(
    connection: Connection, messages: Iterable[Message], timeout: float | None
) -> list[FilaError | None]:
    """Acks messages and returns None or an error for each, in order."""
    connection.check_open()
    acks = _Acks(connection, messages)
    frames = _send_all(connection, _grants.SETTLE, acks.frames(), timeout, None)
    rest, failure = acks.rest(frames)
    return acks.all(_send_all(connection, _wire.ACK, rest, timeout, failure).found)


async def ack_many_async(
    connection: AsyncConnection, messages: Iterable[Message], timeout: float | None
) -> list[FilaError | None]:
    """Acks messages and returns None or an error for each, in order."""
    connection.check_open()
    acks = _Acks(connection, messages)
    frames = await _send_all_async(connection, _grants.SETTLE, acks.frames(), timeout, None)
    rest, failure = acks.rest(frames)
    return acks.all((await _send_all_async(connection, _wire.ACK, rest, timeout, failure)).found)
