"""What claims need of the process that they run in: threads, timers, clocks and chance. Tests hand in others."""

from __future__ import annotations

import heapq
import itertools
import logging
import secrets
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from queuey import ids
from queuey.storage import Store

Done = Callable[[Any, Exception | None], None]
"""Called once, with a result or an error."""
THREADS = 8
"""For calls of a store that block. Appends hold none."""

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_logger = logging.getLogger(__name__)


class Runtime(ABC):
    """Where claims run."""

    @abstractmethod
    def now(self) -> int:
        """Returns the checked clock (milliseconds since 1970).

        Raises:
            StoreUnavailable: It cannot be trusted now.
        """

    @abstractmethod
    def boottime(self) -> float:
        """Returns seconds on a clock that goes on while the machine sleeps."""

    def boottime_at(self, when: int) -> float:
        """Returns what :meth:`boottime` was when some clock showed ``when`` (milliseconds since 1970); now at most.

        Raises:
            StoreUnavailable: The clock cannot be trusted now.
        """
        return self.boottime() - max(0, self.now() - when) / 1000

    @abstractmethod
    def submit(self, work: Callable[[], None]) -> None:
        """Runs some work soon, in another thread; it must not block."""

    @abstractmethod
    def later(self, seconds: float, work: Callable[[], None]) -> Callable[[], None]:
        """Runs some work after so many seconds; returns a function that cancels it."""

    @abstractmethod
    def block(self, work: Callable[[], Any], done: Done) -> None:
        """Runs work that may take long, and calls back with its result."""

    def token(self) -> int:
        """Returns a random number of 63 bits."""
        return secrets.randbits(63)

    def jitter(self) -> float:
        """Returns a random number from 0 to 1."""
        return secrets.randbelow(1000) / 1000


class ThreadRuntime(Runtime):
    """One thread that decides, a few for calls that block, and the store's clock. Threads start when they are needed.

    Decisions are short and hold the interpreter lock all the time: several threads would only wait for each other.

    Args:
        store: Whose clock counts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="queuey-claims-block")
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = threading.Lock()
        self._timers = Timers()

    def now(self) -> int:
        """See the base class."""
        return (self._store.claim_time() - ids.EPOCH_TICKS) // 10_000

    def boottime(self) -> float:
        """See the base class."""
        return time.clock_gettime(_BOOTTIME)

    def submit(self, work: Callable[[], None]) -> None:
        """See the base class."""
        self._work.put(work)
        if self._started.acquire(blocking=False):
            try:
                threading.Thread(target=_decide, args=(self._work,), name="queuey-claims", daemon=True).start()
            except RuntimeError:
                self._started.release()
                _note_missing()
            else:
                weakref.finalize(self, self._work.put, None)

    def later(self, seconds: float, work: Callable[[], None]) -> Callable[[], None]:
        """See the base class. It is done where submitted work is."""
        return self._timers.add(seconds, lambda: self.submit(work))

    def block(self, work: Callable[[], Any], done: Done) -> None:
        """See the base class. A thread of the pool does it."""
        try:
            self._pool.submit(_tell, work, done)
        except RuntimeError:
            _note_missing()


def _decide(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    """Does the work that comes until the runtime is gone."""
    while (work := queue.get()) is not None:
        _logged(work)
        del work  # It may be what keeps the runtime.


def _note_missing() -> None:
    """Notes that a thread could not be started; the work waits for one. It also happens when the process is ending."""
    if threading.main_thread().is_alive():
        _logger.error("no thread could be started for claims")


def _tell(work: Callable[[], Any], done: Done) -> None:
    """Does some work and calls back with its result."""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - the caller gets it
        done(None, error)
    else:
        done(result, None)


class Timers:
    """Calls functions after a while, from one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, list[Callable[[], None]]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, seconds: float, work: Callable[[], None]) -> Callable[[], None]:
        """Calls a quick function after so many seconds; returns a function that cancels it."""
        holder = [work]
        with self._changed:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), holder))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="queuey-claim-timers", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    _note_missing()
                else:
                    self._thread = thread
            self._changed.notify()
        return holder.clear

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > time.monotonic():
                    left = self._heap[0][0] - time.monotonic() if self._heap else None
                    self._changed.wait(None if left is None else max(0.0, left))
                holder = heapq.heappop(self._heap)[2]
            for work in holder[:]:
                _logged(work)


def _logged(work: Callable[[], None]) -> None:
    """Does some work in a thread, and logs its error, which would be lost otherwise."""
    try:
        work()
    except Exception:
        _logger.exception("a claim log has failed")
