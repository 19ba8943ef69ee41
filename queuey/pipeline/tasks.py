"""Work on stores in Spark's Python workers: payloads in, a task for each, rows or small values out.

(``mapInArrow`` would do, did PySpark not ask for pandas there, which nothing here uses.)
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
KINDS = {
    "dead_letters": "queuey.pipeline.deadletter.deadletter_job:rows",
    "measures": "queuey.pipeline.stats.stats_job:rows",
    "digests": "queuey.pipeline.audit.body_hashes:rows",
    "units": "queuey.pipeline.archive.find_buckets:rows",
}
"""Where the work of a kind is: a function of store and payload that gives record batches."""
_registered: WeakSet[SparkSession] = WeakSet()


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """Work as an option of a read; it names secrets instead of holding them."""

    kind: str
    schema: str
    store: StoreOptions
    payloads: tuple[bytes, ...]


def rows(
    spark: SparkSession, kind: str, schema: StructType, store: StoreOptions, payloads: Iterable[bytes]
) -> DataFrame:
    """Returns what work gives for each payload as a DataFrame; the work is done when that is evaluated.

    Args:
        spark: The session.
        kind: Which work, of ``KINDS``.
        schema: The columns that it gives.
        store: Where.
        payloads: One for each task.
    """
    if spark not in _registered:
        # Doing it again would be a warning of Spark's.
        spark.dataSource.register(TasksSource)
        _registered.add(spark)
    order = msgspec.msgpack.encode(_Order(kind, schema.json(), store, tuple(payloads)))
    return spark.read.format(FORMAT).option("work", b64encode(zlib.compress(order)).decode()).load()


def values(spark: SparkSession, work: Callable[[bytes], Iterator[bytes]], payloads: Sequence[bytes]) -> list[bytes]:
    """Returns all that work gives for the payloads, which is little; one task for each."""
    if not payloads:
        return []
    found: list[bytes] = spark.sparkContext.parallelize(payloads, len(payloads)).flatMap(work).collect()
    return found


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
    """Does work on payloads; each travels with its own task alone."""

    def __init__(self, order: _Order) -> None:
        self._payloads = order.payloads
        self._work = partial(_begun, order.kind, order.store)

    def __getstate__(self) -> dict[str, object]:
        return {"_work": self._work, "_payloads": ()}

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(payload) for payload in self._payloads]

    def read(self, partition: InputPartition) -> Batches:
        """Runs one task. Spark invents a partition where there are none."""
        if isinstance(partition.value, bytes):
            yield from self._work(partition.value)


def _begun(kind: str, store: StoreOptions, payload: bytes) -> Batches:
    module, _, name = KINDS[kind].partition(":")
    work: Callable[[StoreOptions, bytes], Batches] = getattr(importlib.import_module(module), name)
    return work(store, payload)
