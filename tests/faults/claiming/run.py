"""A run: web processes on one store, posters and claimers, faults, a drain at the end, and the verdict."""

from __future__ import annotations

import random
import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from queuey import ids
from tests.faults.checking import history
from tests.faults.checking.history import Fault, Recorder, now
from tests.faults.claiming.claimer import TTLS, Claimer
from tests.faults.experiment import Store
from tests.faults.nemesis import Act, OneWorker, Severable, Victim, WebProcess, perform
from tests.faults.wire import Account, Web, make_queue
from tests.faults.workload import LONGEST_DELAY, PARTITIONS, Style, Writer
from tests.servers.served import Served
from tests.sim.history import History

QUEUE = "jobs"
POSTERS, CLAIMERS = 3, 6
POSTED = Style(sizes=(1, 1, 5, 10), delayed=0.05, pace=0.4)
DRAIN_SECONDS = 300.0
"""A failure waits so long for the queue to be empty."""


class Result(NamedTuple):
    """What a run showed.

    Attributes:
        violations: Sentences.
        counts: Of what happened, to see that something did.
        faults: When, and what was done.
        output: Of the web processes.
    """

    violations: list[str]
    counts: dict[str, int]
    faults: list[Fault]
    output: str

    def explain(self) -> str:
        """Tells the violations, what was going on, and the end of what the web processes printed."""
        faults = [f"{one.start:.3f}..{one.end:.3f} {one.kind} {one.target}" for one in self.faults]
        shown = [f"{len(self.violations)} violations", *self.violations[:12], str(self.counts), *faults]
        return "\n".join([*shown, self.output[-6000:]])


class ClaimRun:
    """Web processes, named ``web-1`` and so on, and everybody who talks to them.

    Args:
        directory: For data, logs and the history of posts.
        store: What they run on.
        seed: Of what clients do.
        webs: How many services.
        workers: How many processes each of them has.
        consistency: Of the queue.
    """

    def __init__(
        self,
        directory: Path,
        store: Store,
        seed: int,
        webs: int = 4,
        *,
        workers: int = 1,
        consistency: str = "strong",
    ) -> None:
        self._directory = directory
        self._store = store
        self._seed = seed
        self._workers = workers
        self._forwarded = 0
        self._consistency = consistency
        self._names = [f"web-{number}" for number in range(1, webs + 1)]
        self._processes: dict[str, WebProcess] = {}
        self._account = Account("", "")
        self._recorder = Recorder()
        self._history = History()
        self._lock = threading.Lock()
        self._calm = threading.Event()

    def run(self, acts: Iterable[Act], *, rest: float) -> Result:
        """Runs, with all faults in the middle, then has everything claimed and acknowledged, and judges.

        Args:
            acts: The faults.
            rest: Seconds between acts.
        """
        try:
            with self._serving():
                workers = {
                    f"{name}/{number}": OneWorker(process, number)
                    for name, process in self._processes.items()
                    for number in range(1, self._workers + 1)
                }
                victims: Mapping[str, Victim | Severable] = {**self._processes, **self._store.nodes, **workers}
                with self._claiming() as claimers:
                    with self._posting():
                        threading.Event().wait(1.0)
                        perform(acts, victims, self._recorder, rest=rest)
                        self._store.settled()
                        threading.Event().wait(1.0)
                    self._history.calm = now()
                    self._calm.set()
                    self._drain(claimers)
                self._forwarded = sum(map(_forwarded, self._webs))
        finally:
            history.write(self._recorder.history(), self._directory / "history.jsonl")
            (self._directory / "output.txt").write_text(self._output())
        return self._judge()

    @property
    def _webs(self) -> list[Web]:
        return [Web(name, process.served.port) for name, process in self._processes.items()]

    def _output(self) -> str:
        return "".join(f"--- {name} ---\n{process.output}" for name, process in self._processes.items())

    @contextmanager
    def _serving(self) -> Iterator[None]:
        try:
            for name in self._names:
                self._processes[name] = WebProcess(partial(self._serve, name))
                if not self._store.account:  # The first of them makes it, and its key.
                    self._processes[name].wait()
            for process in self._processes.values() if self._store.account else ():
                process.wait()
            profile = None if self._store.account else self._processes["web-1"].served.profile
            self._account = self._store.account or Account(profile.application, profile.key)  # type: ignore[union-attr]
            spec = {"partitions": PARTITIONS, "consistency": self._consistency}
            make_queue(self._webs[0], self._account, queue_name=QUEUE, **spec)
            yield
        finally:
            for process in self._processes.values():
                process.kill()

    def _serve(self, name: str, port: int | None) -> Served:
        options = [*self._store.options, *self._store.centres.get(name, ())]
        return Served(self._directory, [*options, "--workers", str(self._workers)], port=port)

    @contextmanager
    def _posting(self) -> Iterator[None]:
        posters = [
            Writer(f"poster-{n}", self._webs, self._account, [QUEUE], POSTED, self._recorder, self._seed)
            for n in range(POSTERS)
        ]
        with _running([poster.run for poster in posters]):
            yield

    @contextmanager
    def _claiming(self) -> Iterator[list[Claimer]]:
        claimers = [
            Claimer(
                self._webs * self._workers,
                self._account,
                QUEUE,
                self._history,
                self._lock,
                self._calm.is_set,
                random.Random(f"{self._seed} claimer-{n}"),
            )
            for n in range(CLAIMERS)
        ]
        with _running([claimer.run for claimer in claimers]):
            yield claimers

    def _drain(self, claimers: list[Claimer]) -> None:
        """Waits until nobody has been given anything for longer than any claim can last."""
        until = now() + DRAIN_SECONDS
        quiet = max(TTLS) + self._store.span.delay + LONGEST_DELAY
        while True:
            threading.Event().wait(0.2)
            if all(claimer.empty_for > quiet for claimer in claimers):
                return
            assert now() < until, f"messages are still being handed out: {self._counts()}"

    def _counts(self) -> dict[str, int]:
        outcomes = Counter(one.outcome or "unheard" for one in self._history.acknowledgings)
        positions = Counter(one.position for one in self._history.deliveries)
        return {
            "posted": len(self._history.acknowledged),
            "delivered": len(self._history.deliveries),
            "again": sum(times > 1 for times in positions.values()),
            **{f"acknowledgements {outcome}": times for outcome, times in sorted(outcomes.items())},
            "faults": len(self._recorder.history().faults),
            "forwarded": self._forwarded,
        }

    def _judge(self) -> Result:
        found = self._recorder.history()
        for post in found.posts:
            self._history.acknowledged.update(map(ids.parse_position, post.ids))
        return Result(self._history.violations(), self._counts(), list(found.faults), self._output())


def _forwarded(web: Web) -> int:
    """Returns how many requests the workers of a service have left to each other."""
    with urllib.request.urlopen(f"http://127.0.0.1:{web.port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return sum(
        int(float(count)) for count in re.findall(r"^queuey_claims_forwarded_total(?:{.*})? (\S+)$", text, re.MULTILINE)
    )


@contextmanager
def _running(work: Sequence[Callable[[threading.Event], None]]) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=run, args=(stop,)) for run in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
