"""The faults of workers and of their coordination, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tests.harness.nemesis import Step, Wave

MIN_RUNNING_WORKERS = 2
"""Min running workers at any time, by the schedule."""
START_SECONDS = 2.5
"""Seconds for which a started worker is usually left alone."""
RECOVERY = 4.0
"""Seconds after a fault of the coordination service before its next one."""

WEIGHTS: Mapping[str, float] = {
    "join": 6,
    "leave": 3,
    "kill": 4,
    "pause": 4,
    "expire": 3,
    "silence": 3,
    "cut": 1,
    "restart": 1,
    "leader": 1.5,
    "hush": 1,
    "grow": 0.3,
    "mute": 0.6,
    "node-kill": 1,
    "node-pause": 1.5,
}
"""The relative frequency of each kind of fault.

A worker: ``join``, ``leave``, ``kill``, ``pause`` (its process is stopped and resumed), ``expire`` (its session is
ended), ``silence`` (nothing passes between it and its coordination). The coordination service: ``cut`` (nobody can
reach it), ``restart`` (it is killed and restarted), ``leader`` (its leader is killed), ``hush`` (its leader is stopped
and resumed). The store: ``node-kill`` (a node is killed and restarted), ``node-pause`` (it is stopped and resumed). The
queues: ``grow`` (one gets more partitions), ``mute`` (their service is stopped and resumed).
"""
WORKER_FAULTS = frozenset({"join", "leave", "kill", "pause", "expire"})
SHARED_FAULTS = frozenset({"cut", "restart", "leader", "hush", "grow", "mute", "node-kill", "node-pause"})
"""Kinds that affect all workers at once."""
EVERYBODY = "all"


@dataclass
class Schedule:
    """Draws faults so that some workers always run, as far as this is known in advance.

    Args:
        rng: Makes the random choices.
        slots: The number of slots; all but the first ``MIN_RUNNING_WORKERS`` are empty at the beginning.
        session: Seconds of a session.
        kinds: The allowed kinds, in alphabetical order.
        apart: The slots that have a network of their own.
    """

    rng: random.Random
    slots: Sequence[str]
    session: float
    kinds: Sequence[str]
    apart: Collection[str]

    def __post_init__(self) -> None:
        self._there = set(self.slots[:MIN_RUNNING_WORKERS])
        self._busy = dict.fromkeys(self.slots[:MIN_RUNNING_WORKERS], START_SECONDS)

    def draw(self, seconds: float) -> Wave:
        steps: list[Step] = []
        at = START_SECONDS
        while True:
            at += 0.0 if self.rng.random() < 0.25 else self.rng.uniform(0.1, 1.5)
            if at > seconds:
                return tuple(steps)
            step = self._draw_step(at)
            if step is None:
                at += 0.1
            else:
                steps.append(step)

    def _draw_step(self, instant: float) -> Step | None:
        """Draws a fault, or returns None if its kind cannot be at this time: enough workers must run."""
        kind = self.rng.choices(self.kinds, [WEIGHTS[kind] for kind in self.kinds])[0]
        free = [slot for slot in [*self.slots, EVERYBODY] if self._busy.get(slot, 0.0) <= instant]
        if kind in SHARED_FAULTS:
            return self._add_shared_fault(instant, kind) if EVERYBODY in free else None
        running = sorted(self._there.intersection(free))
        if kind == "join":
            empty = [slot for slot in self.slots if slot not in self._there and slot in free]
            return self._add_fault(instant, kind, self.rng.choice(empty), START_SECONDS) if empty else None
        if not running or (kind != "expire" and len(running) <= MIN_RUNNING_WORKERS):
            return None
        if kind == "silence":
            running = sorted(set(running).intersection(self.apart))
            if not running:
                return None
        return self._add_fault(instant, kind, self.rng.choice(running), self._seconds(kind))

    def _seconds(self, kind: str) -> float:
        if kind in {"pause", "silence"}:
            return self.session * self.rng.choice((0.2, 0.5, 0.9, 1.1, 1.5, 2.0)) * self.rng.uniform(0.9, 1.1)
        return 0.0

    def _add_fault(self, instant: float, kind: str, slot: str, seconds: float) -> Step:
        """Returns the step, and keeps other faults from its slot until it is over."""
        if kind == "join":
            self._there.add(slot)
        if kind in {"kill", "leave"}:
            self._there.discard(slot)
        alone = {"kill": 0.2, "leave": 2.0, "expire": self.session}.get(kind, seconds + 0.5)
        self._busy[slot] = instant + alone
        return Step(kind, slot, 0.0 if kind == "join" else seconds, instant)

    def _add_shared_fault(self, instant: float, kind: str) -> Step:
        """Adds a fault of the service or network. Others wait until it is over; most also some time longer."""
        seconds = 0.0
        if kind in {"leader", "node-kill"}:
            seconds = self.rng.uniform(1.0, 4.0)
        elif kind in {"mute", "restart"}:
            seconds = self.rng.uniform(0.5, 3.0)
        elif kind != "grow":
            seconds = self.session * self.rng.choice((0.3, 0.8, 1.2, 1.6))
        self._busy[EVERYBODY] = instant + seconds + (0.0 if kind == "grow" else RECOVERY)
        return Step(kind, EVERYBODY, seconds, instant)


def draw(
    seed: int,
    seconds: float,
    slots: Sequence[str],
    session: float,
    kinds: Collection[str],
    *,
    apart: Collection[str] = (),
) -> Wave:
    """Draws faults for this many seconds, the same for the same seed.

    ``join`` is always included: a worker is killed or leaves only if enough others run.
    """
    return Schedule(random.Random(seed), slots, session, sorted({*kinds, "join"}), apart).draw(seconds)
