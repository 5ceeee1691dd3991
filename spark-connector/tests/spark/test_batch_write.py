# SPDX-License-Identifier: AGPL-3.0-only
"""Batch writes in Spark: every column, failing tasks, what is refused and when."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from broker import Queue, texts
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

# Rows must be larger than Spark's buffers, or a failure finds that none has left yet.
FILLING = "x" * 1000


def write(frame: DataFrame, queue: Queue, **options: object) -> None:
    frame.write.format("fila").options(**queue.options, **options).mode("append").save()


def numbered(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    rows = spark.range(0, count, 1, partitions)
    return rows.selectExpr("concat('m', id) AS payload")


def test_every_column_arrives(spark: SparkSession, queue: Queue) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    rows = [
        Row(
            payload=bytearray(b"\x00\xff"),
            headers={"region": "eu", "kind": "a"},
            fairness_key="acme",
            weight=3,
            throttle_keys=["mail", "sms"],
            deliver_at=later,
            idempotency_key="one",
        ),
        Row(
            payload=bytearray(b""),
            headers=None,
            fairness_key=None,
            weight=None,
            throttle_keys=None,
            deliver_at=None,
            idempotency_key=None,
        ),
    ]
    kinds = (
        "payload binary, headers map<string,string>, fairness_key string, weight int,"
        "throttle_keys array<string>, deliver_at timestamp, idempotency_key string"
    )
    frame = spark.createDataFrame(rows, kinds)
    write(frame, queue)
    write(frame.where("idempotency_key = 'one'"), queue)
    found = {each.message.payload: each for each in queue.peek()}
    assert set(found) == {b"\x00\xff", b""}
    full, plain = found[b"\x00\xff"], found[b""]
    assert full.message.headers == {"region": "eu", "kind": "a"}
    assert full.message.fairness_key == "acme"
    assert full.message.weight == 3
    assert set(full.message.throttle_keys) == {"mail", "sms"}
    assert full.state == "delayed"
    assert plain.state == "pending"
    assert plain.message.headers == {}


def test_rows_name_their_queues_unless_the_option_does(
    spark: SparkSession, make_queue: Callable[..., Queue]
) -> None:
    one, other = make_queue(), make_queue()
    rows = [(f"m{n}", (one if n % 2 else other).name) for n in range(10)]
    frame = spark.createDataFrame(rows, "payload string, queue string")
    frame.write.format("fila").option("address", one.options["address"]).mode("append").save()
    assert one.payloads() == Counter(f"m{n}" for n in range(1, 10, 2))
    assert other.payloads() == Counter(f"m{n}" for n in range(0, 10, 2))
    write(frame, one)
    assert one.payloads().total() == 15


def test_equal_rows_are_messages_of_their_own(
    spark: SparkSession, queue: Queue, report: Path
) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr("'same' AS payload")
    write(frame, queue, batchRows=100, reportPath=report)
    assert queue.payloads() == Counter({"same": 1000})
    counts = json.loads(report.read_text())
    assert (counts["done"], counts["duplicate"], counts["rejected"]) == (1000, 0, 0)
    assert counts["queues"] == {queue.name: 1000}
    assert sorted(each["partition"] for each in counts["partitions"]) == [0, 1]
    assert sum(each["done"] for each in counts["partitions"]) == 1000


def failing_once(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """The same rows in another order at each attempt, and a failure late in the first."""

    def attempt(rows: Iterator[Row]) -> Iterator[Row]:
        context = TaskContext.get()
        assert context is not None
        found = list(rows)
        if context.attemptNumber():
            yield from reversed(found)
            return
        yield from found[: len(found) * 3 // 4]
        raise RuntimeError("the first attempt fails")

    return spark.createDataFrame(frame.rdd.mapPartitions(attempt), frame.schema)


def test_a_retried_task_stores_every_row_once(
    spark: SparkSession, queue: Queue, report: Path
) -> None:
    rows = spark.range(0, 2000, 1, 2).selectExpr(f"concat('m', id % 900, '{FILLING}') AS payload")
    write(failing_once(rows, spark), queue, batchRows=50, maxInFlight=2, reportPath=report)
    assert queue.payloads() == Counter(f"m{n % 900}{FILLING}" for n in range(2000))
    counts = json.loads(report.read_text())
    assert counts["done"] + counts["duplicate"] == 2000
    assert counts["duplicate"] > 0, "the first attempts stored nothing, so nothing was tested"


def test_without_idempotency_a_retried_task_stores_twice(spark: SparkSession, queue: Queue) -> None:
    rows = spark.range(0, 400, 1, 1).selectExpr(f"concat('m', id, '{FILLING}') AS payload")
    write(failing_once(rows, spark), queue, batchRows=50, idempotency="off", maxInFlight=1)
    assert queue.payloads().total() > 400


def test_a_run_that_is_run_again_stores_nothing(spark: SparkSession, queue: Queue) -> None:
    for _ in range(2):
        write(numbered(spark, 100), queue, runId="backfill-7")
    assert queue.payloads() == Counter(texts(100))


def test_rejected_rows_fail_the_write_or_are_counted(
    spark: SparkSession, queue: Queue, report: Path
) -> None:
    frame = spark.range(0, 10, 1, 1).selectExpr(
        "concat('m', id) AS payload", "if(id = 4, repeat('k', 1000), 'k') AS fairness_key"
    )
    with pytest.raises(PySparkException, match="fairness"):
        write(frame, queue)
    write(frame, queue, onRejected="count", runId="second", reportPath=report)
    counts = json.loads(report.read_text())
    assert (counts["done"], counts["rejected"]) == (9, 1)
    assert "fairness" in counts["first_rejection"]


def test_rate_cap_holds_a_task_back(spark: SparkSession, queue: Queue) -> None:
    start = time.monotonic()
    write(numbered(spark, 60, partitions=1), queue, maxRatePerTask=20)
    assert time.monotonic() - start >= 2.0
    assert queue.payloads() == Counter(texts(60))


def test_empty_frame_and_empty_partitions(spark: SparkSession, queue: Queue, report: Path) -> None:
    write(numbered(spark, 100, partitions=2).where("payload = 'm1'"), queue, reportPath=report)
    write(numbered(spark, 100).where("false"), queue, reportPath=report)
    assert queue.payloads() == Counter(["m1"])
    assert [json.loads(line)["done"] for line in report.read_text().splitlines()] == [1, 0]


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["1 AS payload"], {}, 'column "payload" must be BINARY or STRING, not INT'),
        (["'a' AS payload", "1 AS tenant"], {}, 'column "tenant" cannot be enqueued'),
        (["'a' AS payload"], {"queue": "nowhere"}, 'option "queue": queue "nowhere" does not exi'),
        (["'a' AS payload"], {"batchRow": "5"}, 'did you mean "batchRows"'),
        (["'a' AS payload"], {"address": "127.0.0.1:1"}, 'option "address": no answer from'),
    ],
)
def test_a_write_that_cannot_work_fails_when_it_is_planned(
    spark: SparkSession, queue: Queue, columns: list[str], options: dict[str, str], text: str
) -> None:
    given = {**queue.options, **options}
    frame = spark.range(1).selectExpr(*columns)
    with pytest.raises(PySparkException) as caught:
        frame.write.format("fila").options(**given).mode("append").save()
    assert text in str(caught.value)
    assert queue.payloads() == Counter()


def test_overwrite_is_refused(spark: SparkSession, queue: Queue) -> None:
    queue.fill(["kept"])
    frame = spark.range(1).selectExpr("'a' AS payload")
    with pytest.raises(PySparkException, match="overwrite"):
        frame.write.format("fila").options(**queue.options).mode("overwrite").save()
    assert queue.payloads() == Counter(["kept"])


def test_null_payload_names_the_column(spark: SparkSession, queue: Queue) -> None:
    frame = spark.range(1).selectExpr("cast(null AS string) AS payload")
    with pytest.raises(PySparkException, match='column "payload" is null'):
        write(frame, queue)
