# SPDX-License-Identifier: AGPL-3.0-only
"""Whether a stored record can be read, by its column; for whoever looks at a store as a whole.

A parser raises DecodeError or UnicodeDecodeError. It tells nothing of what a record is for.
"""

from collections.abc import Callable

from google.protobuf.message import DecodeError

from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import (
    Lease,
    Retry,
    SeenKey,
    StoredApiKey,
    StoredBucket,
    StoredMessage,
    StoredQueue,
)
from fila_server.storage.api import Column

Parser = Callable[[bytes, bytes], object]


def _message(key: bytes, value: bytes) -> None:
    if not StoredMessage.FromString(value).HasField("head"):
        raise DecodeError("a message without a head")


def _state(key: bytes, value: bytes) -> None:
    if key.startswith(records.BUCKET):
        StoredBucket.FromString(value)
    elif key.startswith(records.API_KEY):
        StoredApiKey.FromString(value)
    elif key.startswith(records.CONFIG):
        value.decode()


PARSERS: dict[Column, Parser] = {
    Column.MESSAGES: _message,
    Column.RETRIES: lambda key, value: Retry.FromString(value),
    Column.LEASES: lambda key, value: Lease.FromString(value),
    Column.QUEUES: lambda key, value: StoredQueue.FromString(value),
    Column.STATE: _state,
    Column.IDEMPOTENCY: lambda key, value: SeenKey.FromString(value),
}
