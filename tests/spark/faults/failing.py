"""The source with faults: it fails, or kills a process, where a test requests it.

A test requests faults by files in a directory, which reach all of Spark's processes: a file is named after a point of
the reader and contains the kind of fault. It happens once. A file ``tasks`` stays, and has every task's first attempt
killed when it has given its first rows.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from queuey.spark.data_source import QueueySource
from queuey.spark.options import SourceOptions, read_options
from queuey.spark.source.stream_reader import QueueyStreamReader

POINTS = ("latestOffset", "partitions", "read", "commit")
"""Before the end of a batch is recorded; before its tasks; within one; and after the next end was recorded."""
RAISE, KILL_SPARK = "raise", "kill spark"


class Deliberate(Exception):
    """A fault that a test requested."""


class FailingSource(QueueySource):
    """The source, with one more option: ``faults``, the directory."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        rest = dict(options)
        self.faults = rest.pop("faults")
        super().__init__(rest)

    @classmethod
    def name(cls) -> str:
        return "failing"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return FailingReader(read_options(self.options, streaming=True), schema, Path(self.faults))


class FailingReader(QueueyStreamReader):
    """The reader, with faults."""

    def __init__(self, options: SourceOptions, schema: StructType, faults: Path) -> None:
        super().__init__(options, schema)
        self._faults = faults

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        end = super().latestOffset(start, limit)
        self._meet("latestOffset")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = super().partitions(start, end)
        if tasks:
            self._meet("partitions")
        return tasks

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        self._meet("commit")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows. After each batch it may fail, or kill its process at the first attempt."""
        task = TaskContext.get()
        for batch in super().read(partition):
            yield batch
            self._meet("read")
            if task is not None and task.attemptNumber() == 0 and (self._faults / "tasks").exists():
                (self._faults / f"killed-{task.taskAttemptId()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def _meet(self, point: str) -> None:
        """Fails at this point, or kills Spark, if the test has requested that. Each request counts once."""
        place = self._faults / point
        taken = place.with_suffix(f".{os.getpid()}")
        try:
            place.rename(taken)
        except FileNotFoundError:
            return
        if taken.read_text() == KILL_SPARK:
            os.kill(find_jvm_pid(), signal.SIGKILL)
            signal.pause()
        raise Deliberate(point)


def find_jvm_pid() -> int:
    process = os.getpid()
    while (Path("/proc") / str(process) / "comm").read_text().strip() != "java":
        # The second field may contain anything, in parentheses; the fourth is the parent.
        process = int((Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
    return process
