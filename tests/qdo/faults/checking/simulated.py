"""Histories in which nothing is wrong, made up from a seed."""

from __future__ import annotations

import random

from queuey.client import id_before
from tests.harness.history import Fault
from tests.qdo.faults.checking.records import (
    Answered,
    Asked,
    Assigned,
    Content,
    Ended,
    Gone,
    Handled,
    Heard,
    Joined,
    Observed,
    Posted,
    Record,
)

MESSAGES = 40
STEP = 0.01
APART = 10.0
"""Seconds between two stays of a partition: longer than anything that one failure explains."""


class Simulated:
    """One partition that goes from worker to worker, each of which is there for one stay.

    Args:
        place: Its name.
        seed: Of who does how much, and how it ends.
    """

    def __init__(self, place: str, seed: int) -> None:
        self.records: list[Record] = []
        self._rng = random.Random(f"{seed} {place}")
        self._place = place
        self._ids = [id_before(1_000_000_000.0 + number) for number in range(MESSAGES)]
        self._at = 100.0
        self._version = 0
        self._done = 0
        self._workers = 0

    def play(self) -> list[Record]:
        """Returns the records of its whole life."""
        bodies = [f"{self._place}-{number}" for number in range(MESSAGES)]
        self._say(Posted(self._at, self._place, bodies, self._ids))
        self._say(Content(self._place, list(zip(self._ids, bodies, strict=True))))
        for ending in ("revoked", "lost", "killed"):
            self._stay(ending, self._rng.randint(3, 8))
        while self._done < MESSAGES:
            self._stay(self._rng.choice(("revoked", "lost", "killed")), self._rng.randint(1, 15))
        self._stay("revoked", 0)
        return self.records

    def _stay(self, ending: str, count: int) -> None:
        self._workers += 1
        worker = f"{self._place}.{self._workers}"
        self._say(Joined(self._tick(), worker, 1, worker, ""))
        offset = self._ids[self._done - 1] if self._done else None
        self._call(worker, 1, "take", 0, offset)
        self._say(Assigned(self._tick(), worker, {self._place: offset}))
        calls, last = 1, min(MESSAGES, self._done + count)
        for number in range(self._done, last):
            self._say(Handled(self._tick(), worker, self._place, self._ids[number], f"{self._place}-{number}"))
            if ending == "revoked" or number < last - 2:
                calls += 1
                self._call(worker, calls, "commit", self._version, self._ids[number])
                self._done = number + 1
        if ending == "revoked":
            self._cut(worker)
        self._end(worker, ending)
        self._at += APART

    def _cut(self, worker: str) -> None:
        """Its session is suspended for a moment after everything was handled."""
        at = self._tick()
        self._say(Heard(self._tick(), worker, 1, "suspended"))
        self._say(Heard(self._tick(), worker, 1, "connected"))
        self._say(Fault(at, self._tick(), "hush"))

    def _end(self, worker: str, ending: str) -> None:
        at = self._tick()
        if ending == "killed":
            self._say(Fault(at, self._tick(), "kill", worker))
        elif ending == "lost":
            self._say(Fault(at, self._tick(), "expire", worker))
            self._say(Heard(self._tick(), worker, 1, "lost"))
            self._say(Gone(self._tick(), worker, "lost", [self._place]))
        else:
            self._say(Gone(self._tick(), worker, "revoked", [self._place]))
            self._say(Ended(self._tick(), worker, at, 0))

    def _call(self, worker: str, call: int, what: str, version: int, identifier: str | None) -> None:
        claim = what == "take"
        self._version += 1
        self._say(
            Asked(
                self._tick(),
                worker,
                1,
                call,
                "take" if claim else "commit",
                {self._place: version},
                {} if claim or identifier is None else {self._place: identifier},
            )
        )
        found = {self._place: identifier} if claim else {}
        self._say(Answered(self._tick(), worker, call, "", {self._place: self._version}, found))
        if not claim and identifier is not None:
            self._say(Observed(self._tick(), self._tick(), {self._place: identifier}))

    def _say(self, record: Record) -> None:
        self.records.append(record)

    def _tick(self) -> float:
        self._at += STEP
        return self._at


def good_records(seed: int) -> list[Record]:
    """Returns the records of a group with one partition, in which nothing is wrong."""
    return Simulated("crew-a/1", seed).play()
