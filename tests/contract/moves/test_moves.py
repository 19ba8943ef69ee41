"""Moves between queues, on both stores: every message arrives once and in order, wherever a process stops."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict

from queuey.access.queue_access import QueueAccess
from queuey.api.progress import MoveState
from queuey.app.service import Service
from queuey.messages.posts import Draft
from queuey.model.errors import (
    ClaimsRefused,
    InvalidRequest,
    MoveNotFound,
    MoveUnderWay,
    QueueNotFound,
    RecordChanged,
    StoreUnavailable,
    TooManyMoves,
)
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Message, Meta, Queue, QueueSpec
from queuey.moves import move_records as module
from queuey.moves.active_move import ActiveMove
from queuey.moves.move_records import KIND, MAX_LISTED, MAX_RUNNING, MoveRecords, QueueMove, QueueMoveProgress, decode
from queuey.moves.moves import MoveCarrier, MoveTiming, MoveUseCases
from queuey.storage import Catalogue, KeyedPosts, Messages, Records, Store, bridge
from tests.backends import APP, PROMPT
from tests.blocking import blocking, post
from tests.contract import samples
from tests.contract.claims.test_claims import refuse_made_up_receipts
from tests.contract.samples import append_bodies, eventually, fill_queue, method_of, new_message, whole_partition
from tests.interposed_store import InterposedStore, Killed
from tests.replacing import replace_in

FAST_TIMING = MoveTiming(search=0.1, stale=0.5, beat=0.1)
SEES_ALL_QUEUES: Callable[[str], bool] = bool
make_queue = partial(samples.make_queue, consistency=PROMPT)
"""A queue whose moves finish within seconds once no more messages can appear."""


class Mover:
    """A process that carries out moves."""

    def __init__(self, store: Store) -> None:
        self.stopping = threading.Event()
        self.service = Service(store, stopping=self.stopping)
        self.core = self.service.core
        self.moves = MoveUseCases(store, self.service.claims, self.stopping, timing=FAST_TIMING)

    def access(self, queue: Queue) -> QueueAccess:
        return self.service.queues.access_unchecked(queue)

    def begin(self, source: Queue, target: Queue) -> MoveState:
        return self.core.run(self.moves.begin(self.access(source), self.access(target)))

    def show(self, report: MoveState) -> MoveState:
        return self.core.run(self.moves.show(APP, report.id, SEES_ALL_QUEUES))

    def wait_until_ended(self, report: MoveState) -> MoveState:
        states: list[MoveState] = []

        def over() -> bool:
            states[:] = [self.show(report)]
            return states[0].ended is not None

        assert eventually(over), states
        return states[0]


@pytest.fixture
def mover(store: Store) -> Iterator[Mover]:
    mover = Mover(store)
    yield mover
    mover.stopping.set()


def bodies(store: Store, queue: Queue, partition: int = 1) -> list[str | bytes]:
    return [message.body for message in messages(store, queue, partition)]


def messages(store: Store, queue: Queue, partition: int = 1) -> list[Message]:
    [page] = bridge.run(store.messages.read(queue, [whole_partition(partition)]))
    return page.messages


def test_everything_arrives(store: Store, mover: Mover) -> None:
    """Messages keep partition, order, body, content type, headers and the rest of their TTL; the source is empty."""
    source, target = make_queue(store, partitions=3), make_queue(store, partitions=3)
    meta = Meta("application/json", (("colour", "blue"), ("x", "y")), json=True)
    bridge.run(
        store.messages.append(
            source, [new_message('{"a": 1}', meta=meta, ttl=500), new_message(b"\x00\xff", ttl=50_000)]
        )
    )
    append_bodies(store, source, *(f"b{number}" for number in range(1010)), partition=3)
    before = [messages(store, source, number) for number in (1, 2, 3)]
    report = mover.wait_until_ended(mover.begin(source, target))
    assert (report.state, report.moved, report.left, report.error) == ("done", 1012, 0, None)
    assert report.total is not None
    assert report.updated is not None
    for number, old in zip((1, 2, 3), before, strict=True):
        moved = messages(store, target, number)
        assert [(one.body, one.meta) for one in moved] == [(one.body, one.meta) for one in old]
        assert all(abs(a.expires - b.expires) < 120e7 for a, b in zip(moved, old, strict=True))
        assert bodies(store, source, number) == []
    assert blocking(mover.service.claims).claim(mover.access(source), limit=10, ttl=30) == []
    assert len(blocking(mover.service.claims).claim(mover.access(target), limit=1000, ttl=30, partitions=[3])) == 1000
    assert mover.service.core.run(mover.service.claims.overview.size(mover.access(source), 10)).size == 0
    assert asdict(mover.core.run(mover.moves.list(APP, SEES_ALL_QUEUES))[0]) == asdict(report)


@pytest.mark.slow_on("cassandra", "simulated")
def test_what_stays(store: Store, mover: Mover) -> None:
    """Claimed messages stay with their callers, acknowledged ones are done, and later ones are not moved."""
    source, target = make_queue(store), make_queue(store)
    append_bodies(store, source, "acknowledged", "claimed", "released", "waiting")
    access = mover.access(source)
    held = blocking(mover.service.claims).claim(access, limit=3, ttl=600)
    blocking(mover.service.claims).acknowledge(access, [held[0].receipt])
    blocking(mover.service.claims).release(access, [held[2].receipt])
    report = mover.wait_until_ended(mover.begin(source, target))
    assert (report.state, report.moved, report.left) == ("done", 2, 1)
    assert bodies(store, target) == ["released", "waiting"]
    append_bodies(store, source, "later")
    blocking(mover.service.claims).release(access, [held[1].receipt])
    assert [delivery.message.body for delivery in blocking(mover.service.claims).claim(access, limit=9, ttl=30)] == [
        "claimed",
        "later",
    ]
    assert bodies(store, source) == ["acknowledged", "claimed", "later"]


def make_kind(store: Store, kind: str, partitions: int) -> Queue:
    return samples.make_queue(store, partitions=partitions, consistency=PROMPT, kind=kind)


def claim_all(mover: Mover, queue: Queue) -> Counter[str | bytes]:
    body_counts: Counter[str | bytes] = Counter()
    while given := blocking(mover.service.claims).claim(mover.access(queue), limit=1000, ttl=600):
        body_counts.update(delivery.message.body for delivery in given)
    return body_counts


KINDS = [pytest.param("dedup", "dedup", marks=pytest.mark.slow), ("dedup", "plain"), ("plain", "dedup")]


@pytest.mark.slow_on("cassandra", "simulated")
@pytest.mark.parametrize(("kind", "to"), KINDS)
def test_dedup_queues(store: Store, mover: Mover, kind: str, to: str) -> None:
    """Copies of one body, also those that wait in the target, still count as one; later posts stay in the source."""
    source, target = make_kind(store, kind, 2), make_kind(store, to, 3)
    source_access = mover.access(source)
    bodies = [f"m{number % 700}" for number in range(1600)]
    for start in range(0, len(bodies), 400):
        post(mover.service, source_access, [Draft(body) for body in bodies[start : start + 400]])
    waiting = ["m3", "only here"]
    post(mover.service, mover.access(target), [Draft(body) for body in waiting])
    report = mover.wait_until_ended(mover.begin(source, target))
    moved = 1600 if kind == "plain" else 700
    assert (report.state, report.moved, report.left) == ("done", moved, 0)
    assert mover.service.core.run(mover.service.claims.overview.size(source_access, 10)).size == 0
    assert claim_all(mover, source) == {}
    post(mover.service, source_access, [Draft("m3")])
    assert claim_all(mover, source) == {"m3": 1}
    assert claim_all(mover, target) == Counter({*bodies, *waiting}) + Counter(["m3"] if to == "plain" else [])


@pytest.mark.slow_on("cassandra", "simulated")
def test_fewer_partitions(store: Store, mover: Mover) -> None:
    """If the target has fewer partitions, source partitions share them, each in its order."""
    source, target = make_queue(store, partitions=3), make_queue(store, partitions=2)
    for number in (1, 2, 3):
        append_bodies(store, source, f"{number}a", f"{number}b", partition=number)
    assert mover.wait_until_ended(mover.begin(source, target)).moved == 6
    stored_bodies = bodies(store, target, 1)
    assert [body for body in stored_bodies if body in {"1a", "1b"}] == ["1a", "1b"]
    assert [body for body in stored_bodies if body in {"3a", "3b"}] == ["3a", "3b"]
    assert bodies(store, target, 2) == ["2a", "2b"]


@pytest.mark.slow_on("cassandra", "simulated")
def test_refused_moves(store: Store, mover: Mover) -> None:
    """Moves to the same queue, to two queues, or without claims are refused; a repeated move is the same one."""
    source, target, third = make_queue(store), make_queue(store), make_queue(store)
    with pytest.raises(InvalidRequest, match="another"):
        mover.begin(source, source)
    mover.stopping.set()
    report = mover.begin(source, target)
    assert mover.begin(source, target).id == report.id
    with pytest.raises(MoveUnderWay, match=report.id):
        mover.begin(source, third)
    for name in ("0" * 16, "none", "f" * 16, ""):
        with pytest.raises(MoveNotFound):
            mover.core.run(mover.moves.show(APP, name, SEES_ALL_QUEUES))
    with pytest.raises(MoveNotFound):
        mover.core.run(mover.moves.show("other", report.id, SEES_ALL_QUEUES))
    with pytest.raises(MoveNotFound):
        mover.core.run(mover.moves.cancel(APP, report.id, lambda _name: False))
    assert mover.core.run(mover.moves.list(APP, lambda _name: False)) == []
    for _ in range(MAX_RUNNING - 1):
        mover.begin(make_queue(store), target)
    with pytest.raises(TooManyMoves, match="10 moves"):
        mover.begin(third, target)
    assert len(mover.core.run(mover.moves.list(APP, SEES_ALL_QUEUES))) == MAX_RUNNING
    weak, _ = bridge.run(store.catalogue.create_queue(APP, "weak", QueueSpec(consistency="weak")))
    if store.claim_logs.claims_refusal(weak) is not None:
        with pytest.raises(ClaimsRefused):
            mover.begin(weak, target)


@pytest.mark.slow_on("cassandra", "simulated")
def test_a_move_that_is_just_ending(store: Store, mover: Mover) -> None:
    """The next move begins once the end of the former one is recorded, before its record has gone."""
    source, target = make_queue(store), make_queue(store)
    interposed, after = InterposedStore(store), set[str]()
    begin = partial(mover.moves.begin, mover.access(source), mover.access(target))
    interposed.before(Records.remove_record, lambda: after.add(bridge.run(begin()).id))
    ending = Mover(interposed.store)
    report = ending.wait_until_ended(ending.begin(source, target))
    assert eventually(lambda: bool(after))
    assert report.id not in after
    ending.stopping.set()


@pytest.mark.slow_on("cassandra", "simulated")
def test_cancelled(store: Store, mover: Mover) -> None:
    """A cancelled move ends; moved messages are in the target, the others in the source, each once."""
    source, target = make_queue(store), make_queue(store)
    interposed = InterposedStore(store)
    slow = Mover(interposed.store)
    everything = [f"{number}" for number in range(2500)]
    for start in range(0, 2500, 500):
        append_bodies(store, source, *everything[start : start + 500])
    reports: list[MoveState] = []

    def cancel(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of append_once
        if not reports:
            [report] = slow.core.run(slow.moves.list(APP, SEES_ALL_QUEUES))
            reports.append(slow.core.run(slow.moves.cancel(APP, report.id, SEES_ALL_QUEUES)))
        # The record is read again before all messages are moved.
        time.sleep(2 * FAST_TIMING.beat)
        return bridge.run(store.keyed_posts.append_once(*args, **kwargs))

    interposed.instead(KeyedPosts.append_once, cancel)
    report = slow.wait_until_ended(slow.begin(source, target))
    slow.stopping.set()
    assert reports[0].state == "cancelling"
    assert (report.state, report.moved) == ("cancelled", len(messages(store, target)))
    assert 0 < report.moved < 2500
    assert bodies(store, target) + bodies(store, source) == everything
    assert slow.core.run(slow.moves.cancel(APP, report.id, SEES_ALL_QUEUES)) == report
    assert mover.wait_until_ended(mover.begin(source, target)).state == "done"
    assert bodies(store, target) == everything


@pytest.mark.slow_on("cassandra", "simulated")
@pytest.mark.parametrize("change", [Catalogue.purge_queue, Catalogue.delete_queue], ids=lambda change: change.__name__)
def test_the_target_goes(store: Store, mover: Mover, change: Callable[..., Any]) -> None:
    """If the target is purged or deleted, the move fails, and the other messages are still in the source."""
    source, target = make_queue(store), make_queue(store)
    places = append_bodies(store, source, "a", "b", "c")
    interposed = InterposedStore(store)
    purging = Mover(interposed.store)

    def go() -> None:
        interposed.restore(KeyedPosts.append_once)
        bridge.run(method_of(store, change)(target))

    interposed.before(KeyedPosts.append_once, go)
    report = purging.wait_until_ended(purging.begin(source, target))
    purging.stopping.set()
    assert report.state == "failed"
    assert target.name in (report.error or "")
    refuse_made_up_receipts(store, mover.access(source), *places)
    claimed = blocking(mover.service.claims).claim(mover.access(source), limit=9, ttl=30)
    assert [delivery.message.body for delivery in claimed] == ["a", "b", "c"]


@pytest.mark.slow_on("cassandra", "simulated")
def test_the_source_goes(store: Store, mover: Mover) -> None:
    """If the source is deleted during a move, the move fails."""
    source, target = make_queue(store), make_queue(store)
    append_bodies(store, source, "a")
    mover.stopping.set()
    report = mover.begin(source, target)
    bridge.run(store.catalogue.delete_queue(source))
    other = Mover(store)
    other.moves.start_background_work()
    report = other.wait_until_ended(report)
    other.stopping.set()
    assert report.state == "failed"
    assert source.name in (report.error or "")
    with pytest.raises(QueueNotFound):
        bridge.run(store.catalogue.queue(APP, source.name, fresh=True))
    assert bodies(store, target) == []


@pytest.mark.slow_on("cassandra", "simulated")
def test_another_process_goes_on(store: Store, other: Store) -> None:
    """A process continues a move that has stalled; a process that ends hands its moves back."""
    source, target = make_queue(store), make_queue(store)
    everything = [f"{number}" for number in range(1500)]
    for start in range(0, 1500, 500):
        append_bodies(store, source, *everything[start : start + 500])
    interposed = InterposedStore(store)
    first, second = Mover(interposed.store), Mover(other)

    def fail(*_args: object, **_named: object) -> None:
        raise StoreUnavailable("away")

    interposed.instead(Messages.delete, fail)
    report = first.begin(source, target)
    assert eventually(lambda: bool(messages(store, target)))
    first.stopping.set()
    second.moves.start_background_work()
    report = second.wait_until_ended(report)
    second.stopping.set()
    assert (report.state, report.moved) == ("done", 1500)
    assert bodies(store, target) == everything
    assert bodies(store, source) == []


def carry_out(store: Store, move: QueueMove) -> None:
    service = Service(store)
    active = ActiveMove(move, QueueMoveProgress(), store, service.claims, time.monotonic)
    while not active.is_over:
        service.core.run(active.run())
        time.sleep(min(0.05, max(0.0, active.due - time.monotonic())))


@pytest.mark.needs("exact_horizon")
def test_kills_at_every_step(store: Store, other: Store) -> None:
    """Wherever the process stops, the next one continues, and every message is there once, in order."""
    records = MoveRecords(store)
    everything = [f"{number}" for number in range(2100)]
    for start in range(10):
        source, target = make_queue(store), make_queue(store)
        for first in range(0, 2100, 1000):
            append_bodies(store, source, *everything[first : first + 1000])
        record, new_one = bridge.run(records.begin(source, target))
        assert new_one
        move = decode(record.value).move
        dying = InterposedStore(store)
        dying.kill_at(start // 2 + 1, (KeyedPosts.append_once, Messages.delete), after=start % 2 == 1)
        with suppress(Killed):
            carry_out(dying.store, move)
        carry_out(other, move)
        bridge.run(records.end(record, QueueMoveProgress("done")))
        assert bodies(store, target) == everything, start
        assert bodies(store, source) == []


def test_a_move_is_left_to_the_process_that_works_on_it(store: Store, mover: Mover) -> None:
    """Another process that asks for a move, for example after its own failure, gets it only once it was handed back."""
    claims, records = mover.service.claims, MoveRecords(store)
    first, second = (MoveCarrier(store, claims, records, MoveTiming()) for _ in range(2))
    source = fill_queue(store, "a")
    record, _ = bridge.run(records.begin(source, make_queue(store)))
    mover.service.core.run(first.step(record))
    with pytest.raises(RecordChanged):
        mover.service.core.run(second.step(bridge.run(records.reread(record))))
    assert (first.statistics()["moves_running"], second.statistics()["moves_running"]) == (1, 0)
    mover.service.core.run(first.end())
    mover.service.core.run(second.step(bridge.run(records.reread(record))))
    assert second.statistics()["moves_running"] == 1
    with pytest.raises(RecordChanged):
        mover.service.core.run(first.step(bridge.run(records.reread(record))))


def test_a_move_whose_process_stops_while_it_records_the_end(store: Store, mover: Mover) -> None:
    """Between the two writes of its end a move is in both kinds of record: it is shown as done, not cancellable."""
    record, _ = bridge.run(MoveRecords(store).begin(make_queue(store), make_queue(store)))
    bridge.run(MoveRecords(store).end(record, QueueMoveProgress(state="done", ended=1.0)))
    bridge.run(store.records.set_record(msgspec.structs.replace(record, version=0)))
    report = mover.core.run(mover.moves.show(APP, decode(record.value).move.id, SEES_ALL_QUEUES))
    assert report.state == "done"
    assert [each.state for each in mover.core.run(mover.moves.list(APP, SEES_ALL_QUEUES))] == ["done"]
    assert mover.core.run(mover.moves.cancel(APP, report.id, SEES_ALL_QUEUES)) == report
    assert bridge.run(store.records.records(KIND, APP))[0].value == record.value


def test_a_move_whose_process_had_a_clock_that_was_ahead(store: Store, mover: Mover) -> None:
    """Another process does not wait until the clock reaches the time that a fast clock has recorded."""
    source, target = make_queue(store), make_queue(store)
    append_bodies(store, source, "a")
    records = MoveRecords(store)
    record, _ = bridge.run(records.begin(source, target))
    ahead = store.clock.now_ticks() + 1800 * TICKS_PER_SECOND
    bridge.run(records.save(record, QueueMoveProgress(runner=7), ahead))
    mover.moves.start_background_work()
    [move] = mover.core.run(mover.moves.list(APP, SEES_ALL_QUEUES))
    assert mover.wait_until_ended(move).moved == 1  # type: ignore[arg-type] # its id is asked for


def test_the_last_ones_are_kept(store: Store, mover: Mover) -> None:
    """Records of moves that ended long ago are removed for newer ones."""
    mover.stopping.set()
    records, source, target = MoveRecords(store), make_queue(store), make_queue(store)
    ended = []
    with replace_in(module, MAX_LISTED, 3):
        for _ in range(5):
            record, _ = bridge.run(records.begin(source, target))
            bridge.run(records.end(record, QueueMoveProgress("done")))
            ended.append(decode(record.value).move.id)
        assert [each.id for each in mover.core.run(mover.moves.list(APP, SEES_ALL_QUEUES))] == ended[:1:-1]
    assert ended == sorted(ended)
    with pytest.raises(MoveNotFound):
        bridge.run(records.find(APP, ended[0]))
