"""Runs measures: the registry, the interleaving, and the workspace that each of them gets."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import platformdirs

from bench.results import Report

Sample = TypeVar("Sample")


class Void(Exception):
    """A run that cannot count: an answer was wrong, a process ended, a side did not start."""


class Skip(Exception):
    """A measure that this machine cannot take; the message says what is missing."""


class Node(Protocol):
    """A Cassandra node that runs already."""

    @property
    def contact_points(self) -> Sequence[str]:
        """Its address."""

    @property
    def port(self) -> int:
        """The port for clients."""


@dataclass(frozen=True)
class Bench:
    """What a measure is run with.

    Attributes:
        directory: A fresh directory on a real disk; both sides keep their data in it.
        quick: One round, short runs, little data: to see that it works, not to quote.
        node: One that measures share, to see that they work; None: each starts its own.
    """

    directory: Path
    quick: bool = False
    rng: random.Random = random.Random(0)  # noqa: RUF009 - the order of runs, nothing secret or shared
    node: Node | None = None

    def pick(self, full: float, quick: float) -> float:
        """Returns a duration for a full or for a quick run."""
        return quick if self.quick else full

    def size(self, full: int, quick: int) -> int:
        """Returns a count for a full or for a quick run."""
        return quick if self.quick else full

    def say(self, text: str) -> None:
        """Shows progress on standard error, apart from the tables."""
        print(f"  {text}", file=sys.stderr, flush=True)

    def fresh(self, name: str) -> Path:
        """Returns a new directory for one side's data."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))

    def interleave(self, sides: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
        """Runs every side once a round, in a random order that is drawn anew each round.

        So a machine that gets slower or busier meanwhile does so for all sides, and none always runs after the same.
        """
        samples: dict[str, list[Sample]] = {name: [] for name in sides}
        for turn in range(rounds):
            for name in self.rng.sample(list(sides), len(sides)):
                samples[name].append(sides[name]())
            self.say(f"round {turn + 1} of {rounds}")
        return samples


@dataclass(frozen=True)
class Measure:
    """One entry of the registry.

    Attributes:
        run: Returns a report, or raises :class:`Void` or :class:`Skip`.
        peers: It compares with other products, which takes their programs and an hour; taken only if asked for.
    """

    name: str
    title: str
    run: Callable[[Bench], Report]
    peers: bool = False


REGISTRY: dict[str, Measure] = {}


def measure(
    name: str, title: str, *, peers: bool = False
) -> Callable[[Callable[[Bench], Report]], Callable[[Bench], Report]]:
    """Registers a measure under ``name``, in the order of definition; for ``peers`` see :class:`Measure`."""

    def register(run: Callable[[Bench], Report]) -> Callable[[Bench], Report]:
        REGISTRY[name] = Measure(name, title, run, peers)
        return run

    return register


def take(
    entry: Measure,
    *,
    quick: bool,
    seed: int,
    parent: Path | None = None,
    node: Node | None = None,
) -> Report:
    """Takes one measure in a workspace of its own, which is removed afterwards.

    Raises:
        Void: The measure could not be completed.
    """
    began = time.monotonic()
    with workspace(parent) as directory:
        bench = Bench(directory, quick, random.Random(seed), node)
        try:
            report = entry.run(bench)
        except Skip as reason:
            report = Report(entry.name, entry.title, skipped=str(reason))
    return replace(report, name=entry.name, title=entry.title, seconds=time.monotonic() - began)


@contextlib.contextmanager
def workspace(parent: Path | None = None) -> Iterator[Path]:
    """Makes a directory on a real disk and removes it in the end."""
    directory = Path(tempfile.mkdtemp(prefix="queuey-bench-", dir=parent or disk_directory()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def disk_directory() -> Path:
    """Returns a directory for temporary data that is not kept in memory, where an fsync would cost nothing.

    Raises:
        Void: There is none.
    """
    for candidate in (
        Path(tempfile.gettempdir()),
        Path("/var/tmp"),
        platformdirs.user_cache_path("queuey-bench"),
    ):
        candidate.mkdir(parents=True, exist_ok=True)
        if os.access(candidate, os.W_OK) and file_system(candidate) not in {"tmpfs", "ramfs"}:
            return candidate
    raise Void("no directory for temporary data on a real disk")


def file_system(path: Path) -> str:
    """Returns the type of the file system that ``path`` lies on."""
    found, kind = "", ""
    for line in Path("/proc/mounts").read_text("utf-8").splitlines():
        _, point, this = line.split(" ")[:3]
        inside = path.resolve().is_relative_to(point)
        if inside and len(point) >= len(found):
            found, kind = point, this
    return kind
