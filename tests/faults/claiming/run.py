"""A run: web processes on one store, posters and claimers, faults, a drain at the end, and the verdict."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from queuey.model import ids
from tests.faults.claiming.claimer import TTLS, Claimer
from tests.faults.posted_run import PostedRun
from tests.faults.webs import Store
from tests.faults.wire import make_queue, read_metric
from tests.faults.workload import LONGEST_DELAY, PARTITIONS, Style
from tests.harness.checking.claims import CLAIMS, ClaimHistory
from tests.harness.checking.counts import count_claims
from tests.harness.history import now, running
from tests.harness.nemesis import Wave
from tests.harness.plans import Plan
from tests.harness.results import Result
from tests.waiting import until

QUEUE = "jobs"
POSTERS, CLAIMERS = 3, 6
POSTED = Style(sizes=(1, 1, 5, 10), delayed=0.05, pace=0.4)
DRAIN_SECONDS = 300.0
"""Max seconds until the queue is empty."""
CALM_SECONDS = 1.0
"""Seconds without faults, before and after them."""


class ClaimRun(PostedRun):
    """A run with clients that claim. Further arguments are those of :class:`PostedRun`.

    Args:
        consistency: The consistency of the queue.
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
        super().__init__(directory, store, webs=webs, workers=workers, written=written)
        self._queue = {"queue_name": QUEUE, "partitions": PARTITIONS, "consistency": consistency}
        self._history = ClaimHistory()

    def run(self, plan: Plan, *, rest: float) -> Result:
        """Runs, with all faults in the middle, then lets everything be claimed and acknowledged, and judges.

        Args:
            plan: The faults, and the seed of what clients do.
            rest: Seconds between waves of faults.
        """
        with self._processes.serving():
            webs = self._processes.addresses
            make_queue(webs[0], self._processes.account, **self._queue)
            with self._run_claimers(plan.seed) as claimers:
                self._post([QUEUE], POSTED, POSTERS, plan, rest=rest, calm_seconds=CALM_SECONDS)
                self._history.calm = now()
                self._calm.set()
                self._drain(claimers)
            forwarded = sum(int(read_metric(web, "queuey_claims_forwarded_total")) for web in webs)
        posts = self._read_posts()
        self._history.acknowledged.update(ids.parse_position(place.id) for place in posts.acknowledged)
        return self._result(self._history, CLAIMS, count_claims(self._history, posts) | {"forwarded": forwarded})

    @contextmanager
    def _run_claimers(self, seed: int) -> Iterator[list[Claimer]]:
        claimers = [
            Claimer(
                self._processes.addresses * self._workers,
                self._processes.account,
                QUEUE,
                self._history,
                self._lock,
                self._calm.is_set,
                random.Random(f"{seed} claimer-{n}"),
            )
            for n in range(CLAIMERS)
        ]
        with running([claimer.run for claimer in claimers]):
            yield claimers

    def _drain(self, claimers: list[Claimer]) -> None:
        quiet = max(TTLS) + self._store.span.delay + LONGEST_DELAY
        until(lambda: all(claimer.empty_for > quiet for claimer in claimers), DRAIN_SECONDS, every=0.2)
