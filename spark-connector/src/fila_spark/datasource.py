# SPDX-License-Identifier: AGPL-3.0-only
"""`format("fila")`: where Spark comes in. Sorts out what is asked for and checks it, no more.

Spark may plan a read several times and makes new readers and writers as it likes, so everything
that has to survive is in the options.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from fila_spark import options
from fila_spark.batch_reader import LeaseReader, PeekReader
from fila_spark.connection import check_broker
from fila_spark.options import LeaseOptions, OptionError, SettleOptions, StreamOptions
from fila_spark.schema import READ_SCHEMA, check_read_schema
from fila_spark.stream_reader import FilaStreamReader
from fila_spark.writer import EnqueueStreamWriter, EnqueueWriter, SettleWriter


class FilaDataSource(DataSource):
    """Queues of a Fila broker."""

    @classmethod
    def name(cls) -> str:
        return "fila"

    def schema(self) -> StructType:
        # Runs at `.load()`, before anything else: the earliest that a user can hear of a mistake.
        options.any_read(self.options)
        return READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        check_read_schema(schema)
        chosen = options.batch_read(self.options)
        return LeaseReader(chosen) if isinstance(chosen, LeaseOptions) else PeekReader(chosen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_read_schema(schema)
        return FilaStreamReader(StreamOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _refuse_overwrite(overwrite)
        chosen = options.write(self.options)
        # Not for a stream: it makes a writer per batch, and has to outlive a broker's restart.
        check_broker(chosen.connection, chosen.queue)
        if isinstance(chosen, SettleOptions):
            return SettleWriter(chosen, schema)
        return EnqueueWriter(chosen, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        chosen = options.write(self.options)
        if isinstance(chosen, SettleOptions):
            raise OptionError(
                f'option "operation": a streaming write cannot {chosen.operation}; '
                "a streaming read acks by itself, and foreachBatch can use df.write"
            )
        return EnqueueStreamWriter(chosen, schema)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise OptionError('mode "overwrite" would have to empty the queue; use mode("append")')
