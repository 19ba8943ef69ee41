"""What requests wait for, shared between applications: the event loop's time, and threads for what would block it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeVar

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


class Crowd:
    """Tells whether more than one holder asks for something at about the same moment.

    While that is so, threads hand the interpreter over sooner: one that computes for a holder otherwise keeps the loop,
    and each statement of the writer, waiting for 5 ms. (That costs all threads together some of their speed.)
    """

    LASTS = 0.1
    """Seconds for which two holders whose requests follow each other are several."""
    PROMPT = 0.0001
    """Seconds after which a thread hands the interpreter over while there are several holders."""

    __slots__ = ("_alone", "_changed", "_loop", "_until", "last", "several")

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """Begins with nobody.

        Args:
            loop: Tells when the time is over.
            changed: Is called when there are several no more: what has waited for that may go on.
        """
        self._loop = loop
        self._changed = changed
        self._alone = sys.getswitchinterval()
        self._until = 0.0
        self.several = False
        self.last: str | None = None

    def saw(self, holder: str) -> None:
        """Notes a request. One by the same holder as the ``last`` changes nothing."""
        if self.last not in (holder, None):
            self._until = monotonic() + self.LASTS
            if not self.several:
                self.several = True
                sys.setswitchinterval(self.PROMPT)
                self._loop.call_later(self.LASTS, self._look)
        self.last = holder

    def _look(self) -> None:
        left = self._until - monotonic()
        if left > 0:
            self._loop.call_later(left, self._look)
            return
        self.several = False
        sys.setswitchinterval(self._alone)
        self._changed()


class _Entry(NamedTuple):
    """A request that waits for the loop's time."""

    weight: int
    began: float
    future: asyncio.Future[None]


class LoopTime:
    """The time of the event loop's thread, in which short requests are handled whole.

    While one holder alone asks, its requests run as they come, and nobody calls this. Where there are several, each
    waits in its holder's queue, and a turn of the loop begins a few: those of whoever has used least. Of one holder no
    more are under way than a writer's group should have of it, so that the groups that others wait for are short.

    The pieces of long answers have half of each turn, by turns as well: they wait behind each other, not behind new
    requests, and are never refused.
    """

    TURN = 0.0004
    """Seconds that the requests begun in a turn of the loop take, by what their holders' last ones took."""
    BEGUN = 8
    """Requests that a turn begins at most."""
    PIECES = 2
    """Pieces of answers that a turn lets go on."""
    UNIT = 8192
    """Bytes of a body that add one to the weight of a request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, under_way: int = 32) -> None:
        """Prepares.

        Args:
            loop: Whose time it is.
            under_way: Weight of one holder's requests under way, while there are several holders.
        """
        self._loop = loop
        self._turns: Turns[_Entry] = Turns()
        self._pieces: Turns[asyncio.Future[None]] = Turns()
        self._most = under_way
        self._under_way = Room(sys.maxsize, alpha=1)
        self._took: dict[str, float] = {}
        self._called = False

    async def enter(self, holder: str, size: int) -> int:
        """Waits for the request's turn; returns its weight, for :meth:`leave`.

        Args:
            holder: Whom it counts for.
            size: Bytes of its body.

        Raises:
            TooManyRequests: Its turn did not come in time.
        """
        weight = 1 + size // self.UNIT
        future: asyncio.Future[None] = self._loop.create_future()
        self._turns.put(holder, _Entry(weight, monotonic(), future))
        self._call()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self.leave(holder, weight)
            raise
        return weight

    def leave(self, holder: str, weight: int, seconds: float = 0.0) -> None:
        """Notes that a request has ended, having used so much of the thread's time."""
        self._under_way.change(holder, -weight)
        if seconds:
            self.charge(holder, seconds)
            self._took[holder] = seconds
        self._call()

    def charge(self, holder: str, seconds: float) -> None:
        """Notes time of the thread that a holder has used, for an answer."""
        self._turns.charge(holder, seconds)

    async def pause(self, holder: str) -> None:
        """Waits for the turn of another piece of an answer."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._pieces.put(holder, future)
        self._call()
        await future

    def give_up_late(self, seconds: float) -> None:
        """Refuses requests that have waited for so long. Is called every second."""
        late = monotonic() - seconds
        for holder, entry in self._turns.drop(lambda entry: entry.began < late):
            _settle(entry.future, None, self._under_way.refusal(holder, entry.weight))
        self._turns.forget()
        self._pieces.forget()
        self._took.clear()

    def _call(self) -> None:
        if not self._called and (self._turns or self._pieces):
            self._called = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begins some requests; the next turn of the loop, which has handled them, begins the next."""
        self._called = False
        if self._begin_pieces() + self._begin_requests():
            self._call()

    def _begin_pieces(self) -> int:
        begun = 0
        while begun < self.PIECES and (found := self._pieces.take_with_holder(lambda _holder, _future: True)):
            holder, future = found
            if not future.done():
                self._pieces.charge(holder, 1)
                future.set_result(None)
                begun += 1
        return begun

    def _begin_requests(self) -> int:
        begun = 0
        seconds = 0.0
        while begun < self.BEGUN and seconds < self.TURN and (found := self._turns.take_with_holder(self._fits)):
            holder, entry = found
            if not entry.future.done():
                self._under_way.change(holder, entry.weight)
                entry.future.set_result(None)
                begun += 1
                seconds += self._took.get(holder, 0.0)
        return begun

    def _fits(self, holder: str, entry: _Entry) -> bool:
        held = self._under_way.held(holder)
        return not held or held + entry.weight <= self._most


class Job:
    """Some work, and whom to tell of its end."""

    __slots__ = ("began", "computes", "future", "holder", "weight", "work")

    def __init__(
        self, holder: str, work: Callable[[], Any], weight: int, future: asyncio.Future[Any], *, computes: bool
    ) -> None:
        self.holder = holder
        self.weight = weight
        self.computes = computes
        self.work = work
        self.future = future
        self.began = monotonic()


class Pool:
    """Threads with a queue before them.

    The loop chooses by turns who is next and keeps a few jobs ready, so that no thread has to wait for it. (Threads
    that choose for themselves would need a lock, and one that is interrupted while it has it stops all the others.)
    One application alone may keep all threads busy. There is one more, for the first job of each other one.
    """

    def __init__(self, name: str, count: int, memory: Room, computing: Callable[[], bool] = lambda: False) -> None:
        """Prepares; the threads start with :meth:`start`.

        Args:
            name: Of the threads.
            count: Of threads that one holder alone may use.
            memory: What a job's weight is taken from.
            computing: Tells whether of jobs that compute, and so keep the event loop from running, each holder should
                have one now.
        """
        self._computing = computing
        self._memory = memory
        self._name = name
        self._count = count
        # As many jobs as there are threads may be under way, and as many ready.
        self._hand = Room(2 * count + 2, alpha=count)
        self._turns: Turns[Job] = Turns()
        self._making: Counter[str] = Counter()
        self._extra: Job | None = None
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

    async def run(self, holder: str, work: Callable[[], T], weight: int = 0, *, computes: bool = False) -> T:
        """Has a thread do some work; returns its result.

        Args:
            holder: Whom it counts for.
            work: What to do.
            weight: Bytes that its result may have. When this returns they are still held, and the caller gives them
                back; when it raises they are not.
            computes: It needs the interpreter most of the time, and does not wait for the store's writer.

        Raises:
            TooManyRequests, StoreUnavailable: There was no thread or no room for it in time.
        """
        job = Job(holder, work, weight, self._loop.create_future(), computes=computes)
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
        if job.computes and holder in self._making and self._computing():
            return False
        if job.weight and not self._memory.fits(holder, job.weight):
            return False
        return self._hand.fits(holder, 1)

    def dispatch(self) -> None:
        """Hands out jobs that may begin. Is called when something has become free."""
        while self._turns and (job := self._turns.take(self._fits)) is not None:
            if job.future.done():
                continue
            busy = self._hand.total - self._hand.free >= self._count
            first = busy and self._extra is None and not self._hand.held(job.holder)
            self._hand.change(job.holder, 1)
            self._memory.change(job.holder, job.weight)
            if job.computes:
                self._making[job.holder] += 1
            if first:
                self._extra = job
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
        if job.computes:
            self._making -= Counter((job.holder,))
        if job is self._extra:
            self._extra = None
        self._turns.charge(job.holder, seconds)
        if job.future.done() or error is not None:
            self._memory.change(job.holder, -job.weight)
        _settle(job.future, result, error)
        self.dispatch()


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Gives whoever waits the result or the error, if somebody still waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
