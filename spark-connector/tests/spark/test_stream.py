# SPDX-License-Identifier: AGPL-3.0-only
"""Streaming reads and writes in Spark: nothing lost, nothing left leased."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from broker import Queue, texts
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

Stream = Callable[..., DataFrame]
LIMIT_S = 200.0


def drain(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Writes what there is to Parquet and ends."""
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(LIMIT_S)
    return running


def written(spark: SparkSession, folder: Path) -> Counter[str]:
    rows = spark.read.parquet(str(folder / "out")).select("payload").collect()
    return Counter(bytes(row.payload).decode() for row in rows)


def eventually(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_available_now_drains_in_batches_and_leaves_nothing_leased(
    spark: SparkSession, queue: Queue, stream: Stream, tmp_path: Path
) -> None:
    queue.fill(texts(1000))
    query = drain(stream(queue, maxMessagesPerBatch=400, numPartitions=2), tmp_path)
    assert queue.counts() == (0, 0)
    assert written(spark, tmp_path) == Counter(texts(1000))
    assert [progress["numInputRows"] for progress in query.recentProgress][:3] == [400, 400, 200]
    # A second run of the same query sees what came since, and nothing else.
    queue.fill(texts(10, "late"))
    drain(stream(queue), tmp_path)
    assert queue.counts() == (0, 0)
    assert written(spark, tmp_path) == Counter(texts(1000) + texts(10, "late"))


def test_backlog_is_in_the_progress(queue: Queue, stream: Stream, tmp_path: Path) -> None:
    queue.fill(texts(30))
    query = drain(stream(queue, maxMessagesPerBatch=10), tmp_path)
    sources = [progress["sources"][0] for progress in query.recentProgress]
    backlogs = [json.loads(source["latestOffset"]) for source in sources]
    assert backlogs[0] == {"ready": 20, "leased": 10, "delayed": 0}
    assert backlogs[1] == {"ready": 10, "leased": 10, "delayed": 0}


def test_an_idle_query_holds_no_leases_and_wakes_up(
    spark: SparkSession, queue: Queue, stream: Stream, tmp_path: Path
) -> None:
    queue.fill(texts(50))
    writer = stream(queue).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        eventually(lambda: queue.counts() == (0, 0))
        queue.fill(texts(20, "more"))
        eventually(lambda: queue.counts() == (0, 0))
    finally:
        query.stop()
    assert written(spark, tmp_path) == Counter(texts(50) + texts(20, "more"))


def checked(frame: DataFrame, check: Callable[[TaskContext], None]) -> DataFrame:
    """The same rows, after something is done once by every attempt at a partition."""

    def pass_on(payload: bytes | None) -> bytes | None:
        context = TaskContext.get()
        assert context is not None
        done: set[int] = globals().setdefault("_fila_test_attempts", set())
        if context.taskAttemptId() not in done:
            done.add(context.taskAttemptId())
            check(context)
        return payload

    return frame.withColumn("payload", udf(pass_on, "binary", useArrow=False)("payload"))


def test_leases_are_kept_while_a_batch_takes_its_time_and_is_retried(
    spark: SparkSession, queue: Queue, stream: Stream, tmp_path: Path
) -> None:
    queue.fill(texts(200))

    def slow(context: TaskContext) -> None:
        time.sleep(3.5)
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    # Long enough for a busy machine to extend it in time, shorter than two attempts.
    frame = stream(queue, visibilityTimeoutMs=6000, numPartitions=1)
    drain(checked(frame, slow), tmp_path)
    assert written(spark, tmp_path) == Counter(texts(200))
    assert queue.counts() == (0, 0)
    assert queue.client.stats(queue.name).counters.expired == 0


def test_a_failed_query_goes_on_with_every_message(
    spark: SparkSession, queue: Queue, stream: Stream, tmp_path: Path
) -> None:
    queue.fill(texts(300))

    def explode(_: TaskContext) -> None:
        raise RuntimeError("every attempt fails")

    frame = stream(queue, maxMessagesPerBatch=100, visibilityTimeoutMs=3000)
    with pytest.raises(PySparkException):
        drain(checked(frame, explode), tmp_path)
    drain(frame, tmp_path)
    assert written(spark, tmp_path) == Counter(texts(300))
    assert queue.counts() == (0, 0)


def test_queue_to_queue_goes_on_where_it_ended(
    make_queue: Callable[..., Queue], stream: Stream, tmp_path: Path, report: Path
) -> None:
    source, target = make_queue(), make_queue()
    source.fill(texts(250))
    for part in range(2):
        enriched = stream(source, maxMessagesPerBatch=100).selectExpr(
            "concat(cast(payload AS string), '!') AS payload", "message_id AS idempotency_key"
        )
        writer = enriched.writeStream.format("fila").options(**target.options)
        query = (
            writer.option("reportPath", str(report))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(LIMIT_S)
        if part == 0:
            source.fill(texts(50, "more"))
    assert source.counts() == (0, 0)
    assert target.payloads() == Counter(f"{text}!" for text in texts(250) + texts(50, "more"))
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert sum(line["done"] for line in lines) == 300
    assert [line["batch_id"] for line in lines] == list(range(len(lines)))


def test_stream_errors_name_the_option(queue: Queue, stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match='option "maxMessagesPerBatch" must be an integer'):
        stream(queue, maxMessagesPerBatch="many")
    with pytest.raises(PySparkException, match='queue "nowhere" does not exist'):
        queue.options["queue"] = "nowhere"
        drain(stream(queue), tmp_path)
