# SPDX-License-Identifier: AGPL-3.0-only
"""Queue to queue: messages of one queue are joined with a table and enqueued to another.

The id of the message that came in is the idempotency key of the one that goes out: when a batch is
run again after a crash, the broker recognises what it has already.

    python enrich_stream.py orders orders-enriched checkpoint-folder [--once]
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

ORDER = "order_id BIGINT, customer STRING, amount BIGINT"


def enriched(messages: DataFrame, customers: DataFrame) -> DataFrame:
    """Orders with their customer's country; an unknown customer is no reason to lose an order."""
    orders = messages.withColumn("order", f.from_json(f.col("payload").cast("string"), ORDER))
    joined = orders.join(customers, f.col("order.customer") == f.col("customer"), "left")
    return joined.select(
        f.to_json(f.struct("order.order_id", "order.amount", "customer", f.col("country"))).alias(
            "payload"
        ),
        f.col("headers"),
        f.col("fairness_key"),
        f.col("message_id").alias("idempotency_key"),
    )


def start(
    messages: DataFrame, address: str, target: str, folder: str, is_endless: bool
) -> StreamingQuery:
    writer = (
        messages.writeStream.format("fila")
        .option("address", address)
        .option("queue", target)
        .option("checkpointLocation", folder)
    )
    return writer.start() if is_endless else writer.trigger(availableNow=True).start()


def main() -> None:
    address = os.environ.get("FILA_ADDR", "127.0.0.1:5555")
    queue, target, folder = sys.argv[1:4]
    spark = SparkSession.builder.appName("enrich").getOrCreate()
    customers = spark.createDataFrame(
        [("ana", "PT"), ("bo", "SE")], "customer STRING, country STRING"
    )
    source = spark.readStream.format("fila").option("address", address).option("queue", queue)
    messages = enriched(source.load(), customers)
    query = start(messages, address, target, folder, "--once" not in sys.argv)
    query.awaitTermination()
    print(query.lastProgress)
    spark.stop()


if __name__ == "__main__":
    main()
