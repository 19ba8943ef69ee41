"""How old a queue's row may be, and how far its messages reach."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from queuey.errors import QueueChanged, QueueNotFound, StoreClosed, StoreUnavailable
from queuey.messages import MAX_TTL, Backoff, NewMessage, Principal, Queue, QueueSpec
from queuey.storage import queue_rows
from queuey.storage.cassandra.bucketing import CLASSES, class_of
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.queue_cache import (
    SHORTEST,
    QueueCache,
    Row,
    next_longest_ttl,
    row_of,
)
from queuey.storage.cassandra.clocks.timing_in_force import TimingInForce
from queuey.storage.cassandra.lightweight_transactions import LightweightTransactions
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.deadlines import Deadline
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import Wire
from tests.cassandra.scripted import REFUSED, ScriptedDriver

ROW = (1, 2, 1, 259_200, SHORTEST, 3, "user", "strong", *[None] * 12, 5.0, 77)
QUEUE = row_of("app", "queue", ROW, 0.0).queue
C = CassandraOptions().row_age

ROWS = (queue_cache.FIND, queue_cache._COVER)
"""What reads a queue's row, and what makes it cover more."""


def rows_of(driver: ScriptedDriver, **options: Any) -> QueueCache:  # noqa: ANN401 - options of any type
    """Rows that are read from a script."""
    chosen = CassandraOptions(**options)
    cas = LightweightTransactions(
        driver.driver(), chosen, driver.clock(), threading.Event(), Deadline(15, driver.clock().boottime)
    )
    return QueueCache(driver.driver(), chosen, TimingInForce(chosen, driver.clock()), driver.clock(), cas)


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
    assert rows.current(QUEUE).read_at == pytest.approx(driver.boottime)
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


def test_a_refresh_that_cannot_begin(driver: ScriptedDriver) -> None:
    """An unforeseen error of the driver changes nothing either, and the next use tries again."""
    rows = rows_of(driver)
    rows.current(QUEUE)
    driver.boottime += C * 0.6
    real = driver.send

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no thread")

    driver.send = fail  # type: ignore[method-assign]
    assert rows.get("app", "queue") is not None
    driver.send = real  # type: ignore[method-assign]
    assert rows.get("app", "queue") is not None
    assert len(driver.begun) == 1


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
    driver = ScriptedDriver([ROW], seconds=C * 1.2)
    with pytest.raises(StoreUnavailable, match=r"takes 0\.90 s to read the row of queue 'queue'") as refused:
        rows_of(driver).young("app", "queue")
    assert refused.value.outcome == "none"
    assert len(driver.sent) == 6


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
        facade=st.text(max_size=20),
        backoff=st.none() | st.builds(Backoff, first=st.floats(0, 60), jitter=st.floats(0, 1)),
        version=st.integers(1, 1 << 62),
    )
)
def test_fields_come_back(queue: Queue) -> None:
    """What is written of a queue is what is read."""
    values = (queue.uid, queue.qid, 1, 9, 1088, *queue_rows.values(queue), queue.created, queue.version)
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
        assert row.longest_row == SHORTEST
        raised = store._rows.cover(row, {1000, CLASSES[0] + 1}, 5 * SHORTEST)
        assert (raised.longest_ttl, raised.longest_row, raised.queue) == (1024, 16 * SHORTEST, queue)
        found = other._rows.read(application, "queue")
        assert (found.longest_ttl, found.longest_row) == (1024, 16 * SHORTEST)
        # Others ask on their own account, such as for the clocks of all nodes.
        before = wire.log.count(ROWS)
        assert store._rows.cover(raised, {1024}, 16 * SHORTEST) is raised
        assert wire.log.count(ROWS) == before > 0

    def test_one_transaction_raises_both(self, open_with: OpenStore, application: str) -> None:
        """A message that is longer and lives longer than those before it costs one transaction."""
        wire = Wire()
        store = open_with(wire)
        queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
        store.append(queue, [NewMessage("x" * SHORTEST, 1, 100)])
        assert wire.log.count([queue_cache._COVER]) == 1
        found = store._rows.read(application, "queue")
        assert (found.longest_ttl, found.longest_row) == (128, 4 * SHORTEST)

    def test_a_purge_sets_it_back(self, open_with: OpenStore, application: str) -> None:
        """An empty queue has no long rows."""
        store = open_with()
        queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
        store._rows.cover(store._rows.current(queue), (), 5 * SHORTEST)
        store.purge_queue(queue)
        assert store._rows.read(application, "queue").longest_row == SHORTEST

    def test_ids_that_readers_have_passed_wait(self, open_with: OpenStore, application: str) -> None:
        """Before a longer message is written under an old id no process uses a row that does not cover it."""
        store = open_with(row_age=0.5)
        queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
        row = store._rows.current(queue)
        began = store._clock.boottime()
        store._rows.cover(row, (), 2 * SHORTEST, given=True)
        assert store._clock.boottime() - began >= 0.5

    def test_raised_by_several(self, open_with: OpenStore, application: str) -> None:
        """Whoever raises it last, the reach is never lowered: old rows are read again and compared."""
        store, other = open_with(row_age=1.0), open_with(row_age=1.0)
        queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
        old = other._rows.current(queue)
        store._rows.cover(store._rows.current(queue), {8000}, 3 * SHORTEST)
        raised = other._rows.cover(old, {500}, 5 * SHORTEST)
        assert raised.longest_ttl >= 8000
        assert raised.longest_row == 16 * SHORTEST
        assert store._rows.read(application, "queue").longest_ttl >= 8000

    def test_changed_meanwhile(self, open_with: OpenStore, application: str) -> None:
        """The row of a queue that has changed raises nothing."""
        store, other = open_with(), open_with()
        queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
        row = store._rows.current(queue)
        other.update_queue(queue, QueueSpec(ttl=70))
        with pytest.raises(QueueChanged):
            store._rows.cover(row, {1000}, 2 * SHORTEST)
        assert other._rows.read(application, "queue").longest_ttl == 60


def test_very_long_names_are_not_asked_for(open_with: OpenStore) -> None:
    """A name beyond what Cassandra takes for a key names no queue; asking for it is no failure."""
    store = open_with()
    with pytest.raises(QueueNotFound):
        store.queue("acme", "x" * 100_000)
