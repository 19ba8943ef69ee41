"""A run: web processes on one store, posters and claimers, faults, a drain at the end, and the verdict."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from queuey import ids
from tests.faults.claiming.claimer import TTLS, Claimer
from tests.faults.webs import Store, Webs
from tests.faults.wire import make_queue, metric
from tests.faults.workload import LONGEST_DELAY, PARTITIONS, Style, Writer
from tests.harness.checking.claims import CLAIMS, ClaimHistory
from tests.harness.checking.counts import count_claims
from tests.harness.checking.history import History
from tests.harness.checking.records import Record
from tests.harness.checking.rules import check, checked
from tests.harness.history import Journal, Records, now, running
from tests.harness.nemesis import Wave, perform
from tests.harness.plans import Plan
from tests.harness.results import Result
from tests.waiting import until

QUEUE = "jobs"
POSTERS, CLAIMERS = 3, 6
POSTED = Style(sizes=(1, 1, 5, 10), delayed=0.05, pace=0.4)
DRAIN_SECONDS = 300.0
"""A failure waits so long for the queue to be empty."""
CALM_SECONDS = 1.0
"""Without faults, before and after them."""


class ClaimRun:
    """Web processes, named ``web-1`` and so on, and everybody who talks to them.

    Args:
        directory: For data, logs and the history of posts.
        store: What they run on.
        webs: How many services.
        workers: How many processes each of them has.
        consistency: Of the queue.
        written: Schedules of faults by name.
    """

    def __init__(
        self,
        directory: Path,
        store: Store,
        *,
        webs: int = 4,
        workers: int = 1,
        consistency: str = "strong",
        written: Mapping[str, Sequence[Wave]],
    ) -> None:
        self._store = store
        self._seed = 0
        self._workers = workers
        self._queue = {"queue_name": QUEUE, "partitions": PARTITIONS, "consistency": consistency}
        self._written = written
        self._journal = Journal(directory / "history.jsonl")
        self._records = Records(directory, Record)
        self._processes = Webs(directory, store, webs, workers)
        self._history = ClaimHistory()
        self._lock = threading.Lock()
        self._calm = threading.Event()

    def run(self, plan: Plan, *, rest: float) -> Result:
        """Runs, with all faults in the middle, then has everything claimed and acknowledged, and judges.

        Args:
            plan: Its faults, and the seed of what clients do.
            rest: Seconds between waves of faults.
        """
        self._seed = plan.seed
        waves = self._processes.waves(plan, self._written, rest)
        with self._processes.serving():
            webs = self._processes.addresses
            make_queue(webs[0], self._processes.account, **self._queue)
            with self._claiming() as claimers:
                with running([self._poster(number).run for number in range(POSTERS)]):
                    threading.Event().wait(CALM_SECONDS)
                    perform(waves, self._processes.hit, self._journal.add, rest=rest)
                    self._store.settled()
                    threading.Event().wait(CALM_SECONDS)
                self._history.calm = now()
                self._calm.set()
                self._drain(claimers)
            forwarded = sum(int(metric(web, "queuey_claims_forwarded_total")) for web in webs)
        return self._judge(forwarded)

    def _poster(self, number: int) -> Writer:
        webs, account = self._processes.addresses, self._processes.account
        return Writer(f"poster-{number}", webs, account, [QUEUE], POSTED, self._journal, self._seed)

    @contextmanager
    def _claiming(self) -> Iterator[list[Claimer]]:
        claimers = [
            Claimer(
                self._processes.addresses * self._workers,
                self._processes.account,
                QUEUE,
                self._history,
                self._lock,
                self._calm.is_set,
                random.Random(f"{self._seed} claimer-{n}"),
            )
            for n in range(CLAIMERS)
        ]
        with running([claimer.run for claimer in claimers]):
            yield claimers

    def _drain(self, claimers: list[Claimer]) -> None:
        """Waits until nobody has been given anything for longer than any claim can last."""
        quiet = max(TTLS) + self._store.span.delay + LONGEST_DELAY
        until(lambda: all(claimer.empty_for > quiet for claimer in claimers), DRAIN_SECONDS, every=0.2)

    def _counts(self) -> dict[str, int]:
        return count_claims(self._history, History(self._records.all()))

    def _judge(self, forwarded: int) -> Result:
        posts = History(self._records.all())
        self._history.acknowledged.update(ids.parse_position(place.id) for place in posts.acknowledged)
        counts = self._counts() | {"forwarded": forwarded} | self._processes.request_counts
        violations, applied = check(self._history, CLAIMS), checked(counts, CLAIMS)
        return Result(violations, counts, applied, posts.faults, self._processes.output[-6000:], self._history)
