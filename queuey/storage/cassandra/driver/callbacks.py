"""Coroutines over calls that call back: what one awaits goes on in whichever thread brings the answer, and holds none.

No event loop is needed: the thread that brings an answer, mostly that of the store's loop, runs the coroutine up to its
next call::

    begin(page(driver), done)  # done(value, error) is called once, in any thread

    async def page(driver):
        rows = await called(partial(driver.send, request))
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from queue import SimpleQueue
from types import coroutine
from typing import Any, TypeVar

from queuey.errors import Outcome
from queuey.storage.deadlines import Deadline

T = TypeVar("T")
Done = Callable[[Any, Any], None]
"""Called once, with a result, or an error in its second place."""
Start = Callable[[Done], object]
"""Starts something, given what to call at its end; that may be before it returns."""


@coroutine
def called(start: Start) -> Generator[Start, Any, Any]:
    """Awaits what is started and calls back; returns its result."""
    return (yield start)


def begin(work: Coroutine[Start, Any, Any], done: Done) -> None:
    """Runs a coroutine, and calls ``done`` at its end. Never raises."""
    _go_on(work, done, None, None)


def wait(deadline: Deadline, work: Coroutine[Start, Any, Any], late: str) -> Any:  # noqa: ANN401 - of the coroutine
    """Runs a coroutine that changes nothing, for a caller that blocks; returns its result."""

    def start(done: Done) -> Callable[[], Outcome]:
        begin(work, done)
        return lambda: "none"

    return deadline.result(start, late)


def side_by_side(
    works: Iterable[Coroutine[Start, Any, T]], *, most_running: int = 48, most_held: int = 1000
) -> Iterator[T]:
    """Runs coroutines that change nothing side by side, all in this thread, where they may block; yields in order.

    Args:
        works: The coroutines.
        most_running: Max coroutines that are begun and not ended.
        most_held: Max results that wait for an earlier one, coroutines that run included.

    Raises:
        Exception: That one of them did not catch.
    """
    answers: SimpleQueue[tuple[int, Any, Any]] = SimpleQueue()
    running: dict[int, Coroutine[Start, Any, T]] = {}
    results: dict[int, T] = {}
    numbered, wanted, more = enumerate(works), 0, True

    def go_on(number: int, work: Coroutine[Start, Any, T], value: object = None, error: Any = None) -> None:  # noqa: ANN401
        try:
            start = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            results[number] = end.value
            return
        running[number] = work
        try:
            start(lambda value, error: answers.put((number, value, error)))
        except Exception as failure:  # noqa: BLE001 - the coroutine gets it
            answers.put((number, None, failure))

    while True:
        while more and len(running) < most_running and len(running) + len(results) < most_held:
            new = next(numbered, None)
            if new is None:
                more = False
            else:
                go_on(*new)
        while wanted in results:
            yield results.pop(wanted)
            wanted += 1
        if running:
            number, value, error = answers.get()
            go_on(number, running.pop(number), value, error)
        elif not more:
            return


class _Answer:
    """The answer to a call. It may come before the call has returned, in the same thread or another one."""

    __slots__ = ("_done", "_first", "_work", "error", "value")

    def __init__(self, work: Coroutine[Start, Any, Any], done: Done) -> None:
        self._work = work
        self._done = done
        self._first = threading.Lock()
        self.value: Any = None
        self.error: Any = None

    def is_first(self) -> bool:
        """Returns whether this is the first of two: the answer, and the call's return."""
        return self._first.acquire(blocking=False)

    def __call__(self, value: object, error: object) -> None:
        self.value, self.error = value, error
        if not self.is_first():
            _go_on(self._work, self._done, value, error)


def _go_on(work: Coroutine[Start, Any, Any], done: Done, value: object, error: Any) -> None:  # noqa: ANN401 - an error
    while True:
        try:
            start = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            done(end.value, None)
            return
        except Exception as failure:  # noqa: BLE001 - passed to whoever waits
            done(None, failure)
            return
        answer = _Answer(work, done)
        try:
            start(answer)
        except Exception as failure:  # noqa: BLE001 - the coroutine gets it
            value, error = None, failure
            continue
        if answer.is_first():
            return  # The thread that brings the answer goes on.
        value, error = answer.value, answer.error
