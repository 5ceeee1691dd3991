# SPDX-License-Identifier: AGPL-3.0-only
"""What can go wrong, as one exception tree. Knows the contract's names, not gRPC's objects.

FilaError
|-- QueueNotFoundError        |-- MessageNotFoundError      |-- ConfigNotFoundError
|-- ApiKeyNotFoundError       |-- QueueAlreadyExistsError   |-- LeaseExpiredError
|-- MessageLeasedError        |-- ParentQueueNotFoundError  |-- HookFailedError
|-- UnauthenticatedError      |-- PermissionDeniedError     |-- DeadlineExceededError
|-- CancelledError            |-- UnimplementedError        |-- ClientClosedError
|-- InvalidArgumentError      > InvalidScriptError, NotADeadLetterQueueError, MessageTooLargeError
|-- ResourceExhaustedError    > OverloadedError, QueueFullError, DiskFullError
|-- UnavailableError          > ShuttingDownError
`-- InternalError             > StorageFailedError
"""

from collections.abc import Mapping
from typing import ClassVar


class FilaError(Exception):
    """a call failed"""

    # Whether the same call may succeed later. It does not promise that the first one did nothing:
    # repeating an enqueue that may have been stored needs an idempotency key.
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        reason: str | None = None,
        queue: str | None = None,
        message_id: str | None = None,
    ) -> None:
        self.message = message or type(self).__doc__ or ""
        # The gRPC status and the broker's reason by name; None where there is none.
        self.code = code
        self.reason = reason
        # What the call was about, as far as it named it.
        self.queue = queue
        self.message_id = message_id
        super().__init__(self.message)


class QueueNotFoundError(FilaError):
    """the queue does not exist"""


class MessageNotFoundError(FilaError):
    """the queue holds no such message, or it is not leased"""


class LeaseExpiredError(FilaError):
    """the lease token is not the one of the message's current delivery"""


class QueueAlreadyExistsError(FilaError):
    """the queue exists already"""


class InvalidArgumentError(FilaError):
    """a field is missing, malformed or out of range"""


class InvalidScriptError(InvalidArgumentError):
    """the Lua source does not compile or defines no hook"""


class NotADeadLetterQueueError(InvalidArgumentError):
    """the queue is not a dead-letter queue"""


class MessageTooLargeError(InvalidArgumentError):
    """payload, headers or request exceed a limit"""


class ParentQueueNotFoundError(FilaError):
    """the queue that the dead letters came from no longer exists"""


class ResourceExhaustedError(FilaError):
    """a limit of the broker or of this client is reached"""

    retryable = True


class OverloadedError(ResourceExhaustedError):
    """the broker has more work waiting than it accepts"""


class QueueFullError(ResourceExhaustedError):
    """the queue holds as many messages as it may"""


class DiskFullError(ResourceExhaustedError):
    """the broker's data volume is nearly full"""


class UnavailableError(FilaError):
    """the broker cannot be reached"""

    retryable = True


class ShuttingDownError(UnavailableError):
    """the broker is going away; nothing was done"""


class UnauthenticatedError(FilaError):
    """no API key, or not a valid one"""


class PermissionDeniedError(FilaError):
    """the API key may not do this"""


class ApiKeyNotFoundError(FilaError):
    """no API key has that id"""


class ConfigNotFoundError(FilaError):
    """no runtime configuration entry has that key"""


class MessageLeasedError(FilaError):
    """the message is leased"""


class HookFailedError(FilaError):
    """the queue's on_enqueue hook failed and its policy is to reject"""


class DeadlineExceededError(FilaError):
    """no answer came in time; the outcome is unknown"""

    retryable = True


class CancelledError(FilaError):
    """the call was cancelled; the outcome is unknown"""


class UnimplementedError(FilaError):
    """the broker does not know this call"""


class InternalError(FilaError):
    """the broker failed"""


class StorageFailedError(InternalError):
    """the broker's store failed; the outcome is unknown"""


class ClientClosedError(FilaError):
    """the client is closed"""


# The reasons of the contract: the class, and the status that the broker sends with it. Items of a
# batch carry a reason alone, so the status of an item's error comes from here.
REASONS: Mapping[str, tuple[type[FilaError], str]] = {
    "QUEUE_NOT_FOUND": (QueueNotFoundError, "NOT_FOUND"),
    "MESSAGE_NOT_FOUND": (MessageNotFoundError, "NOT_FOUND"),
    "LEASE_EXPIRED": (LeaseExpiredError, "FAILED_PRECONDITION"),
    "QUEUE_ALREADY_EXISTS": (QueueAlreadyExistsError, "ALREADY_EXISTS"),
    "INVALID_ARGUMENT": (InvalidArgumentError, "INVALID_ARGUMENT"),
    "INVALID_SCRIPT": (InvalidScriptError, "INVALID_ARGUMENT"),
    "NOT_A_DEAD_LETTER_QUEUE": (NotADeadLetterQueueError, "INVALID_ARGUMENT"),
    "PARENT_QUEUE_NOT_FOUND": (ParentQueueNotFoundError, "FAILED_PRECONDITION"),
    "MESSAGE_TOO_LARGE": (MessageTooLargeError, "INVALID_ARGUMENT"),
    "OVERLOADED": (OverloadedError, "RESOURCE_EXHAUSTED"),
    "QUEUE_FULL": (QueueFullError, "RESOURCE_EXHAUSTED"),
    "DISK_FULL": (DiskFullError, "RESOURCE_EXHAUSTED"),
    "SHUTTING_DOWN": (ShuttingDownError, "UNAVAILABLE"),
    "UNAUTHENTICATED": (UnauthenticatedError, "UNAUTHENTICATED"),
    "PERMISSION_DENIED": (PermissionDeniedError, "PERMISSION_DENIED"),
    "STORAGE_FAILED": (StorageFailedError, "INTERNAL"),
    "HOOK_FAILED": (HookFailedError, "FAILED_PRECONDITION"),
    "CONFIG_NOT_FOUND": (ConfigNotFoundError, "NOT_FOUND"),
    "MESSAGE_LEASED": (MessageLeasedError, "FAILED_PRECONDITION"),
    "API_KEY_NOT_FOUND": (ApiKeyNotFoundError, "NOT_FOUND"),
    "INTERNAL": (InternalError, "INTERNAL"),
}

# Statuses that come without a reason: from gRPC itself, a proxy, or a broker newer than this table.
# Everything that is not listed is an InternalError.
STATUSES: Mapping[str, type[FilaError]] = {
    "ALREADY_EXISTS": QueueAlreadyExistsError,
    "CANCELLED": CancelledError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "INVALID_ARGUMENT": InvalidArgumentError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "RESOURCE_EXHAUSTED": ResourceExhaustedError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "UNAVAILABLE": UnavailableError,
    "UNIMPLEMENTED": UnimplementedError,
}


def from_reason(
    reason: str, message: str, *, queue: str | None = None, message_id: str | None = None
) -> FilaError:
    """The error of one item of a batch; an unknown reason is an InternalError."""
    kind, code = REASONS.get(reason, (InternalError, "INTERNAL"))
    return kind(message, code=code, reason=reason, queue=queue, message_id=message_id)


def from_status(
    code: str,
    reason: str | None,
    message: str,
    *,
    queue: str | None = None,
    message_id: str | None = None,
) -> FilaError:
    """The error of a whole call: by its reason if that is known, else by its status."""
    if reason is not None and reason in REASONS:
        kind = REASONS[reason][0]
    elif code == "NOT_FOUND" and (message_id or queue):
        # What is missing is the most specific thing that the call named.
        kind = MessageNotFoundError if message_id else QueueNotFoundError
    else:
        kind = STATUSES.get(code, InternalError)
    return kind(message, code=code, reason=reason, queue=queue, message_id=message_id)


def about(error: FilaError, queue: str | None, message_id: str | None) -> FilaError:
    """The error of a batch as the error of one of its items: an object of its own for each caller,
    because raising an exception writes to it."""
    if error.code is None:
        copy = type(error)(error.message, queue=queue, message_id=message_id)
    else:
        copy = from_status(
            error.code, error.reason, error.message, queue=queue, message_id=message_id
        )
    copy.__cause__ = error.__cause__
    return copy
