# SPDX-License-Identifier: AGPL-3.0-only
"""How a broker is doing: the request of GetStatus and its answer as plain values. No I/O.

Fields have the names of the contract, where each is described.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fila._answers import member, moment, plain
from fila._endpoint import Call
from fila.admin import METHOD
from fila.v1 import admin_pb2


class Severity(StrEnum):
    """How bad a trouble is."""

    NOTICE = "notice"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is wrong, and what to do about it; `queue` is empty for the broker itself."""

    severity: Severity | None
    kind: str
    queue: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """How a broker is doing; its troubles are the worst first."""

    version: str
    started_at: datetime | None
    role: str
    data_dir: str
    sync: str
    disk_total_bytes: int
    disk_free_bytes: int
    disk_floor_bytes: int
    disk_low: bool
    log_bytes: int
    table_bytes: int
    buffer_bytes: int
    compaction_bytes: int
    memory_bytes: int
    hot_bytes: int
    inbox_bytes: int
    connections: int
    max_connections: int
    consumers: int
    queues: int
    messages: int
    dead_letters: int
    http_addr: str
    troubles: tuple[Trouble, ...]


def status() -> Call[BrokerStatus]:
    return Call(
        METHOD + "GetStatus",
        admin_pb2.GetStatusRequest(),
        admin_pb2.GetStatusResponse,
        _read_status,
    )


def _read_status(raw: admin_pb2.GetStatusResponse) -> BrokerStatus:
    return plain(
        BrokerStatus,
        raw,
        started_at=moment(raw, "started_at"),
        troubles=tuple(
            plain(Trouble, row, severity=member(Severity, admin_pb2.Severity, row.severity))
            for row in raw.troubles
        ),
    )
