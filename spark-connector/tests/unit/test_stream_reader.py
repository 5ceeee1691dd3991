# SPDX-License-Identifier: AGPL-3.0-only
"""The streaming source in the order in which Spark calls it, against a real broker."""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from broker import Queue, texts
from fila_spark import FilaDataSource, OptionError
from fila_spark.schema import READ_SCHEMA
from fila_spark.stream_reader import FilaStreamReader
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

LIMIT_S = 60.0
Make = Callable[..., FilaStreamReader]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[FilaStreamReader] = []

    def reader(queue: Queue, **options: object) -> FilaStreamReader:
        given = {"waitMs": "0", **{name: str(value) for name, value in options.items()}}
        source = FilaDataSource({**queue.options, **given})
        made.append(source.streamReader(schema=READ_SCHEMA))  # type: ignore[arg-type]
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def rows(reader: FilaStreamReader, partitions: Sequence[InputPartition]) -> Counter[str]:
    copy, parts = pickle.loads(pickle.dumps((reader, partitions)))
    batches = [batch for part in parts for batch in copy.read(part)]
    return Counter(value.decode() for batch in batches for value in batch["payload"].to_pylist())


def eventually(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_batch_is_acked_when_the_next_one_is_asked_for(queue: Queue, make: Make) -> None:
    queue.fill(texts(25))
    reader = make(queue)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert end["batch"] == 1
    assert queue.counts() == (15, 10)
    first = rows(reader, reader.partitions(start, end))
    assert first.total() == 10
    assert rows(reader, reader.partitions(start, end)) == first
    again = reader.latestOffset(end, ReadMaxRows(100))
    assert queue.counts() == (0, 15)
    assert rows(reader, reader.partitions(end, again)) + first == Counter(texts(25))
    assert reader.latestOffset(again, ReadMaxRows(100)) == again
    assert queue.counts() == (0, 0)


def test_nothing_is_acked_before_spark_has_it_in_its_log(queue: Queue, make: Make) -> None:
    queue.fill(texts(5))
    reader = make(queue)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    # Asked again from the same start: the batch stands, and no more is leased.
    queue.fill(texts(5, "more"))
    assert reader.latestOffset(start, ReadAllAvailable()) == end
    assert queue.counts() == (5, 5)
    reader.commit(end)
    reader.commit(end)
    assert queue.counts() == (5, 0)


def test_an_empty_queue_makes_no_batch(queue: Queue, make: Make) -> None:
    reader = make(queue)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start


def test_available_now_takes_what_was_there_at_the_start(queue: Queue, make: Make) -> None:
    queue.fill(texts(30))
    reader = make(queue, maxMessagesPerBatch=20)
    reader.prepareForTriggerAvailableNow()
    offset, total = reader.initialOffset(), 0
    while (end := reader.latestOffset(offset, ReadAllAvailable())) != offset:
        total += rows(reader, reader.partitions(offset, end)).total()
        queue.fill(texts(7))  # a producer that never stops
        offset = end
    assert total == 30


def test_bytes_bound_a_batch(queue: Queue, make: Make) -> None:
    queue.fill(["x" * 1_000_000] * 9)
    reader = make(queue, maxBytesPerBatch=1_000_000)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows(reader, reader.partitions(start, end)).total() < 9


def test_leases_are_extended_until_the_ack(queue: Queue, make: Make) -> None:
    queue.fill(texts(300))
    reader = make(queue, visibilityTimeoutMs=3000)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    first = {each.message.lease_expires_at for each in queue.peek()}
    time.sleep(4)
    assert queue.counts() == (0, 300)
    assert not first & {each.message.lease_expires_at for each in queue.peek()}
    reader.commit(end)
    assert queue.counts() == (0, 0)
    assert queue.client.stats(queue.name).counters.expired == 0


def test_a_successor_plans_a_lost_batch_as_empty_and_gets_its_messages(
    queue: Queue, make: Make
) -> None:
    queue.fill(texts(40))
    dead = make(queue, visibilityTimeoutMs=2000)
    start = dead.initialOffset()
    end = dead.latestOffset(start, ReadMaxRows(25))
    dead._leases._stopped.set()  # as kill -9 does: nothing is extended and nothing given back
    successor = make(queue, visibilityTimeoutMs=2000)
    successor.prepareForTriggerAvailableNow()
    assert successor.partitions(start, end) == []
    found: Counter[str] = Counter()
    offset = end
    while (after := successor.latestOffset(offset, ReadAllAvailable())) != offset:
        found += rows(successor, successor.partitions(offset, after))
        offset = after
    assert found == Counter(texts(40))
    assert queue.counts() == (0, 0)


def test_stopping_gives_everything_back_with_no_attempt_counted(queue: Queue, make: Make) -> None:
    queue.fill(texts(150))
    reader = make(queue)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()
    reader.stop()
    eventually(lambda: queue.counts() == (150, 0))
    assert {each.message.attempt_count for each in queue.peek()} == {0}


def test_stale_leases_do_not_stop_the_stream(
    queue: Queue, make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.fill(texts(3))
    reader = make(queue, visibilityTimeoutMs=1000)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader._leases._stopped.set()
    eventually(lambda: queue.counts() == (3, 0))
    reader.commit(end)
    assert "3 of 3 leases ended before the ack" in capfd.readouterr().err
    assert queue.counts() == (3, 0)


def test_backlog(queue: Queue, make: Make) -> None:
    queue.fill(texts(10))
    queue.client.enqueue(queue.name, payload=b"later", delay_ms=3_600_000)
    reader = make(queue)
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    assert reader.reportLatestOffset() == {"ready": 6, "leased": 4, "delayed": 1}


def test_unknown_queue_is_named_when_the_query_starts(queue: Queue, make: Make) -> None:
    queue.options["queue"] = "nowhere"
    with pytest.raises(OptionError, match='option "queue": queue "nowhere" does not exist'):
        make(queue).initialOffset()
