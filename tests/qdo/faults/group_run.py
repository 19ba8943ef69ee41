"""A run: a served Queuey, workers and producers, faults, and the verdict."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from queuey.client import Client
from queuey.client.credentials.profile import Profile
from tests.faults.webs import Span, Store, Webs
from tests.harness.checking.counts import count_groups
from tests.harness.checking.groups import GROUPS
from tests.harness.checking.history import History
from tests.harness.checking.records import Assigned, Gone, Handled, Joined, Record
from tests.harness.checking.rules import Limits, check, count_checked
from tests.harness.history import Fault, Journal, Records, now, record_stalls, running
from tests.harness.nemesis import Step, inflict, perform_waves
from tests.harness.plans import Plan
from tests.harness.results import Result
from tests.qdo.faults.crew import Crew
from tests.qdo.faults.job import Job
from tests.qdo.faults.member import STALLED
from tests.qdo.faults.schedule import EVERYBODY, MIN_RUNNING_WORKERS, WORKER_FAULTS, draw
from tests.qdo.faults.servers.services import Deed, Service
from tests.qdo.faults.traffic import Observer, Producer, Queues

GROUP = "crew"
QUEUES = {"crew-a": 5, "crew-b": 4, "crew-c": 1}
PATIENCE = 28.0
"""Seconds without a handled message after which a wait ends. Shorter than the interval of a member's own checks, so
that lost notifications are noticed."""
START_SECONDS = 200.0
"""Timeout in seconds for a worker's join, also on a busy machine."""
PRODUCERS = ("p1", "p2", "p3")
PAUSE = 0.05
"""Mean seconds between two posts of a producer."""
LOOK_SECONDS = 0.2
SQLITE = Store(Span(deadline=0.0, delay=0.0))


class Settings(Protocol):
    """Returns the options of a worker in a slot."""

    def __call__(self, slot: str, worker: str) -> Mapping[str, object]:
        """Returns fields of its :class:`Job`."""


class GroupRun:
    """A run of a group under faults.

    Args:
        directory: Keeps data, logs and records.
        service: The coordination service.
        queues: Numbers of partitions by queue; all names begin with ``crew-``.
        store: The store of the queues' services.
        webs, workers: Number of services, and of processes of each.
        settings: Options of workers that differ from the defaults.
    """

    def __init__(
        self,
        directory: Path,
        service: Service,
        *,
        queues: Mapping[str, int] = QUEUES,
        store: Store = SQLITE,
        settings: Settings = lambda slot, worker: {},
        webs: int = 1,
        workers: int = 1,
    ) -> None:
        self._directory = directory
        self._service = service
        self._seed = 0
        self._counts = queues
        self._store = store
        self._settings = settings
        (directory / "service").mkdir()
        self._webs = Webs(directory / "service", store, webs, workers)
        self._targets = [f"web-{web}/{worker}" for web in range(1, webs + 1) for worker in range(1, workers + 1)]
        if workers == 1:
            self._targets = [f"web-{web}" for web in range(1, webs + 1)]
        (directory / "records").mkdir()
        self.journal = Journal(directory / "records" / "run.jsonl")
        self._records = Records(directory / "records", Record)
        self.seen = self._records.of_kind
        self._deeds: dict[str, Deed] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[Crew, Queues]]:
        """Starts service and observer; yields the crew, whose workers are killed at the end, and the queues."""
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._webs.serving())
            account, urls = self._webs.account, [f"http://127.0.0.1:{web.port}" for web in self._webs.addresses]
            self._profile = profile = Profile(url=",".join(urls), application=account.application, key=account.key)
            client = Client(profile.url, key=profile.key, application=profile.application, timeout=30.0)
            undo.callback(client.close)
            queues = Queues(client, self._counts)
            mute, restart = self._make_exclusive_faults("pause", "kill")
            self._deeds = {"cut": mute, "restart": restart, "grow": queues.grow, "mute": mute, **self._service.faults}
            crew = Crew(self._job, self.journal)
            undo.callback(crew.end)
            self._observer = observer = Observer(self._service.url(), GROUP, self.journal, profile)
            stalls = partial(record_stalls, add=self.journal.add, target="", longest=STALLED)
            undo.enter_context(running([observer.watch, stalls]))
            yield crew, queues

    def run(self, plan: Plan, slots: Sequence[str]) -> Result:
        """Performs faults while messages are posted, waits until all are handled, and checks the records.

        Args:
            plan: The faults, and the seed of what producers post.
            slots: Names of the slots for workers. The first ones are started at once.
        """
        self._seed = plan.seed
        with self.running() as (crew, queues):
            service = self._service
            kinds = plan.kinds({*WORKER_FAULTS, *self._deeds})
            wave = draw(plan.seed, plan.seconds, slots, service.session_timeout, kinds, apart=service.apart)
            for slot in slots[:MIN_RUNNING_WORKERS]:
                crew.start(slot)
            with running([partial(self._mend, crew)]):
                with self.posting(queues):
                    perform_waves([wave], partial(self._hit, crew), self.journal.add)
                    self._service.restore()
                self.settle(queues)
            self.finish(crew)
        return self.judge()

    def _make_exclusive_faults(self, *kinds: str) -> list[Deed]:
        """Returns faults of any service or process of one, one at a time: a restart takes longer than scheduled."""
        lock, rng = threading.Lock(), random.Random(self._seed)

        def deed(kind: str) -> Deed:
            def break_it(_slot: str, seconds: float) -> None:
                with lock:
                    self._webs.inflict(Step(kind, rng.choice(self._targets), seconds))

            return break_it

        return [deed(kind) for kind in kinds]

    @contextlib.contextmanager
    def story(self) -> Iterator[tuple[Crew, Queues]]:
        """Serves while the block runs; then waits until everything is handled and all workers have left."""
        with self.running() as (crew, queues):
            yield crew, queues
            self.settle(queues)
            self.finish(crew)

    def _hit(self, crew: Crew, step: Step) -> str:
        """Performs a fault and undoes it; returns the affected worker."""
        slot = step.target
        worker = "" if slot == EVERYBODY else crew.start(slot) if step.kind == "join" else crew.worker(slot)
        match step.kind:
            case "kill":
                crew.kill(slot)
            case "leave":
                crew.leave(slot)
            case "pause":
                inflict("pause", [crew[slot]], step.seconds)
            case "expire":
                self.expire(worker)
            case "join":
                pass
            case kind:
                self._deeds[kind](slot, step.seconds)
        return worker

    def expire(self, worker: str) -> None:
        if sessions := [joined.session for joined in self.seen(Joined) if joined.worker == worker]:
            self._service.expire(sessions[-1])

    @contextlib.contextmanager
    def record_fault(self, kind: str, worker: str = "") -> Iterator[None]:
        """Records what was done in the block as a fault, unless the block raises."""
        start = now()
        yield
        self.journal.add(Fault(start, now(), kind, worker))

    def posting(self, queues: Queues) -> contextlib.AbstractContextManager[object]:
        return running([Producer(name, queues, self.journal, self._seed, PAUSE).run for name in PRODUCERS])

    def load(self, queues: Queues, count: int) -> None:
        producer = Producer("load", queues, self.journal, self._seed, 0.0)
        for name, partitions in queues.counts.items():
            for number in range(1, partitions + 1):
                producer.post(count, f"{name}/{number}")

    def start_workers(self, crew: Crew, queues: Queues, slots: Sequence[str]) -> None:
        """Starts workers and waits until all running ones share the partitions evenly."""
        for slot in slots:
            crew.start(slot)
        workers = {crew.worker(slot) for slot in crew.running_slots()}
        joined = self.until(lambda: workers <= {each.worker for each in self.seen(Joined)}, START_SECONDS)
        assert joined, "not all workers joined"

        def even() -> bool:
            shares = Counter(self._owners().values())
            fair = sum(queues.counts.values()) / len(workers)
            return shares.keys() == workers and all(abs(share - fair) < 1 for share in shares.values())

        assert self.until(even), "the partitions were not shared out"

    def _owners(self) -> dict[str, str]:
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
        """Waits until all stored messages are handled, or for long enough; records the stored messages."""
        threading.Event().wait(1.0 + 2 * self._store.span.delay)  # Younger messages cannot be read yet.
        contents = list(queues.content())
        stored = {(f"{read.queue}/{one.partition}", one.id) for read in contents for one in read.shown}
        self.until(lambda: stored <= {(each.place, each.id) for each in self.seen(Handled)})
        for content in contents:
            self.journal.add(content)

    def finish(self, crew: Crew) -> None:
        """Makes all workers leave, one after another, and reads the offsets.

        A worker that is still starting joins first: otherwise it would claim partitions only to hand them back.
        """
        self.until(
            lambda: {crew.worker(slot) for slot in crew.running_slots()} <= {each.worker for each in self.seen(Joined)}
        )
        for slot in crew.running_slots():
            crew.leave(slot)
        self._observer.look()

    def judge(self) -> Result:
        limits = Limits(
            recovery=self._service.recovery,
            unaware=self._service.session_timeout,
            settling=2.0 + 2 * self._store.span.delay,
            epochs=not self._service.url(),
        )
        history = History(self._records.all())
        counts = count_groups(history, limits)
        notes = "\n".join(_describe_unhandled(history))
        return Result(
            check(history, GROUPS, limits), counts, count_checked(counts, GROUPS), history.faults, notes, history
        )

    def until(self, reached: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Waits until a condition holds, or no message was handled for long enough; returns whether it holds."""
        until, handled = now() + seconds, 0
        while not reached():
            if len(self.seen(Handled)) > handled:
                until, handled = now() + seconds, len(self.seen(Handled))
            if now() > until:
                return False
            threading.Event().wait(LOOK_SECONDS)
        return True

    def _mend(self, crew: Crew, stop: threading.Event) -> None:
        while not stop.wait(LOOK_SECONDS):
            crew.restart_ended()

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
            "journal": str(self._directory / "records" / f"worker-{worker}.jsonl"),
        }
        return Job(**(fields | dict(self._settings(slot, worker))))  # type: ignore[arg-type] # not checked


def _describe_unhandled(history: History) -> Iterator[str]:
    handled = {(each.place, each.id) for each in history.handled}
    unhandled = [place for place, found in history.last_ids.items() if not handled >= {(place, each) for each in found}]
    for place in unhandled:
        for stay in history.stays.get(place, [])[-3:]:
            yield f"{place} was with {stay.worker} {stay.start:.3f}..{stay.end:.3f}, then {stay.how}"
    for event in [each for each in history.heard if unhandled and each.event != "changed"][-20:]:
        yield f"{event.at:.3f} {event.worker} heard {event.event}"
