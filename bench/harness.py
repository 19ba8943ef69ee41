"""Runs measures: the registry, the interleaving of sides, and a workspace for each measure."""

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
    """A run does not count: an answer was wrong, a process ended, or a side did not start."""


class Skip(Exception):
    """This machine cannot run the measure; the message says what is missing."""


class Node(Protocol):
    """A running Cassandra node."""

    @property
    def contact_points(self) -> Sequence[str]:
        """The node's addresses."""

    @property
    def port(self) -> int:
        """The node's port for clients."""


@dataclass(frozen=True)
class Bench:
    """The environment of one measure.

    Attributes:
        directory: A new directory on a real disk; all sides keep their data in it.
        quick: Runs one short round with little data. The figures only show that the measure works.
        node: A Cassandra node that quick measures share. None if each measure starts its own.
    """

    directory: Path
    quick: bool = False
    rng: random.Random = random.Random(0)  # noqa: RUF009 - it only orders the runs, so sharing it is safe
    node: Node | None = None

    def duration(self, full: float, quick: float) -> float:
        return quick if self.quick else full

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def print_progress(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def new_directory(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))

    def interleave(self, sides: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
        """Runs each side once per round, in a new random order each round.

        A machine that gets slower or busier affects all sides alike, and no side always runs after the same other side.
        """
        samples: dict[str, list[Sample]] = {name: [] for name in sides}
        for turn in range(rounds):
            for name in self.rng.sample(list(sides), len(sides)):
                samples[name].append(sides[name]())
            self.print_progress(f"round {turn + 1} of {rounds}")
        return samples


@dataclass(frozen=True)
class Measure:
    """A registered measure.

    Attributes:
        run: Returns a report, or raises :class:`Void` or :class:`Skip`.
        peers: Compares with other products; runs only on request, because it needs their programs and an hour.
    """

    name: str
    title: str
    run: Callable[[Bench], Report]
    peers: bool = False


REGISTRY: dict[str, Measure] = {}


def measure(
    name: str, title: str, *, peers: bool = False
) -> Callable[[Callable[[Bench], Report]], Callable[[Bench], Report]]:
    """Registers the decorated function under this name in :data:`REGISTRY`; see :class:`Measure`."""

    def register(run: Callable[[Bench], Report]) -> Callable[[Bench], Report]:
        REGISTRY[name] = Measure(name, title, run, peers)
        return run

    return register


def run_measure(
    entry: Measure, *, quick: bool, seed: int, parent: Path | None = None, node: Node | None = None
) -> Report:
    """Runs one measure in its own workspace, which is removed afterwards. A :class:`Skip` becomes a skipped report.

    Raises:
        Void: The measure could not be completed.
    """
    began = time.monotonic()
    with temporary_workspace(parent) as directory:
        bench = Bench(directory, quick, random.Random(seed), node)
        try:
            report = entry.run(bench)
        except Skip as reason:
            report = Report(entry.name, entry.title, skipped=str(reason))
    return replace(report, name=entry.name, title=entry.title, seconds=time.monotonic() - began)


@contextlib.contextmanager
def temporary_workspace(parent: Path | None = None) -> Iterator[Path]:
    """Creates a directory on a disk, or in ``parent``; removes it after the block."""
    directory = Path(tempfile.mkdtemp(prefix="queuey-bench-", dir=parent or disk_directory()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def disk_directory() -> Path:
    """Returns the first writable one of the temporary directory, ``/var/tmp`` and the user's cache that is on a disk.

    Creates the ones that it tries. In memory an fsync would cost nothing.

    Raises:
        Void: This machine has no such directory.
    """
    for candidate in (Path(tempfile.gettempdir()), Path("/var/tmp"), platformdirs.user_cache_path("queuey-bench")):
        candidate.mkdir(parents=True, exist_ok=True)
        if os.access(candidate, os.W_OK) and file_system_type(candidate) not in {"tmpfs", "ramfs"}:
            return candidate
    raise Void("no directory for temporary data on a real disk")


def file_system_type(path: Path) -> str:
    mount, kind = "", ""
    for line in Path("/proc/mounts").read_text("utf-8").splitlines():
        _, mount_point, mount_type = line.split(" ")[:3]
        inside = path.resolve().is_relative_to(mount_point)
        if inside and len(mount_point) >= len(mount):
            mount, kind = mount_point, mount_type
    return kind
