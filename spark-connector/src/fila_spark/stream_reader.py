# SPDX-License-Identifier: AGPL-3.0-only
"""Streaming reads: at least once, acked when Spark's own log says that a batch is done.

An offset is a counter: batch n is what this process leased when it was asked for batch n. Spark
asks for the next batch with the offset up to which everything is in its log, so that is the moment
to ack; its `commit` comes one batch late and never for the last one. A process that takes over
after a crash knows nothing of the batches of its predecessor: it plans them as empty, and their
messages come again when the leases end.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

import fila
from fila_spark.connection import check_broker, client_of, patiently
from fila_spark.leases import HeldLeases, receive, rows_of, spread
from fila_spark.options import StreamOptions
from fila_spark.report import say

Offset = dict[str, Any]

_POLL_S = 0.2


class FilaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps one of these for the life of a query, and makes others to read partitions."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._connection = options.connection
        self._leases = HeldLeases(self._connection, options.visibility_timeout_ms)
        self._partitions: dict[int, list[InputPartition]] = {}
        # What a run with Trigger.AvailableNow may still lease; None without a bound.
        self._budget: int | None = None
        # Until when to wait for the messages of a batch that a dead process had leased.
        self._orphans_until: float | None = None

    def __reduce__(self) -> tuple[type["FilaStreamReader"], tuple[StreamOptions]]:
        # What goes to the executors reads partitions, which bring their rows along.
        return FilaStreamReader, (self._options,)

    def initialOffset(self) -> Offset:
        check_broker(self._connection, self._options.queue)
        return {"stream": uuid.uuid4().hex, "batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        stats = self._stats()
        # A key that may not see the stats drains until the queue is empty.
        self._budget = None if stats is None else stats.depth + stats.in_flight

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        done = int(start["batch"])
        self._settle(done)
        if self._partitions:
            # Leased for an earlier call whose answer Spark did not use.
            return {**start, "batch": max(self._partitions)}
        rows_max = self._options.max_messages_per_batch
        if isinstance(limit, ReadMaxRows):
            rows_max = min(rows_max, limit.max_rows)
        if self._budget is not None:
            rows_max = min(rows_max, self._budget)
        messages = self._receive(rows_max)
        if not messages:
            return start
        if self._budget is not None:
            self._budget -= len(messages)
        number = done + 1
        self._leases.hold(number, messages)
        self._partitions[number] = spread(
            messages, self._options.num_partitions, self._options.include_payload
        )
        return {**start, "batch": number}

    def _receive(self, rows_max: int) -> list[fila.ConsumeMessage]:
        """Leases a batch; waits for orphans if a run is to drain them too."""
        options = self._options
        while rows_max:
            messages = receive(options, rows_max, options.max_bytes_per_batch)
            is_waiting = self._orphans_until is not None and self._is_available_now
            if messages or not is_waiting or not self._has_leased():
                return messages
            assert self._orphans_until is not None
            if time.monotonic() > self._orphans_until:
                self._orphans_until = None
            time.sleep(_POLL_S)
        return []

    @property
    def _is_available_now(self) -> bool:
        return self._budget is not None

    def _has_leased(self) -> bool:
        stats = self._stats()
        return stats is not None and stats.in_flight > 0

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        numbers = range(int(start["batch"]) + 1, int(end["batch"]) + 1)
        lost = [number for number in numbers if number not in self._partitions]
        if lost:
            say(
                f"batch {lost[0]} was leased by a process that is gone; its messages come again "
                f"within {self._options.visibility_timeout_ms} ms"
            )
            self._orphans_until = time.monotonic() + self._options.visibility_timeout_ms / 1000
        return [each for number in numbers for each in self._partitions.get(number, [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition)

    def commit(self, end: Offset) -> None:
        self._settle(int(end["batch"]))

    def _settle(self, done: int) -> None:
        self._leases.ack_through(done)
        for number in [number for number in self._partitions if number <= done]:
            del self._partitions[number]

    def reportLatestOffset(self) -> Offset | None:
        """The backlog, which Spark shows as `latestOffset` of the source in a query's progress."""
        stats = self._stats()
        if stats is None:
            return None
        return {"ready": stats.depth, "leased": stats.in_flight, "delayed": stats.delayed}

    def _stats(self) -> fila.QueueStats | None:
        """The queue's counts; None for a key that may not see them."""
        client = client_of(self._connection)
        try:
            return patiently(
                self._connection, lambda: client.stats(self._options.queue, max_keys=1)
            )
        except fila.PermissionDeniedError:
            return None

    def stop(self) -> None:
        self._leases.release()
