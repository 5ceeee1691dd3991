# SPDX-License-Identifier: AGPL-3.0-only
"""From errors to gRPC: the one table of statuses, and the rim that every handler runs inside."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from fila.v1.messages_pb2 import ItemError
from fila_server.errors import FilaError, InvalidArgument

log = logging.getLogger(__name__)

REASON_KEY = "fila-reason"

_STATUS = {
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


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: FilaError) -> NoReturn:
    """End the call with the error's status, its text and its reason."""
    await context.abort(
        _STATUS[error.reason], error.message, trailing_metadata=((REASON_KEY, error.reason),)
    )


def item_error(error: FilaError) -> ItemError:
    """Return an error as one item of a batch reports it."""
    return ItemError(reason=f"ERROR_REASON_{error.reason}", message=error.message)


def decoding(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Let bytes that cannot be decoded reach the handler as an error; gRPC would say UNKNOWN."""

    def run(encoded: bytes) -> Any:
        try:
            return decode(encoded)
        except DecodeError as error:
            return InvalidArgument(f"the request cannot be decoded: {error}")

    return run


Handler = Callable[[Any, Any], Awaitable[Any]]


def guarded(handler: Handler) -> Handler:
    """Run a unary handler inside the rim: errors become statuses, defects INTERNAL."""

    async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            if isinstance(request, FilaError):
                raise request
            return await handler(request, context)
        except FilaError as error:
            await refuse(context, error)
        except grpc.aio.AbortError:
            raise
        except Exception:
            log.exception("a defect in %s", getattr(handler, "__name__", "a handler"))
            await refuse(context, FilaError("internal error; the broker's log has the details"))

    return run
