"""Plays histories from seeds, of any kind: what they violate, also with a mechanism of the product taken out."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any
from zlib import crc32

from qdo.partitions import Partition, Queue
from tests.replacing import replace, replace_in

COLLECTED = 20
"""Histories between two runs of the garbage collector."""
NAMES = ("a1", "a2", "b1", "b2", "c1")
"""Names of the queues of groups."""

Play = Callable[[int], Iterable[str]]
"""Plays the history of a seed. Returns a text for each violation, which begins with the rule."""
Real = Callable[..., Any]
"""A method of the product."""
Patch = tuple[Any, ...] | Callable[[], AbstractContextManager[Any]]
"""What is replaced, and by what. Of three: a module, what it has imported, and what it shall use instead."""


def around(function: Real, by: Callable[..., Any]) -> Patch:
    """Replaces a method by a function that gets the real method before its own arguments."""

    def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the method
        return by(function, *arguments, **options)

    async def wait(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        return await by(function, *arguments, **options)

    return function, wait if iscoroutinefunction(by) else call


def altering(function: Real, by: Callable[[Any], object]) -> Patch:
    """Replaces a method by one whose answer is altered."""

    async def wait(real: Real, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        return by(await real(*arguments, **options))

    def call(real: Real, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        return by(real(*arguments, **options))

    return around(function, wait if iscoroutinefunction(function) else call)


def answering(function: object, answer: object = None) -> Patch:
    """Replaces a method by one that does nothing but answer."""

    async def wait(*_: Any, **__: Any) -> object:  # noqa: ANN401
        return answer

    return function, wait if iscoroutinefunction(function) else lambda *_, **__: answer


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            if callable(patch):
                stack.enter_context(patch())
            else:
                stack.enter_context(replace(*patch) if len(patch) == 2 else replace_in(*patch))
        yield


@contextmanager
def _same_sets() -> Iterator[None]:
    """Fixes the order of sets of partitions and queues. Python's hashes of text differ in each run."""
    numbers = {name: index for index, name in enumerate(NAMES)}

    def number_of(name: str) -> int:
        return numbers[name] if name in numbers else crc32(name.encode()) << 3

    hashes: dict[type, Callable[[Any], int]] = {
        Queue: lambda queue: number_of(queue.name),
        Partition: lambda partition: partition.number << 3 | number_of(partition.queue.name),
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


def find_violations(seeds: Iterable[int], play: Play, *, breaking: Sequence[str] = ("",), enough: int = 1) -> list[str]:
    """Plays histories until ``enough`` of them violate a rule in ``breaking``. Returns five violations of each."""
    broken = []
    with histories():
        for played_before, seed in enumerate(seeds):
            if played_before % COLLECTED == 0:
                gc.collect()
            if wrong := [text for text in play(seed) if text.startswith(tuple(breaking))]:
                broken.append(f"seed {seed}: {wrong[:5]}")
                if len(broken) == enough:
                    break
    return broken


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out.

    Attributes:
        play: Plays a history of the kind that aims at it.
        breaks: The rules of which one fails without it.
        patches: Take it out.
        seed: The history that shows it.
        name: The name of the kind in a table of kinds, if any.
    """

    play: Play
    breaks: tuple[str, ...]
    patches: Sequence[Patch]
    seed: int = 0
    name: str = ""

    def find_violations(self, seeds: Iterable[int] = ()) -> list[str]:
        """Returns the violations of its history without the mechanism, or of the first of ``seeds`` with any."""
        with patched(self.patches):
            return find_violations(seeds or [self.seed], self.play, breaking=self.breaks)
