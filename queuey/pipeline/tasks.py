"""Runs work on stores in Spark's Python workers: one task for each payload, which returns rows or small values.

``mapInArrow`` is not used, because it requires pandas.
"""

from __future__ import annotations

import importlib
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from queuey.spark.options import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]

FORMAT = "queuey_tasks"
WORK_FUNCTIONS = {
    "dead_letters": "queuey.pipeline.deadletter.deadletter_job:rows",
    "measures": "queuey.pipeline.stats.stats_job:measure_rows",
    "digests": "queuey.pipeline.audit.body_hashes:scan_hashes",
    "units": "queuey.pipeline.archive.find_buckets:rows",
}
"""Kind of work -> function of store and payload that yields record batches."""
_registered: WeakSet[SparkSession] = WeakSet()


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """A description of work, passed as an option of a read. It holds names of secrets, not secrets."""

    kind: str
    schema: str
    store: StoreOptions
    payloads: tuple[bytes, ...]


def run_for_rows(
    spark: SparkSession, kind: str, schema: StructType, store: StoreOptions, payloads: Iterable[bytes]
) -> DataFrame:
    """Returns the rows of work on each payload as a DataFrame. The work runs when the DataFrame is evaluated.

    Args:
        spark: The session.
        kind: The kind of work, a key of ``WORK_FUNCTIONS``.
        schema: The columns of the rows.
        store: The store.
        payloads: One payload for each task.
    """
    if spark not in _registered:
        # Spark warns if a source is registered again.
        spark.dataSource.register(TasksSource)
        _registered.add(spark)
    order = msgspec.msgpack.encode(_Order(kind, schema.json(), store, tuple(payloads)))
    return spark.read.format(FORMAT).option("work", b64encode(zlib.compress(order)).decode()).load()


def run_for_values(
    spark: SparkSession, work: Callable[[bytes], Iterator[bytes]], payloads: Sequence[bytes]
) -> list[bytes]:
    if not payloads:
        return []
    collected: list[bytes] = spark.sparkContext.parallelize(payloads, len(payloads)).flatMap(work).collect()
    return collected


class TasksSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType.fromJson(msgspec.json.decode(self._order().schema))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - all columns, always
        return TasksReader(self._order())

    def _order(self) -> _Order:
        return msgspec.msgpack.decode(zlib.decompress(b64decode(self.options["work"])), type=_Order)


class TasksReader(DataSourceReader):
    """Runs work on payloads. Each payload is only sent to its own task."""

    def __init__(self, order: _Order) -> None:
        self._payloads = order.payloads
        self._work = partial(_start_work, order.kind, order.store)

    def __getstate__(self) -> dict[str, object]:
        return {"_work": self._work, "_payloads": ()}

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(payload) for payload in self._payloads]

    def read(self, partition: InputPartition) -> Batches:
        # Without payloads, Spark makes up a partition.
        if isinstance(partition.value, bytes):
            yield from self._work(partition.value)


def _start_work(kind: str, store: StoreOptions, payload: bytes) -> Batches:
    module, _, name = WORK_FUNCTIONS[kind].partition(":")
    work: Callable[[StoreOptions, bytes], Batches] = getattr(importlib.import_module(module), name)
    return work(store, payload)
