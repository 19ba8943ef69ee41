"""The progress of Spark's tasks, on a terminal's standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from queuey.terminal.bars import bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.25


@contextmanager
def stage_progress(spark: SparkSession, *, every: float = LOOK_SECONDS) -> Iterator[Callable[[str], None]]:
    """Shows a bar of the tasks of the stages that run now; gives the function that shows a text beside it.

    A thread asks Spark's status tracker for them.

    Args:
        spark: Whose tasks.
        every: Seconds between two updates.
    """
    tracker, ended, said = spark.sparkContext.statusTracker(), Event(), ""

    def say(text: str) -> None:
        nonlocal said
        said = text

    def follow() -> None:
        while not ended.wait(every):
            try:
                stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            except Exception:  # noqa: BLE001 - Spark has ended; the job itself says why
                return
            total = sum(stage.numTasks for stage in stages if stage is not None)
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            move(said, done, total or None)

    thread = Thread(target=follow, name="progress", daemon=True)
    with bar() as move:
        thread.start()
        try:
            yield say
        finally:
            ended.set()
            thread.join()
