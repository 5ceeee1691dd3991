# SPDX-License-Identifier: AGPL-3.0-only
"""grpcio as the transport: where it listens, and its limits. What each of them defends against is
in docs/internals/grpc.md.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc

from fila_server.config import LimitsConfig
from fila_server.limits import CONCURRENT_STREAMS
from fila_server.rpc.auth import Authenticator
from fila_server.transport.address import ListenError, cannot_listen, try_address
from fila_server.transport.grpcio import health, reflection
from fila_server.transport.grpcio.arrivals import Arrivals
from fila_server.transport.grpcio.credentials import Credentials
from fila_server.transport.grpcio.refusal import KeyCheck
from fila_server.transport.grpcio.rim import Rim
from fila_server.transport.served import Served
from fila_server.transport.tls import Certificates

log = logging.getLogger(__name__)

# How soon another server takes the place of one that ended by itself, and how long calls of that
# one may still take: few of them are there at a time, however often it is made to end.
_LOOK_S = 0.1
_LAST_CALLS_S = 1.0
# For requests of callers without a key. They are small, and whatever they are, they take nothing
# from those of the others.
_OPEN_BYTES = 1024 * 1024


class GrpcioTransport:
    """Calls through grpcio.

    Its server ends by itself when a call's path is not UTF-8, and the process would live on without
    hearing anybody. So it is looked after, and another one takes its place.
    """

    def __init__(
        self,
        served: Served,
        authenticator: Authenticator | None,
        certificates: Certificates | None,
    ) -> None:
        config = served.config
        self._served = served
        self._authenticator = authenticator
        self._credentials = Credentials(certificates) if certificates is not None else None
        self._health = health.Health(name for name, _ in served.services)
        rim = Rim(Arrivals(config.scheduler.inbox_bytes), authenticator)
        handlers = [rim.handlers(methods) for _, methods in served.services]
        handlers.append(Rim(Arrivals(_OPEN_BYTES)).handlers(health.methods(self._health)))
        if config.server.reflection:
            names = [name for name, _ in served.services]
            handlers.append(reflection.handlers((*names, health.SERVICE)))
        self._handlers = handlers
        self._ended: set[asyncio.Future[None]] = set()  # servers on their way out

    async def listen(self, address: str) -> int:
        port = await self._listen(address)
        host, _, _ = address.rpartition(":")
        self._care = asyncio.ensure_future(self._look_after(f"{host}:{port}"))
        return port

    def set_serving(self, is_serving: bool) -> None:
        self._health.set(is_serving)

    def reload(self, certificates: Certificates) -> None:
        assert self._credentials is not None
        self._credentials.reload(certificates)

    async def stop(self, grace_s: float) -> None:
        self._care.cancel()
        await asyncio.gather(self._server.stop(grace_s), *self._ended)

    async def _listen(self, address: str) -> int:
        try_address(address)
        config = self._served.config
        authenticator = self._authenticator
        server: Any = grpc.aio.server(
            interceptors=[KeyCheck(authenticator)] if authenticator is not None else None,
            options=_options(config.limits, self._served.max_connections),
            maximum_concurrent_rpcs=config.limits.max_concurrent_rpcs,
        )
        server.add_generic_rpc_handlers(self._handlers)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials.listening())
        except RuntimeError as error:
            raise ListenError(cannot_listen(address, "it was taken meanwhile")) from error
        await server.start()
        self._server = server
        return int(port)

    async def _look_after(self, address: str) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            # grpcio tells nobody of it while calls are under way.
            if self._server._server.is_running():
                continue
            log.error("gRPC's server ended by itself; listening again")
            self._let_go(self._server)
            try:
                await self._listen(address)
            except Exception as error:  # whatever it is, it is tried again
                log.error("cannot listen again: %s", error)

    def _let_go(self, server: Any) -> None:
        """End what is left of a server: clients are told to connect anew, streams are cut."""
        ending = asyncio.ensure_future(server.stop(_LAST_CALLS_S))
        self._ended.add(ending)
        ending.add_done_callback(self._ended.discard)


def _options(limits: LimitsConfig, max_connections: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        ("grpc.max_send_message_length", -1),  # frames are bounded by max_frame_bytes
        ("grpc.max_metadata_size", limits.max_metadata_bytes),
        # Windows stay small: what nobody reads yet stays with the client. See arrivals.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", CONCURRENT_STREAMS),
        # Calls that no handler has seen yet. Past gRPC's own limits they would end as CANCELLED;
        # these are never reached before `maximum_concurrent_rpcs`.
        ("grpc.server.max_pending_requests", 100_000),
        ("grpc.server.max_pending_requests_hard_limit", 200_000),
        # Beyond this they are closed as they come: descriptors are kept back for the store.
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", limits.handshake_timeout_ms),
        ("grpc.keepalive_time_ms", limits.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        # Without this a frozen peer is noticed after a minute only.
        ("grpc.http2.ping_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.min_ping_interval_ms),
        ("grpc.so_reuseport", 0),  # a second broker must not share the port in silence
    ]
