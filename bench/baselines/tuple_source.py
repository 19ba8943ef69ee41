"""A Python data source as one would first write it: rows of the driver, handed to Spark as tuples."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from datetime import datetime

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

EPOCH_TICKS = 0x01B21DD213814000


class TupleSource(DataSource):
    """Reads Cassandra partitions of one table: options ``host``, ``port``, ``table``, ``keys`` (qid:part:bucket)."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tuples"

    def schema(self) -> str:
        """The columns that are asked for."""
        return "value binary, partition int, id string, timestamp timestamp"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns what reads."""
        return TupleReader(self.options)


class TupleReader(DataSourceReader):
    """One Spark partition for each Cassandra partition."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._host, self._port = options["host"], int(options["port"])
        self._table, self._keys = options["table"], options["keys"]

    def partitions(self) -> list[InputPartition]:
        """Returns the keys."""
        return [InputPartition(key) for key in self._keys.split(",")]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes, int, str, datetime]]:
        """Yields the rows of one."""
        from cassandra.cluster import Cluster  # noqa: PLC0415 - in the process that reads

        qid, part, bucket = (int(text) for text in partition.value.split(":"))
        cluster = Cluster([self._host], port=self._port)
        session = cluster.connect()
        query = f"SELECT id, body, expires, meta FROM {self._table} WHERE qid = %s AND partition = %s AND bucket = %s"
        for row in session.execute(query, (qid, part, bucket)):
            seconds = (row.id.time - EPOCH_TICKS) / 1e7
            yield row.body, part, row.id.hex, datetime.fromtimestamp(seconds)  # noqa: DTZ006 - as Spark takes it
        cluster.shutdown()
