# SPDX-License-Identifier: AGPL-3.0-only
"""Many requests: a few under way at a time, repeated where that is safe, no faster than allowed.

Knows messages and counts, nothing of Spark.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar, cast

import fila
from fila_spark.connection import Patience, client_of, is_passing, patiently
from fila_spark.leases import Lease
from fila_spark.options import EnqueueOptions, SettleOptions
from fila_spark.report import PartitionReport

T = TypeVar("T")


class RejectedError(Exception):
    """the broker refused messages"""


def through_window(
    batches: Iterable[T], send: Callable[[T], PartitionReport], under_way_max: int
) -> Iterator[PartitionReport]:
    """Sends batches, up to so many at a time, and yields what became of each in order.

    The first failure is raised when its turn comes; what has not begun by then is not sent.
    """
    threads = ThreadPoolExecutor(under_way_max, "fila-sender")
    waiting: deque[Future[PartitionReport]] = deque()
    try:
        for batch in batches:
            if len(waiting) == under_way_max:
                yield waiting.popleft().result()
            waiting.append(threads.submit(send, batch))
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


class Pace:
    """Holds a partition to a number of rows per second, from its first row on."""

    def __init__(self, rows_per_second: int | None) -> None:
        self._rows_per_second = rows_per_second
        self._start = time.monotonic()
        self._rows = 0

    def wait(self, rows: int) -> None:
        """Returns when the next rows may go."""
        if self._rows_per_second is not None:
            due = self._start + self._rows / self._rows_per_second
            time.sleep(max(0.0, due - time.monotonic()))
            self._rows += rows


def split(
    messages: Iterable[fila.EnqueueMessage], rows_max: int, bytes_max: int
) -> Iterator[list[fila.EnqueueMessage]]:
    """Messages in order, in batches within both limits; a larger message travels alone."""
    batch: list[fila.EnqueueMessage] = []
    size = 0
    for message in messages:
        length = len(message.payload)
        if batch and (len(batch) == rows_max or size + length > bytes_max):
            yield batch
            batch = []
            size = 0
        batch.append(message)
        size += length
    if batch:
        yield batch


def enqueue(options: EnqueueOptions, messages: Sequence[fila.EnqueueMessage]) -> PartitionReport:
    """Enqueues one batch. What the broker could not take now is sent again, until it is or the
    time for trying is over; then, and where sending twice could store twice, the error is raised.
    """
    client = client_of(options.connection)
    report = PartitionReport(-1)
    report.payload_bytes = sum(len(message.payload) for message in messages)
    patience = Patience(options.connection)
    waiting = list(messages)
    while waiting:
        again: list[fila.EnqueueMessage] = []
        failure: fila.FilaError | None = None
        for message, result in zip(waiting, client.enqueue_many(waiting), strict=True):
            error = result.error
            if error is None:
                if result.duplicate:
                    report.duplicate += 1
                else:
                    report.done += 1
                    report.count(message.queue, 1)
            elif is_passing(error) and (message.idempotency_key or is_untouched(error)):
                again.append(message)
                failure = error
            else:
                _reject(options, report, error)
        if failure is not None and not patience.pause():
            raise failure
        waiting = again
    report.retries = patience.retries
    return report


def is_untouched(error: fila.FilaError) -> bool:
    """Whether the broker said that it did nothing; silence can mean anything."""
    return isinstance(error, fila.ResourceExhaustedError | fila.ShuttingDownError)


def _reject(options: EnqueueOptions, report: PartitionReport, error: fila.FilaError) -> None:
    # The broker says what is wrong with a message. Everything else is wrong with the write.
    is_about_message = isinstance(error, fila.InvalidArgumentError | fila.HookFailedError)
    text = f'queue "{error.queue}": {error.message}'
    if options.on_rejected == "fail" or not is_about_message:
        raise RejectedError(text) from error
    report.rejected += 1
    report.first_rejection = report.first_rejection or text


def settle(options: SettleOptions, leases: Sequence[tuple[Lease, str]]) -> PartitionReport:
    """Acks, nacks or redrives one batch of messages; beside each lease stands a nack's error."""
    if options.operation == "redrive":
        return _redrive(options, [lease for lease, _ in leases])
    report = PartitionReport(-1)
    if options.operation == "ack":
        _settle(options, [lease for lease, _ in leases], None, report)
        return report
    by_error: dict[str, list[Lease]] = {}
    for lease, error in leases:
        by_error.setdefault(error, []).append(lease)
    for error, alike in by_error.items():
        _settle(options, alike, error, report)
    return report


def _settle(
    options: SettleOptions, leases: list[Lease], error: str | None, report: PartitionReport
) -> None:
    client = client_of(options.connection)
    patience = Patience(options.connection)
    waiting = leases
    while waiting:
        # Ids and tokens are all that these calls read of a message.
        messages = cast("list[fila.Message]", waiting)
        outcomes = client.ack_many(messages) if error is None else client.nack_many(messages, error)
        again: list[Lease] = []
        failure: fila.FilaError | None = None
        for lease, outcome in zip(waiting, outcomes, strict=True):
            if outcome is None:
                report.done += 1
                report.count(lease.queue, 1)
            elif isinstance(outcome, fila.MessageNotFoundError):
                report.duplicate += 1
            elif isinstance(outcome, fila.LeaseExpiredError):
                report.stale += 1
            elif is_passing(outcome):
                again.append(lease)
                failure = outcome
            else:
                raise outcome
        if failure is not None and not patience.pause():
            raise failure
        waiting = again
    report.retries += patience.retries


def _redrive(options: SettleOptions, leases: list[Lease]) -> PartitionReport:
    report = PartitionReport(-1)
    by_queue: dict[str, list[str]] = {}
    for lease in leases:
        by_queue.setdefault(lease.queue, []).append(lease.id)
    client = client_of(options.connection)
    for queue, ids in by_queue.items():
        moved = patiently(options.connection, partial(client.redrive, queue, message_ids=ids))
        report.done += moved
        report.duplicate += len(ids) - moved
        report.count(queue, moved)
    return report
