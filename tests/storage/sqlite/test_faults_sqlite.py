"""Tests of the embedded store when its file, its disk or its lock fails."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from queuey.model.errors import QueueyError, StoreBusy, StoreFull, StoreUnavailable
from queuey.model.messages import OffsetChange, Queue
from queuey.storage import Store, bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, check, open_store
from queuey.storage.sqlite import connection as driver
from tests.backends import APP, Clock
from tests.contract.catalogue.test_lifecycle import CALLS, DIGEST, PLACE
from tests.contract.samples import (
    append_bodies,
    bodies_in_partition,
    call_concurrently,
    make_queue,
    messages_in_partition,
    new_message,
    start_append,
)
from tests.storage.sqlite.counted import busy_writer, database_of, prepared_connections
from tests.waiting import call_until, until

WRITES = {
    *("create_queue", "update_queue", "purge_queue", "delete_queue", "append", "put", "delete", "ping"),
    *("create_application", "add_key", "revoke_key", "expire_key", "set_offsets", "delete_group", "load"),
    *("load_unread", "enter", "identity", "write_snapshot", "append_once"),
    *("append on a loop", "append_once on a loop", "append_entry on a loop"),
    *("write_named", "settle_named", "write_covers", "forget_covers", "set_record", "remove_record"),
    *("change_group", "remove_group", "renew_session", "ask_member", "record_search", "hand_over"),
}
NO_OPS = {"add_key", "settle_named", "forget_covers", "remove_record", "remove_group", "record_search", "hand_over"}
"""Writes that change nothing here: the key, offsets and name exist, the covers and the group do not."""
MEMORY = {"queue", "has_application"}
"""Calls that may answer without the file."""
SHORT_TIMEOUTS = SqliteOptions(busy_timeout=0.02, sweep_interval=None)


@contextlib.contextmanager
def connect_directly(file: Path) -> Iterator[apsw.Connection]:
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        yield connection


@dataclass
class Prepared:
    """A store with data of every kind."""

    directory: Path
    store: SqliteStore
    queue: Queue

    @property
    def file(self) -> Path:
        return self.directory / driver.FILE

    def works(self) -> bool:
        bridge.run(self.store.ping())
        queue = bridge.run(self.store.catalogue.queue(APP, self.queue.name))
        (position,) = append_bodies(self.store, queue, "works")
        return position in [message.position for message in messages_in_partition(self.store, queue)]


def prepare(directory: Path, options: SqliteOptions) -> Prepared:
    store = open_store(directory, options=options)
    bridge.run(store.applications.create_application(APP))
    queue = make_queue(store, "orders", partitions=2)
    bridge.run(store.messages.delete(queue, [(1, place) for place in append_bodies(store, queue, "deleted")]))
    bridge.run(store.messages.put(queue, [PLACE], new_message("put")))
    bridge.run(store.applications.add_key(APP, DIGEST))
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, PLACE[1])]))
    return Prepared(directory, store, queue)


def state(store: Store) -> object:
    queues = []
    for row in bridge.run(store.catalogue.list_queues(APP)):
        groups = {
            name: [x.position for x in bridge.run(store.offsets.group_offsets(row, name))]
            for name in bridge.run(store.offsets.groups(row))
        }
        bodies = [bodies_in_partition(store, row, n) for n in range(1, row.partitions + 1)]
        queues.append((row.name, row.uid, row.qid, row.ttl, groups, bodies))
    return queues, bridge.run(store.applications.application_names()), bridge.run(store.applications.keys(APP))


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[Prepared]:
    """A store that gives up on locks soon."""
    made = prepare(tmp_path / "data", SHORT_TIMEOUTS)
    yield made
    made.store.close()


@pytest.fixture
def lock(prepared: Prepared) -> Iterator[Callable[[], object]]:
    """Holds the file's write lock, as another process might; calling the result releases it."""
    with connect_directly(prepared.file) as connection:
        connection.execute("BEGIN IMMEDIATE")

        def let_go() -> None:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

        yield let_go


class TestLocked:
    """Tests while another process holds the write lock for too long."""

    def test_writes_are_refused(self, prepared: Prepared, lock: Callable[[], object]) -> None:
        """A write waits for the busy timeout, fails as busy with the driver's error as cause, and leaves nothing."""
        before = state(prepared.store)
        for call in sorted(WRITES):
            with pytest.raises(StoreBusy) as refused:
                CALLS[call](prepared.store, prepared.queue)
            assert isinstance(refused.value.__cause__, apsw.BusyError), call
            assert refused.value.outcome == "none"
        lock()
        assert bridge.run(prepared.store.catalogue.queue(APP, "orders", fresh=True)) == prepared.queue
        assert state(prepared.store) == before
        assert prepared.works()

    def test_reads_go_on(self, prepared: Prepared, lock: Callable[[], object]) -> None:
        """Reads work without the lock."""
        for call in sorted(set(CALLS) - WRITES - MEMORY):
            CALLS[call](prepared.store, prepared.queue)

    def test_reads_go_on_when_a_message_is_due(self, tmp_path: Path) -> None:
        """A message that becomes due while the lock is held is shown later; meanwhile reads work without it."""
        clock = Clock()
        made = prepare(tmp_path / "data", SqliteOptions(busy_timeout=0.05, sweep_interval=None, clock=clock))
        bridge.run(made.store.messages.append(made.queue, [new_message("late", delay=5.0)]))
        clock.advance(6)
        with connect_directly(made.file) as connection:
            connection.execute("BEGIN IMMEDIATE")
            assert bodies_in_partition(made.store, made.queue) == ["put"]
            connection.execute("ROLLBACK")
        assert bodies_in_partition(made.store, made.queue) == ["put", "late"]
        made.store.close()

    def test_short_locks_are_waited_for(self, tmp_path: Path) -> None:
        """A lock released within the busy timeout only delays a write."""
        made = prepare(tmp_path / "data", SqliteOptions(busy_timeout=60.0, deadline=90.0))
        with connect_directly(made.file) as connection:
            connection.execute("BEGIN IMMEDIATE")
            future = start_append(made.store, made.queue, [new_message("x")])
            assert not future.done()
            connection.execute("ROLLBACK")
            assert len(future.result(60)) == 1
        made.store.close()

    def test_deadline(self, tmp_path: Path) -> None:
        """At its deadline a call fails: with outcome "none" if its write was not begun, otherwise "unknown"."""
        made = prepare(tmp_path / "data", SHORT_TIMEOUTS)
        stuck = open_store(made.directory, options=SqliteOptions(busy_timeout=60.0, deadline=0.3))

        def outcome_of(body: str) -> str:
            with pytest.raises(StoreUnavailable) as caught:
                append_bodies(stuck, made.queue, body)
            return caught.value.outcome

        with connect_directly(made.file) as connection:
            connection.execute("BEGIN IMMEDIATE")
            until(lambda: outcome_of("begun") == "unknown")  # On a suspended machine the time may be over before.
            connection.execute("ROLLBACK")
        with busy_writer(stuck):
            assert outcome_of("waiting") == "none"
        stuck.close()
        assert "waiting" not in bodies_in_partition(made.store, made.queue)
        made.store.close()

    def test_closing_refuses_what_waits(self, tmp_path: Path) -> None:
        """Closing a store that is stuck refuses waiting writes, which are not made later either."""
        made = prepare(tmp_path / "data", SqliteOptions(busy_timeout=60.0, deadline=60.0))
        with connect_directly(made.file) as connection:
            connection.execute("BEGIN IMMEDIATE")
            futures = [start_append(made.store, made.queue, [new_message(str(n))]) for n in range(6)]
            made.store.close(timeout=0.2)
            connection.execute("ROLLBACK")
        errors = {str(n): future.exception(60) for n, future in enumerate(futures)}
        again = open_store(made.directory)
        stored = set(map(str, bodies_in_partition(again, made.queue)))
        again.close()
        for body, error in errors.items():
            assert isinstance(error, StoreUnavailable | None)
            if error is None:
                assert body in stored
            elif error.outcome == "none":
                assert body not in stored


def has_room(made: Prepared) -> bool:
    """Writes a large message, and returns whether there was room for it."""
    try:
        append_bodies(made.store, made.queue, "x" * 3000)
    except StoreFull:
        return False
    return True


class TestFull:
    """Tests on a full disk."""

    @pytest.fixture
    def full(self, tmp_path: Path) -> Iterator[Prepared]:
        """Makes a store with a limit of 100 pages, all of them used."""
        made = prepare(tmp_path / "data", SqliteOptions(sweep_interval=None, pragmas=("PRAGMA max_page_count = 100",)))
        while has_room(made):
            pass
        yield made
        made.store.close()

    def test_writes_are_refused_whole(self, full: Prepared) -> None:
        """A batch that does not fit is refused as a whole, and acknowledged messages stay."""
        before = bodies_in_partition(full.store, full.queue)
        assert len(before) > 10
        with pytest.raises(StoreFull) as refused:
            append_bodies(full.store, full.queue, "small", *["y" * 3000] * 50)
        assert refused.value.outcome == "none"
        assert refused.value.retry_after >= 1
        assert isinstance(refused.value.__cause__, apsw.FullError)
        assert bodies_in_partition(full.store, full.queue) == before
        assert check(full.directory) == []

    def test_opening_says_why_it_failed(self, tmp_path: Path) -> None:
        """The error says why opening failed, also if SQLite itself has rolled back the transaction."""
        with pytest.raises(StoreUnavailable, match="disk is full"):
            open_store(tmp_path / "data", options=SqliteOptions(pragmas=("PRAGMA max_page_count = 20",)))

    def test_purging_makes_room(self, full: Prepared) -> None:
        """A full store can be purged, and sweeping frees the space."""
        queue = bridge.run(full.store.catalogue.purge_queue(full.queue))
        full.store.sweep()
        append_bodies(full.store, queue, *["z" * 3000] * 10)
        assert bodies_in_partition(full.store, queue) == ["z" * 3000] * 10


@dataclass
class FailingStatements:
    """Fails the statement after the next ``left`` ones, and later ones too if ``lasting``."""

    left: int = -1
    lasting: bool = False
    blown: int = 0

    def __call__(self, *statement: object) -> bool:
        if self.left != 0:
            self.left -= self.left > 0
            return True
        self.blown += 1
        if not self.lasting:
            self.left = -1
        raise apsw.IOError("disk I/O error")


@pytest.fixture
def fuse() -> Iterator[FailingStatements]:
    """Makes any statement of any connection of the store fail as on a broken disk."""
    new_fuse = FailingStatements()

    def fuse(opened: apsw.Connection) -> None:
        opened.exec_trace = new_fuse

    with prepared_connections(fuse):
        yield new_fuse


class TestBroken:
    """Tests of statements that fail at any point of a call."""

    @pytest.mark.parametrize(
        ("call", "lasting"), [*((call, False) for call in sorted(CALLS)), *((call, True) for call in sorted(WRITES))]
    )
    def test_every_statement(self, fuse: FailingStatements, tmp_path: Path, call: str, *, lasting: bool) -> None:
        """If any statement of a call fails, the error is the store's, all or nothing is done, and it recovers."""
        made = prepare(tmp_path / "data", SHORT_TIMEOUTS)
        for steps in range(60):
            before = state(made.store)
            row = bridge.run(made.store.catalogue.queue(APP, "orders"))
            fuse.left, fuse.lasting, fuse.blown = steps, lasting, 0
            error: BaseException | None = None
            try:
                CALLS[call](made.store, row)
            except BaseException as raised:  # noqa: BLE001 - its kind is what is tested
                error = raised
            fuse.left = -1
            if not fuse.blown:
                assert steps > 0 or call in MEMORY
                break
            after = state(made.store)
            if error is not None:
                assert isinstance(error, StoreUnavailable)
                assert isinstance(error.__cause__, apsw.Error)
                assert error.outcome == "unknown" or after == before
            assert made.works()
        else:
            pytest.fail("the call runs more statements than were tried")
        made.store.close()
        assert check(made.directory) == []

    @pytest.mark.parametrize("call", sorted(WRITES - NO_OPS))
    def test_failing_after_the_commit(self, tmp_path: Path, call: str) -> None:
        """A commit that fails after it was made is not reported with the outcome "none"."""
        armed: list[bool] = []

        def fail(*arguments: object) -> int:
            if armed:
                message = "disk I/O error"
                raise apsw.IOError(message)
            return 0

        with prepared_connections(lambda opened: opened.set_wal_hook(fail)):
            made = prepare(tmp_path / "data", SHORT_TIMEOUTS)
            before = state(made.store)
            armed.append(True)
            with pytest.raises(StoreUnavailable) as refused:
                CALLS[call](made.store, made.queue)
            armed.clear()
            assert refused.value.outcome == "unknown" or state(made.store) == before
            bridge.run(made.store.ping())
            made.store.close()

    def test_neighbours_in_a_group(self, fuse: FailingStatements, tmp_path: Path) -> None:
        """Writes of one transaction that fails all get the error, and none of them is stored."""
        made = prepare(tmp_path / "data", SHORT_TIMEOUTS)
        for steps in range(6):
            bodies = [f"{steps}:{n}" for n in range(5)]
            with connect_directly(made.file) as connection:
                connection.execute("BEGIN IMMEDIATE")
                futures = [start_append(made.store, made.queue, [new_message(body)]) for body in bodies]
                fuse.left, fuse.lasting = steps, True
                connection.execute("ROLLBACK")
            errors = [future.exception(60) for future in futures]
            fuse.left = -1
            stored = bodies_in_partition(made.store, made.queue)
            for body, error in zip(bodies, errors, strict=True):
                assert error is None or isinstance(error, StoreUnavailable)
                assert (body in stored) == (error is None) or getattr(error, "outcome", "") == "unknown"
        assert made.works()
        made.store.close()


class TestPlace:
    """Tests of the directory and the file."""

    @pytest.mark.parametrize("where", ["file/below", "/proc/queuey", "/dev/null/queuey"])
    def test_directory_that_cannot_be(self, tmp_path: Path, where: str) -> None:
        """If the directory cannot be made the store says so at once."""
        (tmp_path / "file").write_text("x")
        with pytest.raises(StoreUnavailable) as refused:
            open_store(tmp_path / where)
        assert refused.value.__cause__ is not None

    def test_private(self, tmp_path: Path) -> None:
        """New files can be read by their owner only."""
        open_store(tmp_path / "a" / "data").close()
        assert (tmp_path / "a" / "data").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "a" / "data" / driver.FILE).stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("replaced", [False, True], ids=["moved", "replaced"])
    def test_file_moved_away(self, prepared: Prepared, tmp_path: Path, *, replaced: bool) -> None:
        """If the file is moved or replaced, calls fail, no empty file is made, and putting it back repairs all."""
        kept = tmp_path / "kept"
        prepared.file.rename(kept)
        if replaced:
            open_store(tmp_path / "new").close()
            (tmp_path / "new" / driver.FILE).rename(prepared.file)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="moved"):
                bridge.run(prepared.store.ping())
        for call in sorted(set(CALLS) - WRITES - MEMORY):
            try:
                CALLS[call](prepared.store, prepared.queue)
            except StoreUnavailable:
                continue
            except QueueyError:
                assert replaced
        for call in sorted(WRITES - {"identity", "enter"}):  # which read first
            with pytest.raises(StoreUnavailable, match="moved") as caught:
                CALLS[call](prepared.store, prepared.queue)
            assert caught.value.outcome == "none"
        assert prepared.file.exists() == replaced
        kept.rename(prepared.file)
        assert prepared.works()

    def test_directory_moved_away(self, prepared: Prepared, tmp_path: Path) -> None:
        """Without its directory the store is unavailable, and it works again once the directory is back."""
        directory = prepared.directory
        directory.rename(tmp_path / "away")
        with pytest.raises(StoreUnavailable, match="directory of the store"):
            bridge.run(prepared.store.ping())
        (tmp_path / "away").rename(directory)
        bridge.run(prepared.store.ping())

    def test_nearly_full_disk(self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
        """An almost full disk makes the store unhealthy, though a small write still succeeds."""
        free = os.statvfs(prepared.file.parent)

        class Full:
            f_bavail = 3
            f_frsize = free.f_frsize

        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda _path: Full)
            with pytest.raises(StoreFull, match="no space left"):
                bridge.run(prepared.store.ping())
        bridge.run(prepared.store.ping())
        assert prepared.works()

    def test_opened_by_several(self, tmp_path: Path) -> None:
        """Stores that open a new directory simultaneously share one store."""
        for number in range(4):
            stores = call_concurrently(open_store, [tmp_path / str(number)] * 6)
            bridge.run(stores[0].applications.create_application(APP))
            assert [bridge.run(store.applications.application_names()) for store in stores] == [[APP]] * 6
            call_concurrently(lambda store: store.close(), stores)


def test_readers_are_waited_for(tmp_path: Path) -> None:
    """If all reading connections are busy a read is refused after the deadline, and works once one is free."""
    made = prepare(tmp_path / "data", SqliteOptions(readers=1))
    soon = time.monotonic() + 0.1
    with (
        database_of(made.store).readers.lend(),
        database_of(made.store).deadline.running(call_until(soon)),
        pytest.raises(StoreUnavailable),
    ):
        messages_in_partition(made.store, made.queue)
    assert made.works()
    made.store.close()
