"""Performs faults by a schedule, and records when each one began and ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any, NamedTuple

from tests.harness.history import Fault, now

MAX_CONCURRENT_FAULTS = 32
"""Max faults at the same time."""
MAX_FAULT_SECONDS = 600.0
"""Max time to do and undo a fault, in seconds. Beyond it the run fails."""
FAULT_ACTIONS: Mapping[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "kill": (methodcaller("kill"), methodcaller("start")),
    "pause": (methodcaller("pause"), methodcaller("resume")),
    "silence": (methodcaller("silence"), methodcaller("resume")),
    "cut": (methodcaller("cut"), methodcaller("heal")),
}
"""The methods of a process, node or proxy that do and undo each kind of fault."""


class Step(NamedTuple):
    """One fault.

    Attributes:
        kind: The kind of fault.
        target: The victim.
        seconds: How long the fault lasts.
        at: Its start, in seconds from the beginning of its wave.
    """

    kind: str
    target: str
    seconds: float = 0.0
    at: float = 0.0


Wave = tuple[Step, ...]
"""Faults in the order of their start. A wave ends when all of them are undone."""


def inflict(kind: str, victims: Collection[Any], seconds: float) -> None:
    do, undo = FAULT_ACTIONS[kind]
    for victim in victims:
        do(victim)
    threading.Event().wait(seconds)
    for victim in victims:
        undo(victim)


def perform_waves(
    waves: Iterable[Wave], do: Callable[[Step], str], add: Callable[[Fault], None], *, rest: float = 0.0
) -> None:
    """Performs waves one after another, the faults of a wave each at its time. Raises the first error.

    Args:
        waves: The faults to perform.
        do: Does and undoes one fault. Returns the target to record.
        add: Called with each fault after it ended.
        rest: Seconds without faults after each wave.
    """

    def perform_step(step: Step, begun: float) -> None:
        threading.Event().wait(max(0.0, begun + step.at - now()))
        start = now()
        target = do(step)
        add(Fault(start, now(), step.kind, target))

    with ThreadPoolExecutor(MAX_CONCURRENT_FAULTS) as pool:
        for wave in waves:
            begun = now()
            for pending in [pool.submit(perform_step, step, begun) for step in wave]:
                pending.result(MAX_FAULT_SECONDS)
            threading.Event().wait(rest)
