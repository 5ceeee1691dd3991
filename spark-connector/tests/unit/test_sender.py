# SPDX-License-Identifier: AGPL-3.0-only
"""Requests under way, batches and pace, without a broker."""

import threading
import time
from collections.abc import Iterator

import pytest
from fila_spark.report import PartitionReport
from fila_spark.sender import Pace, is_untouched, split, through_window

import fila

LIMIT_S = 30.0


def message(size: int) -> fila.EnqueueMessage:
    return fila.EnqueueMessage("q", payload=b"x" * size)


def test_batches_stay_within_both_limits() -> None:
    sizes = [10, 10, 10, 50, 200, 1, 1]
    batches = split((message(size) for size in sizes), rows_max=3, bytes_max=60)
    found = [[len(each.payload) for each in batch] for batch in batches]
    assert found == [[10, 10, 10], [50], [200], [1, 1]]


def test_results_come_in_order_and_no_more_are_under_way_than_allowed() -> None:
    lock = threading.Lock()
    under_way = highest = 0

    def send(number: int) -> PartitionReport:
        nonlocal under_way, highest
        with lock:
            under_way += 1
            highest = max(highest, under_way)
        time.sleep(0.01 * (number % 3))
        with lock:
            under_way -= 1
        return PartitionReport(number)

    found = [report.partition for report in through_window(range(20), send, 3)]
    assert found == list(range(20))
    assert highest <= 3


def test_requests_overlap() -> None:
    meeting = threading.Barrier(2, timeout=LIMIT_S)

    def send(number: int) -> PartitionReport:
        meeting.wait()  # passes only when two are under way
        return PartitionReport(number)

    assert len(list(through_window(range(4), send, 2))) == 4


def test_a_failure_stops_the_rest() -> None:
    sent: list[int] = []

    def numbers() -> Iterator[int]:
        yield from range(1000)

    def send(number: int) -> PartitionReport:
        sent.append(number)
        if number == 3:
            raise RuntimeError("no")
        return PartitionReport(number)

    with pytest.raises(RuntimeError, match="no"):
        list(through_window(numbers(), send, 2))
    assert len(sent) < 10


def test_pace_spreads_rows_over_time() -> None:
    pace = Pace(100)
    start = time.monotonic()
    for _ in range(4):
        pace.wait(10)
    assert time.monotonic() - start >= 0.3
    Pace(None).wait(1_000_000)


def test_only_a_refusal_is_known_to_have_done_nothing() -> None:
    assert is_untouched(fila.OverloadedError())
    assert is_untouched(fila.ShuttingDownError())
    assert not is_untouched(fila.UnavailableError())
    assert not is_untouched(fila.DeadlineExceededError())
