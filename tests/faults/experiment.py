"""A run: two web processes on one store, writers and readers, faults, full reads at the end, and the verdict."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.faults import history
from tests.faults.checker import Limits, Violation, check
from tests.faults.counts import Counts, count
from tests.faults.history import History, Recorder, now
from tests.faults.nemesis import Act, Span, Victim, WebProcess, perform
from tests.faults.wire import Account, Line, Web, metric
from tests.faults.workload import (
    BATCHES,
    CHAIN,
    LONGEST_DELAY,
    PARTITIONS,
    PATIENCE,
    SINGLE,
    Habit,
    Reader,
    Style,
    Writer,
)
from tests.served import Served

QUEUES = ("orders", "mails")
FULL_READS = 3
APART = 2.0
"""Seconds between full reads that must agree."""
FENCE_SECONDS = 60.0
SHOWN = 12
"""Violations told when a run fails; the others are in the written history."""


class Store(NamedTuple):
    """What the web processes keep messages in.

    Attributes:
        options: Of ``queuey serve``.
        span: Its W and D.
        account: To make requests for; None: the one that ``queuey serve`` makes.
        nodes: Servers that may be killed and paused, by name.
        settled: Is called when the nodes are back, and waits until they know each other.
        converged: Is called between the first and the second full read; what it does makes copies agree.
    """

    options: Sequence[str]
    span: Span
    account: Account | None = None
    nodes: Mapping[str, Victim] = {}
    settled: Callable[[], None] = lambda: None
    converged: Callable[[], None] = lambda: None


class Verdict(NamedTuple):
    """What a run showed."""

    violations: list[Violation]
    counts: Counts
    history: History
    output: str


class Experiment:
    """Two web processes, ``web-1`` and ``web-2``, and everybody who talks to them.

    Args:
        directory: For data, logs and the history.
        store: What they run on.
        seed: Of what writers write.
        slowness: Writers rest so many times longer than usual.
    """

    def __init__(self, directory: Path, store: Store, seed: int, slowness: float = 1.0) -> None:
        self._directory = directory
        self._store = store
        self._seed = seed
        self._slowness = slowness
        self._recorder = Recorder()
        self._processes: dict[str, WebProcess] = {}
        self._account = Account("", "")

    @property
    def _webs(self) -> list[Web]:
        return [Web(name, process.served.port) for name, process in self._processes.items()]

    def run(self, acts: Iterable[Act], *, limits: Limits, rest: float) -> Verdict:
        """Runs, with all faults in the middle, and judges.

        Args:
            acts: The faults.
            limits: What counts as available.
            rest: Seconds between acts.
        """
        with self._written_down(), self._serving():
            victims: dict[str, Victim] = {**self._processes, **self._store.nodes}
            with self._traffic() as readers:
                threading.Event().wait(limits.calm + 1)
                perform(acts, victims, self._recorder, rest=rest)
                self._store.settled()
                threading.Event().wait(limits.grace + limits.calm + 1)
            # From now on nothing is written, and what was delayed is due before these.
            threading.Event().wait(LONGEST_DELAY)
            self._await_fences()
            marks = self._writer("marks", self._webs, QUEUES, SINGLE).mark()
            for reader in readers:
                reader.read_beyond(marks[reader.queue])
            for final in range(1, FULL_READS + 1):
                for queue in QUEUES:
                    self._reader(
                        f"full-{final}.{queue}", queue, Habit(limit=500, patience=PATIENCE), final
                    ).read_beyond(marks[queue])
                if final == 1:
                    self._store.converged()
                elif final < FULL_READS:
                    threading.Event().wait(APART)
        return self._judge(limits)

    @contextmanager
    def _written_down(self) -> Iterator[None]:
        """Writes the history and what the web processes printed into the directory, whatever happens."""
        try:
            yield
        finally:
            history.write(self._recorder.history(), self._directory / "history.jsonl")
            (self._directory / "output.txt").write_text(self._output())

    def _output(self) -> str:
        return "".join(f"--- {name} ---\n{process.output}" for name, process in self._processes.items())

    def _await_fences(self) -> None:
        """Waits until no web process has a write left to take back: from then on nothing vanishes any more."""
        until = now() + FENCE_SECONDS
        while pending := [web.name for web in self._webs if metric(web, "queuey_store_fences_pending") > 0]:
            assert now() < until, f"{pending} still take writes back"
            threading.Event().wait(0.2)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Starts both web processes and makes the queues."""
        try:
            for name in ("web-1", "web-2"):
                self._processes[name] = WebProcess(self._serve)
                if not self._store.account:  # The first of them makes it, and its key.
                    self._processes[name].wait()
            for process in self._processes.values() if self._store.account else ():
                process.wait()
            self._account = self._store.account or self._profile()
            line = Line(self._webs[0], self._account)
            for queue in QUEUES:
                fields = json.dumps({"queue_name": queue, "partitions": PARTITIONS}).encode()
                answer = line.ask("POST", "", body=fields, headers={"Content-Type": "application/json"}, timeout=30)
                assert answer.status == 201, answer
            line.close()
            yield
        finally:
            for process in self._processes.values():
                process.kill()

    def _profile(self) -> Account:
        profile = self._processes["web-1"].served.profile
        return Account(profile.application, profile.key)

    def _serve(self, port: int | None) -> Served:
        return Served(self._directory, self._store.options, port=port)

    @contextmanager
    def _traffic(self) -> Iterator[list[Reader]]:
        """Runs writers and readers in threads of their own."""
        stop = threading.Event()
        readers = self._readers()
        work = [*(writer.run for writer in self._writers()), *(reader.run for reader in readers)]
        threads = [threading.Thread(target=run, args=(stop,)) for run in work]
        for thread in threads:
            thread.start()
        try:
            yield readers
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _writers(self) -> list[Writer]:
        webs = self._webs
        return [
            *(self._writer(f"single-{n}", webs[n % 2 : n % 2 + 1], QUEUES, SINGLE) for n in range(4)),
            *(self._writer(f"batch-{n}", webs[n : n + 1], QUEUES, BATCHES) for n in range(2)),
            *(self._writer(f"chain-{queue}", webs, [queue], CHAIN) for queue in QUEUES),
        ]

    def _writer(self, name: str, webs: Sequence[Web], queues: Sequence[str], style: Style) -> Writer:
        style = style._replace(pace=style.pace * self._slowness)
        return Writer(name, webs, self._account, queues, style, self._recorder, self._seed)

    def _readers(self) -> list[Reader]:
        first, second = QUEUES
        return [
            self._reader("both", first, Habit()),
            self._reader("merged", second, Habit(merge=True)),
            self._reader("waiting", second, Habit(wait=1, patience=PATIENCE)),
            *(self._reader(f"part-{n}", first, Habit(partitions=(n,))) for n in (1, PARTITIONS)),
        ]

    def _reader(self, name: str, queue: str, habit: Habit, final: int = 0) -> Reader:
        return Reader(name, self._webs, self._account, queue, habit, self._recorder, final)

    def _judge(self, limits: Limits) -> Verdict:
        found = self._recorder.history()
        return Verdict(check(found, limits), count(found, self._store.span.deadline), found, self._output())


def explain(verdict: Verdict) -> str:
    """Tells the violations, the first of each kind before all others, and what was going on."""
    first = {violation.rule: violation for violation in reversed(verdict.violations)}.values()
    told = [*first, *(violation for violation in verdict.violations if violation not in first)][:SHOWN]
    faults = [f"{one.start:.3f}..{one.end:.3f} {one.kind} {one.target}" for one in verdict.history.faults]
    lines = [f"{len(verdict.violations)} violations", *(f"{rule}: {text}" for rule, text in told)]
    return "\n".join([*lines, str(verdict.counts), *faults, verdict.output[-6000:]])
