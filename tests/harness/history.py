"""The records of a run. Each process appends lines of JSON to a file of its own; the checks read them afterwards.

Times are seconds of CLOCK_BOOTTIME, which is the same in all processes and goes on while one is stopped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

R = TypeVar("R")

TICK_SECONDS = 0.05
END_SECONDS = 300.0
"""Time for a thread to end after it was told to stop, in seconds. Long, because a run may drain queues at its end."""


def now() -> float:
    """Returns the seconds since boot, including time asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fault(Struct, frozen=True, tag="fault"):
    """A fault that was done to a target: from just before it began until it was undone.

    Attributes:
        kind: What was done. ``stall``: the threads of a process did not run, for a cause outside the run.
        target: The victim. Empty: all of them, or the process of the test.
    """

    start: float
    end: float
    kind: str
    target: str = ""

    def touches(self, start: float, end: float, late: float = 0.0) -> bool:
        """Returns whether the fault lasted at this time, or had ended less than ``late`` seconds before ``start``."""
        return self.start <= end and start <= self.end + late


class Journal:
    """A file to which several threads and processes append records, each with one write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def add(self, record: Struct) -> None:
        os.write(self._descriptor, msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


class Records:
    """Reads all journals of a directory while they grow.

    Args:
        directory: Its files ``*.jsonl`` are read.
        kinds: The union of the record types.
    """

    def __init__(self, directory: Path, kinds: Any) -> None:  # noqa: ANN401 - a union is not a type
        self._directory = directory
        self._decoder = msgspec.json.Decoder(kinds)
        self._read: dict[Path, int] = {}
        self._found: list[Any] = []
        self._lock = threading.Lock()

    def all(self) -> list[Any]:
        """Returns all records so far. An incomplete last line is read by a later call."""
        with self._lock:
            for path in sorted(self._directory.glob("*.jsonl")):
                with path.open("rb") as lines:
                    lines.seek(self._read.setdefault(path, 0))
                    data = lines.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._read[path] += len(whole)
                self._found += map(self._decoder.decode, whole.splitlines())
            return self._found.copy()

    def of_kind(self, kind: type[R]) -> list[R]:
        return records_of(self.all(), kind)


def records_of(records: Iterable[Any], kind: type[R]) -> list[R]:
    return [record for record in records if isinstance(record, kind)]


def record_stalls(stop: threading.Event, add: Callable[[Fault], None], target: str, longest: float) -> None:
    """Records a stall whenever the threads of this process did not run for more than ``longest`` seconds."""
    before = now()
    while not stop.wait(TICK_SECONDS):
        since, before = before, now()
        if before - since > longest:
            add(Fault(since, before, "stall", target))


@contextmanager
def running(work: Iterable[Callable[[threading.Event], object]]) -> Iterator[list[BaseException]]:
    """Runs each function in a thread of its own. Sets their event at the end of the block and raises the first error.

    Yields the list of errors so far. A thread that does not end after that is an error, and is left behind.
    """
    stop, failures = threading.Event(), list[BaseException]()

    def run_guarded(each: Callable[[threading.Event], object]) -> None:
        try:
            each(stop)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    threads = [threading.Thread(target=run_guarded, args=(function,), daemon=True) for function in work]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        stop.set()
        until = now() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - now()))
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), f"a thread went on for {END_SECONDS:g} s"
