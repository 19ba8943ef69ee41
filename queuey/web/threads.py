"""What requests wait for: threads that do what would block the event loop, and memory; shared between applications."""

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

    def __init__(self, holder: str, work: Callable[[], Any], weight: int, future: asyncio.Future[Any]) -> None:
        self.holder = holder
        self.weight = weight
        self.work = work
        self.future = future
        self.began = monotonic()


class Pool:
    """Threads with a queue before them.

    The loop chooses by turns who is next and keeps a few jobs ready, so that no thread has to wait for it. (Threads
    that choose for themselves would need a lock, and one that is interrupted while it has it stops all the others.)
    One application alone may keep all threads busy. There is one more, for the first job of each other one.
    """

    def __init__(self, name: str, count: int, memory: Room) -> None:
        """Prepares; the threads start with :meth:`start`.

        Args:
            name: Of the threads.
            count: Of threads that one holder alone may use.
            memory: What a job's weight is taken from.
        """
        self._memory = memory
        self._name = name
        self._count = count
        # As many jobs as there are threads may be under way, and as many ready.
        self._hand = Room(2 * count + 2, alpha=count)
        self._turns: Turns[Job] = Turns()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._first: SimpleQueue[Job | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop
        self._tell: Calls

    def start(self, loop: asyncio.AbstractEventLoop, tell: Calls) -> None:
        """Starts the threads."""
        self._loop = loop
        self._tell = tell
        for number in range(self._count + 1):
            jobs = self._jobs if number else self._first
            threading.Thread(target=self._serve, args=(jobs,), name=f"{self._name}-{number}", daemon=True).start()

    def stop(self) -> None:
        """Ends the threads when they have done what they were given."""
        self._first.put(None)
        for _ in range(self._count):
            self._jobs.put(None)

    async def run(self, holder: str, work: Callable[[], T], weight: int = 0) -> T:
        """Has a thread do some work; returns its result.

        Args:
            holder: Whom it counts for.
            work: What to do.
            weight: Bytes that its result may have. When this returns they are still held, and the caller gives them
                back; when it raises they are not.

        Raises:
            TooManyRequests, StoreUnavailable: There was no thread or no room for it in time.
        """
        job = Job(holder, work, weight, self._loop.create_future())
        self._turns.put(holder, job)
        self.dispatch()
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            if not job.future.cancelled() and job.future.exception() is None:
                self._memory.change(holder, -weight)
            raise
        return result

    def give_up_late(self, seconds: float) -> None:
        """Refuses jobs that have waited for so long. Is called every second."""
        late = monotonic() - seconds
        for holder, job in self._turns.drop(lambda job: job.began < late):
            lacking = self._hand if self._memory.fits(holder, job.weight) else self._memory
            _settle(job.future, None, lacking.refusal(holder, job.weight if lacking is self._memory else 1))
        self._turns.forget()

    def _fits(self, holder: str, job: Job) -> bool:
        return self._hand.fits(holder, 1) and (not job.weight or self._memory.fits(holder, job.weight))

    def dispatch(self) -> None:
        """Hands out jobs that may begin. Is called when something has become free."""
        while self._turns and (job := self._turns.take(self._fits)) is not None:
            if job.future.done():
                continue
            busy = self._hand.total - self._hand.free >= self._count
            first = busy and not self._hand.held(job.holder)
            self._hand.change(job.holder, 1)
            self._memory.change(job.holder, job.weight)
            (self._first if first else self._jobs).put(job)

    def _serve(self, jobs: SimpleQueue[Job | None]) -> None:
        """Is one of the threads."""
        while (job := jobs.get()) is not None:
            began = monotonic()
            try:
                result: Any = job.work()
                error: Exception | None = None
            except Exception as failure:  # noqa: BLE001 - whoever waits gets it
                result, error = None, failure
            self._tell(self._finish, job, monotonic() - began, result, error)
            del job, result, error

    def _finish(self, job: Job, seconds: float, result: object, error: Exception | None) -> None:
        self._hand.change(job.holder, -1)
        self._turns.charge(job.holder, seconds)
        if job.future.done() or error is not None:
            self._memory.change(job.holder, -job.weight)
        _settle(job.future, result, error)
        self.dispatch()


class Memory:
    """Room for bodies and answers, and a queue before it. Used in the loop's thread alone."""

    def __init__(self, room: Room, freed: Callable[[], None]) -> None:
        """Prepares.

        Args:
            room: All there is.
            freed: Called when some of it has become free: others may wait for it elsewhere.
        """
        self.room = room
        self._freed = freed
        self._turns: Turns[tuple[int, float, asyncio.Future[None]]] = Turns()

    async def admit(self, holder: str, weight: int, loop: asyncio.AbstractEventLoop) -> None:
        """Waits until there is room and takes it.

        Raises:
            TooManyRequests, StoreUnavailable: There was none in time.
        """
        if not self._turns and self.room.take(holder, weight):
            return
        future: asyncio.Future[None] = loop.create_future()
        self._turns.put(holder, (weight, monotonic(), future))
        self.dispatch()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self.change(holder, -weight)
            raise

    def change(self, holder: str, difference: int) -> None:
        """Notes that a holder has more or less than before; whoever waits gets what has become free."""
        self.room.change(holder, difference)
        if difference < 0:
            self._freed()
            if self._turns:
                self.dispatch()

    def dispatch(self) -> None:
        """Lets in whoever fits, by turns."""
        while (found := self._turns.take_with_holder(lambda holder, job: self.room.fits(holder, job[0]))) is not None:
            holder, (weight, _, future) = found
            if not future.done():
                self.room.change(holder, weight)
                self._turns.charge(holder, weight)
                future.set_result(None)

    def give_up_late(self, seconds: float) -> None:
        """Refuses those that have waited for so long. Is called every second."""
        late = monotonic() - seconds
        for holder, (weight, _, future) in self._turns.drop(lambda job: job[1] < late):
            _settle(future, None, self.room.refusal(holder, weight))
        self._turns.forget()


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Gives whoever waits the result or the error, if somebody still waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
