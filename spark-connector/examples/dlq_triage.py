# SPDX-License-Identifier: AGPL-3.0-only
"""Triage of a dead-letter queue: what failed, for whom, and back with what can be repaired.

Peeking changes nothing, so look as often as you like. Redriving is a write: of the rows that you
select, and no others.

    python dlq_triage.py orders.dlq                # the report
    python dlq_triage.py orders.dlq 'timeout%'     # redrive what failed with such an error
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def dead_letters(spark: SparkSession, address: str, queue: str) -> DataFrame:
    return (
        spark.read.format("fila")
        .option("address", address)
        .option("queue", queue)
        .option("includePayload", "false")
        .load()
    )


def summary(letters: DataFrame) -> DataFrame:
    """How many, by error and tenant, worst first."""
    counts = letters.groupBy(
        f.coalesce("last_error", f.lit("")).alias("error"), f.col("fairness_key").alias("tenant")
    ).agg(
        f.count("*").alias("messages"),
        f.max("attempt_count").alias("attempts"),
        f.min("enqueued_at").alias("oldest"),
    )
    return counts.orderBy(f.desc("messages"), "error", "tenant")


def redrive(letters: DataFrame, address: str) -> None:
    """Moves messages back to the queue that they came from; run twice, it finds nothing."""
    (
        letters.select("queue", "message_id")
        .write.format("fila")
        .option("address", address)
        .option("operation", "redrive")
        .mode("append")
        .save()
    )


def main() -> None:
    address = os.environ.get("FILA_ADDR", "127.0.0.1:5555")
    spark = SparkSession.builder.appName("triage").getOrCreate()
    letters = dead_letters(spark, address, sys.argv[1])
    summary(letters).show(50, truncate=60)
    if len(sys.argv) > 2:
        redrive(letters.where(f.col("last_error").like(sys.argv[2])), address)
    spark.stop()


if __name__ == "__main__":
    main()
