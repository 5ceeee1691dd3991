# SPDX-License-Identifier: AGPL-3.0-only
"""Writes, batch and streaming: rows become messages, or settle messages that were leased.

Spark makes a writer on the driver, sends copies of it to wherever rows are, and may run the same
rows twice, at the same time even. Nothing is undone when a write fails: what was enqueued stays,
and the same rows enqueued again by the same run are duplicates that the broker recognises.
"""

import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import fila
from fila_spark import report, schema, sender
from fila_spark.identity import Identity
from fila_spark.leases import Lease
from fila_spark.options import EnqueueOptions, SettleOptions
from fila_spark.report import PartitionReport, Progress
from fila_spark.schema import ColumnError

# What Spark tells its tasks about the streaming query that they work for.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class StaleLeaseError(Exception):
    """leases had ended before the ack"""


class _Writer:
    """What all writes have in common; subclasses say how a batch of rows is sent."""

    options: EnqueueOptions | SettleOptions
    is_strict = False

    def __init__(self) -> None:
        run = self.options.run_id if isinstance(self.options, EnqueueOptions) else None
        # Born on the driver, so that all attempts at all partitions share it.
        self.run = run or uuid.uuid4().hex

    @abstractmethod
    def sending(
        self, batches: Iterable[pa.RecordBatch], partition: int
    ) -> Iterator[PartitionReport]: ...

    def write_rows(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        progress = Progress(self.options.operation, self.options.progress_seconds)
        whole = PartitionReport(progress.partition)
        for part in self.sending(batches, progress.partition):
            whole.add(part)
            progress.update(whole.rows)
        whole.seconds = round(progress.seconds, 3)
        return whole

    def finish(self, messages: list[WriterCommitMessage | None], batch_id: int | None) -> None:
        """Reports what the partitions did. Raises StaleLeaseError if that was asked for."""
        reports = report.present(messages)
        whole = report.total(reports)
        operation = self.options.operation
        text = report.sentence(operation, whole)
        # A stream would say it several times a second.
        if batch_id is None or whole.rejected or whole.stale:
            report.say(f"{text}; run {self.run}")
        if self.options.report_path is not None:
            report.write_file(self.options.report_path, operation, self.run, batch_id, reports)
        if whole.stale and self.is_strict:
            raise StaleLeaseError(
                f"{text}; those messages come again: lease them with a longer "
                "visibilityTimeoutMs, or accept it with onStaleAck=count"
            )

    def give_up(self, messages: list[WriterCommitMessage | None]) -> None:
        """Says what a failed write has left behind."""
        reports = report.present(messages)
        text = report.sentence(self.options.operation, report.total(reports))
        report.say(
            f"the write failed; {len(reports)} of {len(messages)} partitions were complete: "
            f"{text}; the rest may be done in part; run {self.run}"
        )


class _Enqueue(_Writer):
    options: EnqueueOptions

    def __init__(self, options: EnqueueOptions, columns: StructType) -> None:
        self.options = options
        super().__init__()
        schema.check_enqueue_columns(columns, options.queue is not None)

    def sending(
        self, batches: Iterable[pa.RecordBatch], partition: int
    ) -> Iterator[PartitionReport]:
        options = self.options
        identity = None
        if options.idempotency == "auto":
            identity = Identity(_run_of_stream() or self.run, partition)
        rate = options.max_rate_per_task
        rows_max = options.batch_rows if rate is None else min(options.batch_rows, rate)
        messages = (
            message for batch in batches for message in messages_of(batch, options.queue, identity)
        )
        requests = sender.split(messages, rows_max, options.batch_bytes)
        pace = sender.Pace(rate)
        return sender.through_window(
            _paced(requests, pace),
            lambda request: sender.enqueue(options, request),
            options.max_in_flight,
        )


def _paced(
    requests: Iterable[list[fila.EnqueueMessage]], pace: sender.Pace
) -> Iterator[list[fila.EnqueueMessage]]:
    for request in requests:
        pace.wait(len(request))
        yield request


def _run_of_stream() -> str | None:
    """Which micro-batch of which query this is; the same again after a restart."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(_QUERY_ID)
    if context is None or query is None:
        return None
    return f"{query}/{context.getLocalProperty(_BATCH_ID)}"


class _Settle(_Writer):
    options: SettleOptions

    def __init__(self, options: SettleOptions, columns: StructType) -> None:
        self.options = options
        super().__init__()
        self.is_strict = options.on_stale_ack == "fail"
        schema.check_settle_columns(columns, options.operation, options.queue is not None)

    def sending(
        self, batches: Iterable[pa.RecordBatch], partition: int
    ) -> Iterator[PartitionReport]:
        options = self.options
        requests = (
            leases[start : start + options.batch_rows]
            for leases in (leases_of(batch, options.queue) for batch in batches)
            for start in range(0, len(leases), options.batch_rows)
        )
        return sender.through_window(
            requests, lambda request: sender.settle(options, request), options.max_in_flight
        )


# --- Rows -----------------------------------------------------------------------------------------


def messages_of(
    batch: pa.RecordBatch, queue: str | None, identity: Identity | None
) -> Iterator[fila.EnqueueMessage]:
    """Rows as messages. Raises ColumnError for a null where there must be a value."""
    payloads = _column(batch, "payload")
    if queue is None:
        queues = _column(batch, "queue")
    else:
        queues = repeat(queue, batch.num_rows)
    rows = zip(
        queues,
        payloads,
        _column(batch, "headers"),
        _column(batch, "fairness_key"),
        _column(batch, "weight"),
        _column(batch, "throttle_keys"),
        _column(batch, "deliver_at"),
        _column(batch, "idempotency_key"),
        strict=True,
    )
    for name, payload, headers, fairness_key, weight, throttle_keys, deliver_at, key in rows:
        if payload is None:
            raise ColumnError('column "payload" is null in a row; an empty one is b""')
        if name is None:
            raise ColumnError('column "queue" is null in a row, and there is no option "queue"')
        message = fila.EnqueueMessage(
            name,
            _checked_headers(headers),
            payload,
            fairness_key,
            _checked_weight(weight),
            _checked_throttle_keys(throttle_keys),
            deliver_at=deliver_at,
            idempotency_key=key,
        )
        if key is None and identity is not None:
            message.idempotency_key = identity.key(message)
        yield message


def _column(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return repeat(None, batch.num_rows)
    column = batch.column(index)
    if name == "payload" and not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    return values


def _checked_headers(headers: list[tuple[str, str | None]] | None) -> dict[str, str] | None:
    if not headers:
        return None
    found = dict(headers)
    for name, value in found.items():
        if value is None:
            raise ColumnError(f'column "headers": the value of "{name}" is null in a row')
    return found  # type: ignore[return-value]


def _checked_weight(weight: int | None) -> int | None:
    if weight is not None and not 0 <= weight < 1 << 32:
        raise ColumnError(f'column "weight" is {weight} in a row; it must not be negative')
    return weight


def _checked_throttle_keys(keys: list[str | None] | None) -> tuple[str, ...]:
    if not keys:
        return ()
    if None in keys:
        raise ColumnError('column "throttle_keys" contains null in a row')
    return tuple(keys)  # type: ignore[arg-type]


def leases_of(batch: pa.RecordBatch, queue: str | None) -> list[tuple[Lease, str]]:
    """Rows as leases, each with a nack's error. A row's own queue counts: it is where it is from.

    Raises ColumnError for a null where there must be a value.
    """
    names = batch.schema.names
    queues = _column(batch, "queue") if "queue" in names else repeat(queue, batch.num_rows)
    tokens = _column(batch, "lease_token")
    rows = zip(_column(batch, "message_id"), queues, tokens, _column(batch, "error"), strict=True)
    found = []
    for message_id, name, token, error in rows:
        if not message_id:
            raise ColumnError('column "message_id" is null or empty in a row')
        if not name:
            raise ColumnError('column "queue" is null or empty in a row')
        found.append((Lease(name, message_id, token or ""), error or ""))
    return found


# --- What Spark calls -----------------------------------------------------------------------------


class EnqueueWriter(_Enqueue, DataSourceArrowWriter):
    """`df.write` with operation=enqueue."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_rows(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.finish(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.give_up(messages)


class EnqueueStreamWriter(_Enqueue, DataSourceStreamArrowWriter):
    """`df.writeStream` with operation=enqueue."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_rows(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.finish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.give_up(messages)


class SettleWriter(_Settle, DataSourceArrowWriter):
    """`df.write` with operation=ack, nack or redrive."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_rows(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.finish(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.give_up(messages)
