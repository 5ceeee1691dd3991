# SPDX-License-Identifier: AGPL-3.0-only
"""Backfill: a table becomes messages, without getting in the way of live traffic.

Every row has its tenant as fairness key, so a tenant with a million rows and a tenant with one
message take turns. Every row has its order number as idempotency key, so the whole Spark job can be
run again, by another run or with other partitions, and stores nothing twice.

    python backfill.py [rows]
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import fila


def orders(spark: SparkSession, rows: int) -> DataFrame:
    """A table as they are in real life: half of it is one tenant's."""
    tenant = f.when(f.col("id") % 2 == 0, "whale").otherwise(
        f.concat(f.lit("tenant-"), f.col("id") % 97)
    )
    return spark.range(rows).select(
        f.col("id").alias("order_id"), tenant.alias("tenant"), (f.col("id") % 500).alias("amount")
    )


def backfill(table: DataFrame, address: str, queue: str, report: Path) -> None:
    messages = table.select(
        f.to_json(f.struct("order_id", "amount")).alias("payload"),
        f.create_map(f.lit("source"), f.lit("backfill")).alias("headers"),
        f.col("tenant").alias("fairness_key"),
        f.concat(f.lit("order-"), "order_id").alias("idempotency_key"),
    )
    (
        messages.write.format("fila")
        .option("address", address)
        .option("queue", queue)
        .option("reportPath", str(report))
        .mode("append")
        .save()
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    address = os.environ.get("FILA_ADDR", "127.0.0.1:5555")
    with fila.Client(address) as client:
        try:
            client.create_queue("orders")
        except fila.QueueAlreadyExistsError:
            pass
    spark = SparkSession.builder.appName("backfill").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        backfill(orders(spark, rows), address, "orders", report)
        print(report.read_text())
    spark.stop()


if __name__ == "__main__":
    main()
