# SPDX-License-Identifier: AGPL-3.0-only
"""The columns: what a read gives, what a write takes, and messages as Arrow batches.

Spark compares a batch with the schema to the letter (order, nullability, time zone, width), so the
Arrow schema stands beside Spark's and both are written out.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import fila

_TEXTS = ArrayType(StringType(), True)
_HEADERS = MapType(StringType(), StringType(), True)

READ_SCHEMA = StructType(
    [
        StructField("message_id", StringType()),
        StructField("queue", StringType()),
        StructField("payload", BinaryType()),
        StructField("headers", _HEADERS),
        StructField("fairness_key", StringType()),
        StructField("weight", LongType()),
        StructField("throttle_keys", _TEXTS),
        StructField("attempt_count", IntegerType()),
        StructField("last_error", StringType()),
        StructField("enqueued_at", TimestampType()),
        StructField("state", StringType()),
        StructField("position", LongType()),  # null where the message is leased by this read
        StructField("lease_token", StringType()),  # null in a peek
        StructField("lease_expires_at", TimestampType()),
    ]
)

_MOMENT = pa.timestamp("us", "UTC")
_ARROW_SCHEMA = pa.schema(
    [
        ("message_id", pa.string()),
        ("queue", pa.string()),
        ("payload", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("fairness_key", pa.string()),
        ("weight", pa.int64()),
        ("throttle_keys", pa.list_(pa.field("element", pa.string()))),
        ("attempt_count", pa.int32()),
        ("last_error", pa.string()),
        ("enqueued_at", _MOMENT),
        ("state", pa.string()),
        ("position", pa.int64()),
        ("lease_token", pa.string()),
        ("lease_expires_at", _MOMENT),
    ]
)

_TEXT = "STRING"
_WHOLE = "INT or BIGINT"
# What `operation=enqueue` takes, and which types.
_ENQUEUE_COLUMNS: dict[str, tuple[str, tuple[DataType, ...]]] = {
    "payload": ("BINARY or STRING", (BinaryType(), StringType())),
    "queue": (_TEXT, (StringType(),)),
    "headers": ("MAP<STRING, STRING>", (_HEADERS, MapType(StringType(), StringType(), False))),
    "fairness_key": (_TEXT, (StringType(),)),
    "weight": (_WHOLE, (IntegerType(), LongType())),
    "throttle_keys": ("ARRAY<STRING>", (_TEXTS, ArrayType(StringType(), False))),
    "deliver_at": ("TIMESTAMP", (TimestampType(),)),
    "idempotency_key": (_TEXT, (StringType(),)),
}
_SETTLE_COLUMNS: dict[str, tuple[str, tuple[DataType, ...]]] = {
    name: (_TEXT, (StringType(),)) for name in ("message_id", "queue", "lease_token", "error")
}


class ColumnError(ValueError):
    """a column is missing, unknown, of the wrong type, or null where it must not be"""


# --- Reads ----------------------------------------------------------------------------------------


def check_read_schema(schema: StructType) -> None:
    """Refuses a schema that the user made up."""
    if schema.simpleString() != READ_SCHEMA.simpleString():
        raise ColumnError('the columns of format "fila" are fixed; leave out .schema(...)')


def peeked_batch(peeked: Sequence[fila.PeekedMessage], include_payload: bool) -> pa.RecordBatch:
    """Messages that were looked at, as rows."""
    states = [None if each.state is None else str(each.state) for each in peeked]
    positions = [each.position for each in peeked]
    messages = [each.message for each in peeked]
    return _batch(messages, states, positions, [None] * len(peeked), include_payload)


def leased_batch(messages: Sequence[fila.Message], include_payload: bool) -> pa.RecordBatch:
    """Messages that were leased, as rows."""
    nothing = [None] * len(messages)
    tokens = [message.lease_token for message in messages]
    states = [str(fila.MessageState.LEASED)] * len(messages)
    return _batch(messages, states, nothing, tokens, include_payload)


def _batch(
    messages: Sequence[fila.Message],
    states: Sequence[str | None],
    positions: Sequence[int | None],
    tokens: Sequence[str | None],
    include_payload: bool,
) -> pa.RecordBatch:
    columns: list[Iterable[Any]] = [
        [m.id for m in messages],
        [m.queue for m in messages],
        [m.payload if include_payload else None for m in messages],
        [list(m.headers.items()) for m in messages],
        [m.fairness_key for m in messages],
        [m.weight for m in messages],
        [m.throttle_keys for m in messages],
        [m.attempt_count for m in messages],
        [m.last_error or None for m in messages],
        [m.enqueued_at for m in messages],
        states,
        positions,
        tokens,
        [m.lease_expires_at for m in messages],
    ]
    arrays = [
        pa.array(values, kind) for values, kind in zip(columns, _ARROW_SCHEMA.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


# --- Writes ---------------------------------------------------------------------------------------


def check_enqueue_columns(schema: StructType, has_queue: bool) -> None:
    """Refuses columns that an enqueue cannot take, when Spark plans the write."""
    for column in schema:
        if column.name not in _ENQUEUE_COLUMNS:
            known = ", ".join(_ENQUEUE_COLUMNS)
            raise ColumnError(f'column "{column.name}" cannot be enqueued; select some of {known}')
    _check_types(schema, _ENQUEUE_COLUMNS)
    _require(schema, "payload")
    if not has_queue and "queue" not in schema.fieldNames():
        raise ColumnError('name the queue, with option "queue" or with a column "queue"')


def check_settle_columns(schema: StructType, operation: str, has_queue: bool) -> None:
    """Refuses a write that does not say which deliveries it is about. Other columns may stay."""
    _check_types(schema, _SETTLE_COLUMNS)
    _require(schema, "message_id")
    if operation in ("ack", "nack"):
        _require(schema, "lease_token")
    if not has_queue and "queue" not in schema.fieldNames():
        raise ColumnError('name the queue, with option "queue" or with a column "queue"')


def _require(schema: StructType, name: str) -> None:
    if name not in schema.fieldNames():
        found = ", ".join(schema.fieldNames()) or "none"
        raise ColumnError(f'column "{name}" is missing; there are {found}')


def _check_types(schema: StructType, columns: dict[str, tuple[str, tuple[DataType, ...]]]) -> None:
    for column in schema:
        text, kinds = columns.get(column.name, ("", ()))
        if text and not any(_is_same(column.dataType, kind) for kind in kinds):
            given = column.dataType.simpleString().upper()
            raise ColumnError(f'column "{column.name}" must be {text}, not {given}')


def _is_same(given: DataType, wanted: DataType) -> bool:
    # Texts with a collation, or of a limited length, are texts.
    if isinstance(wanted, StringType):
        return isinstance(given, StringType) or given.typeName() in ("char", "varchar")
    return given.simpleString() == wanted.simpleString()
