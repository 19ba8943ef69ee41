"""Edge cases of the embedded store: clocks that are set back, ids chosen by clients, long bodies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from queuey.model import ids
from queuey.model.errors import InvalidRequest, QueueChanged, QueueNotFound
from queuey.model.messages import Page, Queue, Slice
from queuey.storage import bridge
from queuey.storage.deadlines import Home, LoopCalls
from queuey.storage.sqlite import SqliteOptions, SqliteStore, messages, open_store
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite.connection import READ_PAUSE, SLOW_READ_SECONDS
from queuey.storage.sqlite.database import SqliteQueueCache
from queuey.storage.sqlite.slice_reads import read_slice
from queuey.storage.sqlite.transaction import Transaction
from queuey.storage.sqlite.writer import SqliteWriter
from tests.backends import APP, UNSYNCED, Clock
from tests.contract.samples import (
    append_bodies,
    bodies_in_partition,
    make_queue,
    messages_in_partition,
    new_message,
    start_append,
)
from tests.replacing import replace, replace_in
from tests.storage.sqlite.counted import busy_writer, database_of, sweep_of

T = TypeVar("T")
HOUR = 3600 * ids.TICKS_PER_SECOND
YEAR = 365 * 24 * HOUR


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_one(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], SqliteStore]]:
    """Opens Store objects on one file, as several processes would."""
    with contextlib.ExitStack() as opened:

        def open_it() -> SqliteStore:
            options = SqliteOptions(clock=clock, sweep_interval=None, readers=1, pragmas=UNSYNCED)
            return opened.enter_context(contextlib.closing(open_store(tmp_path / "data", options=options)))

        yield open_it


@pytest.fixture
def store(open_one: Callable[[], SqliteStore]) -> SqliteStore:
    """A store with one application, which the test sweeps, with a single reading connection."""
    store = open_one()
    bridge.run(store.applications.create_application(APP))
    return store


def read_column(directory: Path, sql: str) -> Any:  # noqa: ANN401 - whatever the column holds
    with contextlib.closing(apsw.Connection(str(directory / driver.FILE))) as connection:
        row: Any = connection.execute(sql).fetchone()
    return row[0]


class TestAfter:
    """Tests of the ids that new messages must follow."""

    def test_nobody_moves_the_clock_step_by_step(self, store: SqliteStore, clock: Clock) -> None:
        """However often a client names an id a little ahead, ids stay within about a second of the clock."""
        queue = make_queue(store)
        (position,) = append_bodies(store, queue, "first")
        for _ in range(5):
            with contextlib.suppress(InvalidRequest):
                (position,) = bridge.run(
                    store.messages.append(
                        queue, [new_message()], after=(position[0] + 9 * ids.TICKS_PER_SECOND // 10, 0)
                    )
                )
        assert position[0] < clock.ticks + 2 * ids.TICKS_PER_SECOND


def test_a_long_row_of_chosen_ids_in_the_way(store: SqliteStore, clock: Clock) -> None:
    """Ten thousand consecutive ids put where ids are about to be minted do not slow down minting."""
    queue = make_queue(store)
    append_bodies(store, queue, "first")
    (low,) = {message.low for message in messages_in_partition(store, queue)}
    ahead = clock.ticks + ids.TICKS_PER_SECOND
    for start in range(ahead, ahead + 20_000, 1000):
        bridge.run(
            store.messages.put(queue, [(1, (ticks, low)) for ticks in range(start, start + 1000)], new_message())
        )
    clock.advance(1)
    (position,) = append_bodies(store, queue, "then")
    assert position == (ahead + 20_000, low)


class TestOldIds:
    """Tests of messages put at ids much older than themselves."""

    def test_swept_by_their_own_lifetime(self, store: SqliteStore, clock: Clock) -> None:
        """A message is swept soon after its TTL, however old its id is."""
        queue = make_queue(store)
        bridge.run(store.messages.put(queue, [(1, (clock.ticks - 30 * YEAR, 0)), (1, ids.FIRST)], new_message(ttl=100)))
        clock.advance(99)
        assert store.sweep() == 0
        assert len(messages_in_partition(store, queue)) == 2
        clock.advance(20)
        assert store.sweep() == 2


class TestSweep:
    """Tests of what a sweep must keep, and of how much one step removes."""

    def test_few_long_bodies_at_a_time(self, store: SqliteStore, clock: Clock, tmp_path: Path) -> None:
        """A step removes a few megabytes at most, even after steps of many short messages."""
        queue = make_queue(store, partitions=2)
        for _ in range(20):
            append_bodies(store, queue, *["x"] * 1000, ttl=10)
        for _ in range(10):
            append_bodies(store, queue, *[b"x" * 200_000] * 10, partition=2, ttl=20)
        sizes: list[int] = []
        total = "SELECT coalesce(sum(octet_length(body)), 0) FROM messages"
        perform = SqliteWriter.perform

        def measured(self: SqliteWriter, work: Callable[[Transaction], Any]) -> Any:  # noqa: ANN401 - what the step gives
            before = read_column(tmp_path / "data", total)
            result = perform(self, work)
            sizes.append(before - read_column(tmp_path / "data", total))
            return result

        clock.advance(100)
        with replace(perform, measured):
            assert store.sweep() == 20_100
        assert sum(sizes) == 20_000 + 100 * 200_000
        assert max(sizes) < 5_000_000


class LeftToThreads(Exception):
    """The call would block the loop's thread."""


async def raise_left_to_threads(work: Callable[[], T]) -> T:
    """Raises LeftToThreads in place of running the work in a thread."""
    raise LeftToThreads


class TestReadsAtOnce:
    """Tests of reads on an event loop: they run in its thread without blocking it, or are left to other threads."""

    @pytest.fixture(autouse=True)
    def seconds(self) -> Iterator[list[float]]:
        """The clock that detects slow reads, which stands still, as a busy machine is not a slow disk."""
        now = [1.0]
        with replace_in(messages, time.monotonic, lambda: now[0]), replace_in(driver, time.monotonic, lambda: now[0]):
            yield now

    @staticmethod
    def run(call: Coroutine[Any, Any, T]) -> T | None:
        """Runs a call on a loop; returns None if it is left to threads."""

        async def on_loop() -> T:
            Home(LoopCalls(asyncio.get_running_loop()), raise_left_to_threads).register()
            return await call

        with contextlib.suppress(LeftToThreads):
            return asyncio.run(on_loop())
        return None

    def bodies(
        self,
        store: SqliteStore,
        queue: Queue,
        limit: int = 100,
        *,
        partition: int = 1,
        descending: bool = False,
        times: int = 1,
    ) -> list[object] | None:
        """Returns what the last of several reads on a loop gives; None if one is left to threads."""
        part = Slice(partition, limit=limit, descending=descending)

        async def read() -> list[object]:
            for _ in range(times):
                [page] = await store.messages.read(queue, [part])
            return [message.body for message in page.messages]

        return self.run(read())

    def test_gives_what_a_read_gives(self, store: SqliteStore) -> None:
        """A read on the loop gives the same messages and errors as any other."""
        queue = make_queue(store)
        append_bodies(store, queue, *"abc")
        assert bodies_in_partition(store, queue) == ["a", "b", "c"]
        assert self.bodies(store, queue) == ["a", "b", "c"]
        assert self.bodies(store, queue, 2, descending=True) == ["c", "b"]
        bridge.run(store.catalogue.purge_queue(queue))
        with pytest.raises(QueueChanged):
            self.bodies(store, queue)

    def test_a_row_that_is_not_in_memory_takes_no_thread(self, store: SqliteStore) -> None:
        """A queue's row is read at once if a connection is free, also the one that says that the queue is gone."""
        queue = make_queue(store)
        bodies_in_partition(store, queue)
        database_of(store).queues.clear()
        assert self.run(store.catalogue.queue(APP, queue.name)) == queue
        bridge.run(store.catalogue.delete_queue(queue))
        with pytest.raises(QueueNotFound):
            self.run(store.catalogue.queue(APP, queue.name))

    def test_reads_without_a_connection_go_to_threads(self, store: SqliteStore) -> None:
        """While no reading connection is free or open, reads are left to threads."""
        queue = make_queue(store)
        assert self.bodies(store, queue) is None
        assert bodies_in_partition(store, queue) == []
        with database_of(store).readers.lend():
            assert self.bodies(store, queue) is None
        assert self.bodies(store, queue) == []

    def test_a_delayed_message_that_comes_due_takes_a_write(self, store: SqliteStore, clock: Clock) -> None:
        """A delayed message that comes due needs a write of the clock: reads are left to threads until it is made."""
        queue = make_queue(store)
        bridge.run(store.messages.append(queue, [new_message("later", delay=10)]))
        assert bodies_in_partition(store, queue) == []
        assert self.bodies(store, queue) == []
        clock.advance(11)
        assert self.bodies(store, queue) is None
        assert bodies_in_partition(store, queue) == ["later"]
        assert self.bodies(store, queue) == ["later"]

    def test_very_many_rows_are_left_to_threads(self, store: SqliteStore, clock: Clock) -> None:
        """A read over very many expired messages is aborted and left to a thread; reads of other partitions are not."""
        queue = make_queue(store, partitions=2)
        append_bodies(store, queue, "long", ttl=3600)
        for _ in range(10):
            append_bodies(store, queue, *["x"] * 1000, ttl=2)
        append_bodies(store, queue, "other", partition=2)
        assert len(bodies_in_partition(store, queue)) > 1
        clock.advance(3)
        assert self.bodies(store, queue) is None
        assert bodies_in_partition(store, queue) == ["long"]
        assert self.bodies(store, queue) is None
        assert self.bodies(store, queue, partition=2) == ["other"]
        with database_of(store).readers.lend() as connection:
            assert len(connection.execute("SELECT * FROM messages").fetchall()) == 10_002

    def test_a_slow_disk_is_left_to_threads(self, store: SqliteStore, seconds: list[float]) -> None:
        """After a slow read all reads are left to threads for a second."""
        queue = make_queue(store)
        assert bodies_in_partition(store, queue) == []

        def slow(*args: Any, **kwargs: Any) -> Page:  # noqa: ANN401 - as read_slice takes them
            seconds[0] += 2 * SLOW_READ_SECONDS
            return read_slice(*args, **kwargs)

        with replace_in(messages, read_slice, slow):
            assert self.bodies(store, queue) == []
        assert self.bodies(store, queue) is None
        seconds[0] += READ_PAUSE - SLOW_READ_SECONDS
        assert self.bodies(store, queue) is None
        seconds[0] += 2 * SLOW_READ_SECONDS
        assert self.bodies(store, queue) == []


def test_an_application_with_many_queues_takes_no_rows_of_others() -> None:
    """The rows in memory take no more than their bytes; those of an application with less than its share stay."""
    cache = SqliteQueueCache(280_000)
    for number in range(10_000):
        cache.put(Queue(application="large", name=f"q{number}", uid=number, qid=number))
        if number < 50:
            cache.put(Queue(application="small", name=f"q{number}", uid=number, qid=number))
    assert len(cache.rows["small"]) == 50
    kept = list(cache.rows["large"])
    assert 350 < len(kept) + 50 < 280_000 / 570
    assert kept == [f"q{number}" for number in range(10_000 - len(kept), 10_000)]


class TestWriter:
    """Tests of the writer's thread."""

    def test_groups_are_bounded_by_bytes(self, store: SqliteStore) -> None:
        """However many writes are queued, a transaction takes a few megabytes of them."""
        queue = make_queue(store)
        with busy_writer(store):
            before = database_of(store).writer.commits
            futures = [
                start_append(store, queue, [new_message("x" * 1_000_000)] * count) for count in [1] * 20 + [10, 1]
            ]
        for future in futures:
            future.result(60)
        assert database_of(store).writer.commits - before == 1 + 20 // 5 + 1 + 1

    def test_what_cannot_be_stored_fails_alone(self, store: SqliteStore) -> None:
        """A message that fails only at the end of the transaction fails alone; the others of it are stored."""
        queue = make_queue(store)
        with busy_writer(store):
            futures = [
                start_append(store, queue, [new_message(str(n), ttl=1 << 60 if n == 1 else 3600)]) for n in range(5)
            ]
        with pytest.raises(OverflowError):
            futures.pop(1).result(60)
        for future in futures:
            assert len(future.result(60)) == 1
        assert bodies_in_partition(store, queue) == ["0", "2", "3", "4"]


def test_a_long_log_becomes_short_again(store: SqliteStore, tmp_path: Path) -> None:
    """A log that a reader has kept long becomes short at its next restart."""
    queue, log = make_queue(store), tmp_path / "data" / "queuey.sqlite3-wal"
    with database_of(store).readers.lend() as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM messages").fetchall()
        for _ in range(25):
            start_append(store, queue, [new_message("x" * 1_000_000)]).result(60)
        connection.execute("COMMIT")
    assert log.stat().st_size > (longest := driver.MAX_LOG_PAGES * 4096)
    sweep_of(store).checkpoint_if_due()
    append_bodies(store, queue, "y")
    assert log.stat().st_size <= longest
