"""Results in random orders of events, also with each mechanism removed, so that some order shows a wrong result.

Two processes have one job. Workers claim, are suspended and come back late; processes die between the row of a result
and its entry; the job expires, becomes a dead letter, is deleted or released. The result shown must follow from the
acknowledgements that the log has accepted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from msgspec import UNSET

from queuey.api.jobs import UNFINISHED
from queuey.claims.drafts import EntryDraft
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus
from queuey.errors import MessageNotFound
from queuey.ids import Position
from queuey.messages import Queue
from queuey.service import ClaimUseCases
from queuey.service.claims.results import JobEnd, JobResult, Results
from queuey.storage import Store
from tests.backends import Clock
from tests.contract.results.test_results import DAY, Scene
from tests.replacing import replace

HISTORIES = 40
"""Number of random histories, each with its own seed."""
EVENTS = 16


class History:
    """One job and the results that may be shown for it.

    Args:
        stores: The stores of two processes.
        clock: The clock of the stores.
        seed: Chooses the events.
    """

    def __init__(self, stores: tuple[Store, Store], clock: Clock, seed: int) -> None:
        self._random = random.Random(seed)
        self._stores = stores
        self._clock = clock
        on_ack = self._random.choice(["keep", "delete"])
        self._scene = Scene(stores[0], result_ttl=7 * DAY, max_deliveries=4, on_ack=on_ack)
        self._receipts: list[ClaimReceipt] = []
        self._wrote: set[ClaimReceipt] = set()
        """Deliveries whose row was written without an acknowledgement."""
        self._allowed: set[bytes | None] = set()
        """Results of the acknowledgement; empty if the log has accepted none."""
        self._is_deleted = False
        """Whether the job was deleted or cancelled before an acknowledgement."""
        self._log: list[str] = []

    def run(self) -> str | None:
        events = [self.claim] * 4 + [self.acknowledge] * 2 + [self.die] * 2 + [self.expire] * 3
        events += [self.write_late, self.release, self.give_up, self.delete, self.cancel]
        for _ in range(EVENTS):
            self._scene.use(self._random.choice(self._stores))
            event = self._random.choice(events)
            self._log.append(event.__name__)
            event()
            if (wrong := self._find_wrong()) is not None:
                return f"{wrong} after {', '.join(self._log)}"
        self._clock.advance(2 * DAY)
        for _ in range(3):
            self.claim()
        wrong = self._find_wrong()
        return None if wrong is None else f"{wrong} two days after {', '.join(self._log)}"

    def _find_wrong(self) -> str | None:
        status, result = self._scene.end()
        if status == "done":
            is_right = (None if result is UNSET else result) in self._allowed
        elif status == "unknown":
            is_right = None in self._allowed
        elif status == "removed":
            is_right = self._is_deleted and not self._allowed
        else:
            is_right = not self._allowed
        return None if is_right else f"{status} {result} instead of {self._allowed}"

    # Events

    def claim(self) -> None:
        claimed = self._scene.claims.claim(self._scene.access, limit=1, ttl=10)
        self._receipts += [delivery.receipt for delivery in claimed]

    def acknowledge(self) -> None:
        if not self._receipts:
            return
        receipt = self._random.choice(self._receipts)
        with_result = self._random.random() < 0.5
        if self._scene.acknowledge(receipt, *([_result(receipt)] if with_result else [])) is ReceiptStatus.DONE:
            self._allowed = {_result(receipt)} if with_result else {None}
            self._allowed |= {_result(receipt)} if receipt in self._wrote else set()

    def die(self) -> None:
        if self._receipts and self._scene.job().status in UNFINISHED:
            self._write(self._receipts[-1])

    def write_late(self) -> None:
        """Writes the result of an earlier delivery, whose process was suspended."""
        if len(self._receipts) > 1:
            self._write(self._random.choice(self._receipts[:-1]))

    def _write(self, receipt: ClaimReceipt) -> None:
        self._wrote.add(receipt)
        self._scene.write(receipt, _result(receipt))

    def release(self) -> None:
        self._scene.claims.release(self._scene.access, self._receipts[-1:])

    def give_up(self) -> None:
        if self._random.random() < 0.3:
            self._scene.claims.release(self._scene.access, self._receipts[-1:], retry=False)

    def delete(self) -> None:
        if self._random.random() < 0.2:
            self._is_deleted = self._is_deleted or not self._allowed
            self._scene.service.messages.delete(self._scene.access, [self._scene.place])

    def cancel(self) -> None:
        if self._random.random() < 0.2:
            self._is_deleted = self._is_deleted or not self._allowed
            with suppress(MessageNotFound):
                self._scene.claims.cancel(self._scene.access, self._scene.position)

    def expire(self) -> None:
        self._clock.advance(20)


def _result(receipt: ClaimReceipt) -> bytes:
    return b"%d" % receipt.number


def find_first_failure(stores: tuple[Store, Store], clock: Clock, seeds: Iterable[int]) -> str | None:
    failures = (wrong for seed in seeds if (wrong := History(stores, clock, seed).run()) is not None)
    return next(failures, None)


@pytest.mark.needs("exact_horizon")
def test_histories(store: Store, other: Store, clock: Clock) -> None:
    """In any order of events, a result is shown exactly where its attempt was acknowledged."""
    assert find_first_failure((store, other), clock, range(HISTORIES)) is None


async def _nothing(*_given: object, **_named: object) -> None:
    pass


async def _keep_without_log(claims: ClaimUseCases, queue: Queue, results: Mapping[ClaimReceipt, JobResult]) -> None:
    rows, now = claims._results, claims._store.claim_logs.claim_now() / 1000
    for receipt, result in results.items():
        await rows.write_result(queue, receipt, result, now)


async def _write_always(rows: Results, queue: Queue, end: JobEnd, _change: Callable[[JobEnd], JobEnd]) -> None:
    await _WRITE(rows, queue, end, lambda _row: end)


_WRITE = Results._write


def _end_at_once(draft: EntryDraft, position: Position) -> None:
    """Ends a message that is gone or cancelled without the outbox."""
    draft._finals[position] = None
    draft.size += 1


MUTATIONS: dict[str, tuple[Any, Any]] = {
    "no result is voided": (Results.void_result, _nothing),
    "ends without acknowledgement write no row": (Results.record_end, _nothing),
    "an earlier delivery overwrites a later one": (Results._write, _write_always),
    "results are written unverified": (ClaimUseCases._write_valid_results, _keep_without_log),
    "gone messages end without the outbox": (EntryDraft._end_without_letter, _end_at_once),
}


@pytest.mark.needs("exact_horizon")
@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mechanism(store: Store, other: Store, clock: Clock, name: str) -> None:
    """Without any one mechanism some history shows a wrong result."""
    with ExitStack() as changed:
        changed.enter_context(replace(*MUTATIONS[name]))
        assert find_first_failure((store, other), clock, range(10 * HISTORIES)) is not None
