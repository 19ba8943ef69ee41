"""Results of jobs: each is that of the acknowledged attempt, in any order of events.

A process that is killed between the row of a result and its entry leaves the row alone: :meth:`Scene.write` is that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import UNSET

from queuey.api.jobs import JobInfo
from queuey.claims.claims import HandlerFailure
from queuey.claims.job_records import RESULT_GRACE_SECONDS, JobRecords
from queuey.claims.jobs import JobPoll
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptStatus
from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import Location
from queuey.storage import LEDGER_TTL, ClaimLogs, Entry, Ledger, Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking
from tests.contract.claims.test_claims import enter, statuses
from tests.contract.moves.test_moves import Mover
from tests.contract.samples import append_bodies, eventually, make_queue, new_message
from tests.interposed_store import InterposedStore

HOUR, DAY = 3600, 86_400


class Scene:
    """One job in a queue, and a process.

    Args:
        store: The store of the process.
        options: Options of the queue.
    """

    def __init__(self, store: Store, **options: Any) -> None:  # noqa: ANN401 - any option of a queue
        self.store = store
        self.queue = make_queue(store, **{"ttl": DAY, "result_ttl": HOUR} | options)
        [self.position] = append_bodies(store, self.queue, "a", ttl=DAY)
        self.use(store)

    def use(self, store: Store) -> None:
        self.service, self.access = enter(store, self.queue)
        self.claims = blocking(self.service.claims)

    @property
    def place(self) -> Location:
        return 1, self.position

    def claim(self, ttl: float = 60) -> ClaimReceipt:
        [claimed] = self.claims.claim(self.access, limit=9, ttl=ttl)
        return claimed.receipt

    def acknowledge(self, receipt: ClaimReceipt, *result: bytes | int) -> ReceiptStatus:
        [status] = statuses(
            self.claims.acknowledge(self.access, [receipt], dict.fromkeys([receipt], *result) if result else {})
        )
        return status

    def has_none_outstanding_after_claim(self) -> bool:
        """Claims once, which ends messages that are gone; returns whether nothing is outstanding."""
        assert self.claims.claim(self.access, limit=1, ttl=60) == []
        return not self.claims.look_at(self.queue, lambda state, _limit: len(state.outstanding))[1]

    def write(self, receipt: ClaimReceipt, result: bytes = b"1") -> None:
        """Writes the row of a result, as before the entry of its acknowledgement."""
        now = self.store.clock.now_ms() / 1000
        bridge.run(JobRecords(self.store.ledger).write_result(self.queue, receipt, result, now))

    def job(self) -> JobInfo:
        return self.claims.job(self.access, self.place)

    def end(self) -> tuple[str, Any]:
        """Returns how the job ended, with its result, which is UNSET if unknown."""
        job = self.job()
        return job.status, None if job.result is None else bytes(job.result) if job.result is not UNSET else UNSET


def test_a_result_is_that_of_the_acknowledgement(store: Store, other: Store) -> None:
    """Every process shows the result once the job is done; repeating the acknowledgement changes nothing."""
    scene = Scene(store)
    assert scene.job().status == "waiting"
    receipt = scene.claim()
    assert scene.job().status == "claimed"
    assert scene.acknowledge(receipt, b'{"x":1}') is ReceiptStatus.ACCEPTED
    assert scene.acknowledge(receipt, b"2") is ReceiptStatus.FINAL
    scene.use(other)
    assert scene.end() == ("done", b'{"x":1}')


def test_none_writes_nothing(store: Store) -> None:
    """A job acknowledged without a result is done with none, however long it waited, and nothing is written for it."""
    scene = Scene(store)
    calls = InterposedStore(store)
    calls.before(Ledger.change, lambda: pytest.fail("something was written"))
    scene.use(calls.store)
    assert scene.acknowledge(scene.claim()) is ReceiptStatus.ACCEPTED
    assert scene.end() == ("done", None)


def test_queues_without_results(store: Store) -> None:
    """A result for a queue that keeps none is ignored, and costs neither a row nor a read of the log."""
    scene = Scene(store, result_ttl=0)
    calls = InterposedStore(store)
    scene.use(calls.store)
    receipt = scene.claim()
    for call in (Ledger.change, Ledger.entry, ClaimLogs.read_log, ClaimLogs.read_log):
        calls.before(call, lambda: pytest.fail("a call of the store"))
    assert scene.acknowledge(receipt, b"1") is ReceiptStatus.ACCEPTED
    scene.use(store)
    assert (scene.end(), scene.job().kept) == (("done", UNSET), 0)


def test_a_row_alone_shows_nothing(store: Store) -> None:
    """A result whose acknowledgement is not in the log is not shown; the same attempt may still acknowledge."""
    scene = Scene(store)
    receipt = scene.claim()
    scene.write(receipt)
    assert scene.job().status == "claimed"
    scene.claims.release(scene.access, [receipt])
    assert scene.job().status == "waiting"
    assert scene.acknowledge(receipt, b"2") is ReceiptStatus.ACCEPTED
    assert scene.end() == ("done", b"1")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_later_attempt_without_a_result(store: Store, other: Store, clock: Clock, *, is_late: bool) -> None:
    """A later attempt without a result ends the job without one, whenever an earlier attempt writes its row."""
    scene = Scene(store)
    first = scene.claim(10)
    if not is_late:
        scene.write(first)
    clock.advance(20)
    scene.use(other)
    second = scene.claim()
    if is_late:
        scene.write(first)
    assert scene.acknowledge(second) is ReceiptStatus.ACCEPTED
    assert scene.end() == ("done", None)
    assert scene.acknowledge(first, b"1") is ReceiptStatus.FINAL
    assert scene.end() == ("done", None)


def test_a_later_attempt_with_a_result(store: Store, other: Store, clock: Clock) -> None:
    """The result of a later attempt counts; that of an earlier attempt is refused, before and after."""
    scene = Scene(store)
    first = scene.claim(10)
    clock.advance(20)
    scene.use(other)
    second = scene.claim()
    assert scene.acknowledge(first, b"1") is ReceiptStatus.SUPERSEDED
    assert scene.acknowledge(second, b"2") is ReceiptStatus.ACCEPTED
    scene.write(first)
    assert scene.end() == ("done", b"2")


def test_a_late_result_of_a_job_that_is_done(store: Store) -> None:
    """Nothing is written for a job that is done: not even its own attempt can add a result."""
    scene = Scene(store)
    receipt = scene.claim()
    scene.acknowledge(receipt)
    assert scene.acknowledge(receipt, b"1") is ReceiptStatus.FINAL
    assert scene.end() == ("done", None)


def test_no_receipt_leaves_before_its_mark(store: Store, clock: Clock) -> None:
    """If earlier results cannot be voided, the message is not delivered again now, but later."""
    scene = Scene(store)
    scene.write(scene.claim(10))
    clock.advance(20)
    failing = InterposedStore(store)

    def fail(*_given: object, **_named: object) -> bytes:
        raise StoreUnavailable("no answer", outcome="unknown")

    failing.instead(Ledger.change, fail)
    scene.use(failing.store)
    with pytest.raises(StoreUnavailable):
        scene.claim()
    failing.restore(Ledger.change)
    assert scene.acknowledge(scene.claim()) is ReceiptStatus.ACCEPTED
    assert scene.end() == ("done", None)


def make_log_forget(scene: Scene, clock: Clock) -> None:
    """Advances two days, appends a message, and claims and releases it twice: the log forgets messages that left."""
    clock.advance(2 * DAY)
    append_bodies(scene.store, scene.queue, "b")
    for _ in range(2):
        scene.claims.release(scene.access, [scene.claim()])


def test_a_dead_letter_has_no_result(store: Store, clock: Clock) -> None:
    """A job whose last attempt wrote a result and was never acknowledged has failed, also long afterwards."""
    scene = Scene(store, max_deliveries=2, result_ttl=7 * DAY)
    receipt = scene.claim()
    scene.claims.release(scene.access, [receipt], 0.0, HandlerFailure("ValueError", "no egg"))
    scene.write(scene.claim(10))
    clock.advance(20)
    assert scene.claims.claim(scene.access, limit=1, ttl=60) == []
    assert eventually(lambda: scene.job().ended is not UNSET)
    job = scene.job()
    assert (job.status, job.error, job.text, job.result) == ("failed", "ValueError", "no egg", UNSET)
    make_log_forget(scene, clock)
    bridge.run(store.messages.delete(bridge.run(store.catalogue.queue(APP, f"{scene.queue.name}.dead")), [scene.place]))
    assert (scene.job().status, scene.job().error) == ("failed", "ValueError")


def test_given_up_by_its_worker(store: Store) -> None:
    """A job that its worker gave up has failed with the error of that attempt, from the moment of the release."""
    scene = Scene(store)
    scene.claims.release(scene.access, [scene.claim()], reason=HandlerFailure("KeyError", "7"), retry=False)
    job = scene.job()
    assert (job.status, job.error, job.text) == ("failed", "KeyError", "7")


@pytest.mark.needs("exact_horizon")
@pytest.mark.parametrize("on_ack", ["keep", "delete"])
def test_a_message_that_is_gone(store: Store, clock: Clock, on_ack: str) -> None:
    """A delivered job that expires is expired, whatever its attempt has written; a late attempt is refused."""
    scene = Scene(store, result_ttl=7 * DAY, on_ack=on_ack)
    receipt = scene.claim(10)
    scene.write(receipt)
    clock.advance(DAY + 60)
    assert scene.job().status == "expired"
    assert eventually(lambda: scene.has_none_outstanding_after_claim() and scene.job().ended is not UNSET)
    assert scene.acknowledge(receipt, b"2") is ReceiptStatus.SUPERSEDED
    assert scene.end() == ("expired", UNSET)
    make_log_forget(scene, clock)
    assert scene.end() == ("expired", UNSET)


@pytest.mark.needs("exact_horizon")
@pytest.mark.parametrize("is_delivered", [False, True])
def test_a_message_that_is_deleted(store: Store, clock: Clock, *, is_delivered: bool) -> None:
    """A deleted job is removed, also long afterwards; but if its attempt is acknowledged, its result is shown."""
    scene = Scene(store)
    receipt = scene.claim(10) if is_delivered else None
    scene.service.core.run(scene.service.messages.delete(scene.access, [scene.place]))
    if receipt is None:
        assert scene.job().status == "removed"
    else:
        assert scene.job().status == "claimed"
        clock.advance(20)
    assert eventually(lambda: scene.has_none_outstanding_after_claim() and scene.job().status == "removed")
    make_log_forget(scene, clock)
    assert scene.job().status == "removed"
    other = Scene(store)
    receipt = other.claim()
    other.service.core.run(other.service.messages.delete(other.access, [other.place]))
    other.acknowledge(receipt, b"1")
    assert other.end() == ("done", b"1")


@pytest.mark.parametrize("is_repeated", [False, True])
def test_cancelled(store: Store, clock: Clock, *, is_repeated: bool) -> None:
    """A cancelled job is removed without a dead letter; a result that its worker still sends is shown."""
    for end in ("waits", "released", "expired", "acknowledged"):
        scene = Scene(store)
        if is_repeated:
            scene.write(scene.claim(10))
            clock.advance(20)
        receipt = None if end == "waits" else scene.claim(10)
        if is_repeated and receipt is None:
            scene.claims.release(scene.access, [receipt := scene.claim(10)])
        scene.claims.cancel(scene.access, scene.position)
        if receipt is not None and end == "released":
            scene.claims.release(scene.access, [receipt], reason=HandlerFailure("ValueError"))
        elif end == "expired":
            clock.advance(20)
            assert scene.claims.claim(scene.access, limit=1, ttl=60) == []
        elif receipt is not None and end == "acknowledged":
            assert scene.acknowledge(receipt, b"7") is ReceiptStatus.ACCEPTED
        elif receipt is not None:
            scene.write(receipt)
        assert scene.end() == (("done", b"7") if end == "acknowledged" else ("removed", UNSET)), end


def test_a_result_of_a_message_that_was_deleted(store: Store, clock: Clock) -> None:
    """A result that a superseded attempt writes does not count after its message was deleted; its last attempt does."""
    scene = Scene(store)
    first = scene.claim(10)
    clock.advance(20)
    second = scene.claim()
    scene.service.core.run(scene.service.messages.delete(scene.access, [scene.place]))
    scene.write(first)
    assert scene.acknowledge(second) is ReceiptStatus.ACCEPTED
    assert scene.end() == ("done", None)


@pytest.mark.needs("exact_horizon")
def test_a_move(store: Store, clock: Clock) -> None:
    """A job that was delivered before is removed when it is moved, also long afterwards, whatever its attempt wrote."""
    scene = Scene(store, result_ttl=7 * DAY)
    scene.write(scene.claim(10))
    clock.advance(20)
    mover, target = Mover(store), make_queue(store)
    mover.wait_until_ended(mover.begin(scene.queue, target))
    mover.stopping.set()
    assert scene.job().status == "removed"
    make_log_forget(scene, clock)
    assert scene.job().status == "removed"


def test_what_is_not_known(store: Store, clock: Clock) -> None:
    """After its retention a result is unknown, and the answer says how long it was kept."""
    scene = Scene(store)
    scene.acknowledge(scene.claim(), b"1")
    clock.advance(HOUR - 10)
    assert scene.end() == ("done", b"1")
    clock.advance(20)
    job = scene.job()
    assert (job.status, job.result, job.kept) == ("done", UNSET, HOUR)
    clock.advance(DAY)
    assert (scene.job().status, scene.job().kept) == ("unknown", HOUR)


def test_a_job_that_waited_for_long(store: Store, clock: Clock) -> None:
    """A process that has seen the job unfinished knows that it has no result; others only know that it is done."""
    scene = Scene(store)
    clock.advance(2 * HOUR)
    poll = JobPoll([scene.place])

    def status() -> JobInfo:
        show = scene.access.apply(lambda queue: scene.service.claims.jobs.read_answer(queue, poll))
        return scene.service.core.run(show).infos[0]

    assert status().status == "waiting"
    scene.acknowledge(scene.claim())
    assert (status().status, status().result) == ("done", None)
    assert scene.end() == ("done", UNSET)


def test_unfinished_jobs(store: Store, clock: Clock) -> None:
    """Each unfinished state of a job has a name; a job that was never seen, or expired unseen, has one too."""
    scene = Scene(store)
    [delayed] = bridge.run(store.messages.append(scene.queue, [new_message("b", delay=600)]))
    assert scene.claims.job(scene.access, (1, delayed)).status == "delayed"
    receipt = scene.claim()
    job = scene.job()
    assert (job.status, job.deliveries, job.expires) == ("claimed", 1, round(store.clock.now_ms() / 1000 + 60, 3))
    scene.claims.release(scene.access, [receipt], 20.0, HandlerFailure("ValueError", "no egg"))
    job = scene.job()
    assert (job.status, job.error, job.text) == ("retrying", "ValueError", "no egg")
    clock.advance(30)
    assert scene.job().status == "waiting"
    unseen: Position = (ids.seconds_to_ticks(store.clock.now_ms() / 1000), ids.LOW_MIN)
    assert scene.claims.job(scene.access, (1, unseen)).status == "never_seen"
    [brief] = append_bodies(store, scene.queue, "c", ttl=DAY)
    clock.advance(DAY + 60)
    assert scene.claims.job(scene.access, (1, brief)).status == "expired"


def test_too_large(store: Store) -> None:
    """The job is done, and the answer has the size in place of the result."""
    scene = Scene(store)
    assert scene.acknowledge(scene.claim(), 20_000) is ReceiptStatus.ACCEPTED
    job = scene.job()
    assert (job.status, job.result, job.size) == ("done", UNSET, 20_000)


def test_rows_end(store: Store) -> None:
    """A result is kept a minute longer than it is shown, and the end of another job for as long as the ledger keeps."""
    scene = Scene(store)
    kept: list[float] = []
    watching = InterposedStore(store)

    async def change(work: str, piece: int, decide: Callable[[bytes | None], Entry], **named: bool) -> bytes | None:
        kept.append(decide(None).kept or 0.0)
        return await store.ledger.change(work, piece, decide, **named)

    watching.instead(Ledger.change, change)
    scene.use(watching.store)
    scene.acknowledge(scene.claim(), b"1")
    [position] = append_bodies(store, scene.queue, "b")
    scene.service.core.run(scene.service.messages.delete(scene.access, [(1, position)]))
    assert kept == [HOUR + RESULT_GRACE_SECONDS, LEDGER_TTL]
