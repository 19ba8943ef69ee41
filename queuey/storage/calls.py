"""One call of a store: the time that it has, and how its caller awaits its end.

Every call of a contract runs under the store's :class:`Deadline`, however many steps it takes. Code that waits in the
same thread asks for the time left::

    answered.wait(deadline.left())

A driver calls back in a thread of its own. :func:`ended` awaits that: on a loop by a future, and in a thread that runs
the call by :mod:`.bridge` by waiting there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from queuey.errors import Outcome, StoreUnavailable
from queuey.storage.bridge import thread

T = TypeVar("T")
Done = Callable[[Any, Any], object]
"""Called once, with a result, or an error in its second place, in any thread."""
Start = Callable[[Done], object]
"""Starts some work with a callback for its end. It may return what gives the work up, and returns the outcome."""

_logger = logging.getLogger(__name__)
_SECOND = 1.0
GIVEN_UP = "the caller has given up"


def blocks() -> bool:
    """Returns whether this thread runs a call, so that what the call would await is waited for here."""
    return thread.runs > 0


def shared(key: object, make: Callable[[], T]) -> T:
    """Returns what was made before under this key in a run that takes the time of one call; else makes it."""
    if thread.shared is None:
        return make()
    if key not in thread.shared:
        thread.shared[key] = make()
    value: T = thread.shared[key]
    return value


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
        call.ends = min(before.ends, shared(self, self.next_end))
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

    def result(self, begin: Callable[[Done], object], late: str | None = None) -> Any:  # noqa: ANN401 - as begun
        """Starts something and waits for its result.

        Args:
            begin: Starts it. It gets the callback for the end, and may return a function that gives up and returns
                the outcome.
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
            raise StoreUnavailable(late or str(over), outcome=give_up() if callable(give_up) else "unknown") from over
        result, error = end
        try:
            if error is not None:
                raise error
            return result
        finally:
            end.clear()
            del error, give_up  # They have the error, which has this frame: a cycle would keep the request's body.


class InThread(Protocol):
    """Runs blocking work for a coroutine of one loop."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Runs it in a thread; returns its result."""


class GivenUp(StoreUnavailable):
    """The caller cancelled the call; ``outcome`` tells if it may have changed something."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("the store did not answer in time", outcome=outcome)


class LoopCalls:
    """Passes calls from threads to an event loop; one wake-up serves all that come until then."""

    __slots__ = ("_calls", "_waking", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._waking = False

    def __call__(self, call: Callable[..., object], *args: object) -> None:
        """Makes a call in the loop's thread."""
        self._calls.append((call, args))
        if not self._waking:
            try:
                self._waking = True
                self.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                _logger.debug("The event loop has ended; a call was dropped.")
            except BaseException:  # A signal's handler raised, perhaps before the loop was woken.
                self._waking = False
                raise

    def _drain(self) -> None:
        self._waking = False
        calls = self._calls
        while calls:
            call, args = calls.popleft()
            call(*args)


class Home:
    """What coroutines of one event loop use of other threads.

    Attributes:
        calls: The way into the loop's thread.
        in_thread: Runs blocking work for them.
    """

    __slots__ = ("__weakref__", "calls", "in_thread")
    _last: ClassVar[Home | None] = None
    """The one that was present last, in any thread: a service has only one."""

    def __init__(self, calls: LoopCalls, in_thread: InThread | None = None) -> None:
        self.calls = calls
        self.in_thread = in_thread or _in_default_thread

    @classmethod
    def present(cls) -> Home:
        """Returns that of the running loop."""
        loop, last = asyncio.get_running_loop(), cls._last
        if last is not None and last.calls.loop is loop:
            return last
        settled = _homes.get(loop)
        home = None if settled is None else settled()
        if home is None:
            return cls(LoopCalls(loop))
        cls._last = home
        return home

    def settle(self) -> None:
        """Is that of its loop from now on, for as long as somebody holds it."""
        _homes[self.calls.loop] = ref(self)
        Home._last = self

    def leave(self) -> None:
        """Is that of its loop no more."""
        if _homes.get(self.calls.loop) == ref(self):
            del _homes[self.calls.loop]
        if Home._last is self:
            Home._last = None


_homes: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Home]] = WeakKeyDictionary()


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work: in this thread if it may wait, else in one of those of the running loop's home."""
    return work() if blocks() else await Home.present().in_thread(work)


async def in_steps(items: Iterator[T]) -> AsyncIterator[T]:
    """Gives the items of an iterator that blocks, each made as :func:`in_thread` does."""
    end = object()
    try:
        while (item := await in_thread(partial(next, items, end))) is not end:
            yield cast("T", item)
    finally:
        if isinstance(items, Generator):
            await in_thread(items.close)


async def ended(
    start: Start, deadline: Deadline, late: str | None = None, *, long: bool = False, tells: bool = False
) -> Any:  # noqa: ANN401 - of the work
    """Starts some work and waits until it calls back; returns its result.

    Args:
        start: Starts it. It may return a function that gives the work up and returns the outcome.
        deadline: Bounds the wait of a thread; on a loop, the work ends by its own rules.
        late: The message of the error when that is over, by default that of :meth:`Deadline.left`.
        long: It may take as long as it does; each of its steps ends in time.
        tells: A caller that is cancelled gets :class:`GivenUp` with the outcome, and not ``CancelledError``.

    Raises:
        Exception: The one that it calls back with, or that ``start`` raises.
        StoreUnavailable: The thread's time is over, and the work was given up.
        GivenUp: The caller was cancelled, and the work was given up.
    """
    if thread.runs:  # As :func:`blocks`, which each post would pay for.
        present = None if deadline.call is NO_CALL else deadline.call  # Of which this is a part.
        with deadline.running(Call() if long else present):
            return deadline.result(start, late)
    end = _End(Home.present().calls)
    begun: object = None
    try:
        try:
            begun = start(end)
        except Exception as error:  # noqa: BLE001 - the caller gets it, unless the end has come before
            end.come(None, error)
        if not end.has_come:
            end.future = end.calls.loop.create_future()
            try:
                await end.future
            except asyncio.CancelledError:
                outcome: Outcome = begun() if callable(begun) else "unknown"
                if tells:
                    raise GivenUp(outcome) from None
                raise
        if end.error is not None:
            raise end.error
        return end.value
    finally:
        del end, begun  # They have the error, which has this frame: a cycle would keep the request's body.


class _End:
    """Callback for the end of some work, for any thread."""

    __slots__ = ("calls", "error", "future", "has_come", "value")

    def __init__(self, calls: LoopCalls) -> None:
        self.calls = calls
        self.future: asyncio.Future[None] | None = None
        self.has_come = False
        self.value: Any = None
        self.error: Exception | None = None

    def __call__(self, value: object, error: Exception | None) -> None:
        if asyncio._get_running_loop() is self.calls.loop:  # noqa: SLF001 - the quick form of get_running_loop
            self.come(value, error)
        else:
            self.calls(self.come, value, error)

    def come(self, value: object, error: Exception | None) -> None:
        """Sets the result, in the loop's thread; later results are ignored."""
        if not self.has_come:
            self.has_come = True
            self.value, self.error = value, error
            if self.future is not None and not self.future.done():
                self.future.set_result(None)


async def _in_default_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
