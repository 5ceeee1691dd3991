# SPDX-License-Identifier: AGPL-3.0-only
"""The gRPC server: ports, TLS, API keys, limits, health, reflection. What each limit defends
against is in docs/internals/grpc.md.
"""

from __future__ import annotations

import socket

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from fila.v1 import admin_pb2, service_pb2
from fila_server.config import Config, LimitsConfig
from fila_server.rpc import admin, service
from fila_server.rpc.auth import Authenticator
from fila_server.rpc.tls import server_credentials
from fila_server.runtime.engine import Engine


class ListenError(Exception):
    """The address cannot be listened on."""


SERVICES = (
    service_pb2.DESCRIPTOR.services_by_name["FilaService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"].full_name,
)


def _options(limits: LimitsConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        ("grpc.max_send_message_length", -1),  # frames are bounded by max_frame_bytes
        ("grpc.max_metadata_size", limits.max_metadata_bytes),
        # Above this bursts are reset instead of queued, so the application's own limits come first.
        ("grpc.max_concurrent_streams", max(1000, limits.max_concurrent_rpcs)),
        ("grpc.server_handshake_timeout_ms", limits.handshake_timeout_ms),
        ("grpc.keepalive_time_ms", limits.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        # Without this a frozen peer is noticed after a minute only.
        ("grpc.http2.ping_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.min_ping_interval_ms),
        ("grpc.so_reuseport", 0),  # a second broker must not share the port in silence
    ]


def _try_address(address: str) -> None:
    """Raise ListenError with the cause if nothing can listen there; gRPC does not name it."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(_cannot_listen(address, error.strerror)) from error
    failures: list[OSError] = []
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except OSError as error:
            failures.append(error)
    if len(failures) == len(found):
        raise ListenError(_cannot_listen(address, failures[-1].strerror)) from failures[-1]


def _cannot_listen(address: str, cause: str | None) -> str:
    clause = (cause or "it is not an address of this machine").lower()
    return f"cannot listen on {address}: {clause}; choose another with --listen HOST:PORT"


class Server:
    """The broker's face to the network."""

    def __init__(self, config: Config, engine: Engine) -> None:
        limits = config.limits
        self._config = config
        self._health = health_aio.HealthServicer()
        self._credentials = server_credentials(config.tls)
        bootstrap = config.auth.bootstrap_apikey
        self._server = grpc.aio.server(
            interceptors=[Authenticator(engine.keyring, bootstrap)] if bootstrap else None,
            options=_options(limits),
            maximum_concurrent_rpcs=limits.max_concurrent_rpcs,
        )
        self._server.add_generic_rpc_handlers(
            (service.handlers(service.Service(engine, limits)), admin.handlers(engine))
        )
        add_HealthServicer_to_server(self._health, self._server)
        if config.server.reflection:
            names = (*SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)

    async def start(self) -> str:
        """Listen, and return the address with the real port."""
        address = self._config.server.listen_addr
        host = address.rpartition(":")[0]
        _try_address(address)
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise ListenError(_cannot_listen(address, "it was taken meanwhile")) from error
        await self._server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        return f"{host}:{port}"

    async def not_serving(self) -> None:
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *SERVICES):
            await self._health.set(name, status)
