# SPDX-License-Identifier: AGPL-3.0-only
"""How the process is doing: what GetStatus says beyond the queues, which the core tells."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from fila.v1 import admin_pb2 as pb
from fila_server.config import Config
from fila_server.core.names import counted
from fila_server.runtime.descriptors import connections, established
from fila_server.runtime.memory import resident_bytes

if TYPE_CHECKING:
    from fila_server.runtime.engine import Engine

# So full that somebody will be refused before long.
_NEARLY = 0.9


class Status:
    """Completes the core's answer. `port` and `http_addr` are known once they are listened on."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._started_ns = time.time_ns()
        self._connections_max = connections(config.limits.max_connections)
        self.port = 0
        self.http_addr = ""

    def connections(self) -> int:
        return established(self.port)

    def complete(self, response: pb.GetStatusResponse) -> None:
        """Say what only the process knows."""
        engine = self._engine
        stored = engine.stored()
        response.version = version("fila-server")
        response.started_at.FromNanoseconds(self._started_ns)
        response.data_dir = self._config.server.data_dir
        response.sync = self._config.storage.sync
        response.disk_total_bytes = stored.volume
        response.disk_free_bytes = engine.disk.space.free
        response.disk_floor_bytes = engine.disk.floor
        response.disk_low = engine.disk.is_low
        response.log_bytes = stored.log
        response.table_bytes = stored.tables
        response.buffer_bytes = stored.buffers
        response.compaction_bytes = stored.compaction
        response.memory_bytes = resident_bytes()
        response.inbox_bytes = engine.inbox_bytes
        response.connections = self.connections()
        response.max_connections = self._connections_max
        response.http_addr = self.http_addr
        if response.connections > _NEARLY * self._connections_max:
            response.troubles.insert(
                0,
                pb.Trouble(
                    severity=pb.SEVERITY_WARNING,
                    kind="connections",
                    what=f"{response.connections:,} of at most"
                    f" {counted(self._connections_max, 'connection')} are open",
                    remedy="let clients share connections, or raise limits.max_connections and the"
                    " limit of open files",
                ),
            )
        if engine.disk.is_low:
            response.troubles.insert(
                0,
                pb.Trouble(
                    severity=pb.SEVERITY_CRITICAL,
                    kind="disk_low",
                    what=f"enqueues are refused: {engine.disk.refusal().message}",
                    remedy="ack or purge messages, or give the volume more room",
                ),
            )
