"""A run: two web processes on one store, writers and readers, faults, full reads at the end, and the verdict."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.faults.checking import history
from tests.faults.checking.checker import Limits, Violation, available, check
from tests.faults.checking.counts import Counts, count
from tests.faults.checking.history import Fault, History, Recorder, now
from tests.faults.nemesis import Act, Severable, Span, Victim, WebProcess, perform
from tests.faults.wire import Account, Web, make_queue, metric
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
from tests.servers.served import Served

QUEUES = ("orders", "mails")
SELDOM = "seldom"
MANY = 60
"""A queue with so many partitions, each of which gets one message, for data centres that are apart."""
FULL_READS = 3
APART = 2.0
"""Seconds between full reads that must agree."""
UNDO_SECONDS = 60.0
CALM_SECONDS = 30.0
STILL = 0.5
"""Seconds for which nothing happens in this process, from which on that is a fault."""
SHOWN = 12
"""Violations told when a run fails; the others are in the written history."""


class Store(NamedTuple):
    """What the web processes keep messages in.

    Attributes:
        options: Of ``queuey serve``.
        span: Its W and D.
        account: To make requests for; None: the one that ``queuey serve`` makes.
        nodes: Servers that may be killed and paused, and links that may be cut, by name.
        settled: Is called when the nodes are back, and waits until they know each other.
        converged: Is called between the first and the second full read; what it does makes copies agree.
        centres: Further options of each web process that is in a data centre of its own, by its name. They agree only
            in the end, so then it is called before the first full read.
    """

    options: Sequence[str]
    span: Span
    account: Account | None = None
    nodes: Mapping[str, Victim | Severable] = {}
    settled: Callable[[], None] = lambda: None
    converged: Callable[[], None] = lambda: None
    centres: Mapping[str, Sequence[str]] = {}


class CheckResult(NamedTuple):
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

    def run(self, acts: Iterable[Act], *, limits: Limits, rest: float) -> CheckResult:
        """Runs, with all faults in the middle, and judges.

        Args:
            acts: The faults.
            limits: What counts as available.
            rest: Seconds between acts.
        """
        with self._written_down(), self._serving():
            victims: dict[str, Victim | Severable] = {**self._processes, **self._store.nodes}
            with self._traffic() as readers, standing_still(self._recorder):
                threading.Event().wait(limits.calm + 1)
                perform(acts, victims, self._recorder, rest=rest)
                self._store.settled()
                self._await_calm(limits)
            # From now on nothing is written, and what was delayed is due before these.
            threading.Event().wait(LONGEST_DELAY)
            self._await_undo_writes()
            marks = self._mark()
            for reader in readers:
                if reader.queue in QUEUES:
                    reader.read_beyond(marks[reader.queue])
            self._read_all(marks)
        return self._judge(limits)

    def _await_calm(self, limits: Limits) -> None:
        """Waits until requests succeed again; on a machine that stands still meanwhile, nobody has tried any."""
        threading.Event().wait(limits.grace + limits.calm + 1)
        until = now() + CALM_SECONDS
        while now() < until and [*available(self._recorder.history(), limits)]:
            threading.Event().wait(0.5)

    def _mark(self) -> dict[str, dict[int, str]]:
        """Posts to every partition; returns the ids."""
        return {
            queue: self._writer(f"marks-{queue}", self._webs, [queue], style).mark()[queue]
            for queue, style in self._styles().items()
        }

    def _styles(self) -> dict[str, Style]:
        """The queues, and how all their partitions are written to."""
        usual = dict.fromkeys(QUEUES, SINGLE)
        return usual | ({SELDOM: SINGLE._replace(partitions=range(1, MANY + 1))} if self._store.centres else {})

    def _read_all(self, marks: Mapping[str, dict[int, str]]) -> None:
        """Reads everything again and again, in each data centre if there are several."""
        sites = [[web] for web in self._webs] if self._store.centres else [self._webs]
        if self._store.centres:
            self._store.converged()
        for final in range(1, FULL_READS * len(sites) + 1):
            for queue, style in self._styles().items():
                habit = Habit(tuple(style.partitions), limit=500, patience=PATIENCE)
                webs = sites[final % len(sites)]
                self._reader(f"full-{final}.{queue}", queue, habit, final, webs).read_beyond(marks[queue])
            if final == 1 and not self._store.centres:
                self._store.converged()
            elif final % len(sites) == 0 and final < FULL_READS * len(sites):
                threading.Event().wait(APART)

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

    def _await_undo_writes(self) -> None:
        """Waits until no web process has a write left to take back: from then on nothing vanishes any more."""
        until = now() + UNDO_SECONDS
        while pending := [web.name for web in self._webs if metric(web, "queuey_store_undo_writes_pending") > 0]:
            assert now() < until, f"{pending} still take writes back"
            threading.Event().wait(0.2)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Starts both web processes and makes the queues."""
        try:
            for name in ("web-1", "web-2"):
                self._processes[name] = WebProcess(partial(self._serve, name))
                if not self._store.account:  # The first of them makes it, and its key.
                    self._processes[name].wait()
            for process in self._processes.values() if self._store.account else ():
                process.wait()
            self._account = self._store.account or self._profile()
            for queue, style in self._styles().items():
                make_queue(self._webs[0], self._account, queue_name=queue, partitions=len(style.partitions))
            yield
        finally:
            for process in self._processes.values():
                process.kill()

    def _profile(self) -> Account:
        profile = self._processes["web-1"].served.profile
        return Account(profile.application, profile.key)

    def _serve(self, name: str, port: int | None) -> Served:
        return Served(self._directory, [*self._store.options, *self._store.centres.get(name, ())], port=port)

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
            *(
                self._writer(f"seldom-{n}", webs[n : n + 1], [SELDOM], _once(n))
                for n in range(len(self._store.centres))
            ),
        ]

    def _writer(self, name: str, webs: Sequence[Web], queues: Sequence[str], style: Style) -> Writer:
        style = style._replace(pace=style.pace * self._slowness)
        return Writer(name, webs, self._account, queues, style, self._recorder, self._seed)

    def _readers(self) -> list[Reader]:
        first, second = QUEUES
        if self._store.centres:
            anew = Habit(tuple(range(1, MANY + 1)), limit=500, anew=True)
            return [
                self._reader(f"{what}-{web.name}", queue, habit, webs=[web])
                for web in self._webs
                for what, queue, habit in (
                    ("both", first, Habit()),
                    ("merged", second, Habit(merge=True)),
                    ("anew", SELDOM, anew),
                )
            ]
        return [
            self._reader("both", first, Habit()),
            self._reader("merged", second, Habit(merge=True)),
            self._reader("waiting", second, Habit(wait=1, patience=PATIENCE)),
            *(self._reader(f"part-{n}", first, Habit(partitions=(n,))) for n in (1, PARTITIONS)),
        ]

    def _reader(self, name: str, queue: str, habit: Habit, final: int = 0, webs: Sequence[Web] | None = None) -> Reader:
        return Reader(name, webs or self._webs, self._account, queue, habit, self._recorder, final)

    def _judge(self, limits: Limits) -> CheckResult:
        found = self._recorder.history()
        found_wrong = check(found, limits, apart=bool(self._store.centres))
        return CheckResult(found_wrong, count(found, self._store.span.deadline), found, self._output())


@contextmanager
def standing_still(recorder: Recorder) -> Iterator[None]:
    """Records as faults when this process, with all writers and readers, stood still: nobody asked for anything."""
    ended = threading.Event()

    def watch() -> None:
        last = now()
        while not ended.wait(0.1):
            since, last = last, now()
            if last - since > STILL:
                recorder.add(Fault(start=since, end=last, target="this process", kind="pause"))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _once(number: int) -> Style:
    """How one of two writers puts a message into every other partition, each at a time of its own."""
    return Style(hasty=0.0, pace=0.5, partitions=range(1 + number, MANY + 1, 2), once=True)


def explain(check_result: CheckResult) -> str:
    """Tells the violations, the first of each kind before all others, and what was going on."""
    first = {violation.rule: violation for violation in reversed(check_result.violations)}.values()
    told = [*first, *(violation for violation in check_result.violations if violation not in first)][:SHOWN]
    faults = [f"{one.start:.3f}..{one.end:.3f} {one.kind} {one.target}" for one in check_result.history.faults]
    lines = [f"{len(check_result.violations)} violations", *(f"{rule}: {text}" for rule, text in told)]
    return "\n".join([*lines, str(check_result.counts), *faults, check_result.output[-6000:]])
