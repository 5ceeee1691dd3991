# SPDX-License-Identifier: AGPL-3.0-only
"""Answers to batches, as bytes.

Those in which every item succeeded are put together by hand: that is the common case and runs per
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fila.v1.messages_pb2 import ItemError, ItemResult
from fila.v1.service_pb2 import (
    AckBatchResponse,
    EnqueueBatchResponse,
    ExtendLeaseResponse,
    SettleGrantsResponse,
)
from fila_server.errors import FilaError

# An EnqueueResult that holds a message id of 36 characters and nothing else, up to the id itself.
_ID_RESULT = "\n&\n$"
# An empty ItemResult: the item was done.
_DONE_RESULT = b"\n\x00"


class Duplicate(str):
    """The id of the message that an earlier enqueue with the same idempotency key made."""

    __slots__ = ()


class Settled(NamedTuple):
    """What became of a grant: how many messages were settled, and when extended leases end."""

    messages: int
    expires_ns: int = 0  # wall clock


def item_error(error: FilaError) -> ItemError:
    """Return an error as one item of a batch reports it."""
    return ItemError(reason=f"ERROR_REASON_{error.reason}", message=error.message)


def encode_enqueue_results(results: Sequence[str | FilaError]) -> bytes:
    """Encode an EnqueueBatchResponse."""
    if all(result.__class__ is str for result in results):
        return "".join([_ID_RESULT + result for result in results]).encode("ascii")  # type: ignore[operator]
    response = EnqueueBatchResponse()
    for result in results:
        if isinstance(result, FilaError):
            response.results.add(error=item_error(result))
        else:
            response.results.add(message_id=result, duplicate=isinstance(result, Duplicate))
    return response.SerializeToString()


def encode_results(results: Sequence[FilaError | None]) -> bytes:
    """Encode an AckBatchResponse or a NackBatchResponse, which look the same."""
    if not any(results):
        return _DONE_RESULT * len(results)
    response = AckBatchResponse()
    for error in results:
        response.results.append(
            ItemResult() if error is None else ItemResult(error=item_error(error))
        )
    return response.SerializeToString()


def encode_extensions(results: Sequence[int | FilaError]) -> bytes:
    """Encode an ExtendLeaseResponse, of leases' new ends by the wall clock in nanoseconds."""
    response = ExtendLeaseResponse()
    for result in results:
        row = response.results.add()
        if isinstance(result, FilaError):
            row.error.CopyFrom(item_error(result))
        else:
            row.lease_expires_at.FromNanoseconds(result)
    return response.SerializeToString()


def encode_grant_results(results: Sequence[Settled | FilaError]) -> bytes:
    """Encode a SettleGrantsResponse."""
    response = SettleGrantsResponse()
    for result in results:
        row = response.results.add()
        if isinstance(result, FilaError):
            row.error.CopyFrom(item_error(result))
        else:
            row.messages = result.messages
            if result.expires_ns:
                row.lease_expires_at.FromNanoseconds(result.expires_ns)
    return response.SerializeToString()
