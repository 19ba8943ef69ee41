"""Memory, file handles and threads of process trees, and whether they grow without bound."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MEGABYTE = 1 << 20


class Usage(NamedTuple):
    """What a process and its descendants have taken."""

    memory: int
    handles: int
    threads: int


class Allowance(NamedTuple):
    """How much more the last third of a run may have than the first: a share of that, and a fixed amount on top."""

    share: float
    amount: int


Allowances = Mapping[str, Allowance]
ALLOWANCES: Allowances = {
    "memory": Allowance(0.25, 48 * MEGABYTE),
    "handles": Allowance(0.25, 32),
    "threads": Allowance(0.25, 12),
}
JAVA_ALLOWANCES: Allowances = {"handles": Allowance(0.5, 200), "threads": Allowance(0.25, 60)}
"""A JVM fills the heap that it was given, whatever it does; its handles are the files of its tables and connections."""


def descendants(pid: int) -> list[int]:
    """Returns a process and all that it has started, directly or not."""
    pids = [pid]
    for each in pids:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                pids += map(int, task.read_text("ascii").split())
    return pids


def usage(pid: int) -> Usage | None:
    """Returns what a process and its descendants have now; None if it has ended."""
    found = [each for each in map(_of_one, descendants(pid)) if each is not None]
    return Usage(*map(sum, zip(*found, strict=True))) if found else None


def _of_one(pid: int) -> Usage | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return Usage(int(fields["VmRSS"].split()[0]) * 1024, handles, int(fields["Threads"]))
    except (OSError, KeyError):  # It has ended; a zombie has no memory.
        return None


class Sample(NamedTuple):
    """The usage at an instant, in seconds since the run began."""

    at: float
    usage: Usage


class Trend(NamedTuple):
    """Medians of the first and the last third after the warm-up, and the most that there was."""

    first: Usage
    last: Usage
    most: Usage


def trend(samples: Sequence[Sample], warm: float) -> Trend | None:
    """Returns how the usage went; None if there are too few samples."""
    steady = [sample for sample in samples if sample.at >= warm]
    if len(steady) < 3:
        return None
    begin, end = steady[0].at, steady[-1].at
    third = (end - begin) / 3
    first = [sample.usage for sample in steady if sample.at <= begin + third]
    last = [sample.usage for sample in steady if sample.at >= end - third]
    every = [sample.usage for sample in steady]
    return Trend(_each(first, statistics.median), _each(last, statistics.median), _each(every, max))


def _each(usages: Iterable[Usage], function: Callable[[Sequence[int]], float]) -> Usage:
    return Usage(*(int(function(values)) for values in zip(*usages, strict=True)))


def growth(name: str, found: Trend, allowances: Allowances) -> list[str]:
    """Returns what grew by more than is allowed."""
    violations = []
    for what, allowance in allowances.items():
        first, last = getattr(found.first, what), getattr(found.last, what)
        limit = first * (1 + allowance.share) + allowance.amount
        if last > limit:
            violations.append(f"{name}: {what} grew from {first:,} to {last:,}, more than {limit:,.0f}")
    return violations
