# SPDX-License-Identifier: AGPL-3.0-only
"""Why a request can fail, as one exception tree.

    FilaError                     .reason is what clients see in the `fila-reason` trailer
    |-- QueueNotFound             |-- QueueAlreadyExists      |-- MessageNotFound
    |-- LeaseExpired              |-- MessageLeased           |-- InvalidArgument
    |-- InvalidScript             |-- MessageTooLarge         |-- NotADeadLetterQueue
    |-- ParentQueueNotFound       |-- ConfigNotFound          |-- QueueFull
    |-- HookFailed                |-- Overloaded              |-- DiskFull
    |-- ShuttingDown              |-- StorageFailed           |-- Unauthenticated
    |-- PermissionDenied          `-- ApiKeyNotFound

This module knows nothing of gRPC: `rpc/status.py` has the one table from reasons to statuses.
Texts are lower-case clauses that name the value at fault, never a payload, a header value or a
secret.
"""

from typing import ClassVar


class FilaError(Exception):
    """Something was asked of the broker that it cannot do."""

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class QueueNotFound(FilaError):
    reason = "QUEUE_NOT_FOUND"


class QueueAlreadyExists(FilaError):
    reason = "QUEUE_ALREADY_EXISTS"


class MessageNotFound(FilaError):
    reason = "MESSAGE_NOT_FOUND"


class LeaseExpired(FilaError):
    reason = "LEASE_EXPIRED"


class MessageLeased(FilaError):
    reason = "MESSAGE_LEASED"


class InvalidArgument(FilaError):
    reason = "INVALID_ARGUMENT"


class InvalidScript(FilaError):
    reason = "INVALID_SCRIPT"


class MessageTooLarge(FilaError):
    reason = "MESSAGE_TOO_LARGE"


class NotADeadLetterQueue(FilaError):
    reason = "NOT_A_DEAD_LETTER_QUEUE"


class ParentQueueNotFound(FilaError):
    reason = "PARENT_QUEUE_NOT_FOUND"


class ConfigNotFound(FilaError):
    reason = "CONFIG_NOT_FOUND"


class QueueFull(FilaError):
    reason = "QUEUE_FULL"


class HookFailed(FilaError):
    reason = "HOOK_FAILED"


class Overloaded(FilaError):
    reason = "OVERLOADED"


class DiskFull(FilaError):
    reason = "DISK_FULL"


class ShuttingDown(FilaError):
    reason = "SHUTTING_DOWN"


class StorageFailed(FilaError):
    reason = "STORAGE_FAILED"


class Unauthenticated(FilaError):
    reason = "UNAUTHENTICATED"


class PermissionDenied(FilaError):
    reason = "PERMISSION_DENIED"


class ApiKeyNotFound(FilaError):
    reason = "API_KEY_NOT_FOUND"
