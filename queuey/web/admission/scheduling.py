"""Fair sharing between tenants: memory, threads, places for long polls, and the event loop's time.

A tenant is what a request counts for: an application, or all callers without a valid credential together. No share is
reserved, so one tenant alone gets nearly everything; but no tenant can take so much that others wait long.

* :class:`SharedQuota` limits what is held for a while: bytes, places. A tenant may hold up to a multiple of what is
  then free ("dynamic threshold", Choudhury and Hahne 1998, made for the shared memory of switches). So something is
  always left for the next tenant.
* :class:`FairQueue` orders waiting work: the tenant that has used least is next, measured in seconds of work or in
  bytes. Many or long jobs of one tenant delay its own jobs and not those of others.
* :class:`FairGate` uses both: it starts waiting work in that order, when what it needs is free.
  :class:`LoopScheduler` is the gate to the event loop's time, :class:`FairPool` to threads, and the attempts of long
  polls pass one (:mod:`queuey.web.admission.long_polls`).
* :class:`Share` is what one request holds of all that, and :class:`Shares` what all requests hold together.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from heapq import heappop, heappush
from ipaddress import IPv6Address
from queue import SimpleQueue
from time import monotonic
from typing import Any, Generic, Literal, TypeVar

from queuey.model.errors import QueueyError, StoreUnavailable, TooManyRequests
from queuey.web.responses import PIECE_SIZE

ANONYMOUS = ""
"""The tenant of all callers without a credential."""
MAX_SMALL_BODY = 16 * 1024
"""Max bytes of a small body, for which no memory is held: the number of connections bounds these."""
T = TypeVar("T")
WorkT = TypeVar("WorkT", bound="ScheduledWork")


@lru_cache(1024)
def rate_limit_name(address: str) -> str:
    """Returns the name by which an address is limited: the /64 of IPv6, else itself; a mapped IPv4 counts as IPv4."""
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return parsed.exploded[:19] if parsed.ipv4_mapped is None else str(parsed.ipv4_mapped)


def stranger_tenant(address: str) -> str:
    """Returns the tenant of an address whose credentials and signatures are not verified yet.

    So bad credentials of one address delay no other address, and use nothing of the caller that they name.
    """
    return f"stranger {rate_limit_name(address)}"


class SharedQuota:
    """A quantity that tenants share.

    Args:
        total: The whole quantity.
        alpha: A tenant may hold at most ``alpha`` times the free quantity. With 2, one tenant alone may hold 2/3, and
            two tenants 2/5 each.

    Attributes:
        total: The whole quantity.
        free: Quantity that no tenant holds; negative if a :meth:`change`, which is never refused, took more.
    """

    __slots__ = ("_alpha", "_held", "free", "total")

    def __init__(self, total: int, alpha: int) -> None:
        self.total = total
        self._alpha = alpha
        self.free = total
        self._held: dict[str, int] = {}

    def held(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def fits(self, tenant: str, weight: int) -> bool:
        """Returns whether :meth:`take` would succeed.

        A tenant that holds nothing may take all that is free; another may hold ``alpha`` times what then stays free.
        """
        remaining = self.free - weight
        held = self._held.get(tenant, 0)
        return remaining >= 0 and (not held or held + weight <= self._alpha * remaining)

    def take(self, tenant: str, weight: int) -> bool:
        fits = self.fits(tenant, weight)
        if fits:
            self.change(tenant, weight)
        return fits

    def require(self, tenant: str, weight: int) -> None:
        if not self.take(tenant, weight):
            raise self.make_refusal(tenant, weight)

    def change(self, tenant: str, difference: int) -> None:
        self.free -= difference
        held = self._held.get(tenant, 0) + difference
        if held:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)

    def make_refusal(self, tenant: str, weight: int) -> QueueyError:
        """Makes the error for a quantity that does not fit.

        The tenant itself is to blame if that much is free, or if it holds more than half of what all hold; otherwise
        the server is overloaded.
        """
        if weight <= self.free or 2 * self.held(tenant) > self.total - self.free:
            return TooManyRequests("Too many requests of this application at the same moment; try again.")
        return StoreUnavailable("too many large requests at the same moment")


class TenantQuota(SharedQuota):
    """A quantity of which each tenant may hold the same maximum, however much others hold.

    A tenant that holds nothing may take more than the maximum at once.

    Args:
        max_held: Returns how much a tenant may hold now.
    """

    __slots__ = ("_max_held",)

    def __init__(self, max_held: Callable[[], int]) -> None:
        super().__init__(sys.maxsize, alpha=1)
        self._max_held = max_held

    def fits(self, tenant: str, weight: int) -> bool:
        held = self._held.get(tenant, 0)
        return not held or held + weight <= self._max_held()


class FairQueue(Generic[T]):
    """Waiting jobs, in order for each tenant; the tenant that has used least is next.

    Taking a job costs the same with thousands of tenants, except for tenants whose first job does not fit.

    Attributes:
        jobs: The waiting jobs by tenant.
    """

    __slots__ = ("_now", "_numbers", "_order", "_used", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[str, deque[T]] = {}
        self._numbers = itertools.count()
        # A heap of (used, number, tenant, jobs). An entry is out of date if its tenant was charged later.
        self._order: list[tuple[float, int, str, deque[T]]] = []
        self._used: dict[str, float] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return sum(map(len, self.jobs.values()))

    def put(self, tenant: str, job: T) -> None:
        """Adds a job. An idle tenant gets no credit for its idle time: it starts level with the others."""
        jobs = self.jobs.get(tenant)
        if jobs is None:
            jobs = self.jobs[tenant] = deque()
            self._used[tenant] = max(self._used.get(tenant, 0.0), self._now)
            self._line_up(tenant, jobs)
        jobs.append(job)

    def _line_up(self, tenant: str, jobs: deque[T]) -> None:
        heappush(self._order, (self._used[tenant], next(self._numbers), tenant, jobs))

    def take(self, fits: Callable[[T], bool]) -> T | None:
        job: T | None = None
        skipped: list[tuple[float, int, str, deque[T]]] = []
        while self._order and job is None:
            entry = heappop(self._order)
            used, _, tenant, jobs = entry
            if self.jobs.get(tenant) is not jobs:
                continue  # The jobs were dropped.
            if used < self._used[tenant]:
                self._line_up(tenant, jobs)
            elif fits(jobs[0]):
                self._now = max(self._now, used)
                job = jobs.popleft()
                if jobs:
                    self._line_up(tenant, jobs)
                else:
                    del self.jobs[tenant]
            else:
                skipped.append(entry)
        for entry in skipped:
            heappush(self._order, entry)
        return job

    def remove(self, tenant: str, job: T) -> None:
        jobs = self.jobs.get(tenant, deque())
        with suppress(ValueError):
            jobs.remove(job)
            if not jobs:
                del self.jobs[tenant]

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        dropped: list[T] = []
        for tenant, jobs in list(self.jobs.items()):
            while jobs and unwanted(jobs[0]):
                dropped.append(jobs.popleft())
            if not jobs:
                del self.jobs[tenant]
        return dropped

    def charge(self, tenant: str, amount: float) -> None:
        """Adds to what a tenant has used; one that was idle starts level with the others."""
        self._used[tenant] = max(self._used.get(tenant, 0.0), self._now) + amount

    def forget_idle_tenants(self) -> None:
        for tenant in [tenant for tenant, used in self._used.items() if used <= self._now]:
            if tenant not in self.jobs:
                del self._used[tenant]


class ScheduledWork:
    """Work that waits for its turn. It is idle, then in line, then under way, then idle again.

    Attributes:
        tenant: The tenant that it counts for.
        needs: Quotas that it holds while it is under way, and how much of each.
        future: Ends the wait. Work for which nobody waits any more does not start.
        state: The present state.
        since: Time at which it was lined up, by the monotonic clock.
    """

    __slots__ = ("future", "needs", "since", "state", "tenant")

    def __init__(self, tenant: str, *needs: tuple[SharedQuota, int]) -> None:
        self.tenant = tenant
        self.needs = needs
        self.future: asyncio.Future[Any] | None = None
        self.state: Literal["idle", "in line", "under way"] = "idle"
        self.since = 0.0

    def begin_to_wait(self) -> asyncio.Future[Any]:
        self.future = asyncio.get_running_loop().create_future()
        return self.future

    def settle(self, result: object, error: Exception | None = None) -> bool:
        """Ends the wait with a result or an error. Returns False if nobody waits any more."""
        if self.future is None or self.future.done():
            return False
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)
        return True

    def fits(self) -> bool:
        for quota, weight in self.needs:  # noqa: SIM110 - a generator costs a call more for each
            if not quota.fits(self.tenant, weight):
                return False
        return True

    def make_refusal(self) -> QueueyError:
        lacking = (need for need in self.needs if not need[0].fits(self.tenant, need[1]))
        quota, weight = next(lacking, self.needs[-1])
        return quota.make_refusal(self.tenant, weight)


class FairGate(Generic[WorkT]):
    """Starts waiting work when all that it needs is free: first that of the tenant that has used least.

    Work that is abandoned while it is in line does not start, and holds nothing.

    Args:
        max_started: Max work started in one turn of the event loop, or None if all of it starts as soon as it may.
        seconds: Max loop time that one turn may start, estimated from each tenant's previous work.
        price: Amount charged when work starts. What it turns out to have used is charged when it ends.
        bound: A quota that all work needs. While nothing of it is free, no work starts.
    """

    def __init__(
        self,
        max_started: int | None = None,
        *,
        seconds: float = math.inf,
        price: int = 0,
        bound: SharedQuota | None = None,
    ) -> None:
        self._go_on = self.dispatch if max_started is None else self._dispatch_soon
        self._max_started = sys.maxsize if max_started is None else max_started
        self._seconds = seconds
        self._price = price
        self._bound = bound
        self.turns: FairQueue[WorkT] = FairQueue()
        self._last_used: dict[str, float] = {}
        self._is_called = False

    async def wait(self, work: WorkT) -> None:
        """Waits until work is under way; raises QueueyError if it was given up. If cancelled, the work ends at once."""
        future = work.begin_to_wait()
        self.line_up(work)
        try:
            await future
        except asyncio.CancelledError:
            self.leave(work)
            raise

    def line_up(self, work: WorkT) -> None:
        """Puts idle work in line; does nothing if it is in line or under way."""
        if work.state == "idle":
            work.state = "in line"
            work.since = monotonic()
            self.turns.put(work.tenant, work)
            self._go_on()

    def try_acquire(self, work: WorkT) -> bool:
        """Marks work as under way and takes its quotas, ahead of work in line; returns False if one has no room.

        The caller does the work: nothing is told that it may begin.
        """
        fits = work.fits()
        if fits:
            self._acquire(work)
        return fits

    def leave(self, work: WorkT, used: float = 0.0, kept: SharedQuota | None = None) -> None:
        """Ends work: releases all quotas but ``kept``, charges what it has used, and starts waiting work.

        Work in line leaves the line; idle work has ended already.
        """
        if work.state == "under way":
            for quota, weight in work.needs:
                if quota is not kept:
                    quota.change(work.tenant, -weight)
            if used:
                self.turns.charge(work.tenant, used)
                self._last_used[work.tenant] = used
        elif work.state == "in line":
            self.turns.remove(work.tenant, work)
        else:
            return
        work.state = "idle"
        self._go_on()

    def refuse_overdue(self, seconds: float) -> None:
        """Refuses work that has been in line for more than some seconds; then forgets idle tenants."""
        latest = monotonic() - seconds
        for work in self.turns.drop(lambda work: work.since < latest):
            work.state = "idle"
            work.settle(None, work.make_refusal())
        self.forget_idle_tenants()

    def forget_idle_tenants(self) -> None:
        self.turns.forget_idle_tenants()
        self._last_used.clear()

    def dispatch(self) -> None:
        """Starts work in line until nothing more fits or a turn's limits are reached, then continues in the next turn.

        Drops work that nobody waits for.
        """
        self._is_called, started, seconds = False, 0, 0.0
        if not self.turns.jobs:
            return
        while started < self._max_started and seconds < self._seconds:
            is_full = self._bound is not None and self._bound.free <= 0
            if is_full or (work := self.turns.take(ScheduledWork.fits)) is None:
                return
            work.state = "idle"
            if work.future is not None and not work.future.done():
                self._acquire(work)
                self._begin(work)
                started += 1
                seconds += self._last_used.get(work.tenant, 0.0)
                if self._price:
                    self.turns.charge(work.tenant, self._price)
        self._go_on()

    def _dispatch_soon(self) -> None:
        if not self._is_called and self.turns.jobs:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self.dispatch)

    def _acquire(self, work: WorkT) -> None:
        work.state = "under way"
        for quota, weight in work.needs:
            quota.change(work.tenant, weight)

    def _begin(self, work: WorkT) -> None:
        work.settle(result=True)


class LoopScheduler(FairGate[ScheduledWork]):
    """The event loop's time, in which short requests are handled whole.

    While only one tenant sends requests, they run as they come, without this class. With several tenants, each request
    waits in its tenant's queue, and a turn of the loop starts a few of the tenant that has used least. A tenant has no
    more requests under way than a writer's group should contain of it, so that the other tenants' groups are short.

    The pieces of long responses have a limit of their own in each turn, and fair turns as well: they wait behind each
    other, not behind new requests.

    Args:
        under_way: Max weight of one tenant's requests under way, while there are several tenants.
    """

    MAX_TURN_SECONDS = 0.0004
    """Max loop time that one turn may start, in seconds."""
    MAX_STARTED = 8
    """Max requests started in a turn."""
    MAX_PIECES = 2
    """Max pieces of responses sent in a turn."""
    WEIGHT_UNIT_BYTES = 8192
    """Bytes of a body that add one to a request's weight."""

    def __init__(self, under_way: int = 32) -> None:
        super().__init__(self.MAX_STARTED, seconds=self.MAX_TURN_SECONDS)
        self.under_way = TenantQuota(lambda: under_way)
        self.pieces: FairGate[ScheduledWork] = FairGate(self.MAX_PIECES, price=1)

    async def wait_for_turn(self, tenant: str, size: int) -> ScheduledWork:
        """Waits for a request's turn and returns it; :meth:`leave` ends it.

        Args:
            tenant: The tenant that the request counts for.
            size: Bytes of its body.

        Raises:
            TooManyRequests: Its turn did not come in time.
        """
        turn = ScheduledWork(tenant, (self.under_way, 1 + size // self.WEIGHT_UNIT_BYTES))
        await self.wait(turn)
        return turn

    async def wait_to_send_piece(self, tenant: str) -> None:
        await self.pieces.wait(ScheduledWork(tenant))

    def forget_idle_tenants(self) -> None:
        super().forget_idle_tenants()
        self.pieces.forget_idle_tenants()


class ThreadJob(ScheduledWork):
    """Work for a thread; its future gets the result."""

    __slots__ = ("work",)
    work: Callable[[], Any]


class FairPool(FairGate[ThreadJob]):
    """Threads with a gate before them.

    The loop chooses the next tenant and keeps a few jobs ready, so that no thread has to wait for it. (Threads that
    choose themselves would need a lock; one that is interrupted while it holds the lock stops all of them.) One
    application alone may keep all threads busy. While they are, one more thread does the only job of another one.

    Args:
        name: Prefix of the threads' names.
        count: Threads that one tenant alone may use.
        memory: The quota of the jobs' weights.
        computing: Returns how many computing jobs each tenant may have now.
    """

    def __init__(self, name: str, count: int, memory: SharedQuota, computing: Callable[[], int]) -> None:
        # As many jobs as there are threads may be under way, and as many ready.
        self.job_quota = SharedQuota(2 * count + 2, alpha=count)
        super().__init__(bound=self.job_quota)
        self.computing = TenantQuota(computing)
        self._memory = memory
        self._name = name
        self._count = count
        self._extra: ThreadJob | None = None
        self._jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._extra_jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._call_in_loop: Callable[..., None]

    def start(self, call_in_loop: Callable[..., None]) -> None:
        self._call_in_loop = call_in_loop
        for number in range(self._count + 1):
            jobs = self._jobs if number else self._extra_jobs
            threading.Thread(target=self._serve, args=(jobs,), name=f"{self._name}-{number}", daemon=True).start()

    def stop(self) -> None:
        self._extra_jobs.put(None)
        for _ in range(self._count):
            self._jobs.put(None)

    async def run(self, tenant: str, work: Callable[[], T], weight: int = 0, *, computes: bool = False) -> T:
        """Runs work in a thread; returns its result.

        Args:
            tenant: The tenant that it counts for.
            work: What to do.
            weight: Bytes that the result may have. When this returns, they are still held, and the caller releases
                them; when it raises, they are not.
            computes: The work reads and builds a response. It mostly needs the interpreter or a reading connection of
                the store, and does not wait for the store's writer.

        Raises:
            TooManyRequests, StoreUnavailable: No thread or not enough memory was free in time.
        """
        needs: list[tuple[SharedQuota, int]] = [(self._memory, weight)] if weight else []
        needs.append((self.job_quota, 1))
        if computes:
            needs.append((self.computing, 1))
        job = ThreadJob(tenant, *needs)
        job.work = work
        future = job.begin_to_wait()
        self.line_up(job)
        try:
            result: T = await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._memory.change(tenant, -weight)
                self.dispatch()
            elif job.state == "in line":
                self.leave(job)
            raise
        finally:
            del future, job  # The error refers to this frame; a cycle would keep the request's body in memory.
        return result

    def _begin(self, work: ThreadJob) -> None:
        busy = self.job_quota.total - self.job_quota.free > self._count
        is_extra = busy and self._extra is None and self.job_quota.held(work.tenant) == 1
        if is_extra:
            self._extra = work
        (self._extra_jobs if is_extra else self._jobs).put(work)

    def _serve(self, jobs: SimpleQueue[ThreadJob | None]) -> None:
        while (job := jobs.get()) is not None:
            began = monotonic()
            try:
                result: Any = job.work()
                error: Exception | None = None
            except Exception as failure:  # noqa: BLE001 - the waiting request gets it
                result, error = None, failure
            self._call_in_loop(self._finish, job, monotonic() - began, result, error)
            del job, result, error

    def _finish(self, job: ThreadJob, seconds: float, result: object, error: Exception | None) -> None:
        is_delivered = job.settle(result, error) and error is None
        if job is self._extra:
            self._extra = None
        self.leave(job, seconds, kept=self._memory if is_delivered else None)


class Shares:
    """What all requests of a process share: memory, threads, and the event loop's time.

    A tenant is present while one of its requests waits or runs, and for a moment afterwards: a caller with a single
    connection is present between its requests as well. A sleeping long poll, and a body that is still arriving, do not
    count.

    While several tenants are present, requests take turns, and threads switch sooner: otherwise one that computes for a
    tenant delays the loop, and each statement of the writer, by 5 ms. (Switching sooner costs all threads together some
    speed.)

    Args:
        threads: Threads for requests that may block.
        memory: Bytes of all bodies and responses; one tenant alone may hold two thirds.
        page_bytes: Max bytes of the response to a read.
        patience: Seconds that a read waits for the running one, where reads take turns.
        readers: Reads that the store does at a time. One is left for the next tenant.
        reads_wait: The store waits for a network, so that reads do not disturb each other, and it carries many.

    Attributes:
        present: Number of waiting and running requests by tenant.
        has_several: Several tenants are present.
    """

    PRESENCE_SECONDS = 0.1
    """Interval for which a tenant counts as present after its last request, in seconds."""
    SWITCH_SECONDS = 0.0001
    """Interval between switches of threads while several tenants are present, in seconds."""

    def __init__(
        self, threads: int, memory: int, *, page_bytes: int, patience: float, readers: int, reads_wait: bool
    ) -> None:
        self.memory = SharedQuota(memory, alpha=2)
        self.threads = FairPool("queuey-request", threads, self.memory, self._max_computing)
        self.scheduler = LoopScheduler(1024 if reads_wait else 32)
        self.page_bytes = page_bytes
        self.present: dict[str, int] = {}
        self.left_at: dict[str, float] = {}
        self.has_several = False
        self._usual_interval = sys.getswitchinterval()
        self._loop: asyncio.AbstractEventLoop
        self._patience = patience
        self._max_reads = max(1, readers - 1)
        self._reads_wait = reads_wait
        self._read_turn = threading.Lock()

    def start(self, loop: asyncio.AbstractEventLoop, call_in_loop: Callable[..., None]) -> None:
        self._loop = loop
        self.threads.start(call_in_loop)

    def refuse_overdue(self, seconds: float) -> None:
        self.scheduler.refuse_overdue(seconds)
        self.threads.refuse_overdue(seconds)

    def record_presence(self, tenant: str) -> None:
        if tenant not in self.present:
            self.left_at[tenant] = monotonic()
            if not self.has_several:
                self.update_presence()

    def update_presence(self) -> None:
        """Forgets tenants that left a moment ago, and begins or ends the time with several tenants.

        Calls itself again while it lasts. At its end, work that waited for that can go on.
        """
        latest = monotonic() - self.PRESENCE_SECONDS
        for tenant in [tenant for tenant, left_at in self.left_at.items() if left_at <= latest]:
            del self.left_at[tenant]
        several = len(self.present) + len(self.left_at) > 1
        if several:
            self._loop.call_later(self.PRESENCE_SECONDS / 2, self.update_presence)
        if several != self.has_several:
            self.has_several = several
            sys.setswitchinterval(self.SWITCH_SECONDS if several else self._usual_interval)
            if not several:
                self.threads.dispatch()

    def change_memory(self, tenant: str, difference: int) -> None:
        self.memory.change(tenant, difference)
        if difference < 0 and self.threads.turns.jobs:
            self.threads.dispatch()

    def read_in_turn(self, work: Callable[[], T]) -> T:
        """Does the work of a read. Reads run one at a time as long as each is short.

        Threads that read at the same time mostly wait for the interpreter lock, at twice the CPU. A read that waits for
        the disk delays the next one by at most ``patience`` seconds, and one of another tenant not at all.
        """
        if self._reads_wait:
            return work()
        is_locked = self._read_turn.acquire(timeout=0 if self.has_several else self._patience)
        try:
            return work()
        finally:
            if is_locked:
                self._read_turn.release()

    def _max_computing(self) -> int:
        """Returns in how many threads a tenant may read: one while several tenants are present.

        Reads that compute delay other tenants; those of a store behind a network do not.
        """
        return 1 if self.has_several and not self._reads_wait else self._max_reads


class Share:
    """What a request holds of all that requests share. :meth:`release` gives it back. Used in the loop's thread.

    A request is present from :meth:`enter` to :meth:`release`; if several tenants are present, it also has a turn of
    the loop. It may hold memory for its body and for its response, and have a thread.

    Attributes:
        tenant: The tenant that the request counts for.
        holder: Name under which the memory of its body is held; blank for the tenant.
        body_bytes: Bytes of memory held for its body.
        reserved_bytes: Bytes of memory held for its response.
        has_thread: A thread works for the request, and would not end sooner if the request were given up.
        is_paused: The request waits for messages, and holds nothing that others could use but its body.
        step_began: Start of the step that runs now, by the monotonic clock, or None while the request waits.
        turn: Its turn of the loop, while it has one.
        used: Seconds of its former steps, without waiting, that its turn was not charged for yet.
    """

    # Defaults of the class: most requests never change these.
    holder = ""
    body_bytes = reserved_bytes = 0
    has_thread = is_paused = _is_present = False
    step_began: float | None = None
    used = 0.0
    turn: ScheduledWork | None = None

    def __init__(self, shares: Shares, tenant: str = ANONYMOUS) -> None:
        self._shares = shares
        self.tenant = tenant

    async def enter(self, body_bytes: int) -> None:
        """Counts the request as present. While several tenants are, waits for its turn, and starts to measure it.

        Raises:
            TooManyRequests: Its turn did not come in time.
        """
        shares, tenant = self._shares, self.tenant
        if not self._is_present:
            self._is_present = True
            requests = shares.present[tenant] = shares.present.get(tenant, 0) + 1
            if requests == 1:
                shares.left_at.pop(tenant, None)
                if not shares.has_several and len(shares.present) + len(shares.left_at) > 1:
                    shares.update_presence()
        if shares.has_several:
            await self.wait_for_turn(body_bytes)

    async def wait_for_turn(self, body_bytes: int) -> None:
        self.turn = await self._shares.scheduler.wait_for_turn(self.tenant, body_bytes)
        self.used, self.step_began = 0.0, monotonic()

    def end_turn(self) -> None:
        """Ends the request's turn, if it has one, and charges its tenant the loop time that it has used."""
        if self.turn is not None:
            if self.step_began is not None:
                now = monotonic()
                self.used += now - self.step_began
                self.step_began = now
            self._shares.scheduler.leave(self.turn, self.used)
            self.turn, self.used = None, 0.0

    def release(self, *, keeps_body: bool = False, response: int = 0) -> None:
        """Gives everything back.

        Args:
            keeps_body: The memory of the body stays held.
            response: Bytes of a response that is sent from now on, whose memory is held if it is long.
        """
        shares, tenant = self._shares, self.tenant
        if self._is_present:
            self._is_present = False
            requests = shares.present[tenant] - 1
            if requests:
                shares.present[tenant] = requests
            else:
                del shares.present[tenant]
                shares.left_at[tenant] = monotonic()
        if self.turn is not None:
            self.end_turn()
        if self.body_bytes and not keeps_body:
            shares.change_memory(self.holder, -self.body_bytes)
            self.body_bytes = 0
        if self.reserved_bytes or response:
            self.keep_reserved(response)

    # Memory and threads

    def hold_body(self, size: int, max_bytes: int) -> None:
        """Holds memory for this many bytes of a body; small bodies are not counted. Raises if it is not free.

        It is held in steps, up to ``max_bytes``, so that a body in small pieces is not counted at each piece.
        """
        if size > max(MAX_SMALL_BODY, self.body_bytes):
            weight = max(size, min(2 * self.body_bytes, max_bytes))
            self.holder = self.holder or self.tenant
            self._shares.memory.require(self.holder, weight - self.body_bytes)
            self.body_bytes = weight

    def move_body(self, tenant: str) -> None:
        """Counts the body for another tenant. Raises if it has no room."""
        if self.body_bytes:
            self._shares.memory.require(tenant, self.body_bytes)
            self._shares.change_memory(self.holder, -self.body_bytes)
            self.holder = tenant

    def reserve_at_once(self, size: int) -> bool:
        """Reserves this many bytes of memory for the response, or returns False if they are not free."""
        is_reserved = self._shares.memory.take(self.tenant, size)
        if is_reserved:
            self.reserved_bytes += size
        return is_reserved

    async def reserve(self, size: int) -> None:
        """Reserves this many bytes of memory for the response; waits until they are free.

        Raises:
            TooManyRequests, StoreUnavailable: They were not free in time.
        """
        if not self.reserve_at_once(size):
            # Other requests of its tenant may hold the memory, and wait for their turn.
            self.end_turn()
            await self._shares.threads.run(self.tenant, lambda: None, size)
            self.reserved_bytes += size

    def keep_reserved(self, size: int) -> None:
        """Keeps this much of the reserved memory for what is sent, or none if that is sent in one piece."""
        size = size if size > PIECE_SIZE else 0
        self._shares.change_memory(self.tenant, size - self.reserved_bytes)
        self.reserved_bytes = size

    async def run_in_thread(self, work: Callable[[], T], *, computes: bool, page: bool) -> T:
        """Does work in a thread.

        Work for callers without a credential counts as computing, so only few of them have a thread at a time.

        Args:
            work: What to do.
            computes: The work reads and builds a response. The request waits for a thread, and no longer has its turn.
            page: Memory for a page is reserved, in place of what is reserved now.

        Raises:
            TooManyRequests, StoreUnavailable: No thread or not enough memory was free in time.
        """
        size = self._shares.page_bytes if page else 0
        if page:
            self.keep_reserved(0)
        if computes:
            self.end_turn()
            work = partial(self._shares.read_in_turn, work)
        self.has_thread = True
        try:
            one_by_one = computes or self.tenant == ANONYMOUS
            result = await self._shares.threads.run(self.tenant, work, size, computes=one_by_one)
        finally:
            self.has_thread = False
        self.reserved_bytes += size
        return result

    async def wait_to_send_piece(self) -> None:
        """Counts the tenant as present for a moment; waits for a turn only while several tenants are present."""
        self._shares.record_presence(self.tenant)
        if self._shares.has_several:
            await self._shares.scheduler.wait_to_send_piece(self.tenant)
