"""The progress bar of Spark's tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from queuey.cli.pipeline import running
from queuey.terminal import output
from tests.contract.samples import eventually
from tests.replacing import replace_in


class Tracker:
    """A status tracker of Spark with two running stages and a finished one, until Spark is gone.

    It tells when the finished stage is asked for.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.gone = False

    def statusTracker(self) -> Tracker:  # noqa: N802 - Spark's name
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - likewise
        if self.gone:
            raise ConnectionError
        return [1, 2, 3]

    def getStageInfo(self, number: int) -> SimpleNamespace | None:  # noqa: N802 - likewise
        if number == 3:
            self.asked.set()
            return None
        return SimpleNamespace(numTasks=4 * number, numCompletedTasks=number)


def test_progress_adds_up_what_runs() -> None:
    """The bar adds up the tasks of all running stages, and ends silently when Spark does."""
    tracker: Any = Tracker()
    spark: Any = SimpleNamespace(sparkContext=tracker)
    moves: list[tuple[str, int, int | None]] = []

    @contextmanager
    def recording() -> Iterator[Callable[..., None]]:
        yield lambda *move: moves.append(move)

    with replace_in(running, output.bar, recording), running.show_stage_progress(spark, every=0.001) as say:
        say("[counting]")
        assert tracker.asked.wait(60)
        tracker.asked.clear()
        assert tracker.asked.wait(60)
        tracker.gone = True
        assert eventually(lambda: "progress" not in {thread.name for thread in threading.enumerate()})
    assert moves[-1] == ("[counting]", 3, 12)
