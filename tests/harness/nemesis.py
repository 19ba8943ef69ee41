"""Performs faults by a schedule, and records when each was done and undone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any, NamedTuple

from tests.harness.history import Fault, now

MOST = 32
"""Faults that go on at one time."""
FAULT_SECONDS = 600.0
"""A fault is done and undone within this time, or the run fails."""
WAYS: Mapping[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "kill": (methodcaller("kill"), methodcaller("start")),
    "pause": (methodcaller("pause"), methodcaller("resume")),
    "silence": (methodcaller("silence"), methodcaller("resume")),
    "cut": (methodcaller("cut"), methodcaller("heal")),
}
"""What does a fault to a process, node or proxy, and what undoes it."""


class Step(NamedTuple):
    """One fault.

    Attributes:
        kind: What is done.
        target: To whom.
        seconds: How long it lasts.
        at: Seconds from the beginning of its wave.
    """

    kind: str
    target: str
    seconds: float = 0.0
    at: float = 0.0


Wave = tuple[Step, ...]
"""Faults by the time of their beginning. A wave is over when all of them are undone."""


def hit(kind: str, victims: Collection[Any], seconds: float) -> None:
    """Does a fault to victims, waits, and undoes it."""
    do, undo = WAYS[kind]
    for victim in victims:
        do(victim)
    threading.Event().wait(seconds)
    for victim in victims:
        undo(victim)


def perform(
    waves: Iterable[Wave], do: Callable[[Step], str], add: Callable[[Fault], None], *, rest: float = 0.0
) -> None:
    """Performs waves one after another, and raises what went wrong.

    Args:
        waves: What to do.
        do: Does a fault and undoes it; returns the target under which it is recorded.
        add: Is told of each fault when it is over.
        rest: Seconds without fault after each wave.
    """

    def one(step: Step, begun: float) -> None:
        threading.Event().wait(max(0.0, begun + step.at - now()))
        start = now()
        target = do(step)
        add(Fault(start, now(), step.kind, target))

    with ThreadPoolExecutor(MOST) as pool:
        for wave in waves:
            begun = now()
            for done in [pool.submit(one, step, begun) for step in wave]:
                done.result(FAULT_SECONDS)
            threading.Event().wait(rest)
