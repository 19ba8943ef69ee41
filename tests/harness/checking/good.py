"""A good history of a group."""

from __future__ import annotations

from queuey.client import id_before
from tests.harness.checking.records import (
    CREATED,
    OK,
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

MESSAGES = 30
STEP = 0.01
"""Seconds between two records."""
STAY_GAP_SECONDS = 10.0
"""Seconds between two stays of a partition. Longer than any single failure explains."""
PLACE = "crew-a/1"


class Group:
    """A partition that moves from worker to worker; each worker lives for one stay."""

    def __init__(self) -> None:
        self.records: list[Record] = []
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
        for ending, count in (("revoked", 5), ("lost", 7), ("killed", 6), ("revoked", MESSAGES), ("revoked", 0)):
            self._add_stay(ending, count)
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


def make_group_history() -> list[Record]:
    return Group().make_records()
