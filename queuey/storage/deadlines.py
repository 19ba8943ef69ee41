"""One deadline for each call of a store, however many steps the call takes.

:func:`bounded` makes every call of a store's class run under the store's :class:`Deadline`. Code that waits in the same
thread asks for the time left::

    answered.wait(deadline.left())
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from queuey.errors import Outcome, StoreUnavailable
from queuey.storage import Bulk, Store

_SECOND = 1.0
Done = Callable[[Any, Exception | None], None]

S = TypeVar("S", bound=type[Store])
T = TypeVar("T")


class Deadline(threading.local):
    """The end of the call that runs in this thread; without a call there is none.

    Args:
        seconds: Duration of each call.
        clock: Seconds, for durations.
    """

    _ends = math.inf
    _wrote = False

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self.clock = clock

    def next_end(self) -> float:
        return self.clock() + self._seconds

    @property
    def ends(self) -> float:
        """When the call that runs in this thread ends; infinity without one."""
        return self._ends

    def begin(self, ends: float | None = None) -> tuple[float, bool]:
        """Begins a call in this thread; ``ends`` None: after the usual time. A call within it ends no later.

        Returns the argument of :meth:`end`.
        """
        before = ends_before, wrote = self._ends, self._wrote
        self._ends = min(ends_before, self.clock() + self._seconds if ends is None else ends)
        self._wrote = wrote and ends_before < math.inf
        return before

    def end(self, before: tuple[float, bool]) -> None:
        """Ends the call that began last."""
        self._ends, self._wrote = before

    @contextmanager
    def running(self, ends: float | None = None) -> Iterator[None]:
        """Runs a block as a call."""
        before = self.begin(ends)
        try:
            yield
        finally:
            self.end(before)

    def run(self, work: Callable[..., T], *arguments: object) -> T:
        with self.running():
            return work(*arguments)

    def left(self, most: float = threading.TIMEOUT_MAX) -> float:
        """Returns the seconds that the call may still wait, at most ``most``.

        Raises:
            StoreUnavailable: None; outcome ``unknown`` if it has :meth:`sent` a change.
        """
        if self._ends == math.inf:
            return most
        left = self._ends - self.clock()
        if left <= 0:
            message = f"the call took longer than {self._seconds:g} s, which is all that it may"
            raise StoreUnavailable(message, outcome="unknown" if self._wrote else "none")
        return min(left, most)

    def sent(self) -> None:
        """Marks that the call is about to send a change: from now on its outcome may be unknown."""
        self._wrote = True

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Prepares a write: the block has no effect that a caller could notice. If it fails, nothing was written.

        Raises:
            StoreUnavailable: As it was raised, with outcome ``none`` unless the call has :meth:`sent` something before.
        """
        wrote = self._wrote
        try:
            yield
        except StoreUnavailable as error:
            if not wrote:
                error.outcome = "none"
            raise
        finally:
            self._wrote = wrote

    def wait(self, acquire: Callable[..., bool]) -> None:
        """Waits for a lock, an event or a semaphore, by its method that takes ``timeout``.

        Raises:
            StoreUnavailable: As :meth:`left`.
        """
        while not acquire(timeout=self.left(_SECOND)):
            pass

    def result(self, begin: Callable[[Done], Callable[[], Outcome]], late: str) -> Any:  # noqa: ANN401 - as begun
        """Starts something and waits for its result.

        Args:
            begin: Starts it. It gets the callback for the end, and returns a function that gives up.
            late: The message of the error when the time is over.

        Raises:
            StoreUnavailable: The time is over, and it was given up.
            Exception: The error with which it ended.
        """
        answered = threading.Lock()  # Released by the end: half as dear as an event.
        answered.acquire()
        end: list[Any] = [None, None]

        def done(result: object, error: Exception | None) -> None:
            end[:] = result, error
            answered.release()

        give_up = begin(done)
        try:
            self.wait(answered.acquire)
        except StoreUnavailable as over:
            raise StoreUnavailable(late, outcome=give_up()) from over
        result, error = end
        if error is not None:
            raise error
        return result


def bounded(store: S) -> S:
    """Makes the waiting calls of a store run under its ``_deadline``.

    A call of the bulk contract may take as long as there is work; each call that it makes ends in time.
    """
    for name in (Store.__abstractmethods__ | {"together"}) - Bulk.__abstractmethods__ - {"close"}:
        if hasattr(getattr(Store, name), "never_waits"):
            continue
        call = _bounded(getattr(store, name))
        # It is the store's own now, and says so.
        call.__module__, call.__qualname__ = store.__module__, f"{store.__qualname__}.{name}"
        setattr(store, name, call)
    return store


def _bounded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes and gives
        deadline = self._deadline
        before = deadline.begin()
        try:
            return method(self, *arguments, **named)
        finally:
            deadline.end(before)

    return call
