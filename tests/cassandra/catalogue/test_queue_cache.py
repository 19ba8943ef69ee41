"""How old a queue's row may be, and how far its messages reach."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from queuey.errors import QueueChanged, QueueNotFound, StoreClosed, StoreUnavailable
from queuey.messages import MAX_TTL, Principal, Queue, QueueSpec
from queuey.storage.cassandra.bucketing import CLASSES, class_of
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache, Row, fields_of, next_longest_ttl, row_of
from queuey.storage.cassandra.lightweight_transactions import LightweightTransactions
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.deadlines import Deadline
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import Wire
from tests.cassandra.scripted import REFUSED, ScriptedDriver

ROW = (1, 2, 1, 259_200, 3, "user", "strong", None, None, None, None, None, None, None, 5.0, 77)
QUEUE = row_of("app", "queue", ROW, 0.0).queue
C = CassandraOptions().row_age

ROWS = (queue_cache.FIND, queue_cache._RAISE_LONGEST_TTL)
"""What reads a queue's row, and what raises its reach."""


def rows_of(driver: ScriptedDriver, **options: Any) -> QueueCache:  # noqa: ANN401 - options of any type
    """Rows that are read from a script."""
    chosen = CassandraOptions(**options)
    cas = LightweightTransactions(
        driver.driver(), chosen, driver.clock(), threading.Event(), Deadline(15, driver.clock().boottime)
    )
    return QueueCache(driver.driver(), chosen, driver.clock(), cas)


@pytest.fixture
def driver() -> ScriptedDriver:
    """Always gives the same row."""
    return ScriptedDriver([ROW])


def test_a_young_row_is_used(driver: ScriptedDriver) -> None:
    """A row is read once and then used for C, no longer."""
    rows = rows_of(driver)
    row = rows.current(QUEUE)
    driver.boottime += C * 0.4
    assert rows.current(QUEUE) is row
    assert rows.get("app", "queue") is row
    assert len(driver.sent) == 1
    driver.boottime += C * 0.7
    assert rows.get("app", "queue") is None
    assert rows.current(QUEUE).read_at == driver.boottime
    assert len(driver.sent) == 2


def test_age_counts_from_the_beginning_of_the_read() -> None:
    """The time that the read itself takes is part of a row's age: what it shows may be as old as its beginning."""
    driver = ScriptedDriver([ROW], seconds=C * 0.9)
    rows = rows_of(driver)
    assert rows.current(QUEUE).read_at == 1000.0
    driver.boottime += C * 0.2
    assert rows.get("app", "queue") is None


def test_a_row_since(driver: ScriptedDriver) -> None:
    """Who needs a row read after some moment gets one, even if a young one is at hand."""
    rows = rows_of(driver)
    rows.current(QUEUE)
    driver.boottime += C * 0.1
    moment = driver.boottime
    assert rows.current(QUEUE, since=moment).read_at >= moment
    assert len(driver.sent) == 2
    assert rows.current(QUEUE, since=moment - 100 * C).read_at >= moment
    assert len(driver.sent) == 2


def test_no_moment_is_long_enough_ago(driver: ScriptedDriver) -> None:
    """A row older than C is read again, whatever age a caller would have been content with."""
    rows = rows_of(driver)
    rows.current(QUEUE)
    driver.boottime += C * 1.1
    rows.current(QUEUE, since=0.0)
    assert len(driver.sent) == 2


@pytest.mark.parametrize("through", ["current", "get"])
def test_refreshed_in_time(driver: ScriptedDriver, through: str) -> None:
    """A row in use is read again at half its age, once and without waiting, so calls to a busy queue never wait."""
    rows = rows_of(driver)

    def use() -> Row | None:
        return rows.current(QUEUE) if through == "current" else rows.get("app", "queue")

    rows.current(QUEUE)
    driver.boottime += C * 0.6
    for _ in range(3):
        assert use() is not None
    assert len(driver.begun) == 1
    driver.begun[0]([ROW], None)
    driver.boottime += C * 0.6
    row = use()
    assert row is not None
    assert row.read_at == pytest.approx(1000.0 + C * 0.6)
    assert len(driver.begun) == 2


def test_a_refresh_that_fails(driver: ScriptedDriver) -> None:
    """A refresh without an answer changes nothing: the row serves until its age ends, then the caller is told."""
    rows = rows_of(driver)
    rows.current(QUEUE)
    driver.boottime += C * 0.6
    rows.current(QUEUE)
    driver.begun[0](None, REFUSED)
    assert rows.current(QUEUE).read_at == 1000.0
    driver.script = [REFUSED]
    driver.boottime += C * 0.6
    with pytest.raises(type(REFUSED)):
        rows.current(QUEUE)


def test_a_refresh_that_finds_nothing(driver: ScriptedDriver) -> None:
    """A row that is gone when it is read again is dropped."""
    rows = rows_of(driver)
    rows.current(QUEUE)
    driver.boottime += C * 0.6
    rows.current(QUEUE)
    driver.begun[0]([], None)
    assert rows.get("app", "queue") is None


def test_a_row_of_another_version(driver: ScriptedDriver) -> None:
    """A caller's row that differs from the one at hand is compared with what there is now: either may be the older."""
    rows = rows_of(driver)
    rows.current(QUEUE)
    driver.script = [[(*ROW[:-1], 78)]]
    newer = structs.replace(QUEUE, version=78)
    assert rows.current(newer).queue == newer
    with pytest.raises(QueueChanged):
        rows.current(QUEUE)
    driver.script = [[]]
    with pytest.raises(QueueChanged):
        rows.current(QUEUE)
    with pytest.raises(QueueNotFound):
        rows.read("app", "queue")


def test_the_later_read_stays(driver: ScriptedDriver) -> None:
    """A slow answer does not replace what was read after it had begun, nor does it drop it."""
    rows = rows_of(driver)
    late = row_of("app", "queue", ROW, driver.boottime)
    rows.put(late)
    rows.put(row_of("app", "queue", (*ROW[:-1], 5), driver.boottime - 0.1))
    assert rows.get("app", "queue") is late
    driver.boottime += C * 0.6
    rows.current(QUEUE)
    rows.put(row_of("app", "queue", ROW, driver.boottime + 0.1))
    driver.begun[0]([], None)
    assert rows.get("app", "queue") is not None


def test_bounded(driver: ScriptedDriver) -> None:
    """No more rows are kept than the options say; those read last stay."""
    rows = rows_of(driver, cached_queues=10)
    for n in range(100):
        rows.read("app", str(n))
    assert len(rows) == 10
    assert [n for n in range(100) if rows.get("app", str(n))] == list(range(90, 100))


def test_old_rows_are_forgotten(driver: ScriptedDriver) -> None:
    """A row that is too old to be used takes no memory once another is read."""
    rows = rows_of(driver)
    for n in range(10):
        rows.read("app", str(n))
    driver.boottime += C * 1.1
    rows.read("app", "another")
    assert len(rows) == 1


def test_a_row_that_takes_too_long_to_read_is_asked_for_a_few_times() -> None:
    """Who wants to write while rows take longer to read than they may be used is told so, after a few attempts."""
    driver = ScriptedDriver([ROW], seconds=C * 1.1)
    with pytest.raises(StoreUnavailable, match=r"takes 1\.10 s to read the row of queue 'queue'") as refused:
        rows_of(driver).young("app", "queue")
    assert refused.value.outcome == "none"
    assert len(driver.sent) == 5


def test_a_row_that_took_too_long_is_read_again() -> None:
    """One slow read is made up for by the next, which is young enough to write by."""

    class Once(ScriptedDriver):
        """Is slow the first time."""

        def run(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - the driver's
            """Answers."""
            self.seconds = 0.0 if self.sent else C * 1.1
            return super().run(*arguments, **named)

    driver = Once([ROW])
    assert rows_of(driver).young("app", "queue").read_at == driver.boottime
    assert len(driver.sent) == 2


def test_closed(driver: ScriptedDriver) -> None:
    """A closed store answers nothing from memory, not even what comes late."""
    rows = rows_of(driver)
    row = rows.current(QUEUE)
    rows.close()
    rows.put(row)
    assert len(rows) == 0
    assert rows.get("app", "queue") is None
    with pytest.raises(StoreClosed):
        rows.current(QUEUE)
    with pytest.raises(StoreClosed):
        rows.read("app", "queue")


@given(st.integers(1, MAX_TTL))
def test_reach(seconds: int) -> None:
    """A recorded reach covers the TTL, fits the class, and is at most twice as long, so that it seldom changes."""
    home_class = class_of(seconds)
    longest_ttl = next_longest_ttl(seconds, home_class)
    assert seconds <= longest_ttl <= min(CLASSES[home_class], max(1, 2 * seconds))
    assert next_longest_ttl(longest_ttl, home_class) == longest_ttl
    if home_class:
        with pytest.raises(ValueError, match="class"):
            next_longest_ttl(seconds, home_class - 1)


@given(
    st.builds(
        Queue,
        application=st.just("a"),
        name=st.text(max_size=3),
        uid=st.integers(1, 1 << 62),
        qid=st.integers(1, 1 << 62),
        partitions=st.integers(1, 9),
        principals=st.lists(st.builds(Principal, st.text(max_size=3), st.booleans(), st.booleans())).map(tuple),
        ttl=st.none() | st.integers(1, MAX_TTL),
        read_delay=st.none() | st.just(0.0),
        version=st.integers(1, 1 << 62),
    )
)
def test_fields_come_back(queue: Queue) -> None:
    """What is written of a queue is what is read."""
    values = (queue.uid, queue.qid, 1, 9, *fields_of(queue), queue.created, queue.version)
    assert row_of(queue.application, queue.name, values, 0.0).queue == queue


class TestRaising:
    """The reach is raised before a longer message is written."""

    def test_raised_for_all(self, open_with: OpenStore, application: str) -> None:
        """Once raised, every process sees it; the queue's version stays, and further calls have nothing to do."""
        wire = Wire()
        store, other = open_with(wire, row_age=600.0, levels={}), open_with()
        queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
        row = store._rows.current(queue)
        assert (row.home_class, row.longest_ttl) == (0, 60)
        raised = store._rows.raise_longest_ttl(row, 1000)
        assert (raised.longest_ttl, raised.queue) == (1024, queue)
        assert other._rows.read(application, "queue").longest_ttl == 1024
        # Others ask on their own account, such as for the clocks of all nodes.
        before = wire.log.count(ROWS)
        assert store._rows.raise_longest_ttl(raised, 1024) is raised
        assert wire.log.count(ROWS) == before > 0
        with pytest.raises(ValueError, match="class 0"):
            store._rows.raise_longest_ttl(raised, CLASSES[0] + 1)

    def test_raised_by_several(self, open_with: OpenStore, application: str) -> None:
        """Whoever raises it last, the reach is never lowered: old rows are read again and compared."""
        store, other = open_with(row_age=1.0), open_with(row_age=1.0)
        queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
        old = other._rows.current(queue)
        store._rows.raise_longest_ttl(store._rows.current(queue), 8000)
        assert other._rows.raise_longest_ttl(old, 500).longest_ttl >= 8000
        assert store._rows.read(application, "queue").longest_ttl >= 8000

    def test_changed_meanwhile(self, open_with: OpenStore, application: str) -> None:
        """The row of a queue that has changed raises nothing."""
        store, other = open_with(), open_with()
        queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
        row = store._rows.current(queue)
        other.update_queue(queue, QueueSpec(ttl=70))
        with pytest.raises(QueueChanged):
            store._rows.raise_longest_ttl(row, 1000)
        assert other._rows.read(application, "queue").longest_ttl == 60


def test_very_long_names_are_not_asked_for(open_with: OpenStore) -> None:
    """A name beyond what Cassandra takes for a key names no queue; asking for it is no failure."""
    store = open_with()
    with pytest.raises(QueueNotFound):
        store.queue("acme", "x" * 100_000)
