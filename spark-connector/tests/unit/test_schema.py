# SPDX-License-Identifier: AGPL-3.0-only
"""Columns: what Spark gets, and which ones a write takes."""

import pytest
from fila_spark import READ_SCHEMA, ColumnError, schema
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

# Spark's own parser of types needs a JVM.
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "array<string>": ArrayType(StringType(), False),
}


def columns(text: str) -> StructType:
    made = StructType()
    for column in text.split(", "):
        name, kind = column.split(" ")
        made.add(name, TYPES[kind])
    return made


def test_arrow_schema_is_what_spark_makes_of_the_read_schema() -> None:
    batch = schema.leased_batch([], include_payload=True)
    assert batch.schema == to_arrow_schema(READ_SCHEMA, timezone="UTC")


def test_a_schema_of_the_users_own_is_refused() -> None:
    schema.check_read_schema(READ_SCHEMA)
    with pytest.raises(ColumnError, match="fixed"):
        schema.check_read_schema(columns("payload binary"))


@pytest.mark.parametrize(
    "ddl",
    [
        "payload binary",
        "payload string, queue string",
        "payload binary, headers map<string,string>, fairness_key string, weight int, "
        "throttle_keys array<string>, deliver_at timestamp, idempotency_key string",
        "payload string, weight bigint",
    ],
)
def test_columns_that_can_be_enqueued(ddl: str) -> None:
    schema.check_enqueue_columns(columns(ddl), has_queue=True)


@pytest.mark.parametrize(
    ("ddl", "text"),
    [
        ("queue string", 'column "payload" is missing; there are queue'),
        ("payload int", 'column "payload" must be BINARY or STRING, not INT'),
        ("payload string, tenant string", 'column "tenant" cannot be enqueued; select some of'),
        ("payload string, headers string", 'column "headers" must be MAP<STRING, STRING>'),
        ("payload string, headers map<string,int>", "not MAP<STRING,INT>"),
        ("payload string, weight double", 'column "weight" must be INT or BIGINT, not DOUBLE'),
        ("payload string, throttle_keys string", 'column "throttle_keys" must be ARRAY<STRING>'),
        ("payload string, deliver_at timestamp_ntz", 'column "deliver_at" must be TIMESTAMP'),
        ("payload string, deliver_at string", 'column "deliver_at" must be TIMESTAMP'),
    ],
)
def test_enqueue_error_names_the_column(ddl: str, text: str) -> None:
    with pytest.raises(ColumnError) as caught:
        schema.check_enqueue_columns(columns(ddl), has_queue=True)
    assert text in str(caught.value)


def test_a_queue_has_to_be_named() -> None:
    with pytest.raises(ColumnError, match='option "queue" or with a column "queue"'):
        schema.check_enqueue_columns(columns("payload string"), has_queue=False)


def test_settling_takes_ids_and_leaves_other_columns_alone() -> None:
    schema.check_settle_columns(READ_SCHEMA, "ack", has_queue=False)
    ids = columns("message_id string")
    schema.check_settle_columns(ids, "redrive", has_queue=True)
    with pytest.raises(ColumnError, match='column "lease_token" is missing'):
        schema.check_settle_columns(ids, "ack", has_queue=True)
    with pytest.raises(ColumnError, match='column "message_id" must be STRING, not BIGINT'):
        schema.check_settle_columns(columns("message_id bigint"), "redrive", has_queue=True)
    with pytest.raises(ColumnError, match='column "queue"'):
        schema.check_settle_columns(ids, "redrive", has_queue=False)
