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


def test_progress_adds_up_what_runs() -> None:
    """The bar adds up the tasks of all running stages, not of finished ones, and ends silently when Spark does."""
    asked, gone = threading.Event(), threading.Event()

    def list_stages() -> list[int]:
        if gone.is_set():
            raise ConnectionError
        return [1, 2, 3]

    def find_stage(number: int) -> SimpleNamespace | None:
        if number == 3:
            asked.set()
            return None
        return SimpleNamespace(numTasks=4 * number, numCompletedTasks=number)

    tracker = SimpleNamespace(getActiveStageIds=list_stages, getStageInfo=find_stage)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    moves: list[tuple[str, int, int | None]] = []

    @contextmanager
    def recording() -> Iterator[Callable[..., None]]:
        yield lambda *move: moves.append(move)

    with replace_in(running, output.bar, recording), running.show_stage_progress(spark, every=0.001) as say:
        say("[counting]")
        assert asked.wait(60)
        asked.clear()
        assert asked.wait(60)
        gone.set()
        assert eventually(lambda: "progress" not in {thread.name for thread in threading.enumerate()})
    assert moves[-1] == ("[counting]", 3, 12)
