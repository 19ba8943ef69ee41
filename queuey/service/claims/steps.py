"""Work in steps that wait without a thread: a generator yields what it waits for and is sent the result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

from queuey.service.claims.runtime import Done

Call = Callable[[Done], object]
"""Begins some work, given what to call at its end."""
Steps = Generator[Call, Any, Any]


def run(steps: Steps, submit: Callable[[Callable[[], None]], None]) -> None:
    """Runs steps to their end; begins in this thread and goes on in those of ``submit``."""
    _run(steps, submit, None, None)


def _run(steps: Steps, submit: Callable[[Callable[[], None]], None], value: object, error: Exception | None) -> None:
    while True:
        try:
            call = steps.send(value) if error is None else steps.throw(error)
        except StopIteration:
            return
        end = _End(steps, submit)
        try:
            call(end)
        except Exception as failure:  # noqa: BLE001 - the steps get it
            end.failed(failure)
        if not end.is_there():
            return
        value, error = end.value, end.error


class _End:
    """The end of one step: it comes before the call that began it returns, or later, in another thread."""

    __slots__ = ("_first", "_steps", "_submit", "error", "value")

    def __init__(self, steps: Steps, submit: Callable[[Callable[[], None]], None]) -> None:
        self._steps = steps
        self._submit = submit
        self._first = threading.Lock()
        self.value: object = None
        self.error: Exception | None = None

    def __call__(self, value: object, error: Exception | None) -> None:
        self.value, self.error = value, error
        if not self._first.acquire(blocking=False):
            self._submit(lambda: _run(self._steps, self._submit, value, error))

    def failed(self, error: Exception) -> None:
        """Is the end of a step that could not be begun, unless it has come already."""
        if self._first.acquire(blocking=False):
            self.value, self.error = None, error

    def is_there(self) -> bool:
        """Returns whether it came before this was asked; if not, the steps go on when it comes."""
        return not self._first.acquire(blocking=False)
