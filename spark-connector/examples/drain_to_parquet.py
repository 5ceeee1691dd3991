# SPDX-License-Identifier: AGPL-3.0-only
"""Drain: what is in a queue becomes Parquet files, and leaves the queue once they are written.

A stream with `availableNow` takes what is there when it starts, batch by batch, and ends. Run it
again, with the same folder, for what came since. If it dies, its messages come again: readers of
the files drop duplicates by message_id.

    python drain_to_parquet.py queue folder
"""

import os
import sys

from pyspark.sql import SparkSession


def drain(spark: SparkSession, address: str, queue: str, folder: str) -> int:
    """Returns the number of messages written."""
    messages = (
        spark.readStream.format("fila").option("address", address).option("queue", queue).load()
    )
    query = (
        messages.drop("lease_token", "lease_expires_at", "state", "position")
        .writeStream.format("parquet")
        .option("path", f"{folder}/messages")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def main() -> None:
    address = os.environ.get("FILA_ADDR", "127.0.0.1:5555")
    spark = SparkSession.builder.appName("drain").getOrCreate()
    count = drain(spark, address, sys.argv[1], sys.argv[2])
    print(f"{count:,} messages written to {sys.argv[2]}/messages")
    spark.stop()


if __name__ == "__main__":
    main()
