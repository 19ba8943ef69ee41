"""What happened in a run: a line of JSON for each record, in a file of each process, judged afterwards.

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
"""In which a thread ends that was told to; a drain at the end of a run takes its time."""


def now() -> float:
    """Seconds since boot, time asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fault(Struct, frozen=True, tag="fault"):
    """Something was done to a target, from the moment before it to the moment it was undone.

    Attributes:
        kind: What. ``stall``: the threads of a process were kept from running, nobody knows by what.
        target: To whom; empty: to all, or to the process of the test.
    """

    start: float
    end: float
    kind: str
    target: str = ""

    def touches(self, start: float, end: float, late: float = 0.0) -> bool:
        """Tells whether it went on, or was over for less than so many seconds, at any time from start to end."""
        return self.start <= end and start <= self.end + late


class Journal:
    """A file to which several threads and processes append records, each in one write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def add(self, record: Struct) -> None:
        """Appends a record."""
        os.write(self._descriptor, msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


class Records:
    """Reads all journals of a directory while they grow.

    Args:
        directory: Its files ``*.jsonl`` are read.
        kinds: The union of the records.
    """

    def __init__(self, directory: Path, kinds: Any) -> None:  # noqa: ANN401 - a union is no type
        self._directory = directory
        self._decoder = msgspec.json.Decoder(kinds)
        self._read: dict[Path, int] = {}
        self._found: list[Any] = []
        self._lock = threading.Lock()

    def all(self) -> list[Any]:
        """Returns everything that was appended so far; a line that is not complete is left for later."""
        with self._lock:
            for path in sorted(self._directory.glob("*.jsonl")):
                with path.open("rb") as lines:
                    lines.seek(self._read.setdefault(path, 0))
                    data = lines.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._read[path] += len(whole)
                self._found += map(self._decoder.decode, whole.splitlines())
            return self._found.copy()

    def of(self, kind: type[R]) -> list[R]:
        """Returns the records of a kind that were appended so far."""
        return of(self.all(), kind)


def of(records: Iterable[Any], kind: type[R]) -> list[R]:
    """Returns the records of a kind."""
    return [record for record in records if isinstance(record, kind)]


def record_stalls(stop: threading.Event, add: Callable[[Fault], None], target: str, longest: float) -> None:
    """Records when the threads of this process did not run for longer than so many seconds."""
    before = now()
    while not stop.wait(TICK_SECONDS):
        since, before = before, now()
        if before - since > longest:
            add(Fault(since, before, "stall", target))


@contextmanager
def running(work: Iterable[Callable[[threading.Event], object]]) -> Iterator[list[BaseException]]:
    """Runs each in a thread of its own, and sets its event when the block is over; raises what one of them raised.

    Yields the errors so far. A thread that does not end when it is told is an error, and left behind.
    """
    stop, failures = threading.Event(), list[BaseException]()

    def guarded(each: Callable[[threading.Event], object]) -> None:
        try:
            each(stop)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(each,), daemon=True) for each in work]
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
