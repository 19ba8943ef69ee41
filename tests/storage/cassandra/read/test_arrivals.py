"""When readers of a partition are woken, and what it costs a process to watch very many partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import StoreUnavailable
from queuey.model.messages import NewMessage, Page, Queue, Slice
from queuey.storage.cassandra.read.recent_writes import PROCESS_TIMEOUT, RecentWrites
from queuey.storage.cassandra.read.watched_arrivals import (
    EARLY_READ_INTERVAL,
    FIRST_WINDOW_READS,
    MAX_POLLED,
    POLLS_BESIDE_RECORD,
    POLLS_PER_TURN,
    STEPS_PER_TURN,
    TURNS_BETWEEN_POLLS,
    PolledArrivals,
    choose_watches_to_poll,
)
from queuey.storage.partition_watches import POLL_INTERVAL, Watch
from tests.storage.cassandra.simulated import FaultlessDriver

DELAY = 0.3


def queue(number: int, application: str = "one") -> Queue:
    return Queue(application=application, name=f"q{number}", uid=number, qid=number)


def watches(application: str, count: int) -> list[Watch]:
    return [Watch(queue(number, application), 1, lambda: None, 0, prompt=False) for number in range(count)]


class CountingStore:
    """A store that counts its polls, which return no messages."""

    def __init__(self) -> None:
        self.polled: list[int] = []
        self.fails = False
        self.work = 0
        """Polls, requests for a read delay, and wake-ups."""

    def read_delay(self, queue: Queue) -> float:
        self.work += 1
        return DELAY

    def horizon_now(self, queue: Queue, *, keeps_read_delay: bool) -> int:
        return 0

    async def read(self, queue: Queue, slices: Sequence[Slice], *, polls: bool) -> list[Page]:
        assert polls
        self.work += STEPS_PER_TURN // POLLS_PER_TURN
        if self.fails:
            raise StoreUnavailable("broken")
        self.polled.append(queue.qid)
        return [Page([], 0, None, more=False) for _ in slices]


class Process:
    """A process whose timers fire as the driver's time advances.

    If ``settled``, it is past its first rounds, and has forgotten what they woke and polled.
    """

    def __init__(
        self, driver: FaultlessDriver, name: str, watched: int = 0, *, early: bool = False, settled: bool = True
    ) -> None:
        self.driver = driver
        self.store = CountingStore()
        self.record = RecentWrites(driver, driver.clock(), name)
        self.arrivals = PolledArrivals(self.store, driver.clock(), self.record, driver.calls)
        self.woken: list[int] = []
        self.stops: list[Callable[[], None]] = []
        for number in range(1, watched + 1):
            woken = lambda number=number: self.woken.append(number)  # noqa: E731
            self.stops.append(self.arrivals.watch(queue(number), 1, woken, keeps_read_delay=True, early=early))
        if settled:
            driver.advance((2 * FIRST_WINDOW_READS + 1.5) * POLL_INTERVAL)
            self.woken.clear()
            self.store.polled.clear()

    def write(self, number: int, **how: float) -> None:
        self.arrivals.notify_appended(queue(number), [NewMessage("x", 1, 60, **how)])  # type: ignore[arg-type]
        self.driver.advance(0.01)

    def end(self) -> None:
        self.arrivals.watches.is_closed = True


@pytest.fixture
def driver() -> FaultlessDriver:
    return FaultlessDriver()


@pytest.fixture
def writer(driver: FaultlessDriver) -> Process:
    return Process(driver, "writer")


@pytest.fixture
def reader(driver: FaultlessDriver) -> Process:
    """A process that watches a thousand queues and follows the record."""
    return Process(driver, "reader", 1000)


@given(st.integers(1, 400), st.integers(1, 400))
def test_applications_take_turns(many: int, few: int) -> None:
    """However much one application watches, another gets half of the polls, or all that it needs."""
    one, other = watches("one", many), watches("other", few)
    chosen = choose_watches_to_poll([*one, *other], 0.0, MAX_POLLED)
    assert len(chosen) == min(MAX_POLLED, many + few)
    assert sum(watch in other for watch in chosen) >= min(few, MAX_POLLED // 2)


def test_each_has_its_turn() -> None:
    """Due watches are polled first, then those polled longest ago, and none while a poll of it is in flight."""
    mine = watches("one", MAX_POLLED * 2)
    mine[0].asking = True
    seen: list[Watch] = []
    for turn in range(1, 4):
        for watch in choose_watches_to_poll(mine, 0.0, MAX_POLLED):
            watch.polled = turn
            seen.append(watch)
    assert {*map(id, mine[1:])} == {*map(id, seen[: len(mine) - 1])}
    mine = watches("one", 10)
    for watch in mine:
        watch.due = 50.0
    mine[7].due, mine[7].polled = 5.0, 1
    assert [mine.index(watch) for watch in choose_watches_to_poll(mine, 10.0, 3)] == [7, 0, 1]


def test_cost_of_watching(reader: Process, driver: FaultlessDriver) -> None:
    """A thousand idle partitions cost a few queries per turn, however long that lasts, and each is polled in turn."""
    driver.sent.clear()
    driver.advance(100.0)
    assert {*reader.store.polled} == {*range(1, 1001)}
    assert len(reader.store.polled) <= 500 // TURNS_BETWEEN_POLLS * POLLS_BESIDE_RECORD
    assert (len(driver.sent) + 3 * len(reader.store.polled)) / 100.0 <= 45  # A poll is at most three queries.


@pytest.mark.parametrize("count", [1, 1000])
def test_cost_of_watching_early(driver: FaultlessDriver, count: int) -> None:
    """For early readers the record is read often, whatever their number; fewer polls keep the cost the same."""
    process = Process(driver, "reader", count, early=True)
    driver.advance(4)
    driver.sent.clear()
    process.store.polled.clear()
    driver.advance(20)
    assert len(driver.sent) / 20 <= 2 / EARLY_READ_INTERVAL + 3  # A minute ends, and for a while two minutes are read.
    assert (len(driver.sent) + 3 * len(process.store.polled)) / 20 <= 47  # Without early readers: 45.
    for stop in process.stops:
        stop()
    driver.advance(1.0)
    driver.sent.clear()
    driver.advance(100.0)
    assert not driver.sent


@pytest.mark.parametrize("why", ["broken", "too much", "killed"])
def test_what_may_have_been_missed_is_polled(
    writer: Process, reader: Process, driver: FaultlessDriver, why: str
) -> None:
    """If the record cannot be read, has too many rows, or its writer died, each partition is polled soon."""
    if why == "killed":
        writer.write(7)
        writer.end()
        driver.advance(PROCESS_TIMEOUT + 0.5)
    elif why == "broken":
        driver.fail = lambda _request: StoreUnavailable("broken")
        driver.advance(0.5)
        assert len(reader.store.polled) >= MAX_POLLED
        driver.fail = lambda _request: None
    else:
        reader.record.read = lambda **_: (_ for _ in ()).throw(StoreUnavailable("more than is read"))  # type: ignore[method-assign]
        driver.advance(0.5)
        assert len(reader.store.polled) >= MAX_POLLED
        del reader.record.read
    reader.store.polled.clear()
    driver.advance(POLL_INTERVAL * (1000 // MAX_POLLED + 8))
    assert {*reader.store.polled} == {*range(1, 1001)}


def test_news_of_others(writer: Process, reader: Process, driver: FaultlessDriver) -> None:
    """A message of another process wakes its readers once, when the delay is over, even if rows come late."""
    writer.write(7)
    late = {
        place: node_data for place, node_data in driver.cluster.nodes[0].data.items() if place[0] == "recent_writes"
    }
    for node in driver.cluster.nodes:
        for place in late:
            del node.data[place]
    driver.advance(0.3)
    writer.write(8)
    writer.write(9, delay=100.0)
    driver.advance(1.0)
    assert reader.woken == [8]
    for node in driver.cluster.nodes:
        for place, rows in late.items():
            node.data[place].absorb(rows)
    driver.advance(1.0)
    assert reader.woken == [8, 7]
    driver.advance(99.0)
    driver.advance(1.0)
    assert reader.woken == [8, 7, 9]
