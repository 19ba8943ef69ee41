"""The data source with faults: the Python worker of a task or the whole driver is killed, or a query fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from queuey.spark import open_stores
from queuey.spark.data_source import QueueySource
from queuey.spark.options import SinkOptions, read_options, write_options
from queuey.spark.sink.spark_writer import BATCH_PROPERTY, QueueyStreamWriter, QueueyWriter, TaskCommit
from queuey.spark.source.stream_reader import QueueyStreamReader

READ_POINTS = ("latestOffset", "partitions", "read", "commit")
"""Before the end of a batch is recorded; before its tasks; within one; and after the next end was recorded."""
IN_TASKS = ("planned", "reserved", "half", "loaded", "done")
"""Points in a task of a write: at its begin, with ids reserved, half written, all written, and noted."""
COMMITTING = "committing"
"""The tasks of a written micro-batch are done, and Spark has not recorded it yet."""
WORKER, DRIVER, QUERY = "worker", "driver", "query"
"""What a fault ends: the Python worker of a task, Spark's JVM and with it the driver, or only the query."""


class Deliberate(Exception):
    """A fault that a test requested."""


class Faults(msgspec.Struct, frozen=True):
    """The faults of a source; each happens once. The option ``faults`` of the source has them as JSON.

    Attributes:
        directory: Keeps the faults that have happened, for all of Spark's processes.
        point: Where they happen; None for all points of a task that writes, in turn.
        victim: What they end.
        batch: The micro-batch in which they happen; None for every one.
        chunk: The chunk of a task that writes.
    """

    directory: str
    point: str | None = None
    victim: str = WORKER
    batch: str | None = None
    chunk: int = 0

    @property
    def option(self) -> dict[str, str]:
        return {"faults": msgspec.json.encode(self).decode()}

    def list_done(self) -> list[str]:
        return sorted(path.name for path in Path(self.directory).iterdir())

    def wanted(self, task: int) -> str:
        return self.point or IN_TASKS[task % len(IN_TASKS)]

    def meet(self, point: str, batch: str = "", task: int = 0) -> None:
        """Does a fault if one is due at this point, and records that."""
        if point != self.wanted(task) or self.batch not in {None, batch}:
            return
        try:
            name = f"{batch}-{task}-{point}" if self.victim == WORKER else point
            (Path(self.directory) / name).touch(exist_ok=False)
        except FileExistsError:
            return
        if self.victim == QUERY:
            raise Deliberate(point)
        if self.victim == DRIVER:
            os.kill(find_jvm_pid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class FaultySource(QueueySource):
    """The source, with one more option: ``faults``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        rest = dict(options)
        self.faults = msgspec.json.decode(rest.pop("faults"), type=Faults)
        super().__init__(rest)

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamReader(self, schema: StructType) -> QueueyStreamReader:  # noqa: N802 - Spark's name
        reader = Reader(read_options(self.options, streaming=True), schema)
        reader.faults = self.faults
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> QueueyWriter:  # noqa: FBT001 - as Spark calls it
        writer = Writer(write_options(self.options, streaming=False), schema, overwrite=overwrite)
        writer.faults = self.faults
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueyStreamWriter:  # noqa: FBT001, N802 - likewise
        writer = StreamWriter(write_options(self.options, streaming=True), schema, overwrite=overwrite)
        writer.faults = self.faults
        return writer


class Reader(QueueyStreamReader):
    """The reader of a stream, with faults."""

    faults: Faults

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        end = super().latestOffset(start, limit)
        self.faults.meet("latestOffset")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = super().partitions(start, end)
        if tasks:
            self.faults.meet("partitions")
        return tasks

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        self.faults.meet("commit")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch
            self.faults.meet("read", *find_task())


class Writer(QueueyWriter):
    """The writer of a batch, with faults."""

    faults: Faults

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return write_with_faults(self.faults, self._options, lambda: super(Writer, self).write(iterator))


class StreamWriter(QueueyStreamWriter):
    """The writer of a stream, with faults."""

    faults: Faults

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return write_with_faults(self.faults, self._options, lambda: super(StreamWriter, self).write(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark names it so
        self.faults.meet(COMMITTING, str(batchId))
        super().commit(messages, batchId)


def write_with_faults(faults: Faults, options: SinkOptions, write: Callable[[], TaskCommit]) -> TaskCommit:
    """Does a task with a store that meets its faults, in the chosen chunk."""
    batch, task = find_task()
    store: Any = open_stores.opened(options.store)
    load, enter, loads = store.bulk.load_unread, store.ledger.enter, [-1]

    def meet(point: str) -> None:
        if loads[0] == faults.chunk:
            faults.meet(point, batch, task)

    async def loading(queue: Any, messages: Any) -> int:  # noqa: ANN401 - as the store
        loads[0] += 1
        meet("reserved")
        if loads[0] == faults.chunk and faults.wanted(task) == "half":
            await load(queue, messages[: len(messages) // 2])
        meet("half")
        written: int = await load(queue, messages)
        meet("loaded")
        return written

    async def entering(work: str, piece: int, value: bytes, *, expected: bytes | None, **more: Any) -> bytes:  # noqa: ANN401 - as the store
        result: bytes = await enter(work, piece, value, expected=expected, **more)
        if expected is not None:
            meet("done")
        return result

    faults.meet("planned", batch, task)
    store.bulk.load_unread, store.ledger.enter = loading, entering
    try:
        return write()
    finally:
        del store.bulk.load_unread, store.ledger.enter


def find_task() -> tuple[str, int]:
    """Returns the micro-batch of the task that runs, "" if it is none, and the task's number."""
    context = TaskContext.get()
    assert context is not None
    return context.getLocalProperty(BATCH_PROPERTY) or "", context.partitionId()


def find_jvm_pid() -> int:
    process = os.getpid()
    while (Path("/proc") / str(process) / "comm").read_text().strip() != "java":
        # The second field may contain anything, in parentheses; the fourth is the parent.
        process = int((Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
    return process
