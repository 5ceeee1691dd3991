# SPDX-License-Identifier: AGPL-3.0-only
"""kill -9 of a driver in the middle of a batch, and the same query started again."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from broker import Queue, texts
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LIMIT_S = 240.0


def run_until_second_batch(queue: Queue, folder: Path) -> None:
    script = Path(__file__).with_name("streaming_driver.py")
    arguments = [sys.executable, str(script), queue.options["address"], queue.name, str(folder)]
    with (folder / "driver.log").open("wb") as log:
        # A session of its own, so that the JVM can be killed with it and nothing else is.
        driver = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (folder / "reached").exists():
            assert driver.poll() is None, (folder / "driver.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(LIMIT_S)


@pytest.mark.timeout(900)
def test_no_message_is_lost_when_the_driver_is_killed(
    spark: SparkSession, queue: Queue, stream: Callable[..., DataFrame], tmp_path: Path
) -> None:
    queue.fill(texts(350))
    run_until_second_batch(queue, tmp_path)

    def save(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(str(tmp_path / "out"))

    frame = stream(queue, maxMessagesPerBatch=100, visibilityTimeoutMs=5000)
    writer = frame.writeStream.foreachBatch(save)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(LIMIT_S)

    assert queue.counts() == (0, 0)
    rows = spark.read.parquet(str(tmp_path / "out"))
    ids = Counter(row.message_id for row in rows.select("message_id").collect())
    found = Counter(bytes(row.payload).decode() for row in rows.select("payload").collect())
    assert set(found) == set(texts(350))
    # At least once: the batch that was written and not acked came again, and nothing else did.
    assert len(ids) == 350
    assert found.total() <= 350 + 200
