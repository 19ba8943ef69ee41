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
GIVEN_UP = "the caller has given up"
Done = Callable[[Any, Exception | None], None]

S = TypeVar("S", bound=type[Store])
T = TypeVar("T")


class Call:
    """One call of a store.

    Attributes:
        ends: When it must have ended.
        wrote: It is about to send a change, or has sent one: its outcome may be unknown.
        prepares: What it sends now has no effect that a caller could notice.
        is_given_up: Its caller waits no longer.
    """

    # Each call makes one: class attributes, as defaults, cost it nothing.
    ends = math.inf
    wrote = False
    prepares = False
    is_given_up = False

    def give_up(self) -> Outcome:
        """Has it send no change any more unless it has sent one; returns its outcome."""
        self.is_given_up = True
        return "unknown" if self.wrote else "none"


NO_CALL = Call()
"""What a thread does without a call: it may take as long as it does."""


class Deadline(threading.local):
    """The end of the call that runs in this thread.

    Args:
        seconds: Duration of each call.
        clock: Seconds, for durations.

    Attributes:
        call: The one that runs in this thread.
    """

    call = NO_CALL

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self.clock = clock

    def begin(self) -> Call:
        """Begins a call in this thread; one within another ends no later. Returns the argument of :meth:`end`."""
        before = self.call
        call = self.call = Call()
        call.ends = min(before.ends, self.clock() + self._seconds)
        call.wrote = before.wrote
        return before

    def end(self, before: Call) -> None:
        """Ends the call that began last."""
        self.call = before

    @contextmanager
    def running(self, call: Call | None = None) -> Iterator[None]:
        """Runs a block as part of a call, by default of a new one."""
        before = self.begin()
        self.call = call or self.call
        try:
            yield
        finally:
            self.end(before)

    def next_end(self) -> float:
        return self.clock() + self._seconds

    def left(self, most: float = threading.TIMEOUT_MAX) -> float:
        """Returns the seconds that the call may still wait, at most ``most``.

        Raises:
            StoreUnavailable: None; outcome ``unknown`` if it has :meth:`sent` a change.
        """
        call = self.call
        if call.ends == math.inf:
            return most
        left = call.ends - self.clock()
        if left <= 0:
            message = f"the call took longer than {self._seconds:g} s, which is all that it may"
            raise StoreUnavailable(message, outcome="unknown" if call.wrote else "none")
        return min(left, most)

    def sent(self) -> None:
        """Marks that the call is about to send a change: from now on its outcome may be unknown.

        Raises:
            StoreUnavailable: It was given up before it had sent any.
        """
        call = self.call
        if call is NO_CALL or call.prepares or call.wrote:
            return
        call.wrote = True  # First, for a thread that gives it up now.
        if call.is_given_up:
            call.wrote = False  # So that the next change is refused as well.
            raise StoreUnavailable(GIVEN_UP)

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """Runs a block whose changes have no effect that a caller could notice, until something else is sent."""
        call = self.call
        before, call.prepares = call.prepares, True
        try:
            yield
        finally:
            call.prepares = before

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Prepares a write, :meth:`unnoticed`. If that fails, nothing was written.

        Raises:
            StoreUnavailable: As it was raised, with outcome ``none`` unless the call has :meth:`sent` something before.
        """
        call = self.call
        try:
            with self.unnoticed():
                yield
        except StoreUnavailable as error:
            if not call.wrote:
                error.outcome = "none"
            raise

    def wait(self, acquire: Callable[..., bool]) -> None:
        """Waits for a lock, an event or a semaphore, by its method that takes ``timeout``.

        Raises:
            StoreUnavailable: As :meth:`left`.
        """
        while not acquire(timeout=self.left(_SECOND)):
            pass

    def result(self, begin: Callable[[Done], Callable[[], Outcome]], late: str | None = None) -> Any:  # noqa: ANN401 - as begun
        """Starts something and waits for its result.

        Args:
            begin: Starts it. It gets the callback for the end, and returns a function that gives up.
            late: The message of the error when the time is over, by default that of :meth:`left`.

        Raises:
            StoreUnavailable: The time is over: nothing was begun, or it was given up.
            Exception: The error with which it ended.
        """
        self.left()  # What is begun late may be done before it is given up.
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
            raise StoreUnavailable(late or str(over), outcome=give_up()) from over
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
