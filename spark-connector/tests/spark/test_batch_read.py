# SPDX-License-Identifier: AGPL-3.0-only
"""Batch reads in Spark: peek and lease, and settling what was leased."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from broker import Queue, texts
from fila_spark import READ_SCHEMA
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Read = Callable[..., DataFrame]


def payloads(frame: DataFrame) -> Counter[str]:
    return Counter(bytes(row.payload).decode() for row in frame.select("payload").collect())


def settle(frame: DataFrame, queue: Queue, operation: str, **options: object) -> None:
    writer = frame.write.format("fila").option("address", queue.options["address"])
    writer.option("operation", operation).options(**options).mode("append").save()


# --- Peek -----------------------------------------------------------------------------------------


def test_peek_leaves_the_queue_as_it_is_and_keeps_its_cutoff(queue: Queue, read: Read) -> None:
    queue.fill(texts(2500))
    frame = read(queue, numPartitions=3)
    assert frame.schema == READ_SCHEMA
    assert frame.rdd.getNumPartitions() == 3
    assert payloads(frame) == Counter(texts(2500))
    queue.fill(texts(100, "later"))
    assert payloads(frame.orderBy("position")) == Counter(texts(2500))
    assert payloads(frame.alias("a").join(frame.alias("b"), "message_id").select("a.payload"))
    assert queue.counts() == (2600, 0)
    assert payloads(read(queue)).total() == 2600


def test_peek_shows_what_the_broker_knows(queue: Queue, read: Read) -> None:
    queue.client.enqueue(
        queue.name, {"region": "eu"}, b"x", fairness_key="acme", weight=2, throttle_keys=["mail"]
    )
    queue.client.enqueue(queue.name, payload=b"y", delay_ms=3_600_000)
    rows = {bytes(row.payload): row for row in read(queue).collect()}
    row = rows[b"x"]
    assert (row.queue, row.fairness_key, row.weight) == (queue.name, "acme", 2)
    assert (row.headers, row.throttle_keys) == ({"region": "eu"}, ["mail"])
    assert (row.state, row.attempt_count, row.lease_token) == ("pending", 0, None)
    assert row.position > 0
    assert abs(row.enqueued_at.timestamp() - time.time()) < 600
    assert rows[b"y"].state == "delayed"


def test_peek_options_narrow_what_is_read(queue: Queue, read: Read) -> None:
    queue.fill(texts(30, "a"), "acme")
    queue.fill(texts(20, "b"), "beta")
    leased = {m.payload.decode() for m in queue.client.receive(queue.name, 5)}
    assert payloads(read(queue, fairnessKey="beta")) == Counter(texts(20, "b"))
    assert set(payloads(read(queue, state="leased"))) == leased
    assert payloads(read(queue, maxMessages=7)) == Counter(texts(7, "a"))
    assert payloads(read(queue, maxMessages=7, fairnessKey="beta")) == Counter(texts(7, "b"))
    bare = read(queue, includePayload="false")
    assert (bare.count(), bare.where("payload IS NOT NULL").count()) == (50, 0)


def test_peek_of_an_empty_queue(queue: Queue, read: Read) -> None:
    assert read(queue).count() == 0
    assert read(queue, numPartitions=4, maxMessages=3).count() == 0


def test_a_read_that_cannot_work_fails_by_the_name_of_the_option(
    queue: Queue, read: Read, spark: SparkSession
) -> None:
    with pytest.raises(PySparkException, match='did you mean "numPartitions"'):
        read(queue, numPartition=3)
    with pytest.raises(PySparkException, match='option "address" is missing'):
        spark.read.format("fila").option("queue", "q").load()
    address = queue.options["address"]
    lost = spark.read.format("fila").option("address", address).option("queue", "nowhere").load()
    with pytest.raises(PySparkException, match='option "queue": queue "nowhere" does not exist'):
        lost.count()
    with pytest.raises(PySparkException, match="leave out"):
        options = {"address": address, "queue": queue.name}
        spark.read.format("fila").options(**options).schema("payload binary").load().count()


# --- Lease ----------------------------------------------------------------------------------------


def test_lease_takes_messages_once_and_every_scan_sees_the_same(queue: Queue, read: Read) -> None:
    queue.fill(texts(1500))
    frame = read(queue, mode="lease", maxMessages=1000, numPartitions=3)
    first = payloads(frame)
    assert first.total() == 1000
    assert payloads(frame.orderBy("payload")) == first
    assert frame.join(frame, "message_id").count() == 1000
    assert frame.rdd.getNumPartitions() == 3
    assert queue.counts() == (500, 1000)
    assert {row.state for row in frame.select("state").distinct().collect()} == {"leased"}


def test_leased_rows_are_acked_by_a_write(
    queue: Queue, read: Read, report: Path, spark: SparkSession, tmp_path: Path
) -> None:
    queue.fill(texts(300))
    frame = read(queue, mode="lease", maxMessages=200)
    frame.write.parquet(str(tmp_path / "out"))
    saved = spark.read.parquet(str(tmp_path / "out"))
    for _ in range(2):  # as a retried task does
        settle(saved, queue, "ack", reportPath=report)
    assert queue.counts() == (100, 0)
    assert payloads(saved) + queue.payloads() == Counter(texts(300))
    first, second = (json.loads(line) for line in report.read_text().splitlines())
    assert (first["done"], first["duplicate"], first["stale"]) == (200, 0, 0)
    assert (second["done"], second["duplicate"], second["stale"]) == (0, 200, 0)


def test_stale_leases_fail_the_ack_unless_they_may_be_counted(
    queue: Queue, read: Read, report: Path
) -> None:
    queue.fill(texts(10))
    frame = read(queue, mode="lease", visibilityTimeoutMs=1000)
    assert frame.count() == 10
    deadline = time.monotonic() + 60
    while queue.counts() != (10, 0):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(PySparkException, match="10 leases had ended"):
        settle(frame, queue, "ack")
    settle(frame, queue, "ack", onStaleAck="count", reportPath=report)
    assert json.loads(report.read_text())["stale"] == 10
    assert queue.counts() == (10, 0)


def test_nacked_rows_come_again_with_their_error(queue: Queue, read: Read) -> None:
    queue.fill(texts(4))
    frame = read(queue, mode="lease")
    bad = frame.where("payload = 'm1'").selectExpr("*", "'no such user' AS error")
    settle(bad, queue, "nack")
    settle(frame.where("payload != 'm1'"), queue, "ack")
    (left,) = queue.peek()
    assert left.message.payload == b"m1"
    assert (left.message.attempt_count, left.message.last_error) == (1, "no such user")


def test_lease_of_an_empty_queue(queue: Queue, read: Read) -> None:
    assert read(queue, mode="lease").count() == 0
