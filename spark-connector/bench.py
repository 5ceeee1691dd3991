# SPDX-License-Identifier: AGPL-3.0-only
"""How fast Spark gets rows in and out of a queue: `python bench.py [rows]`, one run, one table.

Starts a broker of its own (`fila-server` has to be installed), on the same machine as Spark, so
both share its cores. Beside the connector's paths stand what they are to be compared with: one call
per row, and Spark writing the same rows to Parquet.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession

import fila

PAYLOAD_BYTES = 256
# One call per row takes a hundred times as long; a part of the rows says as much.
SINGLE_ROWS_MAX = 4000


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "fila_server.main", "--listen", "127.0.0.1:0"]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(folder / "data")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        ready = next(line for line in process.stdout if line.startswith("FILA READY "))
        yield json.loads(ready.removeprefix("FILA READY "))["address"]
    finally:
        process.terminate()
        process.wait(60)


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("fila-bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def rows_of(spark: SparkSession, count: int) -> DataFrame:
    """Rows with 256 bytes of payload, one header and one of a hundred fairness keys."""
    return spark.range(0, count, 1, 2).selectExpr(
        f"rpad(cast(id AS string), {PAYLOAD_BYTES}, 'x') AS payload",
        "map('source', 'bench') AS headers",
        "concat('tenant-', id % 100) AS fairness_key",
    )


class Bench:
    """The measurements, in the order in which they need each other's messages."""

    def __init__(self, spark: SparkSession, address: str, folder: Path, rows: int) -> None:
        self.spark = spark
        self.address = address
        self.folder = folder
        self.rows = rows
        self.queue, self.copy, self.single = (f"{rows}-{name}" for name in ("a", "b", "c"))
        self.options = {"address": address, "queue": self.queue}
        self.client = fila.Client(address, timeout=60)
        for queue in (self.queue, self.copy, self.single):
            self.client.create_queue(queue)
        self.results: list[tuple[str, int, float]] = []

    def measure(self, what: str, rows: int, act: Callable[[], None]) -> None:
        start = time.perf_counter()
        act()
        self.results.append((what, rows, time.perf_counter() - start))

    def run(self) -> None:
        table = rows_of(self.spark, self.rows)
        self.measure("write", self.rows, lambda: self.write(table, self.queue))
        self.measure("write, keys off", self.rows, lambda: self.write(table, self.copy, "off"))
        self.client.purge(self.copy)
        single = min(self.rows, SINGLE_ROWS_MAX)
        self.measure("write, one call per row", single, lambda: self.write_single(single))
        parquet = f"{self.folder}/{self.rows}/parquet"
        self.measure("Spark to Parquet", self.rows, lambda: table.write.parquet(parquet))
        self.measure("peek", self.rows, self.peek)
        self.measure("peek without payload", self.rows, lambda: self.peek(includePayload="false"))
        half = self.rows // 2
        self.measure("lease + ack", half, lambda: self.lease_and_ack(half))
        self.measure("stream to Parquet", self.rows - half, self.stream)

    def write(self, frame: DataFrame, queue: str, idempotency: str = "auto") -> None:
        writer = frame.write.format("fila").options(**{**self.options, "queue": queue})
        writer.option("idempotency", idempotency).mode("append").save()

    def write_single(self, count: int) -> None:
        address, queue = self.address, self.single

        def send(rows: Iterable[Row]) -> None:
            with fila.Client(address, timeout=60) as client:
                for row in rows:
                    client.enqueue(
                        queue, row.headers, row.payload.encode(), fairness_key=row.fairness_key
                    )

        rows_of(self.spark, count).rdd.foreachPartition(send)

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("fila").options(**self.options, **options).load()

    def peek(self, **options: str) -> None:
        self.read(**options).write.format("noop").mode("overwrite").save()

    def lease_and_ack(self, count: int) -> None:
        limits = {"maxMessages": str(count), "maxBytes": str(1 << 30)}
        frame = self.read(mode="lease", **limits)
        writer = frame.select("queue", "message_id", "lease_token").write.format("fila")
        writer.option("address", self.address).option("operation", "ack").mode("append").save()

    def stream(self) -> None:
        stream = self.spark.readStream.format("fila").options(**self.options).load()
        writer = stream.writeStream.format("parquet").option(
            "path", f"{self.folder}/{self.rows}/drained"
        )
        query = writer.option("checkpointLocation", f"{self.folder}/{self.rows}/checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()
        left = self.client.stats(self.queue)
        assert (left.depth, left.in_flight) == (0, 0), left


def table(results: list[tuple[str, int, float]]) -> str:
    lines = [f"{'path':<26}{'rows':>10}{'seconds':>10}{'rows/s':>12}"]
    for what, rows, seconds in results:
        lines.append(f"{what:<26}{rows:>10,}{seconds:>10.2f}{rows / seconds:>12,.0f}")
    return "\n".join(lines)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as address:
        spark = session()
        # Workers, planners and compilers start with the first Spark jobs.
        Bench(spark, address, Path(folder), 1000).run()
        bench = Bench(spark, address, Path(folder), rows)
        bench.run()
        spark.stop()
        print(table(bench.results))  # noqa: T201 - it talks to a person on a terminal


if __name__ == "__main__":
    main()
