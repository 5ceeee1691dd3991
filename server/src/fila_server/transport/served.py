# SPDX-License-Identifier: AGPL-3.0-only
"""What a transport is to serve, whichever it is: services with their methods, and its share of the
machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fila.v1 import admin_pb2, service_pb2
from fila_server.config import Config, LimitsConfig
from fila_server.core.wire.intake import Cut
from fila_server.rpc import admin, backup, service
from fila_server.rpc.method import Method
from fila_server.runtime.descriptors import connections
from fila_server.runtime.engine import Engine

if TYPE_CHECKING:
    from fila_server.telemetry.tracing import Tracing


class Served(NamedTuple):
    """The contract, and the settings that it is served by."""

    config: Config
    services: list[tuple[str, list[Method]]]
    max_connections: int


def served(
    config: Config, engine: Engine, tracing: Tracing | None, cut: Cut | None = None
) -> Served:
    """Return what to serve; `cut` is what the transport takes single enqueues apart with."""
    http_connections = config.http.max_connections if config.http.listen_addr else 0
    producing = service_pb2.DESCRIPTOR.services_by_name["FilaService"].full_name
    administering = admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"].full_name
    return Served(
        config,
        [
            (producing, _service_methods(engine, config.limits, tracing, cut)),
            (administering, admin.methods(engine, backup.handler(config, engine))),
        ],
        connections(config.limits.max_connections, http_connections),
    )


def _service_methods(
    engine: Engine, limits: LimitsConfig, tracing: Tracing | None, cut: Cut | None
) -> list[Method]:
    if tracing is None:
        return service.methods(service.Service(engine, limits, cut))
    from fila_server.rpc.traced import TracedService  # OpenTelemetry is not loaded for nothing

    return service.methods(TracedService(engine, limits, tracing, cut), is_traced=True)
