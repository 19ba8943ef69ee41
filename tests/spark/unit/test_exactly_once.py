"""Writes at reserved ids, ended between any two steps and repeated: every row is stored once and no reader misses it.

The tests run on the embedded store, whose clock they move.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuey.model.errors import QueueChanged, StoreUnavailable, TooLate
from queuey.model.messages import Message, NewMessage, Queue, QueueSpec, Slice
from queuey.spark.sink.exactly_once import NotRepeatable, Reserver, TargetQueue, WriteCounts
from queuey.spark.sink.ledger_entry import ChunkEntry, decode, encode, find_members, list_members, make_index_set, union
from queuey.storage import Bulk, Store, bridge
from queuey.storage.arrow_format import MessageColumns, columns_of
from tests.backends import APP, Clock
from tests.interposed_store import InterposedStore
from tests.spark.attempts import Killed, Mortal, Reader, Texts

LEAD = 10.0


class TaskSetup:
    """An embedded store with a clock that the test moves, a queue, and a reader of it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.clock = clock
        self.store = store
        self._numbers = itertools.count()
        self.fresh()

    def fresh(self) -> None:
        number = next(self._numbers)
        self.queue, _ = bridge.run(self.store.catalogue.create_queue(APP, f"q{number}", QueueSpec(partitions=2)))
        self.work = f"work-{number}"
        self.reader = Reader(self.store, self.queue)

    def attempt(self, mortal: InterposedStore | None = None, *, batch: int = 0) -> Reserver:
        """Returns an attempt of the task; its waits move the clock."""
        store = self.store if mortal is None else mortal.store
        target = TargetQueue(store, self.queue, sleep=self.clock.advance)
        return Reserver(target, self.work, lead=LEAD, batch=batch)

    def pass_time(self, seconds: float) -> None:
        """Moves the clock; then another writer writes to a queue of its own, and the reader reads."""
        self.clock.advance(seconds)
        other, _ = bridge.run(self.store.catalogue.create_queue(APP, "other", QueueSpec()))
        bridge.run(self.store.messages.append(other, [NewMessage("tick", 1, 60)]))
        self.reader.read()

    def read_stored(self) -> list[str]:
        """Moves the clock by an hour, and returns the texts of all messages of the queue."""
        slices = [Slice(partition, limit=10_000) for partition in (1, 2)]
        self.pass_time(3600.0)
        return [
            str(one.body) for page in bridge.run(self.store.messages.read(self.queue, slices)) for one in page.messages
        ]


@pytest.fixture
def setup(store: Store, clock: Clock) -> TaskSetup:
    return TaskSetup(store, clock)


def loading(setup: TaskSetup, load: Callable[..., object]) -> InterposedStore:
    between = InterposedStore(setup.store)
    between.instead(Bulk.load_unread, load)
    return between


CHUNKS = [Texts.chunk("a", "b", "c"), Texts.chunk("d", "e", "f", "g"), Texts.chunk("h")]
EVERYTHING = list("abcdefgh")


def write_all(attempt: Reserver, chunks: Sequence[Texts] = CHUNKS) -> WriteCounts:
    return sum((attempt.write(piece, chunk) for piece, chunk in enumerate(chunks)), WriteCounts())


def check_stored_once(setup: TaskSetup, expected: Iterable[str] = EVERYTHING) -> None:
    expected = sorted(expected)
    assert sorted(setup.read_stored()) == expected
    assert sorted(setup.reader.seen) == expected


NUMBERED = [Texts(["a", "b", "c"], [0, 1, 2], 10), Texts(["d", "e", "f", "g"], [3, 1, 2, 0], 10), Texts(["h"], [5], 10)]
STEPS = 9
"""The steps of a task of three chunks: enter, load, enter for each."""
WAYS = ("before", "half", "after")


@pytest.mark.parametrize("when", WAYS)
@pytest.mark.parametrize("late", [0.0, LEAD / 2, 2 * LEAD])
@pytest.mark.parametrize("chunks", [CHUNKS, NUMBERED], ids=["in order", "numbered"])
def test_an_attempt_that_is_killed_at_any_step_is_done_again(
    setup: TaskSetup, when: str, late: float, chunks: list[Texts]
) -> None:
    """Wherever an attempt ends, in time and too late, the next one leaves every row stored and read exactly once.

    The next one goes through numbered rows backwards.
    """
    for at in range(STEPS):
        setup.fresh()
        with pytest.raises(Killed):
            write_all(setup.attempt(Mortal(setup.store, at, when)), chunks)
        setup.pass_time(late)
        again = setup.attempt()
        pieces = list(enumerate(chunks))[:: -1 if chunks is NUMBERED else 1]
        counts = sum((again.write(piece, rows) for piece, rows in pieces), WriteCounts())
        assert counts.rows == counts.written + counts.skipped + counts.kept == 8
        assert counts.moved == 0 or late > LEAD
        check_stored_once(setup)


@pytest.mark.parametrize("when", WAYS)
def test_retries_that_are_killed_while_rows_move_are_done_again(setup: TaskSetup, when: str) -> None:
    """A retry that came too late may end at any step, and so may the next one, which comes later still."""
    for first, second, third in itertools.product((0, 1, 4), range(7), (0, 3)):
        setup.fresh()
        for at in (first, second, third):
            try:
                write_all(setup.attempt(Mortal(setup.store, at, when)))
            except Killed:
                setup.pass_time(3 * LEAD * 4)
        write_all(setup.attempt())
        check_stored_once(setup)


def test_what_moved_is_said_by_whoever_comes_last(setup: TaskSetup) -> None:
    """Moves are counted from the ledger, so an attempt that finds all rows done reports them as well."""
    with pytest.raises(Killed):
        write_all(setup.attempt(Mortal(setup.store, 1)))
    setup.pass_time(2 * LEAD)
    assert write_all(setup.attempt()) == WriteCounts(rows=8, written=8, moved=3)
    assert write_all(setup.attempt()) == WriteCounts(rows=8, skipped=8, moved=3)


def test_rows_that_a_killed_attempt_wrote_in_time_stay(setup: TaskSetup) -> None:
    """Rows that a killed attempt wrote in time stay: readers may have them, and would see a copy again."""
    with pytest.raises(Killed):
        write_all(setup.attempt(Mortal(setup.store, 1, "half")))
    setup.pass_time(2 * LEAD)
    assert setup.reader.seen == ["a"]
    assert write_all(setup.attempt()) == WriteCounts(rows=8, written=7, moved=2, kept=1)
    check_stored_once(setup)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_attempts_at_the_same_time_do_not_harm_each_other(setup: TaskSetup, data: st.DataObject) -> None:
    """An attempt taken for dead may continue between any steps of its retry, in time or too late."""
    setup.fresh()
    steps = data.draw(st.lists(st.sampled_from(["a", "b", "later", "read"]), max_size=40))
    lateness = data.draw(st.sampled_from([0.1, LEAD, 3 * LEAD]))
    dies = data.draw(st.none() | st.integers(0, 12))
    how = data.draw(st.sampled_from(WAYS))
    turns = {name: _stepwise(setup, Mortal(setup.store, dies if name == "a" else None, how)) for name in "ab"}
    for step in steps:
        if step in turns:
            next(turns[step], None)
        elif step == "later":
            setup.pass_time(lateness)
        else:
            setup.reader.read()
    for turn in reversed(turns.values()):
        for _ in turn:
            pass
    check_stored_once(setup)


def _stepwise(setup: TaskSetup, mortal: Mortal) -> Iterator[None]:
    """Runs an attempt in a thread that stops before each step until it is resumed."""
    go, stopped = threading.Semaphore(0), threading.Semaphore(0)
    ended = threading.Event()

    def between() -> None:
        stopped.release()
        assert go.acquire(timeout=60)

    def work() -> None:
        try:
            write_all(setup.attempt(mortal))
        except Killed:
            pass
        finally:
            ended.set()
            stopped.release()

    mortal.between = between
    thread = threading.Thread(target=work)
    thread.start()
    assert stopped.acquire(timeout=60)
    while not ended.is_set():
        try:
            yield
        finally:
            go.release()
            assert stopped.acquire(timeout=60)
    thread.join(60)


def test_rows_in_another_order_are_refused_unless_all_are_done(setup: TaskSetup) -> None:
    """A half-written chunk is repeated only in the same order; a finished one is accepted in any order."""
    with pytest.raises(Killed):
        setup.attempt(Mortal(setup.store, 1, "half")).write(0, Texts.chunk("a", "b", "c"))
    with pytest.raises(NotRepeatable, match="rows in another order, in chunk 0"):
        setup.attempt().write(0, Texts.chunk("b", "a", "c"))
    setup.attempt().write(0, Texts.chunk("a", "b", "c"))
    assert setup.attempt().write(0, Texts.chunk("c", "b", "a")) == WriteCounts(rows=3, skipped=3)
    for other in (Texts.chunk("a", "b"), Texts.chunk("a", "b", "x"), Texts.chunk("a", "b", "c", "d")):
        with pytest.raises(NotRepeatable):
            setup.attempt().write(0, other)
    check_stored_once(setup, "abc")


def test_a_write_acknowledged_too_late_moves_all_its_rows(setup: TaskSetup) -> None:
    """After a late acknowledgement readers may have passed the ids: rows are removed there and written at later ids."""
    real = setup.store.bulk.load_unread
    calls: list[int] = []

    async def late(queue: Queue, messages: Sequence[Message]) -> int:
        written = await real(queue, messages)
        calls.append(written)
        if len(calls) == 1:
            raise TooLate(written=True)
        return written

    assert setup.attempt(loading(setup, late)).write(0, Texts.chunk("a", "b", "c")) == WriteCounts(3, 3, moved=3)
    check_stored_once(setup, "abc")


@given(turns=st.lists(st.tuples(st.integers(0, 2), st.floats(0, LEAD / 40)), max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tasks_that_share_pieces_keep_the_order(setup: TaskSetup, turns: list[tuple[int, float]]) -> None:
    """Rows of a task that writes its pieces in order, in time, get ids in that order, whoever has reserved them."""
    setup.fresh()
    tasks = [setup.attempt() for _ in range(3)]
    following = [itertools.count() for _ in tasks]
    last: dict[int, int] = {}
    for task, pause in turns:
        piece = next(following[task])
        rows = Texts([f"{task} {piece} {number}" for number in (0, 1)], [3 * number + task for number in (0, 1)], 6)
        tasks[task].write(piece, rows)
        setup.clock.advance(pause)
        entry = decode(bridge.run(setup.store.ledger.entry(setup.work, piece)) or b"")
        newest = entry.find_newest_generations(rows.indexes).tolist()
        ticks = [entry.generations[number].base + index for number, index in zip(newest, rows.numbers, strict=True)]
        assert last.get(task, 0) < ticks[0] < ticks[1]
        last[task] = ticks[1]


def test_a_later_micro_batch_takes_the_entries_over(setup: TaskSetup) -> None:
    """A stream reuses its ledger entries; attempts of a finished micro-batch write nothing."""
    old = setup.attempt(batch=3)
    assert old.write(0, Texts.chunk("a", "b")).written == 2
    assert setup.attempt(batch=4).write(0, Texts.chunk("c")).written == 1
    setup.pass_time(3 * LEAD)
    assert setup.attempt(batch=4).write(0, Texts.chunk("c")).skipped == 1
    for stale in (old, setup.attempt(batch=3)):
        assert stale.has_begun(0)
        with pytest.raises(NotRepeatable, match="micro-batch 4 of the same query has begun"):
            stale.write(0, Texts.chunk("a", "b"))
    assert not setup.attempt(batch=5).has_begun(0)
    check_stored_once(setup, "abc")


def test_an_attempt_of_a_micro_batch_that_is_done_stops_at_any_step(setup: TaskSetup) -> None:
    """An attempt that overlaps the next micro-batch neither harms it nor writes rows twice."""
    for at in range(3):
        setup.fresh()

        mortal = Mortal(setup.store, None)

        def overtake(mortal: Mortal = mortal, at: int = at) -> None:
            if len(mortal.steps) == at:
                assert setup.attempt(batch=1).write(0, Texts.chunk("a")).rows == 1
                assert setup.attempt(batch=2).write(0, Texts.chunk("b")).written == 1

        mortal.between = overtake
        with pytest.raises(NotRepeatable):
            setup.attempt(mortal, batch=1).write(0, Texts.chunk("a"))
        check_stored_once(setup, "ab")


def test_failures_that_pass_are_waited_for(setup: TaskSetup) -> None:
    """A short outage of the store delays the task; a long one ends it."""
    failures = iter([True, True, False] * 3)

    async def shaky(queue: Queue, messages: Sequence[Message]) -> int:
        if next(failures):
            raise StoreUnavailable("not now")
        return await setup.store.bulk.load_unread(queue, messages)

    write_all(setup.attempt(loading(setup, shaky)))

    async def gone(*_: object) -> int:
        raise StoreUnavailable("not now")

    with pytest.raises(StoreUnavailable, match="not now"):
        setup.attempt(loading(setup, gone)).write(3, Texts.chunk("x"))
    setup.attempt().write(3, Texts.chunk("x"))
    check_stored_once(setup, [*EVERYTHING, "x"])


def test_a_queue_that_changes_is_written_on_and_another_one_is_not(setup: TaskSetup) -> None:
    """An update of the queue does not matter; a recreated queue of the same name is another one."""
    attempt = setup.attempt()
    attempt.write(0, CHUNKS[0])
    bridge.run(setup.store.catalogue.update_queue(setup.queue, QueueSpec(ttl=100)))
    attempt.write(1, CHUNKS[1])
    changed = bridge.run(setup.store.catalogue.queue(APP, setup.queue.name, fresh=True))
    bridge.run(setup.store.catalogue.delete_queue(changed))
    bridge.run(setup.store.catalogue.create_queue(APP, changed.name, QueueSpec(partitions=2)))
    with pytest.raises(QueueChanged, match="created again"):
        attempt.write(2, CHUNKS[2])


def test_a_store_that_is_always_too_slow_is_given_up_loudly(setup: TaskSetup) -> None:
    """A task whose ids are passed at every try, each twice as far ahead, ends with an error."""

    async def slow(*_: object) -> int:
        setup.clock.advance(3600.0)
        raise TooLate(written=False)

    with pytest.raises(StoreUnavailable, match="the store is too slow"):
        setup.attempt(loading(setup, slow)).write(0, CHUNKS[0])


def test_messages_without_a_future_are_counted(setup: TaskSetup) -> None:
    """Expired rows are counted and not written, and cause no repetition."""

    class Ended(Texts):
        def make_messages(self, base: int, low: int) -> MessageColumns:
            first, *others = super().make_messages(base, low)
            return columns_of([msgspec.structs.replace(first, expires=1), *others])

    assert setup.attempt().write(0, Ended(["a", "b"], [0, 1], 2)) == WriteCounts(2, 1, expired=1)
    assert sorted(setup.read_stored()) == ["b"]


@given(st.sets(st.integers(0, 3000)), st.sets(st.integers(0, 3000)), st.integers(1, 3))
def test_sets_of_indexes_are_sets(one: set[int], other: set[int], step: int) -> None:
    """A set contains its members, as ranges or as bits, and a union those of both."""
    first, second = (np.array(sorted(number * step for number in numbers), np.int64) for numbers in (one, other))
    scattered = np.arange(0, 6000, 7)
    for most in (first, scattered):
        both = union(make_index_set(most), second)
        expected = sorted({*most.tolist(), *second.tolist()})
        assert list_members(both).tolist() == expected
        assert np.flatnonzero(find_members(both, np.arange(9001))).tolist() == expected
        entry = ChunkEntry(1, 7, 9001, b"o", b"c", (), done=both)
        assert decode(encode(entry)) == entry
