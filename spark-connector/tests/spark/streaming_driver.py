# SPDX-License-Identifier: AGPL-3.0-only
"""A driver that a test kills: drains a queue to Parquet, and stands still in its second batch.

Arguments: the broker's address, the queue, a folder.
"""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

BATCH = 100


def main() -> None:
    address, queue, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    options = {"address": address, "queue": queue, "maxMessagesPerBatch": str(BATCH)}
    frame = spark.readStream.format("fila").options(**options, visibilityTimeoutMs="5000").load()

    def save(batch: DataFrame, number: int) -> None:
        batch.write.mode("append").parquet(str(folder / "out"))
        if number == 1:
            # Its rows are written, and Spark does not know yet: the worst moment to die.
            (folder / "reached").touch()
            time.sleep(600)

    query = (
        frame.writeStream.foreachBatch(save)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
