# SPDX-License-Identifier: AGPL-3.0-only
"""What goes out, as bytes: delivery frames, and the answers to batches.

A delivery is a stored body (id, headers, payload) followed by metadata (field 4) and timestamps
(field 5). So delivering concatenates bytes. Answers in which every item succeeded are put together
the same way, because they are the common case and run per message.
"""

from __future__ import annotations

from collections.abc import Iterable

from fila.v1.messages_pb2 import Failure, MessageMetadata
from fila_server.core.wire.records import ID_BYTES, stamp_ns
from fila_server.core.wire.records_pb2 import StoredFailure
from fila_server.core.wire.varint import varint

# Length prefixes of ordinary messages, made once: `\n` is the tag of ConsumeResponse.messages.
_FRAME_PREFIXES = [b"\n" + varint(n) for n in range(4096)]
# Tags and lengths around one delivery, its id, its token and its three timestamps, at most.
DELIVERY_BYTES = 128 + ID_BYTES


def frame_prefix(length: int) -> bytes:
    return _FRAME_PREFIXES[length] if length < 4096 else b"\n" + varint(length)


def lane_metadata(
    queue: str, fairness_key: str, weight: int, throttle_keys: tuple[str, ...], cost: int
) -> bytes:
    """Return the metadata fields that all deliveries from one lane share, unframed."""
    return MessageMetadata(
        queue_id=queue,
        fairness_key=fairness_key,
        weight=weight,
        throttle_keys=throttle_keys,
        throttle_cost=cost if cost > 1 else 0,
    ).SerializeToString()


def token_field(token: str) -> bytes:
    """Return the lease token as the last field of the metadata."""
    return MessageMetadata(lease_token=token).SerializeToString()


def framed_metadata(fields: bytes, token_bytes: int) -> bytes:
    """Return metadata up to its token field, which is yet to follow with so many bytes."""
    return b'"' + varint(len(fields) + token_bytes) + fields


def failures_of(stored: Iterable[StoredFailure]) -> list[Failure]:
    """Return stored failures as clients see them."""
    found = []
    for failure in stored:
        shown = Failure(cause=failure.cause, error=failure.error)  # type: ignore[arg-type]
        shown.failed_at.FromNanoseconds(failure.failed_at_ns)
        found.append(shown)
    return found


def retry_fields(attempt: int, error: str, failures: Iterable[StoredFailure]) -> bytes:
    """Return the metadata fields of a message that failed before."""
    return MessageMetadata(
        attempt_count=attempt, last_error=error, failures=failures_of(failures)
    ).SerializeToString()


def timestamp_field(number: int, wall_ns: int) -> bytes:
    """Return a google.protobuf.Timestamp as field `number` (below 16) of its parent."""
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    encoded = b"\x08" + varint(seconds)
    if nanos:
        encoded += b"\x10" + varint(nanos)
    return bytes((number << 3 | 2,)) + varint(len(encoded)) + encoded


def delivery_timestamps(stamp: bytes, leased: bytes) -> bytes:
    """Return the framed timestamps of a delivery; `leased` holds its fields 2 and 3."""
    encoded = timestamp_field(1, stamp_ns(stamp)) + leased
    return b"*" + varint(len(encoded)) + encoded
