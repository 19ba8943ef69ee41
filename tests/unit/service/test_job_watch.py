"""Tests of the events that wake requests waiting for jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from queuey.ids import Position
from queuey.messages import Queue
from queuey.service.claims.jobs import MAX_CHECKED_JOBS, JobWatch
from queuey.service.claims.log_cache import LogCache
from queuey.service.claims.partition_log import PartitionLog
from queuey.service.core import Core


class Log:
    """Counts how often its rounds look up a job."""

    key = (1, 1)

    def __init__(self) -> None:
        self.looks = 0
        self.state = self

    def is_done(self, _position: Position) -> bool:
        self.looks += 1
        return False


class Loop:
    """A loop that does nothing, with a fixed time."""

    now = 1.0

    def boottime(self) -> float:
        return self.now

    def spawn(self, task: Any) -> object:  # noqa: ANN401 - a coroutine
        task.close()
        return SimpleNamespace(done=lambda: False)

    def call_soon(self, call: Any, *arguments: object) -> None:  # noqa: ANN401 - a function
        call(*arguments)


def test_rounds_look_for_few_jobs() -> None:
    """A round looks up few jobs, however many are waited for; the next read looks up the others."""
    loop, log, jobs = Loop(), Log(), 100
    watch = JobWatch(cast("LogCache", None), cast("Core", loop))
    queue = cast("Queue", SimpleNamespace(qid=1))
    source = watch.make_source([(1, (number, 0)) for number in range(jobs)])
    stop = source.watch(queue, 1, lambda: None)
    for _ in range(3):
        watch.wake_for(cast("PartitionLog", log))
    assert log.looks == jobs
    loop.now += 1.01 * jobs / MAX_CHECKED_JOBS
    watch.wake_for(cast("PartitionLog", log))
    assert log.looks == 2 * jobs
    stop()
    assert watch.watched == {}
