"""Memory, file handles and threads of process trees, and whether they grow without bound."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MEGABYTE = 1 << 20


class Usage(NamedTuple):
    """The usage of a process and its descendants. Memory is in bytes."""

    memory: int
    handles: int
    threads: int


class Allowance(NamedTuple):
    """Allowed growth from the first to the last third of a run: a fraction, plus a fixed amount."""

    share: float
    amount: int


Allowances = Mapping[str, Allowance]
ALLOWANCES: Allowances = {
    "memory": Allowance(0.25, 48 * MEGABYTE),
    "handles": Allowance(0.25, 32),
    "threads": Allowance(0.25, 12),
}
JAVA_ALLOWANCES: Allowances = {"handles": Allowance(0.5, 200), "threads": Allowance(0.25, 128)}
"""Without memory: a JVM always fills its heap. Handles are files of tables and connections.

A node starts the threads of its pools under load, up to 128 for requests of clients.
"""


def process_tree(pid: int) -> list[int]:
    pids = [pid]
    for parent in pids:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                pids += map(int, task.read_text("ascii").split())
    return pids


def read_usage(pid: int) -> Usage | None:
    """Returns the present usage of a process and its descendants, or None if it has ended."""
    usages = [each for each in map(_usage_of_process, process_tree(pid)) if each is not None]
    return Usage(*map(sum, zip(*usages, strict=True))) if usages else None


def _usage_of_process(pid: int) -> Usage | None:
    """Returns the usage of one process; None if it has ended or is a zombie."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return Usage(int(fields["VmRSS"].split()[0]) * 1024, handles, int(fields["Threads"]))
    except (OSError, KeyError):  # the process has ended; a zombie has no memory
        return None


class Sample(NamedTuple):
    """The usage at an instant, in seconds since the start of the run."""

    at: float
    usage: Usage


class Trend(NamedTuple):
    """Medians of the first and the last third after the warm-up, and the maximum."""

    first: Usage
    last: Usage
    most: Usage


def make_trend(samples: Sequence[Sample], warm: float) -> Trend | None:
    """Returns the trend of the samples after ``warm`` seconds, or None if these are fewer than three."""
    steady = [sample for sample in samples if sample.at >= warm]
    if len(steady) < 3:
        return None
    begin, end = steady[0].at, steady[-1].at
    third = (end - begin) / 3
    first = [sample.usage for sample in steady if sample.at <= begin + third]
    last = [sample.usage for sample in steady if sample.at >= end - third]
    usages = [sample.usage for sample in steady]
    return Trend(_combine(first, statistics.median), _combine(last, statistics.median), _combine(usages, max))


def _combine(usages: Iterable[Usage], function: Callable[[Sequence[int]], float]) -> Usage:
    return Usage(*(int(function(values)) for values in zip(*usages, strict=True)))


def find_growth(name: str, usage_trend: Trend, allowances: Allowances) -> list[str]:
    violations = []
    for what, allowance in allowances.items():
        first, last = getattr(usage_trend.first, what), getattr(usage_trend.last, what)
        limit = first * (1 + allowance.share) + allowance.amount
        if last > limit:
            violations.append(f"{name}: {what} grew from {first:,} to {last:,}, more than {limit:,.0f}")
    return violations
