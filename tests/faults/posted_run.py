"""The common part of runs that post messages under faults. Each kind of run has its own consumers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults.webs import Store, Webs
from tests.faults.workload import Style, Writer
from tests.harness.checking.history import History
from tests.harness.checking.records import Record
from tests.harness.checking.rules import Rules, check, count_checked
from tests.harness.history import Journal, Records, running
from tests.harness.nemesis import Wave, perform_waves
from tests.harness.plans import Plan
from tests.harness.results import Result


class PostedRun:
    """Web processes on one store, named ``web-1`` and so on, with posters and their records.

    Args:
        directory: Holds data, logs and the history of posts.
        store: The store of the web processes.
        webs: Number of services.
        workers: Number of processes of each service.
        written: Schedules of faults by name.
    """

    def __init__(
        self, directory: Path, store: Store, *, webs: int, workers: int = 1, written: Mapping[str, Sequence[Wave]]
    ) -> None:
        self._store = store
        self._workers = workers
        self._written = written
        self._journal = Journal(directory / "history.jsonl")
        self._records = Records(directory, Record)
        self._processes = Webs(directory, store, webs, workers)
        self._lock = threading.Lock()
        self._calm = threading.Event()

    def _post(
        self, queues: Sequence[str], style: Style, posters: int, plan: Plan, *, rest: float, calm_seconds: float
    ) -> None:
        """Posts, with some time without faults before and after all faults, and performs the plan's faults."""
        webs, account = self._processes.addresses, self._processes.account
        writers = [
            Writer(f"poster-{number}", webs, account, queues, style, self._journal, plan.seed)
            for number in range(posters)
        ]
        waves = self._processes.make_waves(plan, self._written, rest)
        with running([writer.post_until for writer in writers]):
            threading.Event().wait(calm_seconds)
            perform_waves(waves, self._processes.inflict, self._journal.add, rest=rest)
            self._store.settled()
            threading.Event().wait(calm_seconds)

    def _read_posts(self) -> History:
        return History(self._records.all())

    def _result(self, history: object, rules: Rules, counts: Mapping[str, int]) -> Result:
        faults, output = self._read_posts().faults, self._processes.output[-6000:]
        return Result(check(history, rules), counts, count_checked(counts, rules), faults, output, history)
