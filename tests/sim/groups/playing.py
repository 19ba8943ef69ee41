"""Plays histories of groups from seeds, and finds what a history breaks when a mechanism is taken out."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from qdo.partitions import Partition, Queue
from tests.replacing import replace
from tests.sim.world import Process

COLLECTED = 20
"""Histories between two runs of the garbage collector."""
NAMES = ("a1", "a2", "b1", "b2", "c1")
"""Names of queues."""


class Played(Protocol):
    """A history.

    Attributes:
        wrong: The violated rules.
    """

    wrong: list[str]

    def forget_world(self) -> None:
        """Keeps only what happened."""


H_co = TypeVar("H_co", bound=Played, covariant=True)


class Storm(Protocol[H_co]):
    """A group under faults, and then without."""

    def run(self) -> H_co:
        """Runs the history."""


Kind = Callable[[int], Storm[H_co]]
"""Makes the storm of a seed."""


@contextmanager
def _same_sets() -> Iterator[None]:
    """Fixes the order of sets of partitions and queues. Python's hashes of text differ in each run."""
    numbers = {name: index for index, name in enumerate(NAMES)}
    hashes: dict[type, Callable[[Any], int]] = {
        Queue: lambda queue: numbers[queue.name],
        Partition: lambda partition: partition.number << 3 | numbers[partition.queue.name],
    }
    for kind, by in hashes.items():
        kind.__hash__ = by  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        for kind in hashes:
            del kind.__hash__


@contextmanager
def histories() -> Iterator[None]:
    """Silences the logs and warnings of crashed processes, and controls garbage collection.

    Garbage is collected only between two histories: a finalized coroutine would run in any present loop.
    """
    loggers = [logging.getLogger(name) for name in ("queuey", "qdo", "asyncio")]
    levels, hook = [logger.level for logger in loggers], sys.unraisablehook
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings(), _same_sets():
            warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine that was never awaited
            yield
            gc.collect()
    finally:
        gc.enable()
        sys.unraisablehook = hook
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def run_history(seed: int, kind: Kind[H_co]) -> H_co:
    """Runs one history, which afterwards holds nothing of its world."""
    history = kind(seed).run()
    history.forget_world()
    Process.present = None
    return history


def find_violations(
    seeds: Iterable[int], kind: Kind[Played], *, breaking: Sequence[str] = ("",), enough: int = 1
) -> list[str]:
    """Runs histories until ``enough`` of them violate a rule in ``breaking``. Returns five violations of each."""
    broken = []
    with histories():
        for played_before, seed in enumerate(seeds):
            if played_before % COLLECTED == 0:
                gc.collect()
            if wrong := [text for text in run_history(seed, kind).wrong if text.startswith(tuple(breaking))]:
                broken.append(f"history {seed}: {wrong[:5]}")
                if len(broken) == enough:
                    break
    return broken


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out.

    Attributes:
        instead: Takes it out.
        breaks: The guarantees of which one fails without it.
        kind: The kind of histories that aim at it.
        seed: The history that shows it.
    """

    instead: Callable[[], AbstractContextManager[Any]]
    breaks: tuple[str, ...]
    kind: Kind[Played]
    seed: int = 0

    def is_noticed(self) -> bool:
        with self.instead():
            return bool(find_violations([self.seed], self.kind, breaking=[f"{rule}:" for rule in self.breaks]))


def take_out(target: Any, by: Any, *breaks: str, kind: Kind[Played], seed: int = 0) -> Mutation:  # noqa: ANN401 - any
    """Returns a mutation in which something else stands in the place of a method or a property."""
    return Mutation(lambda: replace(target, by), breaks, kind, seed)
