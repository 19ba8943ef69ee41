"""A run: a served Queuey, workers and producers, faults, and the verdict."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from queuey.client import Client, RetryPolicy
from queuey.client.credentials.profile import Profile
from tests.faults.webs import Span, Store, WebProcess
from tests.harness.checking.counts import count_groups
from tests.harness.checking.groups import GROUPS
from tests.harness.checking.history import History
from tests.harness.checking.records import Assigned, Gone, Handled, Joined, Record
from tests.harness.checking.rules import Limits, check, checked
from tests.harness.history import Fault, Journal, Records, now, record_stalls, running
from tests.harness.nemesis import Step, hit, perform
from tests.harness.plans import Plan
from tests.harness.results import Result
from tests.qdo.faults.crew import Crew
from tests.qdo.faults.job import Job
from tests.qdo.faults.member import STALLED
from tests.qdo.faults.schedule import EVERYBODY, LEAST, WORKERS, draw
from tests.qdo.faults.servers.services import Deed, Service
from tests.qdo.faults.traffic import Observer, Producer, Queues
from tests.servers.served import Served

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
SQLITE = Store(Span(deadline=0.0, delay=0.0))


class Settings(Protocol):
    """Says how a worker in a slot is to be."""

    def __call__(self, slot: str, worker: str) -> Mapping[str, object]:
        """Returns fields of its :class:`Job`."""


class GroupRun:
    """See the module.

    Args:
        directory: For data, logs and records.
        service: Their coordination.
        queues: By name, with the number of partitions; all names begin with ``crew-``.
        store: What the queues' service runs on.
        settings: How workers differ from the usual.
    """

    def __init__(
        self,
        directory: Path,
        service: Service,
        *,
        queues: Mapping[str, int] = QUEUES,
        store: Store = SQLITE,
        settings: Settings = lambda slot, worker: {},
    ) -> None:
        self._directory = directory
        self._service = service
        self._seed = 0
        self._counts = queues
        self._store = store
        self._settings = settings
        (directory / "records").mkdir()
        self.journal = Journal(directory / "records" / "run.jsonl")
        self._records = Records(directory / "records", Record)
        self.seen = self._records.of
        self._deeds: dict[str, Deed] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[Crew, Queues]]:
        """Serves, and has somebody look at offsets, until the block is over; whoever is left is ended then."""
        with contextlib.ExitStack() as undo:
            data = self._directory / "service"
            data.mkdir()
            web = WebProcess(lambda port: Served(data, self._store.options, port=port))
            undo.callback(web.kill)
            web.wait_until_serving()
            self._profile = profile = self._profile_of(web.served)
            client = Client(
                profile.url, key=profile.key, application=profile.application, timeout=30.0, retry=RetryPolicy(rounds=5)
            )
            undo.callback(client.close)
            queues = Queues(client, self._counts)
            mute, restart = _one_at_a_time(web, "pause", "kill")
            self._deeds = {"cut": mute, "restart": restart, "grow": queues.grow, "mute": mute, **self._service.deeds}
            crew = Crew(self._job, self.journal)
            undo.callback(crew.end)
            self._observer = observer = Observer(self._service.url(), GROUP, self.journal, profile)
            stalls = partial(record_stalls, add=self.journal.add, target="", longest=STALLED)
            undo.enter_context(running([observer.watch, stalls]))
            yield crew, queues

    def _profile_of(self, served: Served) -> Profile:
        """Returns how clients reach the service; one on nodes has the account that was made there beforehand."""
        account = self._store.account
        if account is None:
            return served.profile
        return Profile(url=f"http://127.0.0.1:{served.port}", application=account.application, key=account.key)

    def run(self, plan: Plan, slots: Sequence[str]) -> Result:
        """Performs faults while messages are posted, waits until all are handled, and judges.

        Args:
            plan: The faults, and the seed of what producers post.
            slots: For workers.
        """
        self._seed = plan.seed
        with self.running() as (crew, queues):
            service = self._service
            kinds = plan.kinds({*WORKERS, *self._deeds})
            wave = draw(plan.seed, plan.seconds, slots, service.session_timeout, kinds, apart=service.apart)
            for slot in slots[:LEAST]:
                crew.start(slot)
            with running([partial(self._mend, crew)]):
                with self.posting(queues):
                    perform([wave], partial(self._hit, crew), self.journal.add)
                    self._service.restore()
                self.settle(queues)
            self.finish(crew)
        return self.judge()

    @contextlib.contextmanager
    def story(self) -> Iterator[tuple[Crew, Queues]]:
        """Serves while the block is played; then everything is handled, and all workers leave."""
        with self.running() as (crew, queues):
            yield crew, queues
            self.settle(queues)
            self.finish(crew)

    def _hit(self, crew: Crew, step: Step) -> str:
        """Does a fault and undoes it; returns the worker that it was done to."""
        slot = step.target
        worker = "" if slot == EVERYBODY else crew.start(slot) if step.kind == "join" else crew.worker(slot)
        match step.kind:
            case "kill":
                crew.kill(slot)
            case "leave":
                crew.leave(slot)
            case "pause":
                hit("pause", [crew[slot]], step.seconds)
            case "expire":
                self.expire(worker)
            case "join":
                pass
            case kind:
                self._deeds[kind](slot, step.seconds)
        return worker

    def expire(self, worker: str) -> None:
        """Ends the session of a worker, if it has had one, behind its back."""
        if sessions := [joined.session for joined in self.seen(Joined) if joined.worker == worker]:
            self._service.expire(sessions[-1])

    @contextlib.contextmanager
    def doing(self, kind: str, worker: str = "") -> Iterator[None]:
        """Records that something is done."""
        start = now()
        yield
        self.journal.add(Fault(start, now(), kind, worker))

    def posting(self, queues: Queues) -> contextlib.AbstractContextManager[object]:
        """Has messages posted to all queues all the time."""
        return running([Producer(name, queues, self.journal, self._seed, PAUSE).run for name in PRODUCERS])

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
        """Waits until everything that is there was handled, or for long enough; records what is there."""
        threading.Event().wait(1.0 + 2 * self._store.span.delay)  # Younger messages are not read yet.
        contents = list(queues.content())
        wanted = {(f"{read.queue}/{one.partition}", one.id) for read in contents for one in read.shown}
        self.until(lambda: wanted <= {(each.place, each.id) for each in self.seen(Handled)})
        for content in contents:
            self.journal.add(content)

    def finish(self, crew: Crew) -> None:
        """Has all workers leave, one after another, and looks at the offsets.

        One that is only starting, on a busy machine, joins first: else it would take partitions just to hand them back.
        """
        self.until(lambda: {crew.worker(slot) for slot in crew.alive()} <= {each.worker for each in self.seen(Joined)})
        for slot in crew.alive():
            crew.leave(slot)
        self._observer.look()

    def judge(self) -> Result:
        """Judges what was recorded."""
        limits = Limits(
            recovery=self._service.recovery,
            unaware=self._service.session_timeout,
            settling=2.0 + 2 * self._store.span.delay,
            epochs=not self._service.url(),
        )
        history = History(self._records.all())
        counts = count_groups(history, limits)
        notes = "\n".join(_left(history))
        return Result(check(history, GROUPS, limits), counts, checked(counts, GROUPS), history.faults, notes, history)

    def until(self, reached: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Waits until something is so, or no message has been handled for long enough; returns whether it is so."""
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
            crew.mend()

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
        return Job(**(fields | dict(self._settings(slot, worker))))  # type: ignore[arg-type] # checked by nobody


def _one_at_a_time(web: WebProcess, *kinds: str) -> list[Deed]:
    """Returns what does faults to a service: on a busy machine it starts again later than the schedule has it."""
    one = threading.Lock()

    def deed(kind: str) -> Deed:
        def break_it(_slot: str, seconds: float) -> None:
            with one:
                hit(kind, [web], seconds)

        return break_it

    return [deed(kind) for kind in kinds]


def _left(history: History) -> Iterator[str]:
    """Tells who had the partitions in which messages were left, and what workers heard last."""
    handled = {(each.place, each.id) for each in history.handled}
    left = [place for place, found in history.last.items() if not handled >= {(place, each) for each in found}]
    for place in left:
        for stay in history.stays.get(place, [])[-3:]:
            yield f"{place} was with {stay.worker} {stay.start:.3f}..{stay.end:.3f}, then {stay.how}"
    for one in [each for each in history.heard if left and each.event != "changed"][-20:]:
        yield f"{one.at:.3f} {one.worker} heard {one.event}"
