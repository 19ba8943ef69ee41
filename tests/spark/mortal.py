"""The data source with attempts that are killed: the Python worker of a task, or the whole driver, at a given point."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource

from queuey.spark import open_stores
from queuey.spark.data_source import QueueySource
from queuey.spark.sink import spark_writer
from queuey.spark.sink.spark_writer import QueueyStreamWriter, QueueyWriter
from tests.spark.faults.failing import find_jvm_pid

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

IN_TASKS = ("planned", "reserved", "half", "loaded", "done")
"""Points in a task: at its begin, with ids reserved, half written, all written, and noted."""
COMMITTING = "committing"
"""The tasks of a micro-batch are done, and Spark has not recorded it yet."""


class Deaths(msgspec.Struct, frozen=True):
    """The deaths of tasks or drivers; each happens once.

    Attributes:
        directory: Keeps the deaths that have happened.
        point: The point of death; None for all points of a task, in turn.
        batch: The micro-batch in which it happens; None for every one.
        driver: Kills Spark's JVM, and with it the driver, too; otherwise only the Python worker of the task.
        chunk: The chunk of the task in which it happens.
    """

    directory: Path
    point: str | None = None
    batch: str | None = None
    driver: bool = False
    chunk: int = 0

    def die_at(self, point: str, batch: str, task: int) -> None:
        """Kills the process if this is a point of death that has not happened yet, and records that."""
        target = self.point or IN_TASKS[task % len(IN_TASKS)]
        if point != target or self.batch not in {None, batch}:
            return
        try:
            (self.directory / (f"driver-{target}" if self.driver else f"{batch}-{task}-{target}")).touch(exist_ok=False)
        except FileExistsError:
            return
        if self.driver:
            os.kill(find_jvm_pid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def list_deaths(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


def make_mortal_source(called: str, deaths: Deaths) -> type[DataSource]:
    class Writer(QueueyWriter):
        def write(self, iterator: Iterator[Any]) -> spark_writer.TaskCommit:
            return run_mortal_task(deaths, self._options, lambda: super(Writer, self).write(iterator))

    class StreamWriter(QueueyStreamWriter):
        def write(self, iterator: Iterator[Any]) -> spark_writer.TaskCommit:
            return run_mortal_task(deaths, self._options, lambda: super(StreamWriter, self).write(iterator))

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark names it so
            deaths.die_at(COMMITTING, str(batchId), 0)
            super().commit(messages, batchId)

    class Mortal(QueueySource):
        @classmethod
        def name(cls) -> str:
            return called

        def writer(self, schema: StructType, overwrite: bool) -> QueueyWriter:  # noqa: FBT001 - as Spark calls it
            from queuey.spark import options  # noqa: PLC0415 - imported where it runs

            return Writer(options.write_options(self.options, streaming=False), schema, overwrite=overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> QueueyStreamWriter:  # noqa: FBT001, N802
            from queuey.spark import options  # noqa: PLC0415 - imported where it runs

            return StreamWriter(options.write_options(self.options, streaming=True), schema, overwrite=overwrite)

    return Mortal


def run_mortal_task(
    deaths: Deaths,
    options: Any,  # noqa: ANN401 - those of any store
    write: Callable[[], spark_writer.TaskCommit],
) -> spark_writer.TaskCommit:
    """Does a task with a store that kills it at its points, in the chosen chunk."""
    context = TaskContext.get()
    assert context is not None
    batch, task = context.getLocalProperty(spark_writer.BATCH_PROPERTY) or "", context.partitionId()
    store: Any = open_stores.opened(options.store)
    load, enter = store.bulk.load_unread, store.ledger.enter
    seen = {"load": -1}

    async def loading(queue: Any, messages: Any) -> int:  # noqa: ANN401
        seen["load"] += 1
        if seen["load"] == deaths.chunk:
            deaths.die_at("reserved", batch, task)
            if (deaths.point or IN_TASKS[task % len(IN_TASKS)]) == "half":
                await load(queue, messages[: len(messages) // 2])
            deaths.die_at("half", batch, task)
        written: int = await load(queue, messages)
        if seen["load"] == deaths.chunk:
            deaths.die_at("loaded", batch, task)
        return written

    async def entering(work: str, piece: int, value: bytes, *, expected: bytes | None, **more: Any) -> bytes:  # noqa: ANN401
        result: bytes = await enter(work, piece, value, expected=expected, **more)
        if expected is not None and seen["load"] == deaths.chunk:
            deaths.die_at("done", batch, task)
        return result

    deaths.die_at("planned", batch, task)
    store.bulk.load_unread, store.ledger.enter = loading, entering
    try:
        return write()
    finally:
        del store.bulk.load_unread, store.ledger.enter
