"""Good histories made up from a seed: one of messages, one of a group."""

from __future__ import annotations

import random

from msgspec import structs

from queuey import ids
from queuey.client import id_before
from queuey.ids import Position
from tests.harness.checking.records import (
    CREATED,
    OK,
    UNAVAILABLE,
    Answered,
    Asked,
    Assigned,
    Ended,
    Gone,
    Handled,
    Heard,
    Joined,
    Observed,
    Outcome,
    Post,
    Read,
    Record,
    Sent,
    Shown,
    What,
)
from tests.harness.history import Fault

QUEUE = "orders"
WEBS = ("web-1", "web-2")
PARTITIONS = (1, 2)
DELAY = 1.5
"""Seconds by which reads stay behind."""
PAGE = 3


class Service:
    """A model of the service that keeps messages in memory and breaks no rule.

    Args:
        seed: Seeds all random choices.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = 1000.0
        self.records: list[Record] = []
        self._number = 0
        self._messages: dict[tuple[int, Position], str] = {}
        self._cursors: dict[str, dict[int, str]] = {}
        self._last: str | None = None

    def _ticks(self, time: float) -> int:
        return ids.EPOCH_TICKS + round(time * ids.TICKS_PER_SECOND)

    def post(self, outcome: Outcome, size: int = 1, web: str | None = None) -> None:
        """Posts a batch to ``web``, or to a random web process. It is stored if acknowledged, perhaps if unknown."""
        good = outcome == "acknowledged"
        stored = good or (outcome == "unknown" and self.rng.random() < 0.5)
        start, self.time = self.time, self.time + 0.01
        delays = [self.rng.choice((0.0, 0.0, 0.0, 0.5)) for _ in range(size)]
        sent = [Sent(f"m{self._number}.{n}", self.rng.choice(PARTITIONS), delay) for n, delay in enumerate(delays)]
        places = [(self._ticks(self.time + one.delay) + n, ids.LOW_MIN) for n, one in enumerate(sent)]
        if stored:
            self._messages |= {(one.partition, at): one.body for one, at in zip(sent, places, strict=True)}
        names = tuple(map(ids.to_hex, places)) if good else ()
        status = CREATED if good else self.rng.choice((UNAVAILABLE, 0)) if outcome == "unknown" else UNAVAILABLE
        web, outcomes = web or self.rng.choice(WEBS), (outcome,) * size
        self._number += 1
        self.time += 0.01
        self.records.append(
            Post(start, self.time, web, "w", QUEUE, tuple(sent), status, outcomes, names, self._last, not good)
        )
        prompt = [name for one, name in zip(sent, names, strict=False) if not one.delay]
        self._last = max(prompt, key=ids.parse_position, default=self._last)

    def read(self, reader: str, *, final: int = 0, web: str | None = None) -> bool:
        """Reads a page from ``web``, or from a random web process, where the reader's last one ended.

        Returns whether it had any message.
        """
        since = self._cursors.get(reader, {})
        horizon = self._ticks(self.time - DELAY), ids.LOW_MIN
        shown: list[Shown] = []
        following = {}
        for number in PARTITIONS:
            lower = ids.parse_position(since[number]) if number in since else ids.FIRST
            positions = sorted(place for part, place in self._messages if part == number and lower <= place < horizon)
            page = positions[:PAGE]
            shown += [Shown(number, ids.to_hex(place), self._messages[number, place]) for place in page]
            following[number] = ids.to_hex(ids.following(page[-1]) if len(positions) > PAGE else max(lower, horizon))
        start, self.time = self.time, self.time + 0.01
        web = web or self.rng.choice(WEBS)
        page_read = Read(start, self.time, web, reader, QUEUE, PARTITIONS, OK, since, horizon=ids.to_hex(horizon))
        page_read = structs.replace(page_read, shown=tuple(shown), next=following, final=final)
        self.records.append(page_read)
        self._cursors[reader] = following
        return bool(shown)

    def serve(self) -> None:
        for web in WEBS:
            self.post("acknowledged", web=web)
            self.read("r1", web=web)


def make_message_history(seed: int, steps: int = 60) -> list[Record]:
    service = Service(seed)
    service.serve()
    for _ in range(steps):
        service.time += service.rng.random() * 0.2
        if service.rng.random() < 0.4:
            service.read(service.rng.choice(("r1", "r2")))
        else:
            outcome: Outcome = service.rng.choice(("acknowledged", "acknowledged", "none", "unknown"))
            service.post(outcome, service.rng.choice((1, 1, 3)))
    service.records.append(Fault(service.time, service.time + 1, "pause", "web-1"))
    service.time += 20
    service.serve()
    for _ in range(20):
        service.post("acknowledged")
        service.read("r1")
    service.post("unknown")
    service.time += 20
    for final, reader in (1, "full-1"), (2, "full-2"), (3, "full-3"), (0, "r1"), (0, "r2"):
        while service.read(reader, final=final):
            pass
    return service.records


MESSAGES = 40
STEP = 0.01
"""Seconds between two records."""
STAY_GAP_SECONDS = 10.0
"""Seconds between two stays of a partition. Longer than any single failure explains."""
PLACE = "crew-a/1"


class Group:
    """A partition that moves from worker to worker; each worker lives for one stay.

    Args:
        seed: Seeds how much each worker handles, and how its stay ends.
    """

    def __init__(self, seed: int) -> None:
        self.records: list[Record] = []
        self._rng = random.Random(f"{seed} {PLACE}")
        self._ids = [id_before(1_000_000_000.0 + number) for number in range(MESSAGES)]
        self._bodies = [f"{PLACE}-{number}" for number in range(MESSAGES)]
        self._at = 100.0
        self._version = 0
        self._done = 0
        self._workers = 0

    def make_records(self) -> list[Record]:
        queue, at, sent = "crew-a", self._at, tuple(Sent(body, 1) for body in self._bodies)
        good: Outcome = "acknowledged"
        self._record(Post(at, at, "", "p", queue, sent, CREATED, (good,) * MESSAGES, tuple(self._ids)))
        shown = tuple(Shown(1, *pair) for pair in zip(self._ids, self._bodies, strict=True))
        self._record(Read(at, at, "", "content", queue, (1,), OK, shown=shown, final=1))
        for ending in ("revoked", "lost", "killed"):
            self._add_stay(ending, self._rng.randint(3, 8))
        while self._done < MESSAGES:
            self._add_stay(self._rng.choice(("revoked", "lost", "killed")), self._rng.randint(1, 15))
        self._add_stay("revoked", 0)
        return self.records

    def _add_stay(self, ending: str, count: int) -> None:
        """Adds a worker that handles up to ``count`` messages. Unless revoked, it leaves the last two uncommitted."""
        self._workers += 1
        worker = f"{PLACE}.{self._workers}"
        self._record(Joined(self._next_time(), worker, 1, worker, ""))
        offset = self._ids[self._done - 1] if self._done else None
        self._add_call(worker, 1, "take", 0, offset)
        self._record(Assigned(self._next_time(), worker, {PLACE: offset}))
        calls, last = 1, min(MESSAGES, self._done + count)
        for number in range(self._done, last):
            self._record(Handled(self._next_time(), worker, PLACE, self._ids[number], self._bodies[number]))
            if ending == "revoked" or number < last - 2:
                calls += 1
                self._add_call(worker, calls, "commit", self._version, self._ids[number])
                self._done = number + 1
        if ending == "revoked":
            # Its session is suspended for a moment after all messages were handled.
            at = self._next_time()
            self._record(Heard(self._next_time(), worker, 1, "suspended"))
            self._record(Heard(self._next_time(), worker, 1, "connected"))
            self._record(Fault(at, self._next_time(), "hush"))
        self._end_stay(worker, ending)
        self._at += STAY_GAP_SECONDS

    def _end_stay(self, worker: str, ending: str) -> None:
        at = self._next_time()
        if ending == "killed":
            self._record(Fault(at, self._next_time(), "kill", worker))
        elif ending == "lost":
            self._record(Fault(at, self._next_time(), "expire", worker))
            self._record(Heard(self._next_time(), worker, 1, "lost"))
            self._record(Gone(self._next_time(), worker, "lost", [PLACE]))
        else:
            self._record(Gone(self._next_time(), worker, "revoked", [PLACE]))
            self._record(Ended(self._next_time(), worker, at, 0))

    def _add_call(self, worker: str, call: int, what: What, version: int, identifier: str | None) -> None:
        taken = {PLACE: identifier} if what == "take" else {}
        moved = {PLACE: identifier} if what == "commit" and identifier is not None else {}
        self._version += 1
        self._record(Asked(self._next_time(), worker, 1, call, what, {PLACE: version}, moved))
        self._record(Answered(self._next_time(), worker, call, "", {PLACE: self._version}, taken))
        if moved:
            self._record(Observed(self._next_time(), self._next_time(), moved))

    def _record(self, record: Record) -> None:
        self.records.append(record)

    def _next_time(self) -> float:
        self._at += STEP
        return self._at


def make_group_history(seed: int) -> list[Record]:
    return Group(seed).make_records()
