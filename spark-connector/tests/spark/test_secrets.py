# SPDX-License-Identifier: AGPL-3.0-only
"""An API key is in no plan, no log and not in what the Spark UI is made from."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import Broker, Queue, texts
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import fila

pytestmark = pytest.mark.spark

SECRET = "bootstrap-0123456789-very-private"
LIMIT_S = 200.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    broker = Broker(tmp_path_factory.mktemp("guarded"), {"FILA_AUTH__BOOTSTRAP_APIKEY": SECRET})
    broker.start()
    with fila.Client(broker.address, api_key=SECRET, timeout=60) as client:
        yield Queue(client, broker.address)
    broker.stop()


def test_the_api_key_is_used_and_never_shown(
    spark: SparkSession,
    guarded: Queue,
    event_log: Path,
    driver_log: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spark.sparkContext.setLogLevel("INFO")
    options = {**guarded.options, "apiKeySecret": SECRET}
    rows = spark.range(0, 10, 1, 1).selectExpr("concat('m', id) AS payload")
    rows.write.format("fila").options(**options).mode("append").save()
    frame = spark.read.format("fila").options(**options).load()
    frame.explain("extended")
    assert frame.count() == 10
    # The statement itself is the user's text; what Spark makes of it must hide the key.
    settings = ", ".join(f"{name} '{value}'" for name, value in options.items())
    view = spark.sql(f"EXPLAIN EXTENDED CREATE TEMPORARY VIEW v USING fila OPTIONS ({settings})")
    assert SECRET not in view.collect()[0][0]
    stream = spark.readStream.format("fila").options(**options).load()
    writer = stream.select("payload").writeStream.format("fila").options(**options)
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(LIMIT_S)
    query.explain(True)
    failing = spark.range(1).selectExpr("1 AS payload")
    with pytest.raises(PySparkException) as caught:
        failing.write.format("fila").options(**options).mode("append").save()
    spark.sparkContext.setLogLevel("ERROR")
    assert SECRET not in str(caught.value)
    assert guarded.payloads().total() == 10
    log = driver_log.read_text(errors="replace")
    assert "PythonBatchWrite" in log, "the log is not where the test looks"
    events = "".join(file.read_text() for file in event_log.iterdir() if file.suffix != ".crc")
    assert "BatchScan fila" in events, "the plans are not where the test looks"
    printed = "".join(capfd.readouterr())
    assert "BatchScan fila" in printed
    assert SECRET not in log + events + printed


def test_a_wrong_key_is_named_by_its_option_and_not_repeated(
    spark: SparkSession, guarded: Queue
) -> None:
    wrong = "not-the-key-987654"
    options = {**guarded.options, "apiKeySecret": wrong}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("fila").options(**options).load().count()
    assert 'option "apiKeySecret": the broker does not accept the API key' in str(caught.value)
    assert wrong not in str(caught.value)
    with pytest.raises(PySparkException, match='use "apiKeySecret"'):
        spark.read.format("fila").options(**guarded.options, apiKey=wrong).load()


def test_a_key_that_may_only_consume_can_stream(
    spark: SparkSession, guarded: Queue, tmp_path: Path
) -> None:
    entry = fila.AclEntry(fila.Permission.CONSUME, guarded.name)
    key = guarded.client.create_api_key("drainer", acl=[entry]).secret
    guarded.fill(texts(30, "s"))
    file = tmp_path / "key"
    file.write_text(key)
    options = {**guarded.options, "apiKeyFile": str(file)}
    stream = spark.readStream.format("fila").options(**options).load()
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    assert guarded.counts() == (0, 0)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {bytes(row.payload).decode() for row in rows} >= set(texts(30, "s"))
