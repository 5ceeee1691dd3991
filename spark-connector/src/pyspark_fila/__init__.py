# SPDX-License-Identifier: AGPL-3.0-only
"""PySpark looks for modules named pyspark_* and takes their DefaultSource: `format("fila")` works
once the package is installed. An import error here would break that for every data source."""

from fila_spark.datasource import FilaDataSource as DefaultSource

__all__ = ["DefaultSource"]
