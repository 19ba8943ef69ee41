"""Moves that version 0.1.0 began: this version shows, continues and ends them, on both stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from queuey.errors import MoveUnderWay
from queuey.messages import Queue
from queuey.service.moves.records import KIND, Move, MoveRecord, MoveRecords, Progress, decode
from queuey.storage import Ledger, Records, Store, bridge
from tests.backends import APP
from tests.contract.moves.test_moves import SEES_ALL_QUEUES, Killed, Mover, bodies, make_queue
from tests.contract.samples import append_bodies, eventually
from tests.interposed_store import InterposedStore


def record_as_0_1_0(store: Store, work: str, piece: int, value: object, before: bytes | None = None) -> bytes:
    """Records something as version 0.1.0 does."""
    return bridge.run(store.ledger.enter(work, piece, msgspec.msgpack.encode(value), expected=before))


def begin_as_0_1_0(store: Store, source: Queue, target: Queue) -> Move:
    """Begins a move as version 0.1.0 does: it is in the directory, and no process has worked on it."""
    number = bridge.run(store.ledger.now())
    move = Move(number, APP, source.name, source.qid, source.partitions, target.name, target.qid)
    record_as_0_1_0(store, "moves under way", 0, (number, [move]))
    record_as_0_1_0(store, f"moves of {APP}", 0, [number])
    return move


def assert_not_adopted_again(store: Store, records: MoveRecords) -> None:
    """A move of 0.1.0 that has ended is not continued, even after its record was removed because many ended since."""
    for record in bridge.run(store.records.records("ended move", APP)):
        bridge.run(store.records.remove_record(record))
    for _ in range(3):
        bridge.run(records.adopt())
    assert bridge.run(store.records.records(KIND, APP)) == []


def test_a_stalled_move_is_continued(store: Store, other: Store) -> None:
    """A move of 0.1.0 is shown, is its source's only move, and is continued once its record stalls."""
    source, target, third = make_queue(store), make_queue(store), make_queue(store)
    append_bodies(store, source, "a", "b")
    move = begin_as_0_1_0(store, source, target)
    record_as_0_1_0(store, "move", move.number, (move, Progress(runner=7, beat=3, total=2)))
    idle, process = Mover(store), Mover(other)
    idle.stopping.set()
    assert [each.id for each in idle.moves.list(APP, SEES_ALL_QUEUES)] == [move.id]
    with pytest.raises(MoveUnderWay, match=move.id):
        idle.begin(source, third)
    assert idle.begin(source, target).id == move.id
    process.moves.watch()
    report = process.wait_until_ended(idle.moves.show(APP, move.id, SEES_ALL_QUEUES))
    assert (report.state, report.moved, report.total) == ("done", 2, 2)
    assert bodies(store, target) == ["a", "b"]
    assert [each.state for each in idle.moves.list(APP, SEES_ALL_QUEUES)] == ["done"]
    # The end is shown before the record of the running move is removed.
    assert eventually(lambda: bridge.run(store.records.records(KIND, APP)) == [])
    assert_not_adopted_again(store, idle.moves._records)
    later = process.begin(source, third)
    assert later.id > move.id
    assert process.wait_until_ended(later).state == "done"
    process.stopping.set()


@pytest.mark.parametrize("step", [Ledger.enter, Records.set_record, Records.remove_record])
def test_a_process_dies_while_it_ends_a_move(store: Store, step: Callable[..., Any]) -> None:
    """Wherever the process that ends a move of 0.1.0 dies, another one ends it, and it is not adopted again."""
    source, target, records = make_queue(store), make_queue(store), MoveRecords(store)
    move = begin_as_0_1_0(store, source, target)
    record_as_0_1_0(store, "move", move.number, (move, Progress(runner=7, beat=3)))
    for _ in range(2):
        bridge.run(records.adopt())
    [record] = bridge.run(store.records.records(KIND, APP))
    dying = InterposedStore(store)

    async def die(*_: object, **_options: object) -> None:
        raise Killed

    dying.instead(step, die)
    with pytest.raises(Killed):
        bridge.run(MoveRecords(dying.store).end(record, Progress("done")))
    for left in bridge.run(store.records.records(KIND, APP)):
        bridge.run(records.end(left, Progress("done")))
    assert_not_adopted_again(store, records)


def test_a_move_in_progress_is_left_to_its_process(store: Store) -> None:
    """While the record of a 0.1.0 move changes, no process of this version continues it."""
    source, target, records = make_queue(store), make_queue(store), MoveRecords(store)
    move = begin_as_0_1_0(store, source, target)
    before = None
    for beat in range(1, 4):
        before = record_as_0_1_0(store, "move", move.number, (move, Progress(runner=7, beat=beat)), before)
        bridge.run(records.adopt())
        assert bridge.run(store.records.records(KIND, APP)) == []
    bridge.run(records.adopt())
    [record] = bridge.run(store.records.records(KIND, APP))
    assert decode(record.value) == MoveRecord(move, Progress(runner=7, beat=3))


def test_a_move_that_no_process_has_worked_on_is_shown(store: Store) -> None:
    """A 0.1.0 move that no process has started exists in the directory alone; it can be cancelled like any other."""
    mover = Mover(store)
    mover.stopping.set()
    source, target = make_queue(store), make_queue(store)
    move = begin_as_0_1_0(store, source, target)
    assert mover.moves.show(APP, move.id, SEES_ALL_QUEUES).state == "running"
    assert [each.id for each in mover.moves.list(APP, SEES_ALL_QUEUES)] == [move.id]
    assert mover.moves.cancel(APP, move.id, SEES_ALL_QUEUES).state == "cancelling"
    assert mover.moves.show(APP, move.id, SEES_ALL_QUEUES).state == "cancelling"
