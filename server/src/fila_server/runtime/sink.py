# SPDX-License-Identifier: AGPL-3.0-only
"""Where the engine puts a consumer's frames, and where its RPC handler takes them.

A frame stays here until the transport has taken it over: what is still here when the consumer
leaves never reached it and goes back to the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque

from fila_server.errors import FilaError


class Sink:
    """Frames on their way to one consumer. Everything happens on the event loop's thread."""

    __slots__ = ("_error", "_frames", "_waiter", "consumer")

    def __init__(self, consumer: int) -> None:
        self.consumer = consumer
        self._frames: deque[tuple[int, bytes]] = deque()  # with the grant that each one is of
        self._waiter: asyncio.Future[None] | None = None
        self._error: FilaError | None = None

    def put(self, grant: int, frame: bytes) -> None:
        self._frames.append((grant, frame))
        self._wake()

    def close(self, error: FilaError) -> None:
        """End the consumer: frames that are still here go back to the queue."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def peek(self) -> bytes | None:
        """Return the next frame if there is one. Raises what `close` was given."""
        if self._error is not None:
            raise self._error
        return self._frames[0][1] if self._frames else None

    async def next(self) -> bytes:
        """Return the next frame, waiting for it. Raises what `close` was given."""
        while True:
            frame = self.peek()
            if frame is not None:
                return frame
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def sent(self) -> None:
        """Let go of the next frame: the transport has it."""
        self._frames.popleft()

    def unsent(self) -> list[int]:
        """Return the grants whose frames the transport never took over."""
        return [grant for grant, _ in self._frames]
