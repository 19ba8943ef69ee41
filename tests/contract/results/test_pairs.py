"""Two acts on one job at one moment: all of the second one happens between two calls of the store of the first one.

What a reader may see afterwards follows from what the acts answered: an acknowledgement that was accepted ends the job
as ``done`` with its result, whatever else was on its way. Each pair is tried at each call of the store.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import pytest
from msgspec import UNSET

from queuey import storage
from queuey.claims import jobs
from queuey.claims.job_records import JobEnd, JobRecords, Leaving
from queuey.claims.jobs import JobUseCases, LogView
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptStatus
from queuey.messages.posts import Draft
from queuey.model.errors import Conflict, InvalidRequest, MessageNotFound
from queuey.model.ids import Position
from queuey.model.messages import Location, Queue
from queuey.storage import Store
from queuey.storage.deadlines import in_thread
from tests.backends import Clock
from tests.blocking import BlockingNames, blocking
from tests.contract.claims.test_claims import enter
from tests.contract.samples import make_queue
from tests.interposed_store import CONTRACTS, InterposedStore
from tests.replacing import replace

HOUR = 3600
MAX_CALLS = 40
"""Max calls of the store that one act makes."""


class Job:
    """A named job.

    Args:
        store: The store of the process that claims.
        start: ``waiting``: nobody has claimed it; ``claimed`` by a worker; ``late``: its claim has expired.
    """

    def __init__(self, store: Store, clock: Clock, start: str) -> None:
        self.queue = make_queue(store, ttl=24 * HOUR, result_ttl=HOUR, max_deliveries=4)
        process = Process(self, store)
        location = process.names.replace(process.access, "n", Draft("old")).location
        assert location is not None
        self.place: Location = location
        self.receipt: ClaimReceipt | None = None if start == "waiting" else process.claim()
        self.has_accepted: bytes | None = None
        """The result of the acknowledgement that was accepted, or ``null``."""
        self.clock = clock
        if start == "late":
            clock.advance(20)

    @property
    def held(self) -> ClaimReceipt:
        assert self.receipt is not None
        return self.receipt


class Process:
    """A process that acts on a job."""

    def __init__(self, job: Job, store: Store) -> None:
        self.job = job
        self.service, self.access = enter(store, job.queue)
        self.claims = blocking(self.service.claims)
        self.names = BlockingNames(self.service)

    def claim(self) -> ClaimReceipt:
        [claimed] = self.claims.claim(self.access, limit=1, ttl=10)
        return claimed.receipt

    def acknowledge(self, *results: bytes) -> None:
        receipt = self.job.held
        written = dict.fromkeys([receipt], *results) if results else None
        [settled] = self.claims.acknowledge(self.access, [receipt], written)
        if settled.status is ReceiptStatus.ACCEPTED:
            self.job.has_accepted = results[0] if results else b"null"

    def end(self) -> tuple[str, bytes | None]:
        """Returns the status that readers see, and the result; UNSET counts as none."""
        job = self.claims.job(self.access, self.job.place)
        return job.status, b"null" if job.result is None else None if job.result is UNSET else bytes(job.result)


ACTS: dict[str, tuple[Callable[[Process], object], str]] = {
    "acknowledge with a result": (lambda process: process.acknowledge(b"7"), ""),
    "acknowledge": (lambda process: process.acknowledge(), ""),
    "cancel": (lambda process: process.claims.cancel(process.access, process.job.place[1]), "removed"),
    "delete": (
        lambda process: process.service.core.run(process.service.messages.delete(process.access, [process.job.place])),
        "removed",
    ),
    "replace": (lambda process: process.names.replace(process.access, "n", Draft("new")), "superseded"),
    "delete by name": (lambda process: process.names.delete(process.access, "n"), "removed"),
    "give up": (lambda process: process.claims.release(process.access, [process.job.held], retry=False), "failed"),
    "release": (lambda process: process.claims.release(process.access, [process.job.held]), ""),
    "claim": (lambda process: process.claims.claim(process.access, limit=1, ttl=10), ""),
}
"""Acts, and how each may end a job that is not acknowledged."""
OF_A_CLAIM = {"acknowledge with a result", "acknowledge", "give up", "release"}
"""Acts of a worker that has claimed the job."""
ACKNOWLEDGEMENTS = {"acknowledge", "acknowledge with a result"}
NAME_CHANGES = {"replace", "delete by name"}
ENDS = {"removed", "superseded", "failed"}
UNFINISHED = {"waiting", "retrying", "claimed"}


def is_allowed(job: Job, acts: set[str], status: str, result: bytes | None, *, is_later: bool) -> bool:
    """Returns whether readers may see a status and a result after some acts."""
    if job.has_accepted is not None:
        # An acknowledgement without a result may end a delivery that another call has given one.
        results = {job.has_accepted, b"7"} if acts == ACKNOWLEDGEMENTS else {job.has_accepted}
        # Once its message is gone, nothing tells how a job without a result has ended.
        return result in results if status == "done" else status == "unknown" and b"null" in results
    ends = {ACTS[name][1] for name in acts} & ENDS
    if acts & NAME_CHANGES and acts & {"claim", "give up"}:
        # The message was found gone, or claims passed it, before its name's change had marked it.
        ends.add("unknown" if job.receipt is None else "expired")
    return status in ends or (status in UNFINISHED and (not ends or not is_later or ends == {"failed"}))


def act(process: Process, name: str) -> None:
    with suppress(MessageNotFound, Conflict, InvalidRequest):
        ACTS[name][0](process)


class Interruption:
    """Lets a process act before one call of the store of another process."""

    def __init__(self, number: int, process: Process, name: str) -> None:
        self.calls = 0
        self.is_over = False
        self._number = number
        self._act = partial(act, process, name)

    def watch(self, store: Store) -> Store:
        watched = InterposedStore(store)
        for contract in CONTRACTS:
            for _, method in inspect.getmembers(getattr(storage, contract), inspect.iscoroutinefunction):
                watched.before(method, self._count)
        return watched.store

    async def _count(self) -> None:
        self.calls += 1
        if self.calls == self._number and not self.is_over:
            await in_thread(self._act)


def find_wrong(stores: tuple[Store, Store], clock: Clock, first: str, second: str, start: str) -> str | None:
    """Tries a pair of acts with the second one before each call of the store by the first one."""
    for number in range(1, MAX_CALLS):
        job = Job(stores[0], clock, start)
        other = Process(job, stores[1])
        interruption = Interruption(number, other, second)
        act(Process(job, interruption.watch(stores[0])), first)
        interruption.is_over = True
        if interruption.calls < number:
            return None
        for moment in ("at once", "later"):
            if moment == "later":
                clock.advance(30)
                other.claims.claim(other.access, limit=1, ttl=10)
            status, result = other.end()
            if not is_allowed(job, {first, second}, status, result, is_later=moment == "later"):
                return f"{status} {result!r} {moment}, {second!r} at call {number} of {first!r}; {job.has_accepted!r}"
    raise AssertionError(f"{first} makes more than {MAX_CALLS} calls")


SELDOM = {("late", name) for name in ("cancel", "delete", "replace", "delete by name", "give up")}
"""Acts whose steps are the same whether the claim has expired or not."""
PAIRS = [
    pytest.param(start, first, id=f"{start}, {first}", marks=pytest.mark.slow if (start, first) in SELDOM else ())
    for start in ("waiting", "claimed", "late")
    for first in ACTS
    if start != "waiting" or first not in OF_A_CLAIM
]


@pytest.mark.slow_on("cassandra", "simulated")
@pytest.mark.parametrize(("start", "first"), PAIRS)
def test_pairs(store: Store, other: Store, clock: Clock, start: str, first: str) -> None:
    """Whatever else happens at the same moment, an accepted acknowledgement ends the job with its result."""
    seconds = [name for name in ACTS if start != "waiting" or name not in OF_A_CLAIM]
    wrong = [find_wrong((store, other), clock, first, second, start) for second in seconds]
    assert [text for text in wrong if text is not None] == []


async def _overwrite(records: JobRecords, queue: Queue, partition: int, position: Position, mark: Leaving) -> None:
    """Records the end in place of a result."""
    end = JobEnd(0, "void", mark.time, leaving=mark)
    await records._change_end(queue, partition, position, end, lambda _end: end)


async def _mark_as_new(
    jobs: JobUseCases, queue: Queue, delivered: Mapping[Location, bool], status: Literal["removed", "superseded"]
) -> None:
    """Marks all jobs as never delivered."""
    await _MARK(jobs, queue, dict.fromkeys(delivered, False), status)


def _show_marks(queue: Queue, end: JobEnd, view: LogView, now: float) -> dict[str, Any]:
    """Shows a mark although the message was acknowledged."""
    return {"status": end.leaving.status} if end.leaving else _END_FIELDS(queue, end, view, now)


_MARK, _END_FIELDS = JobUseCases.mark_leaving, jobs._end_fields
MUTATIONS: dict[str, tuple[Any, Any]] = {
    "a mark overwrites a result": (JobRecords.mark_leaving, _overwrite),
    "a mark does not know of the delivery": (JobUseCases.mark_leaving, _mark_as_new),
    "a mark counts for what was acknowledged": (_END_FIELDS, _show_marks),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mechanism(store: Store, other: Store, clock: Clock, name: str) -> None:
    """Without any one mechanism some pair takes the status or the result of an accepted acknowledgement."""
    with replace(*MUTATIONS[name]):
        wrong = [
            find_wrong((store, other), clock, first, second, "claimed")
            for first, second in [("acknowledge with a result", "delete"), ("delete", "acknowledge")]
        ]
    assert any(wrong)
