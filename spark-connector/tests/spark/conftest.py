# SPDX-License-Identifier: AGPL-3.0-only
"""One Spark session for all tests: two cores, and four tries for what fails."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker import Queue
from pyspark.sql import DataFrame, SparkSession

# Before the first session: which Python the workers are.
os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Spark UI shows comes from here."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def driver_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the driver, its JVM and their Python workers say."""
    return tmp_path_factory.mktemp("log") / "driver.log"


@contextmanager
def stderr_to(file: Path) -> Iterator[None]:
    """Children that start in the meantime write there."""
    kept = os.dup(2)
    with file.open("ab") as target:
        os.dup2(target.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# Before anything else: PySpark forks to start its JVM, and gRPC that is at work does not bear that.
@pytest.fixture(scope="session", autouse=True)
def spark(
    event_log: Path, driver_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": event_log.as_uri(),
        # So that partitions of a few hundred rows are several batches to a writer.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        # Tests start many short queries; looking for new data costs nothing.
        "spark.sql.streaming.pollingDelay": "50ms",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("fila-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with stderr_to(driver_log):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def read(spark: SparkSession) -> Callable[..., DataFrame]:
    def load(queue: Queue, **options: object) -> DataFrame:
        return spark.read.format("fila").options(**queue.options, **options).load()

    return load


@pytest.fixture
def stream(spark: SparkSession) -> Callable[..., DataFrame]:
    def load(queue: Queue, **options: object) -> DataFrame:
        return spark.readStream.format("fila").options(**queue.options, **options).load()

    return load
