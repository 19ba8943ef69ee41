"""What is done to workers and to their coordination: drawn beforehand from a seed, then done by the clock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from tests.faults.checking.history import now
from tests.qdo.faults.checking.records import Fault, FaultKind, Journal
from tests.qdo.faults.crew import Crew
from tests.qdo.faults.servers.services import Deed

LEAST = 2
"""Workers that are there and run, by the plan, whatever else happens."""
START_SECONDS = 2.5
"""In which a worker that was started is left alone, mostly."""
RECOVERY = 4.0
"""Seconds after a fault of the coordination service before the next one of it."""
MANY = 32

WEIGHTS: Mapping[FaultKind, float] = {
    "join": 6,
    "leave": 3,
    "kill": 4,
    "pause": 4,
    "expire": 3,
    "silence": 3,
    "cut": 1,
    "leader": 1.5,
    "hush": 1,
    "grow": 0.3,
    "mute": 0.6,
}
WORKERS: frozenset[FaultKind] = frozenset({"join", "leave", "kill", "pause", "expire"})
OF_ALL: frozenset[FaultKind] = frozenset({"cut", "leader", "hush", "grow", "mute"})
EVERYBODY = "all"


class Event(NamedTuple):
    """One thing to be done.

    Attributes:
        at: Seconds from the beginning.
        target: The slot of a worker, or ``all``.
        seconds: How long it lasts.
    """

    at: float
    kind: FaultKind
    target: str
    seconds: float = 0.0


class Plan:
    """Draws events so that there is always somebody to work, as far as can be told beforehand.

    Args:
        rng: Decides.
        slots: For workers; all but the first ``LEAST`` are empty in the beginning.
        session: Seconds of a session.
        kinds: What may happen.
        apart: The slots that have a network of their own.
    """

    def __init__(
        self,
        rng: random.Random,
        slots: Sequence[str],
        session: float,
        kinds: Iterable[FaultKind],
        apart: Collection[str],
    ) -> None:
        self._rng = rng
        self._slots = slots
        self._session = session
        self._kinds = sorted(kinds)
        self._apart = apart
        self._there = set(slots[:LEAST])
        self._busy = dict.fromkeys(slots[:LEAST], START_SECONDS)

    def draw(self, count: int) -> list[Event]:
        """Draws so many events."""
        events: list[Event] = []
        at = START_SECONDS
        while len(events) < count:
            at += 0.0 if self._rng.random() < 0.25 else self._rng.uniform(0.1, 1.5)
            event = self._one(at)
            if event is None:
                at += 0.1
            else:
                events.append(event)
        return events

    def _one(self, at: float) -> Event | None:
        kind = self._rng.choices(self._kinds, [WEIGHTS[kind] for kind in self._kinds])[0]
        free = [slot for slot in [*self._slots, EVERYBODY] if self._busy.get(slot, 0.0) <= at]
        if kind in OF_ALL:
            return self._of_all(at, kind) if EVERYBODY in free else None
        running = sorted(self._there.intersection(free))
        if kind == "join":
            empty = [slot for slot in self._slots if slot not in self._there and slot in free]
            return self._of(at, kind, self._rng.choice(empty), START_SECONDS) if empty else None
        if not running or (kind != "expire" and len(running) <= LEAST):
            return None
        if kind == "silence":
            running = sorted(set(running).intersection(self._apart))
            if not running:
                return None
        return self._of(at, kind, self._rng.choice(running), self._seconds(kind))

    def _seconds(self, kind: FaultKind) -> float:
        if kind in {"pause", "silence"}:
            return self._session * self._rng.choice((0.2, 0.5, 0.9, 1.1, 1.5, 2.0)) * self._rng.uniform(0.9, 1.1)
        return 0.0

    def _of(self, at: float, kind: FaultKind, slot: str, seconds: float) -> Event:
        """Does something to a worker; until when it is left alone depends on what it is."""
        if kind == "join":
            self._there.add(slot)
        if kind in {"kill", "leave"}:
            self._there.discard(slot)
        alone = {"kill": 0.2, "leave": 2.0, "expire": self._session}.get(kind, seconds + 0.5)
        self._busy[slot] = at + alone
        return Event(at, kind, slot, 0.0 if kind == "join" else seconds)

    def _of_all(self, at: float, kind: FaultKind) -> Event:
        seconds = 0.0
        if kind == "leader":
            seconds = self._rng.uniform(1.0, 4.0)
        elif kind == "mute":
            seconds = self._rng.uniform(0.5, 3.0)
        elif kind != "grow":
            seconds = self._session * self._rng.choice((0.3, 0.8, 1.2, 1.6))
        self._busy[EVERYBODY] = at + seconds + (0.0 if kind == "grow" else RECOVERY)
        return Event(at, kind, EVERYBODY, seconds)


def draw(
    seed: int,
    count: int,
    slots: Sequence[str],
    session: float,
    kinds: Iterable[FaultKind],
    *,
    apart: Collection[str] = (),
) -> list[Event]:
    """Draws so many events, the same for a seed."""
    return Plan(random.Random(seed), slots, session, kinds, apart).draw(count)


class Nemesis:
    """Does what was drawn.

    Args:
        crew: The workers.
        expire: Ends a session.
        deeds: What is done to others than workers.
        journal: Where it is written down.
    """

    def __init__(
        self, crew: Crew, expire: Callable[[str], None], deeds: Mapping[FaultKind, Deed], journal: Journal
    ) -> None:
        self._crew = crew
        self._expire = expire
        self._deeds = deeds
        self._journal = journal

    def perform(self, events: Iterable[Event]) -> None:
        """Does it all, and returns when everything is undone that can be; raises what went wrong."""
        begun = now()
        clock = threading.Event()
        doing: list[Future[None]] = []
        with ThreadPoolExecutor(MANY) as pool:
            for event in events:
                clock.wait(max(0.0, begun + event.at - now()))
                doing.append(pool.submit(self._do, event))
        for done in doing:
            done.result()

    def _do(self, event: Event) -> None:
        start, slot = now(), event.target
        worker = (
            "" if slot == EVERYBODY else self._crew.start(slot) if event.kind == "join" else self._crew.worker(slot)
        )
        if event.kind in self._deeds:
            self._deeds[event.kind](slot, event.seconds)
        else:
            self._hit(event.kind, slot, event.seconds)
        self._journal.add(Fault(start, now(), event.kind, worker))

    def _hit(self, kind: FaultKind, slot: str, seconds: float) -> None:
        match kind:
            case "kill":
                self._crew.kill(slot)
            case "leave":
                self._crew.leave(slot)
            case "pause":
                self._crew.pause(slot)
                threading.Event().wait(seconds)
                self._crew.resume(slot)
            case "expire":
                if session := self._crew.session(slot):
                    self._expire(session)
            case _:
                assert kind == "join", kind
