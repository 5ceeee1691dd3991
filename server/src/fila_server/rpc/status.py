# SPDX-License-Identifier: AGPL-3.0-only
"""From errors to gRPC: the one table of statuses, and where a call's reason stands."""

from __future__ import annotations

import grpc

# The trailer that names an error's reason.
REASON_KEY = "fila-reason"
# What a caller learns of a defect.
DEFECT = "internal error; the broker's log has the details"

STATUS = {
    "QUEUE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "MESSAGE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CONFIG_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "API_KEY_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "LEASE_EXPIRED": grpc.StatusCode.FAILED_PRECONDITION,
    "MESSAGE_LEASED": grpc.StatusCode.FAILED_PRECONDITION,
    "PARENT_QUEUE_NOT_FOUND": grpc.StatusCode.FAILED_PRECONDITION,
    "HOOK_FAILED": grpc.StatusCode.FAILED_PRECONDITION,
    "QUEUE_ALREADY_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "INVALID_ARGUMENT": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_SCRIPT": grpc.StatusCode.INVALID_ARGUMENT,
    "NOT_A_DEAD_LETTER_QUEUE": grpc.StatusCode.INVALID_ARGUMENT,
    "MESSAGE_TOO_LARGE": grpc.StatusCode.INVALID_ARGUMENT,
    "OVERLOADED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "DISK_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "SHUTTING_DOWN": grpc.StatusCode.UNAVAILABLE,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "STORAGE_FAILED": grpc.StatusCode.INTERNAL,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}
