"""Fair sharing between applications: memory, threads, places for long polls, and the event loop's time.

A tenant is what a request counts for: an application, or all callers without a valid credential together. No share is
reserved, so one tenant alone gets nearly everything; but no tenant can take so much that others wait long.

* :class:`SharedQuota` limits what is held for a while: bytes, places. A tenant may take more as long as it holds no
  more than a multiple of what is then left ("dynamic threshold", Choudhury and Hahne 1998, made for the shared memory
  of switches). So something is always left for the next tenant.
* :class:`FairQueue` orders what waits: the tenant that has used least is next, measured in seconds of work or in bytes.
  Many or long jobs of one tenant delay its own jobs and not those of others.
* :class:`LoopScheduler` and :class:`FairPool` use both, for the event loop's time and for threads.
  :class:`Contention` shows whether several tenants ask at the same moment.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache
from heapq import heappop, heappush
from ipaddress import IPv6Address
from queue import SimpleQueue
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from queuey.errors import QueueyError, StoreUnavailable, TooManyRequests

log = logging.getLogger(__name__)

ANONYMOUS = ""
"""The tenant that all callers without a credential are together."""
T = TypeVar("T")


@lru_cache(1024)
def counted_as(address: str) -> str:
    """Returns the name under which an address is limited: an IPv6 address as its /64, which belongs to one caller."""
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return found.exploded[:19] if found.ipv4_mapped is None else str(found.ipv4_mapped)


def stranger(address: str) -> str:
    """Returns the tenant for which an address has its credentials and signatures checked.

    Nobody is kept waiting by the wrong ones of other addresses, and they use up nothing of the caller that they name.
    """
    return f"stranger {counted_as(address)}"


class SharedQuota:
    """A quantity that tenants share."""

    __slots__ = ("_alpha", "_free", "_held", "total")

    def __init__(self, total: int, alpha: int) -> None:
        """Makes a quota that is all free.

        Args:
            total: How much there is.
            alpha: A tenant may hold so many times what is left. With 2, one alone may take 2/3, two of them 2/5 each.
        """
        self.total = total
        self._alpha = alpha
        self._free = total
        self._held: dict[str, int] = {}

    @property
    def free(self) -> int:
        """Quantity that no tenant holds; negative if a :meth:`change`, which is never refused, took more."""
        return self._free

    def held(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def fits(self, tenant: str, weight: int) -> bool:
        """Returns whether :meth:`take` would succeed. A tenant of nothing may take all that is left."""
        left = self._free - weight
        held = self._held.get(tenant, 0)
        return left >= 0 and (not held or held + weight <= self._alpha * left)

    def take(self, tenant: str, weight: int) -> bool:
        """Gives a tenant more, if that is within its share."""
        fits = self.fits(tenant, weight)
        if fits:
            self.change(tenant, weight)
        return fits

    def change(self, tenant: str, difference: int) -> None:
        """Notes that a tenant has more or less than before; it is not asked whether it fits."""
        self._free -= difference
        held = self._held.get(tenant, 0) + difference
        if held:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)

    def refusal(self, tenant: str, weight: int) -> QueueyError:
        """Returns the error of what did not fit: the tenant's own doing if it has most, or that of all."""
        if weight <= self._free or 2 * self.held(tenant) > self.total - self._free:
            return TooManyRequests("Too many requests of this application at the same moment; try again.")
        return StoreUnavailable("too many large requests at the same moment")


class FairQueue(Generic[T]):
    """Waiting jobs, in the order of each tenant; the tenant that has used least is next.

    To take a job costs no more with thousands of tenants, but for those whose first job does not fit.
    """

    __slots__ = ("_jobs", "_now", "_numbers", "_order", "_used")

    def __init__(self) -> None:
        self._jobs: dict[str, deque[T]] = {}
        self._numbers = itertools.count()
        # A heap of (used, number, tenant, jobs). A tenant that has been charged since has used more than it says.
        self._order: list[tuple[float, int, str, deque[T]]] = []
        self._used: dict[str, float] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, tenant: str, job: T) -> None:
        """Adds a job. A tenant that was idle gets no credit for it: it begins level with the other tenants."""
        jobs = self._jobs.get(tenant)
        if jobs is None:
            jobs = self._jobs[tenant] = deque()
            self._used[tenant] = max(self._used.get(tenant, 0.0), self._now)
            self._line_up(tenant, jobs)
        jobs.append(job)

    def _line_up(self, tenant: str, jobs: deque[T]) -> None:
        heappush(self._order, (self._used[tenant], next(self._numbers), tenant, jobs))

    def take(self, fits: Callable[[str, T], bool]) -> T | None:
        """Removes the next job: of the tenants whose first job fits, that of the one that has used least."""
        found = self.take_with_tenant(fits)
        return None if found is None else found[1]

    def take_with_tenant(self, fits: Callable[[str, T], bool]) -> tuple[str, T] | None:
        """:meth:`take` with the job's tenant."""
        found: tuple[str, T] | None = None
        passed_over: list[tuple[float, int, str, deque[T]]] = []
        while self._order and found is None:
            entry = heappop(self._order)
            used, _, tenant, jobs = entry
            if self._jobs.get(tenant) is not jobs:
                continue  # They were dropped.
            if used < self._used[tenant]:
                self._line_up(tenant, jobs)
            elif fits(tenant, jobs[0]):
                self._now = max(self._now, used)
                found = tenant, jobs.popleft()
                if jobs:
                    self._line_up(tenant, jobs)
                else:
                    del self._jobs[tenant]
            else:
                passed_over.append(entry)
        for entry in passed_over:
            heappush(self._order, entry)
        return found

    def drop(self, unwanted: Callable[[T], bool]) -> list[tuple[str, T]]:
        """Removes and returns abandoned jobs at the front of each tenant's queue."""
        dropped: list[tuple[str, T]] = []
        for tenant, jobs in list(self._jobs.items()):
            while jobs and unwanted(jobs[0]):
                dropped.append((tenant, jobs.popleft()))
            if not jobs:
                del self._jobs[tenant]
        return dropped

    def charge(self, tenant: str, amount: float) -> None:
        """Notes what a job has used, in the unit of this queue."""
        self._used[tenant] = max(self._used.get(tenant, 0.0), self._now) + amount

    def forget(self) -> None:
        """Forgets tenants that are level with the other tenants again. Called now and then."""
        for tenant in [tenant for tenant, used in self._used.items() if used <= self._now]:
            if tenant not in self._jobs:
                del self._used[tenant]


class Contention:
    """Shows whether several tenants are present.

    A tenant is present while one of its requests waits or runs, and for a moment afterwards: a caller with a single
    connection is present between its requests as well. A long poll that sleeps, and a body that is on its way, do not
    count.

    While there are several, threads hand the interpreter over sooner: one that computes for a tenant otherwise keeps
    the loop, and each statement of the writer, waiting for 5 ms. (That costs all threads together some of their speed.)
    """

    LASTS = 0.1
    """Interval for which a tenant counts as present after its last request, in seconds."""
    PROMPT = 0.0001
    """Interval of switching threads while several tenants are present, in seconds."""

    __slots__ = ("_alone", "_changed", "_left", "_loop", "_requests", "several")

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """Begins without tenants.

        Args:
            loop: Its timers end the contention.
            changed: Called when there are no longer several tenants: work that has waited for that may go on.
        """
        self._loop = loop
        self._changed = changed
        self._alone = sys.getswitchinterval()
        self._requests: dict[str, int] = {}
        self._left: dict[str, float] = {}
        self.several = False

    def enter(self, tenant: str) -> None:
        """Counts a request of a tenant; :meth:`leave` ends it."""
        requests = self._requests.get(tenant, 0)
        self._requests[tenant] = requests + 1
        if not requests:
            self._left.pop(tenant, None)
            if not self.several and len(self._requests) + len(self._left) > 1:
                self._look()

    def leave(self, tenant: str) -> None:
        """Ends what :meth:`enter` began."""
        if self._requests[tenant] > 1:
            self._requests[tenant] -= 1
        else:
            del self._requests[tenant]
            self._left[tenant] = monotonic()

    def _look(self) -> None:
        """Forgets tenants that have left; goes on as long as several are present."""
        late = monotonic() - self.LASTS
        for tenant in [tenant for tenant, left in self._left.items() if left <= late]:
            del self._left[tenant]
        several = len(self._requests) + len(self._left) > 1
        if several:
            self._loop.call_later(self.LASTS / 2, self._look)
        if several != self.several:
            self.several = several
            sys.setswitchinterval(self.PROMPT if several else self._alone)
            if not several:
                self._changed()


class _Entry(NamedTuple):
    weight: int
    began: float
    future: asyncio.Future[None]


class LoopScheduler:
    """The time of the event loop's thread, in which short requests are handled whole.

    While only one tenant sends requests, they run as they come, without this class. With several tenants, each request
    waits in its tenant's queue, and a turn of the loop begins a few, those of the tenant that has used least. A tenant
    has no more requests under way than a writer's group should contain of it, so that the other tenants' groups are
    short.

    The pieces of long responses have half of each turn, by turns as well: they wait behind each other, not behind new
    requests, and are never refused.
    """

    TURN = 0.0004
    """Max loop time that one turn may start, in seconds, estimated from each tenant's previous request."""
    BEGUN = 8
    """Max requests begun in a turn."""
    PIECES = 2
    """Max pieces of responses sent in a turn."""
    UNIT = 8192
    """Number of bytes of a body that add one to a request's weight."""

    def __init__(self, loop: asyncio.AbstractEventLoop, under_way: int = 32) -> None:
        """Prepares.

        Args:
            loop: Whose time it is.
            under_way: Weight of one tenant's requests under way, while there are several tenants.
        """
        self._loop = loop
        self._turns: FairQueue[_Entry] = FairQueue()
        self._pieces: FairQueue[asyncio.Future[None]] = FairQueue()
        self._most = under_way
        self._under_way = SharedQuota(sys.maxsize, alpha=1)
        self._took: dict[str, float] = {}
        self._called = False

    async def enter(self, tenant: str, size: int) -> int:
        """Waits for the request's turn; returns its weight, for :meth:`leave`.

        Args:
            tenant: The tenant that it counts for.
            size: Bytes of its body.

        Raises:
            TooManyRequests: Its turn did not come in time.
        """
        weight = 1 + size // self.UNIT
        future: asyncio.Future[None] = self._loop.create_future()
        self._turns.put(tenant, _Entry(weight, monotonic(), future))
        self._call()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self.leave(tenant, weight)
            raise
        return weight

    def leave(self, tenant: str, weight: int, seconds: float = 0.0) -> None:
        """Notes that a request has ended, having used so much of the thread's time."""
        self._under_way.change(tenant, -weight)
        if seconds:
            self.charge(tenant, seconds)
            self._took[tenant] = seconds
        self._call()

    def charge(self, tenant: str, seconds: float) -> None:
        """Notes time of the thread that a tenant has used, for a response."""
        self._turns.charge(tenant, seconds)

    async def pause(self, tenant: str) -> None:
        """Waits for the turn of another piece of a response."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._pieces.put(tenant, future)
        self._call()
        await future

    def give_up_late(self, seconds: float) -> None:
        """Refuses requests that have waited for so long. Is called every second."""
        late = monotonic() - seconds
        for tenant, access in self._turns.drop(lambda access: access.began < late):
            _settle(access.future, None, self._under_way.refusal(tenant, access.weight))
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
        while begun < self.PIECES and (found := self._pieces.take_with_tenant(lambda _tenant, _future: True)):
            tenant, future = found
            if not future.done():
                self._pieces.charge(tenant, 1)
                future.set_result(None)
                begun += 1
        return begun

    def _begin_requests(self) -> int:
        begun = 0
        seconds = 0.0
        while begun < self.BEGUN and seconds < self.TURN and (found := self._turns.take_with_tenant(self._fits)):
            tenant, access = found
            if not access.future.done():
                self._under_way.change(tenant, access.weight)
                access.future.set_result(None)
                begun += 1
                seconds += self._took.get(tenant, 0.0)
        return begun

    def _fits(self, tenant: str, access: _Entry) -> bool:
        held = self._under_way.held(tenant)
        return not held or held + access.weight <= self._most


class ScheduledWork:
    __slots__ = ("began", "computes", "future", "tenant", "weight", "work")

    def __init__(
        self, tenant: str, work: Callable[[], Any], weight: int, future: asyncio.Future[Any], *, computes: bool
    ) -> None:
        self.tenant = tenant
        self.weight = weight
        self.computes = computes
        self.work = work
        self.future = future
        self.began = monotonic()


class FairPool:
    """Threads with a queue before them.

    The loop chooses the next tenant by turns and keeps a few jobs ready, so that no thread has to wait for it. (Threads
    that choose themselves would need a lock; one that is interrupted while it holds the lock stops all of them.) One
    application alone may keep all threads busy. There is one more thread, for the first job of each other application.
    """

    def __init__(self, name: str, count: int, memory: SharedQuota, computing: Callable[[], int]) -> None:
        """Prepares; the threads start with :meth:`start`.

        Args:
            name: Of the threads.
            count: Of threads that one tenant alone may use.
            memory: What a job's weight is taken from.
            computing: Returns how many of the jobs that compute each tenant may have now.
        """
        self._computing = computing
        self._memory = memory
        self._name = name
        self._count = count
        # As many jobs as there are threads may be under way, and as many ready.
        self._hand = SharedQuota(2 * count + 2, alpha=count)
        self._turns: FairQueue[ScheduledWork] = FairQueue()
        self._making: Counter[str] = Counter()
        self._extra: ScheduledWork | None = None
        self._jobs: SimpleQueue[ScheduledWork | None] = SimpleQueue()
        self._first: SimpleQueue[ScheduledWork | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop
        self._tell: Callable[..., None]

    def start(self, loop: asyncio.AbstractEventLoop, tell: Callable[..., None]) -> None:
        """Starts the threads; ``tell`` makes a call in the loop's thread."""
        self._loop = loop
        self._tell = tell
        for number in range(self._count + 1):
            jobs = self._jobs if number else self._first
            threading.Thread(target=self._serve, args=(jobs,), name=f"{self._name}-{number}", daemon=True).start()

    def stop(self) -> None:
        """Ends the threads after the jobs that they have been given."""
        self._first.put(None)
        for _ in range(self._count):
            self._jobs.put(None)

    async def run(self, tenant: str, work: Callable[[], T], weight: int = 0, *, computes: bool = False) -> T:
        """Runs some work in a thread; returns its result.

        Args:
            tenant: The tenant that it counts for.
            work: What to do.
            weight: Bytes that its result may have. When this returns they are still held, and the caller gives them
                back; when it raises they are not.
            computes: It reads and makes an answer: it needs the interpreter, or a reading connection of the store, most
                of the time, and does not wait for the store's writer.

        Raises:
            TooManyRequests, StoreUnavailable: No thread or not enough memory was free in time.
        """
        job = ScheduledWork(tenant, work, weight, self._loop.create_future(), computes=computes)
        self._turns.put(tenant, job)
        self.dispatch()
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            if not job.future.cancelled() and job.future.exception() is None:
                self._memory.change(tenant, -weight)
            raise
        return result

    def give_up_late(self, seconds: float) -> None:
        """Refuses jobs that have waited for so long. Is called every second."""
        late = monotonic() - seconds
        for tenant, job in self._turns.drop(lambda job: job.began < late):
            lacking = self._hand if self._memory.fits(tenant, job.weight) else self._memory
            _settle(job.future, None, lacking.refusal(tenant, job.weight if lacking is self._memory else 1))
        self._turns.forget()

    def _fits(self, tenant: str, job: ScheduledWork) -> bool:
        if job.computes and self._making[tenant] >= self._computing():
            return False
        if job.weight and not self._memory.fits(tenant, job.weight):
            return False
        return self._hand.fits(tenant, 1)

    def dispatch(self) -> None:
        """Hands out jobs that may begin. Is called when something has become free."""
        while self._hand.free > 0 and (job := self._turns.take(self._fits)) is not None:
            if job.future.done():
                continue
            busy = self._hand.total - self._hand.free >= self._count
            first = busy and self._extra is None and not self._hand.held(job.tenant)
            self._hand.change(job.tenant, 1)
            self._memory.change(job.tenant, job.weight)
            if job.computes:
                self._making[job.tenant] += 1
            if first:
                self._extra = job
            (self._first if first else self._jobs).put(job)

    def _serve(self, jobs: SimpleQueue[ScheduledWork | None]) -> None:
        """Thread main loop."""
        while (job := jobs.get()) is not None:
            began = monotonic()
            try:
                result: Any = job.work()
                error: Exception | None = None
            except Exception as failure:  # noqa: BLE001 - the waiting request gets it
                result, error = None, failure
            self._tell(self._finish, job, monotonic() - began, result, error)
            del job, result, error

    def _finish(self, job: ScheduledWork, seconds: float, result: object, error: Exception | None) -> None:
        self._hand.change(job.tenant, -1)
        if job.computes:
            self._making -= Counter((job.tenant,))
        if job is self._extra:
            self._extra = None
        self._turns.charge(job.tenant, seconds)
        if job.future.done() or error is not None:
            self._memory.change(job.tenant, -job.weight)
        _settle(job.future, result, error)
        self.dispatch()


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Gives the waiting request the result or the error, if it still waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
