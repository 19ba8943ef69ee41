"""The progress of Spark's tasks, on a terminal's standard error."""

from __future__ import annotations

from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.25


class StageProgress:
    """A bar of the tasks of the stages that run now. A thread asks Spark's status tracker for them.

    Args:
        spark: Whose tasks.
        every: Seconds between two updates.
    """

    def __init__(self, spark: SparkSession, *, every: float = LOOK_SECONDS) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._tracker = spark.sparkContext.statusTracker()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=None)
        self._every = every
        self._ended = Event()
        self._thread = Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._bar.stop()

    def say(self, text: str) -> None:
        """Shows a text beside the bar."""
        self._bar.update(self._task, description=text)

    def _follow(self) -> None:
        while not self._ended.wait(self._every):
            try:
                stages = [self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()]
            except Exception:  # noqa: BLE001 - Spark has ended; the job itself says why
                return
            total = sum(stage.numTasks for stage in stages if stage is not None)
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            self._bar.update(self._task, total=total or None, completed=done)
