"""Threads that do what would block the event loop, shared between applications."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from queuey.web.shares import Room, Turns

log = logging.getLogger(__name__)

T = TypeVar("T")


class Calls:
    """Calls that threads hand over to the event loop; one wake serves all that come until then."""

    __slots__ = ("_calls", "_loop", "_waking")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._waking = False

    def __call__(self, call: Callable[..., None], *args: object) -> None:
        """Has the loop make a call."""
        self._calls.append((call, args))
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                log.debug("The loop has ended; nobody waits for the answer any more.")

    def _drain(self) -> None:
        self._waking = False
        calls = self._calls
        while calls:
            call, args = calls.popleft()
            call(*args)


class Job:
    """Some work, and whom to tell of its end."""

    __slots__ = ("began", "future", "holder", "weight", "work")

    def __init__(self, holder: str, work: Callable[[], Any] | None, weight: int, future: asyncio.Future[Any]) -> None:
        self.holder = holder
        self.work = work
        self.weight = weight
        self.future = future
        self.began = monotonic()


class Pool:
    """Threads with a queue before them.

    One application alone may use ``count`` threads; there is one more, for whoever comes then. A job that needs memory
    waits until there is room for it.
    """

    def __init__(self, name: str, count: int, memory: Room) -> None:
        """Prepares; the threads start with :meth:`start`.

        Args:
            name: Of the threads.
            count: Of threads that one holder alone may use.
            memory: What a job's weight is taken from.
        """
        self._name = name
        self._threads = Room(count + 1, alpha=count)
        self._memory = memory
        self._turns: Turns[Job] = Turns()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop
        self._tell: Calls

    def start(self, loop: asyncio.AbstractEventLoop, tell: Calls) -> None:
        """Starts the threads."""
        self._loop = loop
        self._tell = tell
        for number in range(self._threads.total):
            threading.Thread(target=self._serve, name=f"{self._name}-{number}", daemon=True).start()

    def stop(self) -> None:
        """Ends the threads when they have done what they were given."""
        for _ in range(self._threads.total):
            self._jobs.put(None)

    async def run(self, holder: str, work: Callable[[], T], weight: int = 0) -> T:
        """Has a thread do some work; returns its result.

        Args:
            holder: Whom it counts for.
            work: What to do.
            weight: Bytes that it may need. When this returns they are still held, and the caller gives them back;
                when it raises they are not.

        Raises:
            TooManyRequests, StoreUnavailable: There was no thread and no room for it in time.
        """
        result: T = await self._turn(Job(holder, work, weight, self._loop.create_future()))
        return result

    async def admit(self, holder: str, weight: int) -> None:
        """Waits for memory alone; the caller gives it back.

        Raises:
            TooManyRequests, StoreUnavailable: There was no room for it in time.
        """
        if self._turns or not self._memory.take(holder, weight):
            await self._turn(Job(holder, None, weight, self._loop.create_future()))

    async def _turn(self, job: Job) -> Any:  # noqa: ANN401 - what the work gives
        self._turns.put(job.holder, job)
        self.dispatch()
        try:
            return await job.future
        except asyncio.CancelledError:
            if not job.future.cancelled() and job.future.exception() is None:
                self._memory.change(job.holder, -job.weight)
            raise

    def dispatch(self) -> None:
        """Hands jobs to threads that are free. Is called when something has become free."""
        while self._turns and (job := self._turns.take(self._fits)) is not None:
            if job.future.done():
                continue
            self._memory.change(job.holder, job.weight)
            if job.work is None:
                job.future.set_result(None)
                continue
            self._threads.change(job.holder, 1)
            job.began = monotonic()
            self._jobs.put(job)

    def give_up_late(self, deadline: float) -> None:
        """Refuses jobs that have waited for so many seconds. Is called every second."""
        late = monotonic() - deadline
        for holder, job in self._turns.drop(lambda job: job.began < late):
            if not job.future.done():
                error = self._memory if not self._memory.fits(holder, job.weight) else self._threads
                job.future.set_exception(error.refusal(holder, job.weight if error is self._memory else 1))
        self._turns.forget()

    def _fits(self, holder: str, job: Job) -> bool:
        return (job.work is None or self._threads.fits(holder, 1)) and (
            not job.weight or self._memory.fits(holder, job.weight)
        )

    def _serve(self) -> None:
        """Is one of the threads."""
        while (job := self._jobs.get()) is not None:
            try:
                result, error = job.work(), None  # type: ignore[misc] # those without work get no thread
            except BaseException as failure:  # noqa: BLE001 - whoever waits gets it
                result, error = None, failure
            self._tell(self._finish, job, result, error)
            del job, result, error

    def _finish(self, job: Job, result: object, error: BaseException | None) -> None:
        self._threads.change(job.holder, -1)
        self._turns.charge(job.holder, monotonic() - job.began)
        if job.future.done() or error is not None:
            self._memory.change(job.holder, -job.weight)
        if not job.future.done():
            if error is not None:
                job.future.set_exception(error)
            else:
                job.future.set_result(result)
        self.dispatch()
