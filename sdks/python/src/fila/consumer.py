# SPDX-License-Identifier: AGPL-3.0-only
"""Consumers: the messages of a queue as an iterator. What reads them is in `_reader.py`."""

from collections.abc import AsyncIterator, Iterator
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fila._reader import AsyncReader, Reader, expired
from fila.message import AsyncConsumeMessage, ConsumeMessage

if TYPE_CHECKING:
    from fila.aio import AsyncClient
    from fila.client import Client

# With leases of 30 s that suits handlers of up to 0.4 s even if nobody extends anything, and a
# second consumer finds something to do.
DEFAULT_IN_FLIGHT_MAX = 64
# Half of the above: one frame is handled while the next one comes.
DEFAULT_BATCH_SIZE = 32


def _check_size(max_messages: int) -> None:
    if max_messages < 1:
        raise ValueError(f"max_messages must be positive, got {max_messages}")


class Consumer:
    """Iterates over the messages of a queue as the broker leases them.

    Threads may share it: each message goes to one of them. Closing it, from anywhere, ends the
    iteration; leaving its `with` block closes it. When the connection is lost the iteration goes on
    with a new one. It raises QueueNotFoundError, PermissionDeniedError and whatever else trying
    again would not cure.
    """

    def __init__(self, client: "Client", reader: Reader) -> None:
        self._client = client
        self._reader = reader
        self._frames = reader.frames

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumeMessage:
        reader = self._reader
        while not reader.is_closed:
            try:
                frame = self._frames[0]
                raw = frame.messages.popleft()
            except IndexError:
                reader.wait()
                continue
            if frame.ends_at > monotonic():
                return ConsumeMessage(raw, self._client, frame.size, frame.shared)
            expired(frame, raw)
        self._client._connection.check_not_forked()
        raise StopIteration

    def batches(self, max_messages: int) -> Iterator[list[ConsumeMessage]]:
        """Lists of the messages that are there: at least one, at most `max_messages`.

        It waits for the first of each, and never for more. Ends and fails as the iteration does.
        """
        _check_size(max_messages)
        for first in self:
            batch = [first]
            while len(batch) < max_messages:
                try:
                    frame = self._frames[0]
                    raw = frame.messages.popleft()
                except IndexError:
                    if self._reader.is_ready():
                        continue
                    break
                if frame.ends_at > monotonic():
                    batch.append(ConsumeMessage(raw, self._client, frame.size, frame.shared))
                else:
                    expired(frame, raw)
            yield batch

    def close(self) -> None:
        """Ends the stream and gives back what was not handed out. Harmless twice."""
        Reader.close_all([self._reader])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # `for message in client.consume(queue): break` leaves nobody else to end the stream.
        if not self._reader.is_closed:
            self._reader.drop()


class AsyncConsumer:
    """Iterates over the messages of a queue as the broker leases them.

    Tasks may share it: each message goes to one of them. Closing it, from any task, ends the
    iteration; leaving its `async with` block closes it. When the connection is lost the iteration
    goes on with a new one. It raises QueueNotFoundError, PermissionDeniedError and whatever else
    trying again would not cure. Cancelling one `anext()`, with a timeout say, loses no message.
    """

    def __init__(self, client: "AsyncClient", reader: AsyncReader) -> None:
        self._client = client
        self._reader = reader
        self._frames = reader.frames

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncConsumeMessage:
        reader = self._reader
        while not reader.is_closed:
            try:
                frame = self._frames[0]
                raw = frame.messages.popleft()
            except IndexError:
                await reader.wait()
                continue
            if frame.ends_at > monotonic():
                return AsyncConsumeMessage(raw, self._client, frame.size, frame.shared)
            expired(frame, raw)
        self._client._connection.check_not_forked()
        raise StopAsyncIteration

    async def batches(self, max_messages: int) -> AsyncIterator[list[AsyncConsumeMessage]]:
        """Lists of the messages that are there: at least one, at most `max_messages`.

        It waits for the first of each, and never for more. Ends and fails as the iteration does.
        """
        _check_size(max_messages)
        async for first in self:
            batch = [first]
            while len(batch) < max_messages:
                try:
                    frame = self._frames[0]
                    raw = frame.messages.popleft()
                except IndexError:
                    if self._reader.is_ready():
                        continue
                    break
                if frame.ends_at > monotonic():
                    batch.append(AsyncConsumeMessage(raw, self._client, frame.size, frame.shared))
                else:
                    expired(frame, raw)
            yield batch

    async def close(self) -> None:
        """Ends the stream and gives back what was not handed out. Harmless twice."""
        await AsyncReader.close_all([self._reader])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        # `async for message in client.consume(queue): break` leaves nobody else to end the stream.
        if not self._reader.is_closed:
            self._reader.drop()
