# SPDX-License-Identifier: AGPL-3.0-only
"""A TCP proxy that makes the network bad on demand. The words are toxiproxy's.

    down, up      reset open connections and every new one; accept again
    reset_peer    reset open connections, accept new ones
    timeout       open connections stay open and pass nothing on, in one direction or in both: for
                  them the peer went silent for ever
    latency       pass everything on later
    bandwidth     pass on so many bytes per second
    slicer        pass on in pieces of so many bytes
    heal          none of these, for connections that come and for those that are there

It runs in a thread of its own, in an event loop.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from fila_conformance.ports import LOOPBACK, free_port

T = TypeVar("T")

UPSTREAM, DOWNSTREAM = "upstream", "downstream"
_CHUNK_BYTES = 64 * 1024
_COMMAND_TIMEOUT_S = 30.0
# TCP's way to say "gone" at once: closing with SO_LINGER on and a time of 0.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class Toxics:
    """What is wrong in one direction."""

    latency_s: float = 0.0
    bytes_per_second: int = 0
    slice_bytes: int = 0


class Connection:
    """One client and its connection to the other side."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        # The directions in which nothing is passed on.
        self.silent: set[str] = set()

    def end(self) -> None:
        self.client.close()
        self.server.close()

    def reset(self) -> None:
        reset(self.client)
        reset(self.server)


def reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    try:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    except OSError:
        pass  # Closed already.
    writer.transport.abort()


class Proxy:
    """Listens on a port of its own and passes on to `upstream`, host:port."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self._port = free_port()
        self._loop = asyncio.new_event_loop()
        self._listener: asyncio.Server | None = None
        self._open: set[Connection] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._connects = 0
        self._is_down = False
        self._toxics = {UPSTREAM: Toxics(), DOWNSTREAM: Toxics()}
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._listen)

    @property
    def target(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    def stats(self) -> dict[str, int]:
        """Connections so far, and those that are open."""

        async def read() -> dict[str, int]:
            return {"connects": self._connects, "open": len(self._open)}

        return self._run(read)

    def apply(
        self,
        toxic: str,
        direction: str | None = None,
        *,
        latency_ms: int = 0,
        bytes: int = 0,
        bytes_per_second: int = 0,
    ) -> None:
        """Makes the network bad or good; without a direction, in both."""
        directions = [direction] if direction else list(self._toxics)

        async def change() -> None:
            if toxic in ("down", "up"):
                self._is_down = toxic == "down"
            if toxic in ("down", "reset_peer"):
                self._reset_all()
            if toxic == "timeout":
                for connection in self._open:
                    connection.silent.update(directions)
            if toxic == "heal":
                for name in self._toxics:
                    self._toxics[name] = Toxics()
            for side in (self._toxics[name] for name in directions):
                side.latency_s = latency_ms / 1000 or side.latency_s
                side.bytes_per_second = bytes_per_second or side.bytes_per_second
                if toxic == "slicer":
                    side.slice_bytes = bytes

        self._run(change)

    def close(self) -> None:
        """Ends every connection and the thread."""

        async def end() -> None:
            assert self._listener is not None
            self._listener.close()
            self._reset_all()
            for pump in list(self._pumps):
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

        self._run(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        done: Future[T] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return done.result(_COMMAND_TIMEOUT_S)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, LOOPBACK, self._port)

    def _reset_all(self) -> None:
        for connection in list(self._open):
            connection.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connects += 1
        if self._is_down:
            reset(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.close()
            return
        connection = Connection(writer, far_writer)
        self._open.add(connection)
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, UPSTREAM, connection)),
            asyncio.create_task(self._pump(far_reader, writer, DOWNSTREAM, connection)),
        ]
        self._pumps.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            # One side is done. What it sent before is on its way; then the other ends too.
            connection.end()
            await asyncio.wait(pumps)
        finally:
            self._open.discard(connection)
            self._pumps.difference_update(pumps)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
        connection: Connection,
    ) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                toxics = self._toxics[direction]
                if toxics.latency_s:
                    await asyncio.sleep(toxics.latency_s)
                if direction not in connection.silent:
                    await _pass_on(data, writer, toxics)
        except (OSError, asyncio.IncompleteReadError):
            return  # The connection is gone; its other pump learns it from the socket.


async def _pass_on(data: bytes, writer: asyncio.StreamWriter, toxics: Toxics) -> None:
    size = toxics.slice_bytes or len(data)
    for start in range(0, len(data), size):
        writer.write(data[start : start + size])
        await writer.drain()
        if toxics.slice_bytes:
            # Yields to the loop, so that each piece is a segment of its own.
            await asyncio.sleep(0)
    if toxics.bytes_per_second:
        await asyncio.sleep(len(data) / toxics.bytes_per_second)
