# SPDX-License-Identifier: AGPL-3.0-only
"""Python client for Fila. These names are the public API; everything else may change.

`Client` blocks and `AsyncClient` awaits; their methods have the same names and arguments.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fila import tracing
from fila.client import Client
from fila.consumer import AsyncConsumer, Consumer
from fila.errors import (
    ApiKeyNotFoundError,
    CancelledError,
    ClientClosedError,
    ConfigNotFoundError,
    DeadlineExceededError,
    DiskFullError,
    FilaError,
    HookFailedError,
    InternalError,
    InvalidArgumentError,
    InvalidScriptError,
    LeaseExpiredError,
    MessageLeasedError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotADeadLetterQueueError,
    OverloadedError,
    ParentQueueNotFoundError,
    PermissionDeniedError,
    QueueAlreadyExistsError,
    QueueFullError,
    QueueNotFoundError,
    ResourceExhaustedError,
    ShuttingDownError,
    StorageFailedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from fila.message import (
    AsyncConsumeMessage,
    ConsumeMessage,
    EnqueueMessage,
    EnqueueResult,
    Failure,
    FailureCause,
    Message,
)
from fila.options import Backoff, ConnectionEvent, TlsOptions

if TYPE_CHECKING:
    from fila.access import Acl, AclEntry, ApiKeyInfo, NewApiKey, Permission
    from fila.admin import QueueSettings
    from fila.aio import AsyncClient
    from fila.backup import BackupProgress
    from fila.findings import (
        DeletedQueue,
        Explanation,
        MessageState,
        PeekedMessage,
        PeekPage,
        ThrottlePage,
        WaitKind,
        WaitReason,
    )
    from fila.queues import HookErrorPolicy, QueueConfig, QueueCounters, QueueInfo
    from fila.stats import (
        ConsumerStats,
        FairnessKeyStats,
        HookStats,
        KeyTraffic,
        QueueStats,
        ThrottleKeyStats,
        WaitStats,
    )
    from fila.status import BrokerStatus, Severity, Trouble
    from fila.worker import AsyncWorker, Backpressure, DeadLetter, Worker, WorkerEvent

__all__ = [
    "Acl",
    "AclEntry",
    "ApiKeyInfo",
    "ApiKeyNotFoundError",
    "AsyncClient",
    "AsyncConsumeMessage",
    "AsyncConsumer",
    "AsyncWorker",
    "Backoff",
    "Backpressure",
    "BackupProgress",
    "BrokerStatus",
    "CancelledError",
    "Client",
    "ClientClosedError",
    "ConfigNotFoundError",
    "ConnectionEvent",
    "ConsumeMessage",
    "Consumer",
    "ConsumerStats",
    "DeadLetter",
    "DeadlineExceededError",
    "DeletedQueue",
    "DiskFullError",
    "EnqueueMessage",
    "EnqueueResult",
    "Explanation",
    "Failure",
    "FailureCause",
    "FairnessKeyStats",
    "FilaError",
    "HookErrorPolicy",
    "HookFailedError",
    "HookStats",
    "InternalError",
    "InvalidArgumentError",
    "InvalidScriptError",
    "KeyTraffic",
    "LeaseExpiredError",
    "Message",
    "MessageLeasedError",
    "MessageNotFoundError",
    "MessageState",
    "MessageTooLargeError",
    "NewApiKey",
    "NotADeadLetterQueueError",
    "OverloadedError",
    "ParentQueueNotFoundError",
    "PeekPage",
    "PeekedMessage",
    "Permission",
    "PermissionDeniedError",
    "QueueAlreadyExistsError",
    "QueueConfig",
    "QueueCounters",
    "QueueFullError",
    "QueueInfo",
    "QueueNotFoundError",
    "QueueSettings",
    "QueueStats",
    "ResourceExhaustedError",
    "Severity",
    "ShuttingDownError",
    "StorageFailedError",
    "ThrottleKeyStats",
    "ThrottlePage",
    "TlsOptions",
    "Trouble",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "WaitKind",
    "WaitReason",
    "WaitStats",
    "Worker",
    "WorkerEvent",
    "tracing",
]

# Where names are that few programs ask for. Making their classes takes longer than sending a
# message, so each module is imported when it is first named; then the names are here, too.
_PLACES = {
    "access": "Acl AclEntry ApiKeyInfo NewApiKey Permission",
    "admin": "QueueSettings",
    "aio": "AsyncClient",
    "backup": "BackupProgress",
    "findings": "DeletedQueue Explanation MessageState PeekedMessage PeekPage ThrottlePage WaitKind"
    " WaitReason",
    "queues": "HookErrorPolicy QueueConfig QueueCounters QueueInfo",
    "stats": "ConsumerStats FairnessKeyStats HookStats KeyTraffic QueueStats ThrottleKeyStats"
    " WaitStats",
    "status": "BrokerStatus Severity Trouble",
    "config": "",
    "testing": "",
    "worker": "AsyncWorker Backpressure DeadLetter Worker WorkerEvent",
}


if not TYPE_CHECKING:  # which would take any name for one of these

    def __getattr__(name: str) -> object:
        for module, names in _PLACES.items():
            if name == module:
                return import_module(f"fila.{module}")
            if name in names.split():
                value = globals()[name] = getattr(import_module(f"fila.{module}"), name)
                return value
        raise AttributeError(f"module 'fila' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
