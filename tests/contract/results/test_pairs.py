"""Two acts on one job at one moment: the second one happens as a whole between two calls of the store of the first one.

What a reader may see afterwards follows from what the acts answered: an acknowledgement that was accepted ends the job as
``done`` with its result, whatever else was on its way. Each pair is tried at each call of the store.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from msgspec import UNSET

from queuey.claims.receipts import ClaimReceipt, ReceiptStatus
from queuey.errors import Conflict, InvalidRequest, MessageNotFound, QueueyError
from queuey.messages import QueueSpec
from queuey.service import Draft
from queuey.service.claims.jobs import JobStatuses
from queuey.service.claims.results import JobEnd, Leaving, Results
from queuey import storage
from queuey.storage import Store, bridge
from queuey.storage.calls import in_thread
from tests.backends import APP, Clock
from tests.blocking import BlockingNames, blocking
from tests.contract.claims.test_claims import enter
from tests.contract.samples import fresh_name
from tests.interposed_store import CONTRACTS, InterposedStore
from tests.replacing import replace

HOUR = 3600
MAX_CALLS = 40
"""Max calls of the store that one act makes."""


class Job:
    """A named job that a worker has claimed.

    Args:
        store: The store of the process that claims.
        is_late: The claim has expired.
    """

    def __init__(self, store: Store, clock: Clock, *, is_late: bool) -> None:
        spec = QueueSpec(read_delay=0.0, ttl=24 * HOUR, result_ttl=HOUR, max_deliveries=4)
        self.queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), spec))
        process = Process(self, store)
        location = process.names.replace(process.access, "n", Draft("old")).location
        assert location is not None
        self.place = location
        self.receipt = process.claim()
        self.has_accepted: bytes | None = None
        """The result of the acknowledgement that was accepted, or ``null``."""
        self.clock = clock
        if is_late:
            clock.advance(20)


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
        receipt = self.job.receipt
        written = dict.fromkeys([receipt], *results) if results else None
        [settled] = self.claims.acknowledge(self.access, [receipt], written)
        if settled.status is ReceiptStatus.DONE:
            self.job.has_accepted = results[0] if results else b"null"

    def end(self) -> tuple[str, bytes | None]:
        """Returns the status that readers see, and the result; UNSET counts as none."""
        job = self.claims.job(self.access, self.job.place)
        return job.status, b"null" if job.result is None else None if job.result is UNSET else bytes(job.result)


ACTS: dict[str, tuple[Callable[[Process], object], str]] = {
    "acknowledge with a result": (lambda process: process.acknowledge(b"7"), ""),
    "acknowledge": (lambda process: process.acknowledge(), ""),
    "cancel": (lambda process: process.claims.cancel(process.access, process.job.place[1]), "removed"),
    "delete": (lambda process: process.service.messages.delete(process.access, [process.job.place]), "removed"),
    "replace": (lambda process: process.names.replace(process.access, "n", Draft("new")), "superseded"),
    "delete by name": (lambda process: process.names.delete(process.access, "n"), "removed"),
    "give up": (lambda process: process.claims.release(process.access, [process.job.receipt], retry=False), "failed"),
    "release": (lambda process: process.claims.release(process.access, [process.job.receipt]), ""),
    "claim": (lambda process: process.claims.claim(process.access, limit=1, ttl=10), ""),
}
"""Acts, and how each may end a job that is not acknowledged."""
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
        ends.add("expired")  # The message was found gone before its name's change had marked it.
    return status in ends or (status in UNFINISHED and (not ends or not is_later or ends == {"failed"}))


def act(process: Process, name: str) -> None:
    with suppress(MessageNotFound, Conflict, InvalidRequest):
        ACTS[name][0](process)


def find_wrong(stores: tuple[Store, Store], clock: Clock, first: str, second: str, *, is_late: bool) -> str | None:
    """Tries a pair of acts with the second one before each call of the store by the first one."""
    for number in range(MAX_CALLS):
        calls = InterposedStore(stores[0])
        job = Job(stores[0], clock, is_late=is_late)
        other, seen, has_ended = Process(job, stores[1]), 0, False

        async def step() -> None:
            nonlocal seen
            seen += 1
            if seen == number + 1 and not has_ended:
                await in_thread(partial(act, other, second))

        process = Process(job, calls.store)
        for contract in CONTRACTS:
            for _, method in inspect.getmembers(getattr(storage, contract), inspect.iscoroutinefunction):
                calls.before(method, step)
        act(process, first)
        has_ended = True
        if seen <= number:
            return None
        watching = Process(job, stores[1])
        for moment in ("at once", "later"):
            if moment == "later":
                clock.advance(30)
                with suppress(QueueyError):
                    watching.claims.claim(watching.access, limit=1, ttl=10)
            status, result = watching.end()
            if not is_allowed(job, {first, second}, status, result, is_later=moment == "later"):
                return f"{status} {result} {moment}, {second!r} at call {number} of {first!r}; {job.has_accepted}"
    raise AssertionError(f"{first} makes more than {MAX_CALLS} calls")


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("first", ACTS)
def test_pairs(store: Store, other: Store, clock: Clock, first: str, *, is_late: bool) -> None:
    """Whatever else happens at the same moment, an accepted acknowledgement ends the job with its result."""
    wrong = [find_wrong((store, other), clock, first, second, is_late=is_late) for second in ACTS]
    assert [one for one in wrong if one is not None] == []
