"""Signals that end a command. Imports little, so that a command hears of them from its first moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


def end_by(number: int, _frame: object = None) -> None:
    """Ends the process by a signal; as process 1 of a container, which no signal ends by itself, with 128 + number."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)


def end_at_once() -> None:
    """Has SIGTERM and SIGINT end the process without a word, until the command has handlers of its own."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, end_by)


@contextmanager
def handled(handler: Callable[[int, object], object], numbers: Iterable[int]) -> Iterator[None]:
    """Calls a function at signals. A signal that the process was started to ignore stays ignored."""
    before = {number: old for number in numbers if (old := signal.getsignal(number)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
