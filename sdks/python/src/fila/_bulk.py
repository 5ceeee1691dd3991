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

    def __init__(
        self,
        rpc: Batch[T],
        failure: FilaError | None = None,
        repeated: frozenset[str] | set[str] = frozenset(),
    ) -> None:
        self.rpc = rpc
        self.found: list[T | FilaError] = []
        self.failure = failure
        # Tokens of what may have been settled by a request that was sent before.
        self.repeated = set(repeated)

    def answered(self, batch: Sequence[Item], response: Any, is_repeated: bool) -> None:
        outcomes = self.rpc.outcomes(response, batch)
        if is_repeated:
            self.repeated.update(item.lease_token for item in batch)
        if self.repeated:
            outcomes = [
                None  # type: ignore[misc]  # only acks and nacks forgive
                if item.lease_token in self.repeated and isinstance(outcome, item.forgiven)
                else outcome
                for item, outcome in zip(batch, outcomes, strict=True)
            ]
        self.found += outcomes

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
    return _send_all(connection, _Outcomes(rpc), items, timeout).found


def _send_all(
    connection: Connection, outcomes: _Outcomes[T], items: Iterable[Item], timeout: float | None
) -> _Outcomes[T]:
    for batch in _wire.split(items):
        if outcomes.is_refused(batch):
            continue
        try:
            answer = _send(connection, outcomes.rpc, batch, timeout)
        except FilaError as error:
            outcomes.failed(batch, error)
        else:
            outcomes.answered(batch, *answer)
    return outcomes


def _send(
    connection: Connection, rpc: Batch[T], batch: list[Item], timeout: float | None
) -> tuple[object, bool]:
    """The answer, and whether the request was sent more than once."""
    request = _wire.join(batch)
    trace = tracing.current()
    attempts = 0

    def send(remaining: float) -> object:
        nonlocal attempts
        attempts += 1
        return connection.send(rpc.method, request, rpc.response, remaining, trace)

    answer = connection.retrying(send, _wire.is_repeatable(batch), timeout)
    return answer, attempts > 1


async def send_many_async(
    connection: AsyncConnection, rpc: Batch[T], items: Iterable[Item], timeout: float | None
) -> list[T | FilaError]:
    """Sends all items and returns one outcome for each, in order."""
    return (await _send_all_async(connection, _Outcomes(rpc), items, timeout)).found


async def _send_all_async(
    connection: AsyncConnection,
    outcomes: _Outcomes[T],
    items: Iterable[Item],
    timeout: float | None,
) -> _Outcomes[T]:
    for batch in _wire.split(items):
        if outcomes.is_refused(batch):
            continue
        try:
            answer = await _send_async(connection, outcomes.rpc, batch, timeout)
        except FilaError as error:
            outcomes.failed(batch, error)
        else:
            outcomes.answered(batch, *answer)
    return outcomes


async def _send_async(
    connection: AsyncConnection, rpc: Batch[T], batch: list[Item], timeout: float | None
) -> tuple[object, bool]:
    """The answer, and whether the request was sent more than once."""
    request = _wire.join(batch)
    trace = tracing.current()
    attempts = 0

    async def send(remaining: float) -> object:
        nonlocal attempts
        attempts += 1
        return await connection.send(rpc.method, request, rpc.response, remaining, trace)

    answer = await connection.retrying(send, _wire.is_repeatable(batch), timeout)
    return answer, attempts > 1


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

    def rest(self, outcomes: _Outcomes[Settled]) -> tuple[Iterator[Item], _Outcomes[None]]:
        """The acks that follow what became of the frames, and what is known of them already."""
        failure = outcomes.failure
        if isinstance(failure, UnimplementedError):
            self._peer.has_grants = False
            failure = None
        else:
            found = _grants.settled(self._deliveries, self._frames, outcomes.found)
            self._found = dict(found)
        left = (it for at, it in enumerate(self._deliveries) if at not in self._found)
        items = (_wire.ack_item(it.queue, it.message_id or "", it.lease_token) for it in left)
        return items, _Outcomes(_wire.ACK, failure, outcomes.repeated)

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
    acks = _Acks(connection, messages)
    frames = _send_all(connection, _Outcomes(_grants.SETTLE), acks.frames(), timeout)
    rest, outcomes = acks.rest(frames)
    return acks.all(_send_all(connection, outcomes, rest, timeout).found)


async def ack_many_async(
    connection: AsyncConnection, messages: Iterable[Message], timeout: float | None
) -> list[FilaError | None]:
    """Acks messages and returns None or an error for each, in order."""
    acks = _Acks(connection, messages)
    frames = await _send_all_async(connection, _Outcomes(_grants.SETTLE), acks.frames(), timeout)
    rest, outcomes = acks.rest(frames)
    return acks.all((await _send_all_async(connection, outcomes, rest, timeout)).found)
