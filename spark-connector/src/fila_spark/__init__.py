# SPDX-License-Identifier: AGPL-3.0-only
"""Fila in Spark pipelines: `format("fila")` for batch and streaming reads and writes.

Installing the package is enough for PySpark to find the format. `register` is for sessions that
started without it, such as a notebook that has just installed it.
"""

from typing import TYPE_CHECKING

from fila_spark.datasource import FilaDataSource
from fila_spark.options import OptionError
from fila_spark.schema import READ_SCHEMA, ColumnError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["READ_SCHEMA", "ColumnError", "FilaDataSource", "OptionError", "register"]


def register(spark: "SparkSession") -> None:
    """Makes `format("fila")` known to a session that is already running."""
    spark.dataSource.register(FilaDataSource)
