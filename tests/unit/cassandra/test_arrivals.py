"""When readers of a partition are woken, and whom a process that is asked to watch very many looks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.errors import StoreUnavailable
from queuey.messages import NewMessage, Page, Queue, Slice
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.driver import Driver, Request, Rows
from queuey.storage.cassandra.waiting.arrivals import (
    EARLY,
    FEW,
    FIRST,
    MOST,
    SELDOM,
    SOME,
    Done,
    PolledArrivals,
    next_to_look_for,
)
from queuey.storage.cassandra.waiting.recent_writes import GONE, KEPT, LATEST, MOST_KEYS, MOST_ROWS, RecentWrites
from queuey.storage.deadlines import Deadline
from queuey.storage.watching import EVERY, Watch

DELAY = 0.3


def queue(number: int, application: str = "one") -> Queue:
    """One of many."""
    return Queue(application=application, name=f"q{number}", uid=number, qid=number)


def watches(application: str, count: int) -> list[Watch]:
    """Watches of an application, on queues of their own."""
    return [Watch(queue(number, application), 1, lambda: None, 0, prompt=False) for number in range(count)]


class Table:
    """The record's table, as every process sees it."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, str, bytes]] = []
        self.asked = 0
        self.broken = False

    def replication(self) -> dict[str, int]:
        """One data centre."""
        return {"": 3}

    def send(self, request: Request, done: Callable[[None, None], None]) -> None:
        """Adds a row."""
        self.rows.append(cast("tuple[int, int, int, str, bytes]", tuple(request.values)))
        done(None, None)

    def gather(self, requests: Sequence[Request]) -> list[Rows]:
        """Returns rows."""
        if self.broken:
            raise StoreUnavailable("broken")
        self.asked += len(requests)
        wanted = [request.values for request in requests]
        return [
            [row[2:] for row in self.rows if row[:2] == (minute, shard) and row[2] >= since][:MOST_ROWS]
            for minute, shard, since in wanted
        ]


class Machine:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def clock(self) -> Clock:
        """One that follows it."""
        return Clock(lambda: round(self.seconds * 1e9), lambda: round(self.seconds * 1e9))


class Polled:
    """A store that counts its polls, which find nothing."""

    def __init__(self) -> None:
        self.polled: list[int] = []
        self.delay = DELAY

    def read_delay(self, queue: Queue) -> float:
        """Of every queue."""
        return self.delay

    def horizon_now(self, queue: Queue, *, delayed: bool) -> int:
        """Somewhere."""
        return 0

    def begin_look(self, queue: Queue, part: Slice, done: Done) -> bool:
        """Polls."""
        self.polled.append(queue.qid)
        done(Page([], 0, None, more=False), None)
        return True

    def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        """Is not asked."""
        raise AssertionError


class Process:
    """A process whose polls are made by hand."""

    def __init__(self, table: Table, machine: Machine, name: str) -> None:
        self.clock = machine.clock()
        self.store = Polled()
        self.record = RecentWrites(cast("Driver", table), self.clock, name, Deadline(15.0))
        self.arrivals = PolledArrivals(self.store, self.clock, self.record)
        self.arrivals.watches.close()  # No thread of its own.
        self.watches: Sequence[Watch] = ()
        self.woken: list[int] = []
        self.stops: list[Callable[[], None]] = []

    def watch(self, count: int, *, early: bool = False) -> None:
        """Watches a partition of each of so many queues."""
        for number in range(1, count + 1):
            woken = lambda number=number: self.woken.append(number)  # noqa: E731
            self.stops.append(self.arrivals.watch(queue(number), 1, woken, delayed=True, early=early))
        self.watches = self.arrivals.watches.all()
        self.woken.clear()

    def look(self) -> None:
        """Makes one turn."""
        self.arrivals._look(self.watches)

    def glance(self) -> float:
        """Makes a glance between two turns."""
        return self.arrivals._glance()

    def spend(self, machine: Machine, seconds: float) -> None:
        """Lets time pass as the thread of the watches does."""
        for _ in range(round(seconds / EVERY)):
            self.look()
            until = machine.seconds + EVERY
            while machine.seconds < until - 1e-9:
                machine.seconds += min(until - machine.seconds, self.glance())

    def write(self, number: int, **how: float) -> None:
        """Stores a message in a queue."""
        self.arrivals.appended(queue(number), [NewMessage("x", 1, 60, **how)])  # type: ignore[arg-type]


@pytest.fixture
def machine() -> Machine:
    """The time of all."""
    return Machine()


@pytest.fixture
def table() -> Table:
    """The record."""
    return Table()


@pytest.fixture
def writer(table: Table, machine: Machine) -> Process:
    """A process that writes."""
    return Process(table, machine, "writer")


@pytest.fixture
def reader(table: Table, machine: Machine) -> Process:
    """A process that watches a thousand queues and follows the record."""
    found = Process(table, machine, "reader")
    found.watch(1000)
    for _ in range(2 * FIRST + 1):
        found.look()
    assert len(found.store.polled) == SOME
    found.store.polled.clear()
    return found


@given(st.integers(1, 400), st.integers(1, 400))
def test_applications_take_turns(many: int, few: int) -> None:
    """Whatever one application watches, another has half of the looks, or all that it needs."""
    one, other = watches("one", many), watches("other", few)
    chosen = next_to_look_for([*one, *other], 0.0, MOST)
    assert len(chosen) == min(MOST, many + few)
    mine = sum(watch in other for watch in chosen)
    assert mine >= min(few, MOST // 2)


def test_each_has_its_turn() -> None:
    """The partitions that were looked at longest ago are next, and none while a look at it is under way."""
    mine = watches("one", MOST * 2)
    mine[0].asking = True
    seen: list[Watch] = []
    for turn in range(1, 4):
        for watch in next_to_look_for(mine, 0.0, MOST):
            watch.looked = turn
            seen.append(watch)
    assert mine[0] not in seen
    assert set(map(id, mine[1:])) == set(map(id, seen[: len(mine) - 1]))


def test_what_is_due_comes_first() -> None:
    """Watches that something may have been missed for do not wait for the others' turns, and these go on."""
    mine = watches("one", 10)
    for watch in mine:
        watch.due = 50.0
    mine[7].due, mine[7].looked = 5.0, 1
    assert [mine.index(watch) for watch in next_to_look_for(mine, 10.0, 3)] == [7, 0, 1]


def test_own_messages_need_no_look(table: Table) -> None:
    """Readers of what this process has stored are woken once the read delay is over, and no others are."""
    clock = Clock()
    record = RecentWrites(cast("Driver", table), clock, "mine", Deadline(15.0))
    arrivals = PolledArrivals(Polled(), clock, record)
    woken, disturbed, began = threading.Event(), threading.Event(), time.monotonic()
    arrivals.watch(queue(1), 1, woken.set, delayed=True)
    arrivals.watch(queue(2), 1, disturbed.set, delayed=True)
    arrivals.appended(queue(1), [NewMessage("x", 1, 60)])
    arrivals.appended(queue(1), [NewMessage("x", 2, 60)])
    assert woken.wait(60)
    assert time.monotonic() - began >= DELAY
    assert not disturbed.is_set()
    arrivals.close()


def test_news_of_others(writer: Process, reader: Process, machine: Machine) -> None:
    """What another process stored wakes its readers when the read delay is over: once, and no others."""
    writer.write(7)
    writer.look()
    reader.look()
    reader.look()
    assert reader.woken == []
    machine.seconds += DELAY + 0.1
    for _ in range(5):
        reader.look()
    assert reader.woken == [7]


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_who_begins_to_wait_after_a_message(writer: Process, reader: Process, machine: Machine, whose: str) -> None:
    """Whoever begins to wait for what is stored, but not shown yet, is woken when it is."""
    process = reader if whose == "its own" else writer
    process.write(2000)
    process.look()
    reader.look()
    reader.look()
    reader.arrivals.watch(queue(2000), 1, lambda: reader.woken.append(2000), delayed=True)
    machine.seconds += DELAY + 0.1
    reader.watches = reader.arrivals.watches.all()
    reader.woken.clear()
    reader.look()
    assert reader.woken == [2000]


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_many_who_begin_to_wait(table: Table, writer: Process, machine: Machine, whose: str) -> None:
    """The first readings of the record tell a process that begins to watch many what was stored before."""
    reader = Process(table, machine, "reader")
    process = reader if whose == "its own" else writer
    process.write(7)
    process.look()
    reader.watch(1000)
    for _ in range(2 * FIRST):
        reader.look()
    machine.seconds += DELAY + 0.1
    reader.look()
    assert reader.woken == [7]


def test_long_read_delays(reader: Process, machine: Machine) -> None:
    """A partition whose readers stay far behind is polled when all is shown that was stored when they began."""
    reader.store.delay = KEPT
    reader.arrivals.watch(queue(2000), 1, lambda: None, delayed=True)
    reader.watches = reader.arrivals.watches.all()
    reader.look()
    assert 2000 not in reader.store.polled
    machine.seconds += KEPT + 0.1
    reader.look()
    assert reader.store.polled[0] == 2000


def test_very_many_messages(reader: Process, machine: Machine) -> None:
    """Readers of a busy partition are woken some times a second, and after the last message."""
    for _ in range(1000):
        reader.write(7)
        machine.seconds += 0.001
    for _ in range(10):
        machine.seconds += 0.2
        reader.look()
    assert 20 <= len(reader.woken) <= 22
    assert set(reader.woken) == {7}


def test_rows_that_come_late(writer: Process, reader: Process, table: Table, machine: Machine) -> None:
    """A row that becomes visible after later ones is read nevertheless."""
    writer.write(7)
    writer.look()
    late = table.rows.pop()
    machine.seconds += 0.5
    writer.write(8)
    writer.look()
    reader.look()
    reader.look()
    table.rows.insert(0, late)
    machine.seconds += 0.5
    for _ in range(4):
        reader.look()
    assert sorted(reader.woken) == [7, 8]


def test_delayed_messages(writer: Process, reader: Process, machine: Machine) -> None:
    """A delayed message is recorded when it becomes due."""
    writer.write(7, delay=100.0)
    writer.look()
    machine.seconds += 99.0
    writer.look()
    machine.seconds += 1.0
    writer.look()
    reader.look()
    reader.look()
    assert reader.woken == []
    machine.seconds += DELAY + 0.1
    reader.look()
    assert reader.woken == [7]


def test_cost_of_watching(reader: Process, table: Table, machine: Machine) -> None:
    """A thousand idle partitions cost a few queries a turn, however long it goes on, and each has its turn."""
    table.asked = 0
    for _ in range(500):
        machine.seconds += 0.2
        reader.look()
    assert len(reader.store.polled) == 500 // SELDOM * SOME
    assert set(reader.store.polled) == set(range(1, 1001))
    assert (table.asked + 3 * len(reader.store.polled)) / 100.0 <= 45  # A poll is three queries at most.


@pytest.mark.parametrize("count", [1, 1000])
def test_cost_of_watching_early(table: Table, machine: Machine, count: int) -> None:
    """Those who read early have the record read often, however many they are; as less is polled, it costs as before."""
    process = Process(table, machine, "reader")
    process.watch(count, early=True)
    process.spend(machine, 4)
    table.asked = 0
    process.store.polled.clear()
    process.spend(machine, 20)
    assert table.asked / 20 <= 2 / EARLY + 3  # A minute ends, and there are two beside each other for a while.
    assert len(process.store.polled) / 20 <= SOME / 2
    assert (table.asked + 3 * len(process.store.polled)) / 20 <= 47  # Without: 45.
    for stop in process.stops:
        stop()
    process.watch(1000)
    process.spend(machine, 4)
    table.asked = 0
    process.spend(machine, 20)
    assert table.asked / 20 <= 2 * 2.5 + 1


def test_glances_cost_nothing_without_early_readers(reader: Process, table: Table) -> None:
    """A process that only watches, and stores nothing, is not disturbed between two turns."""
    table.asked = 0
    assert reader.glance() > EVERY
    assert (table.asked, table.rows) == (0, [])


def test_early_news_of_others(table: Table, machine: Machine, writer: Process) -> None:
    """What another process stores wakes early readers at the first glance after its own, and again in its place."""
    reader = Process(table, machine, "reader")
    reader.watch(1, early=True)
    reader.spend(machine, 1)
    reader.woken.clear()
    writer.write(1)
    writer.glance()
    machine.seconds += EARLY
    reader.glance()
    assert reader.woken == [1]
    reader.spend(machine, DELAY + 0.5)
    # Once for each of the two watches, which is one wake of the requests that share them.
    assert len(reader.woken) == 3


def test_by_a_clock_that_is_ahead(table: Table, machine: Machine) -> None:
    """Where another clock is ahead, early readers are woken once more when their own has come as far."""
    ahead = Machine()
    ahead.seconds += 0.2
    writer, reader = Process(table, ahead, "writer"), Process(table, machine, "reader")
    reader.watch(1, early=True)
    reader.spend(machine, 1)
    reader.woken.clear()
    ahead.seconds += 1
    writer.write(1)
    writer.glance()
    machine.seconds += EARLY - 1e-3
    ahead.seconds = machine.seconds + 0.2
    reader.glance()
    machine.seconds += 1e-3
    reader.glance()
    first = len(reader.woken)
    machine.seconds += 0.21
    reader.glance()
    assert (first, len(reader.woken) > first) == (1, True)


def test_rows_of_a_busy_process(writer: Process, table: Table, machine: Machine) -> None:
    """The first message is recorded at once, others within 50 ms; twenty rows a second are all, and one ends them."""
    writer.write(7)
    writer.glance()
    assert len(table.rows) == 1
    for _ in range(1000):
        machine.seconds += 0.001
        writer.write(7)
        writer.glance()
    assert 20 <= len(table.rows) <= 21
    assert all(row[4] for row in table.rows)
    for _ in range(4):
        machine.seconds += EVERY
        writer.look()
        writer.glance()
    assert len(table.rows) <= 23
    assert [bool(row[4]) for row in table.rows[-2:]] == [True, False]


def test_a_slow_process_adds_no_more_rows(writer: Process, table: Table, machine: Machine) -> None:
    """Messages a third of a second apart have a row each, and one that ends them."""
    for _ in range(30):
        writer.write(7)
        writer.spend(machine, 0.4)
    assert len(table.rows) <= 2 * 30


def test_late_rows_while_somebody_reads_early(table: Table, machine: Machine, writer: Process) -> None:
    """What the frequent readings do not see, because it comes late, is found by the others; nothing wakes twice."""
    reader = Process(table, machine, "reader")
    reader.watch(1, early=True)
    reader.spend(machine, 1)
    writer.write(1)
    writer.glance()
    late = table.rows.pop()
    reader.spend(machine, LATEST + 0.4)
    reader.woken.clear()
    table.rows.append(late)
    reader.spend(machine, 2)
    assert len(reader.woken) == 1 + 2


def test_few_need_no_record(table: Table, machine: Machine) -> None:
    """Where all can be polled in each turn, nothing is read beside."""
    process = Process(table, machine, "reader")
    process.watch(FEW)
    process.look()
    assert sorted(process.store.polled) == list(range(1, FEW + 1))
    assert table.asked == 0


def test_without_the_record(reader: Process, table: Table, machine: Machine) -> None:
    """While the record cannot be read all are polled as fast as may be; then each once more."""
    table.broken = True
    reader.look()
    reader.look()
    assert len(reader.store.polled) >= MOST
    table.broken = False
    reader.look()
    reader.store.polled.clear()
    machine.seconds += DELAY + 0.1
    for _ in range(1000 // MOST + 1):
        reader.look()
    assert set(reader.store.polled) == set(range(1, 1001))


def test_too_much_to_be_read(reader: Process, table: Table, machine: Machine) -> None:
    """More rows than are read at a time are as none: the rest may name anything."""
    now = machine.clock().now()
    minute = now // 600_000_000
    table.rows += [(minute, 1, now, f"process {number}", b"") for number in range(MOST_ROWS)]
    reader.look()
    reader.look()
    assert len(reader.store.polled) >= MOST


def test_a_process_that_was_killed(writer: Process, reader: Process, machine: Machine) -> None:
    """When a process ends in the middle of writing, what it did not record is found: each partition is polled soon."""
    writer.write(7)
    writer.look()
    reader.look()
    reader.look()
    reader.store.polled.clear()
    machine.seconds += GONE + 0.1
    reader.look()
    reader.look()
    machine.seconds += DELAY + 0.1
    for _ in range(1000 // MOST + 1):
        reader.look()
    assert set(reader.store.polled) == set(range(1, 1001))


def test_a_data_centre_that_was_cut_off(table: Table, machine: Machine) -> None:
    """When rows come again that did not come for a while, those between are too old to be read: all is polled once."""
    writer, reader = (
        RecentWrites(cast("Driver", table), machine.clock(), name, Deadline(15.0)) for name in ("writer", "reader")
    )
    writer.note([1])
    writer.write()
    reader.read(first=False)
    assert not reader.lost()
    machine.seconds += GONE + 0.1
    assert reader.lost()
    assert not reader.lost()
    writer.note([2])
    writer.write()
    reader.read(first=False)
    assert reader.lost()
    assert not reader.lost()


@pytest.mark.parametrize("how", ["by itself", "closed"])
def test_a_process_that_stopped(writer: Process, reader: Process, machine: Machine, how: str) -> None:
    """A process that has said that it stopped writing, or was closed, has recorded all."""
    writer.write(7)
    writer.look()
    if how == "closed":
        writer.arrivals.close()
    else:
        writer.look()
    reader.look()
    reader.look()
    reader.store.polled.clear()
    machine.seconds += GONE + 0.1
    for _ in range(2 * SELDOM):
        reader.look()
    assert len(reader.store.polled) == 2 * SOME


def test_purged_queues(writer: Process, reader: Process, machine: Machine) -> None:
    """Readers of a queue that another process has purged are woken, to find it out."""
    writer.arrivals.rewritten(7, [1])
    writer.look()
    reader.look()
    reader.look()
    machine.seconds += DELAY + 0.1
    reader.look()
    assert reader.woken == [7]


def test_very_many_keys(table: Table, machine: Machine) -> None:
    """What was written in very many partitions takes several rows, each of bounded size."""
    one, other = (RecentWrites(cast("Driver", table), machine.clock(), name, Deadline(15.0)) for name in "ab")
    keys = {(1 << 62) - 1 - number << 8 | 200 for number in range(2 * MOST_KEYS + 1)}
    one.note(keys)
    assert one.write()
    assert [len(row[4]) // 9 for row in table.rows] == [MOST_KEYS, MOST_KEYS, 1]
    assert {key for some in other.read(first=False) for key in some.keys} == keys
    assert not one.write()  # The row that says so is the last.
    assert len(table.rows) == 4


def test_minutes(table: Table, machine: Machine) -> None:
    """What was recorded at the end of a minute is read in the next one, also by a process whose clock is behind."""
    ahead = Machine()
    machine.seconds, ahead.seconds = 59.5, 60.4
    one, other = (
        RecentWrites(cast("Driver", table), of.clock(), str(of.seconds), Deadline(15.0)) for of in (ahead, machine)
    )
    one.note([5])
    one.write()
    assert [some.keys for some in other.read(first=False)] == [[5]]
    machine.seconds += 1.5
    other._seen.clear()
    assert [some.keys for some in other.read(first=False)] == [[5]]
