# SPDX-License-Identifier: AGPL-3.0-only
"""The HTTP port: who may connect, how many at once, and for how long.

aiohttp speaks the protocol. It would wait for ever for a request's head, and it has no bound on
connections, so sockets are accepted here, counted from the first packet of a handshake on, and cut
at a deadline that every complete request moves on.

This module knows nothing of what is asked and answered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from fila_server.config import TlsConfig

log = logging.getLogger(__name__)

# From the connection to the end of its first request's head, the handshake included.
_FIRST_S = 10.0
# From a request's head to its answer: a redrive of many messages takes its time.
_ANSWER_S = 60.0
# From an answer to the next request's head; a page asks every two seconds.
_IDLE_S = 20.0
_SWEEP_S = 1.0
_BACKLOG = 100

Protocols = Callable[[], asyncio.Protocol]


def tls_context(tls: TlsConfig) -> ssl.SSLContext | None:
    """Return what to shake hands with, or None where TLS is off. The files have been checked."""
    if not tls.cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(tls.cert_file, tls.key_file)
    if tls.ca_file:
        context.load_verify_locations(tls.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Port:
    """Accepts connections and hands them to protocols that `serve` makes."""

    def __init__(self, most: int, tls: ssl.SSLContext | None) -> None:
        self._most = most
        self.tls = tls
        self._deadlines: dict[asyncio.BaseTransport, float] = {}
        self._shaking = 0  # connections whose handshake is under way
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self, address: str, serve: Protocols) -> str:
        """Listen, and return the address with the real port. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        found = await self._loop.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        chosen = int(port)
        for family, kind, protocol, _, where in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            self._sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((where[0], chosen, *where[2:]))
            chosen = listener.getsockname()[1]  # one port for all of a name's addresses
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        for listener in self._sockets:
            self._spawn(self._accept(listener, serve))
        self._sweep()
        return f"{host}:{chosen}"

    def close(self) -> None:
        """Listen no more and cut every connection."""
        for task in self._tasks:
            task.cancel()
        for listener in self._sockets:
            listener.close()
        if self._timer is not None:
            self._timer.cancel()
        for transport in self._deadlines:
            _cut(transport)

    def asked(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request's head is complete."""
        self._allow(transport, _ANSWER_S)

    def answered(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request's answer is on its way."""
        self._allow(transport, _IDLE_S)

    def _allow(self, transport: asyncio.BaseTransport | None, seconds: float) -> None:
        if transport in self._deadlines:
            self._deadlines[transport] = self._loop.time() + seconds

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket, serve: Protocols) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError as error:  # out of descriptors, for one: others may give some back
                log.warning("the HTTP port cannot take a connection: %s", error.strerror)
                await asyncio.sleep(_SWEEP_S)
                continue
            if self._is_full():
                connection.close()
            else:
                self._shaking += 1
                self._spawn(self._open(connection, serve))

    def _is_full(self) -> bool:
        if len(self._deadlines) + self._shaking >= self._most:
            self._forget_closed()
        return len(self._deadlines) + self._shaking >= self._most

    def _forget_closed(self) -> None:
        for transport in [it for it in self._deadlines if it.is_closing()]:
            del self._deadlines[transport]

    async def _open(self, connection: socket.socket, serve: Protocols) -> None:
        deadline_s = self._loop.time() + _FIRST_S
        timeout_s = _FIRST_S if self.tls is not None else None
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                serve, connection, ssl=self.tls, ssl_handshake_timeout=timeout_s
            )
            self._deadlines[transport] = deadline_s
        except (OSError, TimeoutError):  # a stranger spoiled the handshake, or left
            connection.close()
        finally:
            self._shaking -= 1

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(_SWEEP_S, self._sweep)
        self._forget_closed()
        now_s = self._loop.time()
        for transport, deadline_s in self._deadlines.items():
            if deadline_s <= now_s:
                _cut(transport)


def _cut(transport: asyncio.BaseTransport) -> None:
    """Close without waiting for what the peer has not taken yet."""
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
    else:
        transport.close()
