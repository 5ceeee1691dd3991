# SPDX-License-Identifier: AGPL-3.0-only
"""The broker's face to the network: the contract, served through the transport of the settings.

There are two: the native edge, where its wheel is installed, and grpcio. A client cannot tell them
apart but by their speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from fila_server.config import Config, ConfigError, TlsConfig
from fila_server.rpc.auth import Authenticator
from fila_server.runtime.engine import Engine
from fila_server.telemetry.rows import Row
from fila_server.transport.served import served
from fila_server.transport.tls import Certificates, read_certificates

if TYPE_CHECKING:
    from fila_server.telemetry.tracing import Tracing

EDGE, GRPCIO = "edge", "grpcio"


class Transport(Protocol):
    """How calls travel."""

    async def listen(self, address: str) -> int:
        """Serve calls, and return the port. Raises ListenError."""

    def set_serving(self, is_serving: bool) -> None:
        """Let probes know whether the broker serves."""

    def reload(self, certificates: Certificates) -> None:
        """Shake hands with these from now on."""

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, and end those under way after a while."""


def chosen(wanted: str) -> str:
    """Return the transport that a setting means. Raises ConfigError for one that is missing."""
    has_edge = find_spec("fila_edge") is not None
    if wanted == EDGE and not has_edge:
        raise ConfigError(
            'server.transport: "edge" needs the package fila-edge; install it, or set "grpcio"'
        )
    return EDGE if has_edge and wanted != GRPCIO else GRPCIO


class Server:
    """Listens, and answers until it is stopped."""

    def __init__(self, config: Config, engine: Engine, tracing: Tracing | None = None) -> None:
        self._config = config
        self._status = engine.status
        self._backups = engine.backups
        self._certificates = read_certificates(config.tls)
        bootstrap = config.auth.bootstrap_apikey
        self._authenticator = Authenticator(engine.keyring, bootstrap) if bootstrap else None
        self.transport = chosen(config.server.transport)
        self._transport = self._make(engine, tracing)

    def _make(self, engine: Engine, tracing: Tracing | None) -> Transport:
        config, authenticator, certificates = self._config, self._authenticator, self._certificates
        # Either is loaded only where it is used.
        if self.transport == EDGE:
            from fila_edge import draft

            from fila_server.transport.edge.transport import EdgeTransport

            contract = served(config, engine, tracing, draft)
            return EdgeTransport(contract, engine, authenticator, certificates)
        from fila_server.transport.grpcio.transport import GrpcioTransport

        return GrpcioTransport(served(config, engine, tracing), authenticator, certificates)

    async def start(self) -> str:
        """Listen, and return the address with the real port. Raises ListenError."""
        address = self._config.server.listen_addr
        port = await self._transport.listen(address)
        self._transport.set_serving(True)
        self._status.port = port
        return f"{address.rpartition(':')[0]}:{port}"

    def readings(self) -> Iterator[Row]:
        """Yield what only the transport knows."""
        yield "fila.connections", (), self._status.connections()
        if self._authenticator is not None:
            yield "fila.auth.refused", (), self._authenticator.refusals.count

    def reload_certificates(self, tls: TlsConfig) -> None:
        """Show clients the certificates that the files hold now. Raises ConfigError."""
        fresh, now = read_certificates(tls), self._certificates
        if (fresh is None) != (now is None):
            raise ConfigError("tls.cert_file: turning TLS on or off needs a restart")
        if fresh is None or now is None:
            return
        if (fresh.clients_ca is None) != (now.clients_ca is None):
            raise ConfigError("tls.ca_file: whether clients need a certificate needs a restart")
        self._transport.reload(fresh)

    def not_serving(self) -> None:
        """Let probes know that the broker is about to stop."""
        self._transport.set_serving(False)

    async def stop(self, grace_s: float) -> None:
        await self._backups.stop()
        await self._transport.stop(grace_s)
