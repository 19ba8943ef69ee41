"""A run: two web processes on one store, writers and readers, faults, full reads at the end, and the verdict."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.faults.webs import Store, Webs
from tests.faults.wire import Web, make_queue, read_metric
from tests.faults.workload import (
    BATCHES,
    CHAIN,
    FREQUENT,
    LONGEST_DELAY,
    PARTITIONS,
    PATIENCE,
    SINGLE,
    Habit,
    Reader,
    Style,
    Writer,
)
from tests.harness.checking.counts import count_messages
from tests.harness.checking.history import History
from tests.harness.checking.messages import MESSAGES, available
from tests.harness.checking.records import Record
from tests.harness.checking.rules import Limits, check, count_checked
from tests.harness.history import Journal, Records, record_stalls, running
from tests.harness.nemesis import Wave, perform_waves
from tests.harness.plans import Plan
from tests.harness.results import Result
from tests.waiting import until

QUEUES = ("orders", "mails")
SELDOM = "seldom"
SELDOM_PARTITIONS = 60
"""Partitions of a queue for data centres that are cut off. Each partition gets one message."""
FULL_READS = 3
APART = 2.0
"""Seconds between full reads that must agree."""
UNDO_SECONDS = 60.0
CALM_SECONDS = 30.0
STILL = 0.5
"""Max seconds for which this process may stand still. Longer is recorded as a fault, as it sent no requests."""


class MessageRun:
    """Two web processes, ``web-1`` and ``web-2``, and all their clients.

    Args:
        directory: Holds data, logs and the history.
        store: The store of the web processes.
        slowness: Factor for the writers' pauses.
        written: Schedules of faults by name.
    """

    def __init__(
        self, directory: Path, store: Store, *, slowness: float = 1.0, written: Mapping[str, Sequence[Wave]]
    ) -> None:
        self._store = store
        self._seed = 0
        self._slowness = slowness
        self._written = written
        self._journal = Journal(directory / "history.jsonl")
        self._records = Records(directory, Record)
        self._processes = Webs(directory, store, 2)

    def run(self, plan: Plan, *, limits: Limits, rest: float) -> Result:
        """Runs, with all faults in the middle, and judges the records.

        Args:
            plan: The faults, and the seed of what writers write.
            limits: Bounds of the rules.
            rest: Seconds between waves of faults.
        """
        self._seed = plan.seed
        waves = self._processes.make_waves(plan, self._written, rest)
        with self._processes.serving():
            for queue, style in self._styles_by_queue().items():
                fields = {"queue_name": queue, "partitions": len(style.partitions)}
                make_queue(self._processes.addresses[0], self._processes.account, **fields)
            with self._run_traffic() as readers:
                threading.Event().wait(limits.calm + 1)
                self._await_success(limits)
                perform_waves(waves, self._processes.inflict, self._journal.add, rest=rest)
                self._store.settled()
                self._await_calm(limits)
            # Writers have stopped. After this wait, delayed messages are due before the marks.
            threading.Event().wait(LONGEST_DELAY)
            self._await_undo_writes()
            marks = self._post_marks()
            for reader in readers:
                if reader.queue in QUEUES:
                    reader.read_beyond(marks[reader.queue])
            self._read_all(marks)
        history = self._read_history()
        limits = limits._replace(apart=bool(self._store.centres), deadline=self._store.span.deadline)
        counts = count_messages(history, limits)
        violations, applied = check(history, MESSAGES, limits), count_checked(counts, MESSAGES)
        return Result(violations, counts, applied, history.faults, self._processes.output[-6000:], history)

    def _read_history(self) -> History:
        return History(self._records.all())

    def _await_calm(self, limits: Limits) -> None:
        """Waits until requests succeed again. If the machine stalled meanwhile, none was sent and the wait goes on."""
        threading.Event().wait(limits.grace + limits.calm + 1)
        self._await_success(limits)

    def _await_success(self, limits: Limits) -> None:
        """Waits until requests succeed again, at most for :data:`CALM_SECONDS`; the verdict reports a failure."""
        with suppress(AssertionError):  # the verdict reports it
            until(lambda: not [*available(self._read_history(), limits)], CALM_SECONDS, every=0.5)

    def _post_marks(self) -> dict[str, dict[int, str]]:
        webs = self._processes.addresses
        return {
            queue: self._writer(f"marks-{queue}", webs, [queue], style).post_marks()[queue]
            for queue, style in self._styles_by_queue().items()
        }

    def _styles_by_queue(self) -> dict[str, Style]:
        """Returns the queues and how to write to all their partitions; several data centres have one queue more."""
        usual = dict.fromkeys(QUEUES, SINGLE)
        return usual | (
            {SELDOM: SINGLE._replace(partitions=range(1, SELDOM_PARTITIONS + 1))} if self._store.centres else {}
        )

    def _read_all(self, marks: Mapping[str, dict[int, str]]) -> None:
        """Reads everything :data:`FULL_READS` times, in each data centre if there are several.

        The copies are made to agree after the first read, or before it with several data centres.
        """
        webs = self._processes.addresses
        groups = [[web] for web in webs] if self._store.centres else [webs]
        if self._store.centres:
            self._store.converged()
        for final in range(1, FULL_READS * len(groups) + 1):
            for queue, style in self._styles_by_queue().items():
                habit = Habit(tuple(style.partitions), limit=500, patience=PATIENCE)
                self._reader(f"full-{final}.{queue}", queue, habit, groups[final % len(groups)], final).read_beyond(
                    marks[queue]
                )
            if final == 1 and not self._store.centres:
                self._store.converged()
            elif final % len(groups) == 0 and final < FULL_READS * len(groups):
                threading.Event().wait(APART)

    def _await_undo_writes(self) -> None:
        """Waits until no web process has an undo write pending. From then on nothing vanishes any more."""
        webs, name = self._processes.addresses, "queuey_store_undo_writes_pending"
        until(lambda: not any(read_metric(web, name) > 0 for web in webs), UNDO_SECONDS, every=0.2)

    @contextmanager
    def _run_traffic(self) -> Iterator[list[Reader]]:
        readers = self._make_readers()
        stalls = partial(record_stalls, add=self._journal.add, target="", longest=STILL)
        with running(
            [
                *(writer.post_until for writer in self._make_writers()),
                *(reader.read_until for reader in readers),
                stalls,
            ]
        ):
            yield readers

    def _make_writers(self) -> list[Writer]:
        webs = self._processes.addresses
        return [
            *(self._writer(f"single-{n}", webs[n % 2 : n % 2 + 1], QUEUES, SINGLE) for n in range(4)),
            *(self._writer(f"batch-{n}", webs[n : n + 1], QUEUES, BATCHES) for n in range(2)),
            *(self._writer(f"chain-{queue}", webs, [queue], CHAIN) for queue in QUEUES),
            *(
                self._writer(f"seldom-{n}", webs[n : n + 1], [SELDOM], _alternating_style(n))
                for n in range(len(self._store.centres))
            ),
        ]

    def _writer(self, name: str, webs: Sequence[Web], queues: Sequence[str], style: Style) -> Writer:
        style = style._replace(pace=style.pace * self._slowness)
        return Writer(name, webs, self._processes.account, queues, style, self._journal, self._seed)

    def _make_readers(self) -> list[Reader]:
        """Returns readers of all habits. With several data centres, each reader stays in one of them."""
        first, second = QUEUES
        webs = self._processes.addresses
        kinds: dict[str, tuple[str, Habit]] = {"both": (first, Habit()), "merged": (second, Habit(merge=True))}
        near = [self._reader(f"near-{web.name}", first, FREQUENT, [web]) for web in webs]
        if self._store.centres:
            kinds["anew"] = SELDOM, Habit(tuple(range(1, SELDOM_PARTITIONS + 1)), limit=500, anew=True)
            apart = [self._reader(f"{name}-{web.name}", *kind, [web]) for web in webs for name, kind in kinds.items()]
            return near + apart
        kinds["waiting"] = second, Habit(wait=1, patience=PATIENCE)
        kinds |= {f"part-{n}": (first, FREQUENT._replace(partitions=(n,))) for n in (1, PARTITIONS)}
        return near + [self._reader(name, *kind, webs) for name, kind in kinds.items()]

    def _reader(self, name: str, queue: str, habit: Habit, webs: Sequence[Web], final: int = 0) -> Reader:
        return Reader(name, webs, self._processes.account, queue, habit, self._journal, final)


def _alternating_style(number: int) -> Style:
    """Returns the style of one of two writers that each post one message into every other partition."""
    return Style(hasty=0.0, pace=0.5, partitions=range(1 + number, SELDOM_PARTITIONS + 1, 2), once=True)
