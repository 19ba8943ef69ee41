"""The sweep of the embedded store removes expired and purged rows from the file, and no others."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.messages import KEPT_SECONDS, LogEntry, OffsetChange, PostKey, Slice
from queuey.storage import bridge
from queuey.storage.contracts.groups import session_ttl
from queuey.storage.sqlite import SqliteOptions, SqliteStore, open_store, transaction
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite.sweep import Sweep
from queuey.storage.sqlite.transaction import Transaction
from queuey.storage.sqlite.writer import SqliteWriter
from tests.backends import APP, UNSYNCED, Clock
from tests.contract.samples import (
    append_bodies,
    append_log_entry,
    bodies_in_partition,
    eventually,
    make_queue,
    messages_in_partition,
    new_message,
    pages,
    positions,
)
from tests.replacing import replace, replace_in
from tests.storage.sqlite.counted import database_of, sweep_of
from tests.waiting import join


def rows(directory: Path, table: str = "messages") -> int:
    with contextlib.closing(apsw.Connection(str(directory / driver.FILE))) as connection:
        counts: Any = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    return int(counts[0][0])


class Swept:
    """A store on a clock that the test moves, and access to its tables from outside."""

    def __init__(self, directory: Path, clock: Clock, rows: int = 7) -> None:
        self.clock = clock
        self.directory = directory
        self.options = SqliteOptions(clock=clock, sweep_interval=None, sweep_rows=rows, pragmas=UNSYNCED)
        self.store: SqliteStore = open_store(directory, options=self.options)
        bridge.run(self.store.applications.create_application(APP))

    def rows(self, table: str = "messages") -> int:
        return rows(self.directory, table)


@pytest.fixture
def swept(tmp_path: Path, clock: Clock) -> Iterator[Swept]:
    made = Swept(tmp_path / "data", clock)
    yield made
    made.store.close()


@pytest.fixture
def backend() -> None:
    """These tests read one backend's file."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rows_of_kept_messages_stay_for_a_day(swept: Swept) -> None:
    """A kept message's row is removed a day after its end, those of other messages soon after their end."""
    queue = make_queue(swept.store)
    bridge.run(
        swept.store.messages.append(
            queue, [new_message("x", ttl=10, kept=number % 2 == 0, delay=number % 3) for number in range(60)]
        )
    )
    swept.clock.advance(100)
    assert (swept.store.sweep(), swept.rows()) == (30, 30)
    swept.clock.advance(KEPT_SECONDS - 100)
    assert (swept.store.sweep(), swept.rows()) == (0, 30)
    swept.clock.advance(20_000)
    assert (swept.store.sweep(), swept.rows(), swept.rows("expiry_windows")) == (30, 0, 0)


def test_a_clock_set_back_during_a_sweep_removes_nothing_early(swept: Swept) -> None:
    """A message stored after the clock was set back, into a window that had ended, stays until it expires."""
    queue, read_rows = make_queue(swept.store), Sweep._read_rows
    # The messages expire soon after the begin of a window of 1.7 s.
    swept.clock.ticks = ((swept.clock.ticks >> 24) + 20 << 24) - 10 * ids.TICKS_PER_SECOND
    append_bodies(swept.store, queue, "old", ttl=10)

    def set_back(sweep: Sweep, sql: str, *parameters: int) -> Any:  # noqa: ANN401 - rows of the driver
        rows = read_rows(sweep, sql, *parameters)
        if rows and not bodies_in_partition(swept.store, queue):
            swept.clock.advance(-19.5)
            append_bodies(swept.store, queue, "new", ttl=10)
        return rows

    swept.clock.advance(20)
    with replace(Sweep._read_rows, set_back):
        assert swept.store.sweep() == 0
    assert bodies_in_partition(swept.store, queue) == ["old", "new"]
    swept.clock.advance(20)
    assert (swept.store.sweep(), swept.rows("expiry_windows")) == (2, 0)


def test_single_messages_are_counted_by_a_sample(swept: Swept) -> None:
    """One single message in 16 writes the row of its window, whose bounds still have all; many at once are counted."""
    queue, windows = make_queue(swept.store), "SELECT message_count FROM expiry_windows"
    lots = iter([0.5, 0.99, 0.01, 0.5])
    with database_of(swept.store).readers.lend() as connection, replace_in(transaction, random.random, lots.__next__):
        for number, count in ((1, 1), (1, 1), (1, 17), (20, 37), (3, 37)):
            append_bodies(swept.store, queue, *["x"] * number, ttl=3600)
            assert connection.execute(windows).fetchall() == [(count,)]
    assert len(bodies_in_partition(swept.store, queue)) == 26
    swept.clock.advance(5000)
    assert (swept.store.sweep(), swept.rows("expiry_windows")) == (26, 0)


@pytest.mark.parametrize("how", ["purged", "deleted"])
def test_purged_and_deleted_queues_leave_the_file(swept: Swept, how: str) -> None:
    """Messages of purged and deleted queues, also delayed ones, are removed; their successors and neighbours stay."""
    queue, neighbour = make_queue(swept.store, partitions=3), make_queue(swept.store)
    bridge.run(swept.store.offsets.set_offsets(queue, "group", [OffsetChange(1, ids.FIRST)]))
    for number in (1, 2, 3):
        append_bodies(swept.store, queue, *["gone"] * 30, partition=number)
    bridge.run(swept.store.messages.append(queue, [new_message("gone", delay=1000.0), new_message("gone", ttl=9)]))
    bridge.run(swept.store.messages.put(queue, [(1, ids.FIRST), (3, ids.LAST)], new_message("gone")))
    append_bodies(swept.store, neighbour, "kept")
    for purged, partition in ((queue, 1), (queue, 3), (neighbour, 1)):
        for entry in range(1, 111):
            assert append_log_entry(swept.store, purged, LogEntry(entry, b"claim"), partition)
        bridge.run(swept.store.claim_logs.write_snapshot(purged, partition, 9, b"nine"))
    for purged in (queue, neighbour):
        for number in range(501):
            bridge.run(swept.store.keyed_posts.append_once(purged, [], PostKey(f"key {number}", b"content", 60)))
    if how == "purged":
        queue = bridge.run(swept.store.catalogue.purge_queue(queue))
    else:
        bridge.run(swept.store.catalogue.delete_queue(queue))
        queue = make_queue(swept.store, queue.name, partitions=3)
    append_bodies(swept.store, queue, "new")
    assert swept.store.sweep() == 94
    assert (swept.rows(), swept.rows("pending_deletes")) == (2, 0)
    assert (swept.rows("claims"), swept.rows("claim_snapshots")) == (110, 1)
    assert swept.rows("idempotency_keys") == 501
    assert swept.rows("offsets") == (1 if how == "purged" else 0)
    assert bodies_in_partition(swept.store, queue) == ["new"]
    assert bodies_in_partition(swept.store, neighbour) == ["kept"]


def test_old_sessions(swept: Swept) -> None:
    """Sessions that were not renewed for long, and what their members were asked, are removed; others stay."""
    for number in range(600):
        bridge.run(swept.store.groups.renew_session(APP, "group", number, 3000 + 1000 * (number % 2)))
    bridge.run(swept.store.groups.ask_member(APP, "group", 1, 7, 3000))
    swept.clock.advance(3.5)
    assert bridge.run(swept.store.groups.group_sessions(APP, "group")).members[1].asked == set()
    swept.clock.advance(session_ttl(3000) / 1000 - 3)
    assert len(bridge.run(swept.store.groups.group_sessions(APP, "group")).members) == 300
    swept.store.sweep()
    assert swept.rows("group_sessions") == 300


def test_batches_over_the_edge_of_a_window(swept: Swept) -> None:
    """Messages of one batch whose ends are in two windows of expiry are all readable, counted and removed."""
    store = swept.store
    for ttl in (1, 60, 3600):
        queue = make_queue(store)
        span = ttl * ids.TICKS_PER_SECOND
        for width in range(20, 36):
            edge = ((swept.clock.ticks + span >> width) + 1) << width
            swept.clock.ticks = edge - span - 5
            stored_at = append_bodies(store, queue, *["x"] * 10, ttl=ttl)
            assert positions(messages_in_partition(store, queue))[-10:] == stored_at
        swept.clock.ticks = bridge.run(store.messages.fetch(queue, [(1, stored_at[4])]))[0].expires
        assert positions(messages_in_partition(store, queue)) == stored_at[5:]
        store.sweep()
        assert positions(messages_in_partition(store, queue)) == stored_at[5:]
        assert bridge.run(store.messages.inspect(queue))[1][0].count == 5
    swept.clock.advance(100_000)
    store.sweep()
    assert (swept.rows(), swept.rows("expiry_windows")) == (0, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from([1, 2, 9, 60, 3600]), st.integers(1, 12)),
        st.tuples(st.just("late"), st.sampled_from([1, 9, 60]), st.integers(1, 3)),
        st.tuples(st.just("put"), st.sampled_from([1, 60, 3600]), st.integers(-20, 20)),
        st.tuples(st.just("delete"), st.just(0), st.integers(2, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 3, 30, 300]), st.just(0)),
        st.tuples(st.just("back"), st.sampled_from([1, 3, 30]), st.just(0)),
        st.tuples(st.just("sweep"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@given(STEPS)
def test_nothing_is_left_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """After any history a sweep removes nothing that is alive, and a late one removes every row."""
    swept = Swept(tmp_path_factory.mktemp("swept") / "data", Clock())
    store, clock = swept.store, swept.clock
    queue = make_queue(store)
    for kind, first, second in steps:
        match kind:
            case "say":
                append_bodies(store, queue, *["x"] * second, ttl=first)
            case "late":
                bridge.run(store.messages.append(queue, [new_message("late", ttl=first, delay=5.0)] * second))
            case "put":
                bridge.run(
                    store.messages.put(
                        queue, [(1, (clock.ticks + second * ids.TICKS_PER_SECOND, 0))], new_message("put", ttl=first)
                    )
                )
            case "delete":
                bridge.run(
                    store.messages.delete(
                        queue, [(1, place) for place in positions(messages_in_partition(store, queue))[::second]]
                    )
                )
            case "wait":
                clock.advance(first)
            case "back":
                clock.advance(-first)
            case _:
                before = messages_in_partition(store, queue), bridge.run(store.messages.inspect(queue))[1]
                store.sweep()
                assert (messages_in_partition(store, queue), bridge.run(store.messages.inspect(queue))[1]) == before
    clock.advance(100_000)
    store.sweep()
    assert (swept.rows(), swept.rows("expiry_windows")) == (0, 0)
    store.close()


def test_two_stores_sweep_at_once(swept: Swept) -> None:
    """Two processes that sweep the same file remove each row once and do not block each other."""
    queue = make_queue(swept.store)
    other = open_store(swept.directory, options=swept.options)
    append_bodies(swept.store, queue, *["short"] * 500, ttl=1)
    append_bodies(swept.store, queue, "long", ttl=5000)
    swept.clock.advance(60)
    removed: list[int] = []
    threads = [threading.Thread(target=lambda one=one: removed.append(one.sweep())) for one in (swept.store, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert sum(removed) == 500
    assert swept.rows() == 1
    other.close()


def test_others_go_on(swept: Swept) -> None:
    """While a long sweep runs, writes are acknowledged and reads show exactly the live messages."""
    store = swept.store
    queue = make_queue(store)
    for _ in range(3):
        append_bodies(store, queue, *["short"] * 1000, ttl=1)
    kept = append_bodies(store, queue, *["long"] * 20, ttl=5000)
    swept.clock.advance(60)
    perform, steps, seen = SqliteWriter.perform, itertools.count(1), threading.Semaphore(0)

    def waiting(self: SqliteWriter, work: Callable[[Transaction], Any]) -> Any:  # noqa: ANN401 - what the step gives
        """Takes a step of the sweep only after other calls have run since the last one."""
        assert next(steps) == 1 or seen.acquire(timeout=60)
        return perform(self, work)

    sweeping = threading.Thread(target=store.sweep)
    with replace(perform, waiting):
        sweeping.start()
        while sweeping.is_alive():
            kept += append_bodies(store, queue, "new", ttl=5000)
            chain = pages(store, queue, Slice(partition=1, limit=7))
            assert [message.position for page in chain for message in page.messages] == kept
            seen.release()
    join(sweeping)
    assert swept.rows() == len(kept)
    assert next(steps) > 5


def test_the_identity_stays(swept: Swept) -> None:
    """Ledger entries are removed 30 days after their last change; the store's identity stays for ever."""
    bridge.run(swept.store.ledger.enter("work", 0, b"old", expected=None))
    identity = bridge.run(swept.store.identity())
    for days, rows in ((29, 2), (2, 1)):
        swept.clock.advance(days * 86_400)
        swept.store.sweep()
        assert swept.rows("records") == rows
    assert (swept.rows("records"), bridge.run(swept.store.identity())) == (1, identity)


def test_long_bodies_do_not_wait_for_the_next_sweep(tmp_path: Path) -> None:
    """The log is checkpointed as soon as long bodies have filled part of it, so that no commit has to do it."""
    with contextlib.closing(open_store(tmp_path, options=SqliteOptions(sweep_interval=3600.0))) as store:
        bridge.run(store.applications.create_application(APP))
        queue = make_queue(store)
        append_bodies(store, queue, *["x" * 60_000] * 20)
        assert not sweep_of(store).log_pages
        append_bodies(store, queue, *["x" * 60_000] * 20)
        assert eventually(lambda: sweep_of(store).log_pages > 0)
