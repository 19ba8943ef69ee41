"""Deadlines of store calls, and waiting for callbacks.

Every call of a contract runs under the store's :class:`Deadline`, however many steps it takes. Code that waits in the
same thread uses the remaining time::

    answered.wait(deadline.time_left())

Drivers call back in their own threads. :func:`start_and_wait` awaits the callback: on a loop by a future; in a thread
that runs the call by :mod:`.bridge`, by blocking.
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

from queuey.model.errors import Outcome, StoreUnavailable
from queuey.storage.bridge import service_loops, thread_state

T = TypeVar("T")
Done = Callable[[Any, Any], object]
"""A callback with two arguments, a result and an error or None. It is called once, in any thread."""
Start = Callable[[Done], object]
"""Starts work with a callback for its end. It may return a function that gives the work up and returns the outcome."""

_logger = logging.getLogger(__name__)
_MAX_WAIT_STEP = 1.0
GIVEN_UP_MESSAGE = "the caller has given up"


def share_in_run(key: object, make: Callable[[], T]) -> T:
    """Returns the value that the present run with ``as_one`` shares under a key. Makes it if it does not exist.

    Outside such a run, makes a value for each call.
    """
    if thread_state.shared is None:
        return make()
    if key not in thread_state.shared:
        thread_state.shared[key] = make()
    value: T = thread_state.shared[key]
    return value


class StoreCall:
    """One call of a store.

    Attributes:
        ends: When the call must have ended (seconds of the deadline's clock).
        wrote: The call has sent a change or is about to: its outcome may be unknown.
        is_preparing: Changes sent now have no effect that a caller can notice.
        is_given_up: The caller no longer waits.
    """

    # Class attributes as defaults, because every call creates an instance.
    ends = math.inf
    wrote = False
    is_preparing = False
    is_given_up = False

    def give_up(self) -> Outcome:
        """Marks the call as given up, so that it does not start to send changes. Returns its outcome."""
        self.is_given_up = True
        return "unknown" if self.wrote else "none"


NO_CALL = StoreCall()
"""Stands for work outside a call, which has no deadline."""


class Deadline(threading.local):
    """The deadline of the call that runs in this thread.

    Args:
        seconds: Max duration of each call.
        clock: Monotonic clock (seconds).

    Attributes:
        call: The call that runs in this thread.
    """

    call = NO_CALL

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self.clock = clock

    def begin(self) -> StoreCall:
        """Begins a call in this thread. A nested call has at most the time of the outer one.

        Returns:
            The argument for :meth:`end`.
        """
        before = self.call
        call = self.call = StoreCall()
        call.ends = min(before.ends, share_in_run(self, self.next_end))
        call.wrote = before.wrote
        return before

    def end(self, outer_call: StoreCall) -> None:
        self.call = outer_call

    @contextmanager
    def running(self, call: StoreCall | None = None) -> Iterator[None]:
        """Runs a block as a call with a deadline. If ``call`` is given, its deadline and marks apply."""
        before = self.begin()
        self.call = call or self.call
        try:
            yield
        finally:
            self.end(before)

    def next_end(self) -> float:
        return self.clock() + self._seconds

    def time_left(self, max_seconds: float = threading.TIMEOUT_MAX) -> float:
        """Returns the remaining time of the call in seconds, at most ``max_seconds``.

        Raises:
            StoreUnavailable: No time is left. The outcome is ``unknown`` if the call has :meth:`mark_sent` a change.
        """
        call = self.call
        if call.ends == math.inf:
            return max_seconds
        remaining = call.ends - self.clock()
        if remaining <= 0:
            message = f"the call took longer than its deadline of {self._seconds:g} s"
            raise StoreUnavailable(message, outcome="unknown" if call.wrote else "none")
        return min(remaining, max_seconds)

    def mark_sent(self) -> None:
        """Marks that the call is about to send a change: from now on its outcome may be unknown.

        Raises:
            StoreUnavailable: The call was given up before its first change.
        """
        call = self.call
        if call is NO_CALL or call.is_preparing or call.wrote:
            return
        call.wrote = True  # Set before the check, for a thread that gives the call up now.
        if call.is_given_up:
            call.wrote = False  # So that the next change is refused as well.
            raise StoreUnavailable(GIVEN_UP_MESSAGE)

    @contextmanager
    def without_marking_sent(self) -> Iterator[None]:
        """Runs a block of changes that have no noticeable effect until another change is sent."""
        call = self.call
        before, call.is_preparing = call.is_preparing, True
        try:
            yield
        finally:
            call.is_preparing = before

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Runs a block that prepares a write, :meth:`without_marking_sent`. If the block fails, nothing was written.

        Raises:
            StoreUnavailable: The error of the block, with outcome ``none`` unless a change was marked before
                (:meth:`mark_sent`).
        """
        call = self.call
        try:
            with self.without_marking_sent():
                yield
        except StoreUnavailable as error:
            if not call.wrote:
                error.outcome = "none"
            raise

    def wait(self, acquire: Callable[..., bool]) -> None:
        """Waits for a lock, an event or a semaphore.

        Args:
            acquire: A method with the argument ``timeout`` that returns whether it succeeded.

        Raises:
            StoreUnavailable: No time is left; see :meth:`time_left`.
        """
        while not acquire(timeout=self.time_left(_MAX_WAIT_STEP)):
            pass

    def result(self, begin: Callable[[Done], object], late_message: str | None = None) -> Any:  # noqa: ANN401 - as begun
        """Starts work and blocks until its result is there.

        Args:
            begin: Starts the work; see ``Start``.
            late_message: Error message when no time is left; by default the message of :meth:`time_left`.

        Raises:
            StoreUnavailable: No time is left. The work was not started, or was given up.
            Exception: The error of the work.
        """
        self.time_left()  # Work started too late could be carried out before it is given up.
        answered = threading.Lock()  # Released by the callback; half the cost of an event.
        answered.acquire()
        end: list[Any] = [None, None]

        def done(result: object, error: Exception | None) -> None:
            end[:] = result, error
            answered.release()

        give_up = begin(done)
        try:
            self.wait(answered.acquire)
        except StoreUnavailable as over:
            raise StoreUnavailable(
                late_message or str(over), outcome=give_up() if callable(give_up) else "unknown"
            ) from over
        result, error = end
        try:
            if error is not None:
                raise error
            return result
        finally:
            end.clear()
            del error, give_up  # The error's traceback has this frame: the cycle would keep the request's body alive.


class InThread(Protocol):
    """Runs blocking work in a thread, for coroutines of one loop."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class GivenUp(StoreUnavailable):
    """The caller cancelled the call; ``outcome`` says whether it may have changed something."""

    code = "StoreUnavailable"

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("the store did not answer in time", outcome=outcome)


class LoopCalls:
    """Passes function calls from threads to an event loop. Calls made until the loop wakes up share one wake-up."""

    __slots__ = ("_calls", "_waking", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._waking = False

    def __call__(self, call: Callable[..., object], *args: object) -> None:
        self._calls.append((call, args))
        if not self._waking:
            try:
                self._waking = True
                self.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                _logger.debug("The event loop has ended; a call was dropped.")
            except BaseException:  # A signal handler raised, perhaps before the loop was woken.
                self._waking = False
                raise

    def _drain(self) -> None:
        self._waking = False
        calls = self._calls
        while calls:
            call, args = calls.popleft()
            try:
                call(*args)
            except BaseException:
                if calls:
                    self._waking = True
                    self.loop.call_soon(self._drain)
                raise


class Home:
    """Connects the coroutines of one event loop with other threads.

    Attributes:
        calls: Passes function calls to the loop's thread.
        in_thread: Runs blocking work for the loop's coroutines.
    """

    __slots__ = ("__weakref__", "calls", "in_thread")
    _last: ClassVar[Home | None] = None
    """Cache of the last result of :meth:`for_running_loop` in any thread, because a service has only one loop."""

    def __init__(self, calls: LoopCalls, in_thread: InThread | None = None) -> None:
        self.calls = calls
        self.in_thread = in_thread or _in_default_thread

    @classmethod
    def for_running_loop(cls) -> Home:
        loop, last = asyncio.get_running_loop(), cls._last
        if last is not None and last.calls.loop is loop:
            return last
        reference = _homes.get(loop)
        home = None if reference is None else reference()
        if home is None:
            return cls(LoopCalls(loop))
        cls._last = home
        return home

    def register(self) -> None:
        """Registers this home for its loop. The registry keeps only a weak reference."""
        _homes[self.calls.loop] = ref(self)
        service_loops.add(self.calls.loop)
        Home._last = self

    def unregister(self) -> None:
        if _homes.get(self.calls.loop) == ref(self):
            del _homes[self.calls.loop]
            service_loops.discard(self.calls.loop)
        if Home._last is self:
            Home._last = None


_homes: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Home]] = WeakKeyDictionary()


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work: in this thread if the bridge runs the call, else in a thread of the running loop's home."""
    return work() if thread_state.may_block else await Home.for_running_loop().in_thread(work)


async def iterate_in_thread(items: Iterator[T]) -> AsyncIterator[T]:
    """Yields a blocking iterator's items, each made in a thread. Closes a generator at the end."""
    end = object()
    try:
        while (item := await in_thread(partial(next, items, end))) is not end:
            yield cast("T", item)
    finally:
        if isinstance(items, Generator):
            await in_thread(items.close)


async def start_and_wait(
    start: Start,
    deadline: Deadline,
    late_message: str | None = None,
    *,
    long: bool = False,
    raise_given_up: bool = False,
) -> Any:  # noqa: ANN401 - of the work
    """Starts work and waits until it calls back. Returns its result.

    Args:
        start: Starts the work; see ``Start``.
        deadline: Bounds the wait of a thread. On a loop the work bounds its own time.
        late_message: Error message when no time is left; by default the message of :meth:`Deadline.time_left`.
        long: The work as a whole has no deadline; each of its steps has.
        raise_given_up: If the caller is cancelled, raise :class:`GivenUp` with the outcome, not ``CancelledError``.

    Raises:
        Exception: The error that the work calls back with, or that ``start`` raises.
        StoreUnavailable: No time is left in a thread, and the work was given up.
        GivenUp: The caller was cancelled, and the work was given up.
    """
    if thread_state.may_block:
        present = None if deadline.call is NO_CALL else deadline.call  # Of which this is a part.
        with deadline.running(StoreCall() if long else present):
            return deadline.result(start, late_message)
    end = _Callback(Home.for_running_loop().calls)
    begun: object = None
    try:
        try:
            begun = start(end)
        except Exception as error:  # noqa: BLE001 - raised below, unless the callback came first
            end.resolve(None, error)
        if not end.is_resolved:
            end.future = end.calls.loop.create_future()
            try:
                await end.future
            except asyncio.CancelledError:
                outcome: Outcome = begun() if callable(begun) else "unknown"
                if raise_given_up:
                    raise GivenUp(outcome) from None
                raise
        if end.error is not None:
            raise end.error
        return end.value
    finally:
        del end, begun  # The error's traceback has this frame: the cycle would keep the request's body alive.


class _Callback:
    """Callback for the end of work. It may be called in any thread."""

    __slots__ = ("calls", "error", "future", "is_resolved", "value")

    def __init__(self, calls: LoopCalls) -> None:
        self.calls = calls
        self.future: asyncio.Future[None] | None = None
        self.is_resolved = False
        self.value: Any = None
        self.error: Exception | None = None

    def __call__(self, value: object, error: Exception | None) -> None:
        if asyncio._get_running_loop() is self.calls.loop:  # noqa: SLF001 - the quick form of get_running_loop
            self.resolve(value, error)
        else:
            self.calls(self.resolve, value, error)

    def resolve(self, value: object, error: Exception | None) -> None:
        if not self.is_resolved:
            self.is_resolved = True
            self.value, self.error = value, error
            if self.future is not None and not self.future.done():
                self.future.set_result(None)


async def _in_default_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
