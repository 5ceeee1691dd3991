# SPDX-License-Identifier: AGPL-3.0-only
"""Batch reads. Spark plans one on the driver and then scans its partitions as often as it likes:
for every action, for every retry, twice for a sort.

A peek fixes a cutoff when it is planned, so that a scan never sees messages that came later. A
lease takes its messages when it is planned and carries them in its partitions, so that every scan
sees the same ones and nothing is leased twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

import fila
from fila_spark import schema
from fila_spark.connection import check_broker, client_of, patiently
from fila_spark.leases import Rows, receive, rows_of, spread
from fila_spark.options import LeaseOptions, PeekOptions
from fila_spark.report import Progress

_PEEK_ROWS_MAX = 1000  # the broker's limit for one answer

# Where the user does not say how many partitions: enough to keep a partition above the cost of
# starting it, and not so many that a large queue becomes thousands of them.
_ROWS_PER_PARTITION = 10_000
_PARTITIONS_MAX = 32


@dataclass
class Range(InputPartition):
    """The messages from one position up to, not including, another."""

    start: int
    end: int


class PeekReader(DataSourceReader):
    """Reads a queue without changing it."""

    def __init__(self, options: PeekOptions) -> None:
        self._options = options
        self._connection = options.connection

    def partitions(self) -> Sequence[InputPartition]:
        check_broker(self._connection, self._options.queue)
        first = self._page(0, 0, limit=1, exclude_payload=True)
        if not first.messages and not first.next_position:
            return [Range(0, 0)]
        start = first.messages[0].position if first.messages else first.next_position
        # Positions number the messages of all queues, so the cutoff is not the queue's last one.
        end = first.end_position
        if self._options.max_messages is not None:
            end = self._end_of(start, end, self._options.max_messages)
        return _ranges(start, end, self._options.num_partitions or self._partition_count())

    def _partition_count(self) -> int:
        stats = patiently(
            self._connection,
            lambda: client_of(self._connection).stats(self._options.queue, max_keys=1),
        )
        count = stats.depth + stats.in_flight + stats.delayed
        return max(1, min(_PARTITIONS_MAX, ceil(count / _ROWS_PER_PARTITION)))

    def _end_of(self, start: int, end: int, rows: int) -> int:
        """The position behind the last of so many rows, found without their payloads."""
        position = start
        while position:
            page = self._page(position, end, min(rows, _PEEK_ROWS_MAX), exclude_payload=True)
            rows -= len(page.messages)
            if rows <= 0:
                return page.messages[-1].position + 1
            position = page.next_position
        return end

    def _page(self, start: int, end: int, limit: int, exclude_payload: bool) -> fila.PeekPage:
        return patiently(
            self._connection,
            lambda: client_of(self._connection).peek(
                self._options.queue,
                limit,
                from_position=start,
                until_position=end,
                fairness_key=self._options.fairness_key,
                state=None if self._options.state == "any" else self._options.state,
                exclude_payload=exclude_payload,
            ),
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        include_payload = self._options.include_payload
        # An end of 0 would mean no end to the broker.
        position = partition.start if partition.end else 0
        progress = Progress("peek", self._options.progress_seconds)
        rows = 0
        while position:
            page = self._page(position, partition.end, _PEEK_ROWS_MAX, not include_payload)
            if page.messages:
                yield schema.peeked_batch(page.messages, include_payload)
            rows += len(page.messages)
            progress.update(rows)
            position = page.next_position


def _ranges(start: int, end: int, count: int) -> list[InputPartition]:
    """Splits positions evenly. Position 0 is never a message's."""
    count = max(1, min(count, end - start))
    edges = [start + (end - start) * n // count for n in range(count + 1)]
    return [Range(low, high) for low, high in pairwise(edges)]


class LeaseReader(DataSourceReader):
    """Leases messages once, when the read is planned. Acking them is a write of its own."""

    def __init__(self, options: LeaseOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        check_broker(options.connection, options.queue)
        leased = receive(options, options.max_messages, options.max_bytes)
        return spread(leased, options.num_partitions, options.include_payload) or [Rows(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition)
