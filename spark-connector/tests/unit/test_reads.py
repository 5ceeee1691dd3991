# SPDX-License-Identifier: AGPL-3.0-only
"""Readers as Spark uses them, without a JVM: planned in one place, pickled, read in another."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest
from broker import Queue, texts
from fila_spark import FilaDataSource, OptionError
from fila_spark.schema import READ_SCHEMA
from pyspark.sql.datasource import DataSourceReader

MakeQueue = Callable[..., Queue]


def reader(queue: Queue, **options: object) -> DataSourceReader:
    given = {**queue.options, **{name: str(value) for name, value in options.items()}}
    return FilaDataSource(given).reader(schema=READ_SCHEMA)


def scan(reader: DataSourceReader, partitions: Iterable[object]) -> list[pa.RecordBatch]:
    """What executors do: everything they have went through a pickle."""
    found = []
    for partition in partitions:
        copy, part = pickle.loads(pickle.dumps((reader, partition)))
        found += list(copy.read(part))
    return found


def payloads(batches: Iterable[pa.RecordBatch]) -> Counter[str]:
    return Counter(value.decode() for batch in batches for value in batch["payload"].to_pylist())


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_ranges_cover_the_queue_without_overlap(queue: Queue, count: int) -> None:
    queue.fill(texts(50))
    peek = reader(queue, numPartitions=count)
    parts = list(peek.partitions())
    assert 1 <= len(parts) <= count
    assert payloads(scan(peek, parts)) == Counter(texts(50))


def test_peek_needs_as_many_pages_as_it_takes(make_queue: MakeQueue) -> None:
    queue, noise = make_queue(), make_queue()
    # Positions are numbered across queues, so another queue's messages lie in between.
    for part in range(3):
        queue.fill(texts(900, f"p{part}-"), "acme" if part else "beta")
        noise.fill(texts(500))
    peek = reader(queue, numPartitions=1)
    batches = scan(peek, peek.partitions())
    assert len(batches) == 3
    assert payloads(batches).total() == 2700
    beta = reader(queue, fairnessKey="beta")
    assert payloads(scan(beta, beta.partitions())) == Counter(texts(900, "p0-"))


def test_peek_limit_is_a_limit_whatever_the_partitions(queue: Queue) -> None:
    queue.fill(texts(1800))
    for limit in (1, 1000, 1001, 1799, 5000):
        peek = reader(queue, maxMessages=limit, numPartitions=3)
        found = payloads(scan(peek, peek.partitions()))
        assert found == Counter(texts(min(limit, 1800)))


def test_default_number_of_partitions_follows_the_queue(queue: Queue) -> None:
    queue.fill(texts(10_500))
    assert len(reader(queue).partitions()) == 2
    lease = reader(queue, mode="lease", maxMessages=3500)
    assert len(lease.partitions()) == 2


def test_large_payloads_come_in_several_pages(queue: Queue) -> None:
    queue.fill([f"{n}-" + "x" * 1_000_000 for n in range(9)])
    peek = reader(queue)
    batches = scan(peek, peek.partitions())
    assert len(batches) > 1
    assert sum(batch.num_rows for batch in batches) == 9
    lease = reader(queue, mode="lease", maxBytes=3_000_000)
    rows = sum(batch.num_rows for batch in scan(lease, lease.partitions()))
    assert 3 <= rows < 9


def test_leased_rows_carry_what_settles_them(queue: Queue) -> None:
    queue.fill(texts(5))
    lease = reader(queue, mode="lease", numPartitions=2)
    parts = list(lease.partitions())
    assert len(parts) == 2
    rows = [row for batch in scan(lease, parts) for row in batch.to_pylist()]
    assert queue.counts() == (0, 5)
    for row in rows:
        queue.client.ack(queue.name, row["message_id"], row["lease_token"])
    assert queue.counts() == (0, 0)


def test_queue_that_does_not_exist(queue: Queue) -> None:
    queue.options["queue"] = "nowhere"
    for mode in ("peek", "lease"):
        with pytest.raises(OptionError, match='option "queue": queue "nowhere" does not exist'):
            reader(queue, mode=mode).partitions()


def test_files_that_cannot_be_read_are_named_by_their_option(queue: Queue) -> None:
    with pytest.raises(OptionError, match='option "tlsCaFile": cannot read tls ca "missing'):
        reader(queue, tlsCaFile="missing.pem").partitions()
    with pytest.raises(OptionError, match='option "address": target "nonsense" is not host:port'):
        reader(queue, address="nonsense").partitions()
