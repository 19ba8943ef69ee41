"""The data source ``queuey``. Each method delegates to another module.

Spark creates instances in its Python processes, pickles them to others, and calls only one method of each. So modules
are imported when they are used, and an instance holds only the options.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from queuey.spark import options as table
from queuey.spark import tables


class QueueySource(DataSource):
    """Queues as a source and a sink of Spark, in batches and streams. See :mod:`queuey.spark` for the options.

    Raises:
        OptionError: An option is unknown, or a table that is being created has a location or no options.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        declared = tables.find_table_options(options)
        super().__init__(options if declared is None else declared)
        self._is_table = declared is not None
        table.check_names(self.options)

    @classmethod
    def name(cls) -> str:
        return "queuey"

    def schema(self) -> StructType:
        """Returns all columns of a read or a table. Spark calls it first, so it raises mistakes in the options."""
        if self._is_table:
            return tables.table_schema(self.options)
        from queuey.spark.source import columns

        return columns.read_schema(headers=table.check_read(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from queuey.spark.source.batch_reader import QueueyReader

        options = tables.merge_table_options(schema, tables.READ_OPTIONS_KEY, self.options)
        return QueueyReader(table.read_options(options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from queuey.spark.source.stream_reader import stream_reader

        return stream_reader(tables.merge_table_options(schema, tables.READ_OPTIONS_KEY, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - as Spark calls it
        from queuey.spark.sink.spark_writer import QueueyWriter

        options = tables.merge_table_options(schema, tables.WRITE_OPTIONS_KEY, self.options)
        return QueueyWriter(table.write_options(options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001 - likewise
        from queuey.spark.sink.spark_writer import QueueyStreamWriter

        return QueueyStreamWriter(table.write_options(self.options, streaming=True), schema, overwrite=overwrite)
