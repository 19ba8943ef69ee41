"""A run: a served Queuey, workers and producers, faults, and the verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from tests.faults.checking.history import now
from tests.qdo.faults.checking.checker import Limits, Violation, check
from tests.qdo.faults.checking.counts import Counts, count
from tests.qdo.faults.checking.history import History
from tests.qdo.faults.checking.records import Assigned, Fault, FaultKind, Follower, Gone, Handled, Joined, Journal
from tests.qdo.faults.crew import Crew
from tests.qdo.faults.job import Job
from tests.qdo.faults.member import watch
from tests.qdo.faults.nemesis import LEAST, WORKERS, Nemesis, draw
from tests.qdo.faults.servers.services import Deed, Service
from tests.qdo.faults.traffic import Observer, Producer, Queues, posting
from tests.servers.served import Served

T = TypeVar("T")

GROUP = "crew"
QUEUES = {"crew-a": 5, "crew-b": 4, "crew-c": 1}
PATIENCE = 28.0
"""Seconds without a message handled after which nothing is waited for any more. Less than those after which a member
looks again although nobody told it to, so that news which does not arrive is noticed."""
START_SECONDS = 200.0
"""For a worker to join, also where other programs keep the machine busy."""
PRODUCERS = ("p1", "p2", "p3")
PAUSE = 0.05
"""Seconds between two posts of one of them, on average."""
LOOK_SECONDS = 0.2
SHOWN = 12
"""Violations told when a run fails; the records are all kept."""


class Settings(Protocol):
    """Says how a worker in a slot is to be."""

    def __call__(self, slot: str, worker: str) -> Mapping[str, object]:
        """Returns fields of its :class:`Job`."""


class CheckResult(NamedTuple):
    """What a run showed."""

    violations: list[Violation]
    counts: Counts
    history: History


class Experiment:
    """See the module.

    Args:
        directory: For data, logs and records.
        service: Their coordination.
        seed: Of what producers post.
        queues: By name, with the number of partitions; all names begin with ``crew-``.
        settings: How workers differ from the usual.
    """

    def __init__(
        self,
        directory: Path,
        service: Service,
        seed: int = 0,
        *,
        queues: Mapping[str, int] = QUEUES,
        settings: Settings = lambda slot, worker: {},
    ) -> None:
        self._directory = directory
        self._service = service
        self._seed = seed
        self._counts = queues
        self._settings = settings
        self._records = directory / "records"
        self._records.mkdir()
        self.journal = Journal(self._records / "experiment.jsonl")
        self._follower = Follower(self._records)
        self._seen: dict[type, list[Any]] = {}
        self._deeds: dict[FaultKind, Deed] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[Crew, Queues]]:
        """Serves, and has somebody look at offsets, until the block is over; whoever is left is ended then."""
        with contextlib.ExitStack() as undo:
            place = self._directory / "service"
            place.mkdir()
            served = undo.enter_context(Served(place))
            client = undo.enter_context(served.client())
            queues = Queues(client, self._counts)
            self._deeds = {**self._service.deeds, "grow": queues.grow, "mute": partial(_mute, served)}
            self._profile = served.profile
            crew = Crew(self._records, self._job, self.journal)
            undo.callback(crew.end)
            undo.enter_context(Observer(self._service.url(), GROUP, self.journal).watching())
            watch(self.journal, "")
            yield crew, queues

    def run(self, slots: Sequence[str], count: int, kinds: Iterable[FaultKind] | None = None) -> CheckResult:
        """Draws events and performs them while messages are posted, waits until all are handled, and judges.

        Args:
            slots: For workers.
            count: Events.
            kinds: What may happen; None: whatever can.
        """
        with self.running() as (crew, queues):
            service = self._service
            possible = {*WORKERS, *self._deeds} if kinds is None else kinds
            events = draw(self._seed, count, slots, service.session_timeout, possible, apart=service.apart)
            for slot in slots[:LEAST]:
                crew.start(slot)
            with self._mended(crew):
                with self.posting(queues):
                    Nemesis(crew, self._service.expire, self._deeds, self.journal).perform(events)
                    self._service.restore()
                self.settle(queues)
            self.finish(crew)
        return self.judge()

    @contextlib.contextmanager
    def doing(self, kind: FaultKind, worker: str = "") -> Iterator[None]:
        """Writes down that something is done."""
        start = now()
        yield
        self.journal.add(Fault(start, now(), kind, worker))

    def posting(self, queues: Queues) -> contextlib.AbstractContextManager[None]:
        """Has messages posted to all queues all the time."""
        return posting([Producer(name, queues, self.journal, self._seed, PAUSE) for name in PRODUCERS])

    def load(self, queues: Queues, count: int) -> None:
        """Posts so many messages to each partition."""
        producer = Producer("load", queues, self.journal, self._seed, 0.0)
        for name, partitions in queues.counts.items():
            for number in range(1, partitions + 1):
                producer.post(count, f"{name}/{number}")

    def staff(self, crew: Crew, queues: Queues, slots: Sequence[str]) -> None:
        """Starts workers and waits until all that are there have shared out all partitions evenly."""
        for slot in slots:
            crew.start(slot)
        workers = {crew.worker(slot) for slot in crew.alive()}
        joined = self.until(lambda: workers <= {each.worker for each in self.seen(Joined)}, START_SECONDS)
        assert joined, "not all workers joined"

        def even() -> bool:
            shares = Counter(self._owners().values())
            fair = sum(queues.counts.values()) / len(workers)
            return shares.keys() == workers and all(abs(share - fair) < 1 for share in shares.values())

        assert self.until(even), "the partitions were not shared out"

    def _owners(self) -> dict[str, str]:
        """Returns which worker has each place now."""
        owners: dict[str, str] = {}
        records: list[Assigned | Gone] = [*self.seen(Assigned), *self.seen(Gone)]
        for record in sorted(records, key=lambda each: each.at):
            if isinstance(record, Assigned):
                owners |= dict.fromkeys(record.offsets, record.worker)
            else:
                for place in record.places:
                    if owners.get(place) == record.worker:
                        del owners[place]
        return owners

    def settle(self, queues: Queues) -> None:
        """Waits until everything that is there was handled, or for long enough; writes down what is there."""
        threading.Event().wait(1.0)
        contents = list(queues.content())
        wanted = {(content.place, identifier) for content in contents for identifier, _ in content.messages}
        self.until(lambda: wanted <= {(each.place, each.id) for each in self.seen(Handled)})
        for content in contents:
            self.journal.add(content)

    def finish(self, crew: Crew) -> None:
        """Has all workers leave, one after another, and looks at the offsets."""
        for slot in crew.alive():
            crew.leave(slot)
        Observer(self._service.url(), GROUP, self.journal).look()

    def judge(self) -> CheckResult:
        """Judges what was recorded."""
        limits = Limits(recovery=self._service.recovery, unaware=self._service.session_timeout)
        history = History(record for record in Follower(self._records).new())
        return CheckResult(check(history, limits), count(history, limits), history)

    def until(self, reached: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Waits until something is so, or no message has been handled for long enough; returns whether it is so."""
        until, clock, handled = now() + seconds, threading.Event(), 0
        while not reached():
            if len(self.seen(Handled)) > handled:
                until, handled = now() + seconds, len(self.seen(Handled))
            if now() > until:
                return False
            clock.wait(LOOK_SECONDS)
        return True

    def seen(self, kind: type[T]) -> list[T]:
        """Returns the records of a kind that were written so far."""
        for record in self._follower.new():
            self._seen.setdefault(type(record), []).append(record)
        return self._seen.get(kind, [])

    @contextlib.contextmanager
    def _mended(self, crew: Crew) -> Iterator[None]:
        """Starts workers again that have ended by themselves, as whoever supervises them would."""
        stop = threading.Event()

        def heal() -> None:
            while not stop.wait(LOOK_SECONDS):
                for slot in crew.fallen():
                    crew.start(slot)

        thread = threading.Thread(target=heal, name="mender")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _job(self, slot: str, worker: str) -> Job:
        fields: dict[str, object] = {
            "worker": worker,
            "coordination": self._service.url(slot),
            "group": GROUP,
            "session_timeout": self._service.session_timeout,
            "service": self._profile.url,
            "application": self._profile.application,
            "key": self._profile.key,
            "patterns": ("crew-*",),
            "journal": "",
        }
        return Job(**(fields | dict(self._settings(slot, worker))))  # type: ignore[arg-type] # checked by nobody


def _mute(served: Served, slot: str, seconds: float) -> None:
    """Stops the queues' service where it is for a while."""
    os.killpg(served.process.pid, signal.SIGSTOP)
    threading.Event().wait(seconds)
    os.killpg(served.process.pid, signal.SIGCONT)


def explain(check_result: CheckResult) -> str:
    """Tells the violations, the first of each kind before all others, what was done, and who had what was left."""
    history = check_result.history
    first = {violation.rule: violation for violation in reversed(check_result.violations)}.values()
    told = [*first, *(violation for violation in check_result.violations if violation not in first)][:SHOWN]
    faults = [f"{one.start:.3f}..{one.end:.3f} {one.kind} {one.worker}" for one in history.faults]
    lines = [f"{len(check_result.violations)} violations", *(f"{rule}: {text}" for rule, text in told)]
    return "\n".join([*lines, str(check_result.counts), *faults[-60:], *_left(history)])


def _left(history: History) -> Iterator[str]:
    """Tells who had the partitions in which messages were left, and what workers heard last."""
    handled = {(each.place, each.id) for each in history.handled}
    left = [place for place, found in history.contents.items() if not handled >= {(place, each) for each, _ in found}]
    for place in left:
        for stay in history.stays.get(place, [])[-3:]:
            yield f"{place} was with {stay.worker} {stay.start:.3f}..{stay.end:.3f}, then {stay.how}"
    for one in [each for each in history.heard if left and each.event != "changed"][-20:]:
        yield f"{one.at:.3f} {one.worker} heard {one.event}"
