"""The cost of calls on SQLite in statements, counted where SQLite runs them. Time is not measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.messages.posts import Draft
from queuey.messages.ranges import RangeRequest
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import Meta, NewMessage, Queue, Slice
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, open_store
from queuey.storage.sqlite import connection as driver
from tests.backends import APP
from tests.blocking import BlockingNames, blocking
from tests.contract.samples import bodies_in_partition, make_queue, new_message, run_call
from tests.replacing import replace_in
from tests.storage.sqlite.counted import counted_store, database_of

T = TypeVar("T")
PARTITIONS = 10
Count = Callable[[Callable[[], T]], int]


@pytest.fixture
def statements() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, statements: list[str]) -> Iterator[SqliteStore]:
    """A store whose statements are recorded, without sweeps."""
    with counted_store(tmp_path, statements) as store:
        yield store


@pytest.fixture
def queue(store: SqliteStore) -> Queue:
    """A queue with a thousand messages in each partition."""
    queue = make_queue(store, partitions=PARTITIONS)
    for _ in range(10):
        bridge.run(
            store.messages.append(
                queue, [new_message("x", partition=1 + number % PARTITIONS) for number in range(100 * PARTITIONS)]
            )
        )
    return queue


@pytest.fixture
def service(store: SqliteStore) -> Service:
    return Service(store)


@pytest.fixture
def access(service: Service, queue: Queue) -> QueueAccess:
    return service.queues.access_unchecked(queue)


@pytest.fixture
def count(statements: list[str]) -> Count[Any]:
    """Counts the statements of a call when it runs the second time."""

    def count_one(call: Callable[[], object]) -> int:
        call()
        statements.clear()
        call()
        return len(statements)

    return count_one


@pytest.mark.parametrize("descending", [False, True])
def test_a_page_is_three_statements(store: SqliteStore, queue: Queue, count: Count[Any], *, descending: bool) -> None:
    """A page of any size and direction is three statements: the clock, the start of live messages, and the messages."""
    for limit in (1, 10, 100, 1000):
        part = Slice(1, limit=limit, descending=descending)
        assert len(bridge.run(store.messages.read(queue, [part]))[0].messages) == limit
        assert count(partial(run_call, store.messages.read, queue, [part])) == 3


def test_a_page_of_many_partitions_is_two_statements_for_each(
    service: Service, access: QueueAccess, count: Count[Any]
) -> None:
    """A page of many partitions is two statements for each; in time order over partitions at most four."""
    requested = RangeRequest(partitions=None, limit=100)
    assert len(bridge.run(service.reader.read(access, requested)).messages) == 100 * PARTITIONS
    assert count(partial(run_call, service.reader.read, access, requested)) <= 2 * PARTITIONS + 4
    merged = RangeRequest(partitions=(1, 2, 3, 4), limit=100, merge=True)
    assert len(bridge.run(service.reader.read(access, merged)).messages) == 100
    assert count(partial(run_call, service.reader.read, access, merged)) <= 2 * (2 * 4 + 1)


@pytest.mark.parametrize("number", [1, 100])
def test_a_post_is_five_statements(store: SqliteStore, queue: Queue, count: Count[Any], number: int) -> None:
    """A post is five statements: a transaction, its messages, the windows of their ends, and the clock."""
    assert count(partial(run_call, store.messages.append, queue, [new_message("x")] * number)) == 5


def test_a_commit_writes_its_log_alone(store: SqliteStore, tmp_path: Path) -> None:
    """Messages of many partitions are written to the log and nowhere else, such as to a file to undo a statement."""
    queue = make_queue(store, partitions=64)
    messages = [new_message("x" * 500, partition=1 + number) for number in range(64)]
    others = []
    for _ in range(10):
        bridge.run(store.messages.append(queue, messages))
        written = int(Path("/proc/self/io").read_text("ascii").split("wchar: ")[1].split()[0])
        others.append(written - sum(path.stat().st_size for path in tmp_path.rglob("*-wal")))
    assert max(after - before for before, after in pairwise(others)) < 100_000


def rows_of(store: SqliteStore) -> list[tuple[object, ...]]:
    """Returns all rows of a store. Times are relative to the first message, so that two stores compare."""
    with database_of(store).readers.lend() as opened:
        messages: list[Any] = opened.execute("SELECT * FROM messages ORDER BY ticks").fetchall()
        windows: list[Any] = opened.execute(
            "SELECT queue_partition, message_count, longest_ttl FROM expiry_windows ORDER BY 1, 3"
        ).fetchall()
        clock: Any = opened.execute("SELECT last_ticks FROM clock").fetchone()
    first = messages[0][1]
    shown = [(qp, ticks - first, expires - first, *rest) for qp, ticks, _, expires, *rest in messages]
    return [*shown, *windows, (clock[0] - first,)]


@pytest.mark.parametrize(
    ("items", "inserts"),
    [
        ([new_message("x")] * 100, 1),
        ([new_message("x", partition=1 + number // 25) for number in range(100)], 4),
        ([new_message("a", ttl=60)] * 50 + [new_message("\xe9\u20ac", ttl=90)] * 50, 2),
        ([new_message(b"\x00\xff")] * 10, 1),
        ([new_message("x", partition=1 + number % 2) for number in range(100)], 0),
        ([new_message("x")] * 7, 0),
        ([*[new_message("x")] * 20, new_message("a\x00b")], 0),
        ([*[new_message("x")] * 20, new_message(b"\xff")], 0),
        ([*[new_message("x")] * 20, new_message("x", meta=Meta("text/html"))], 0),
    ],
)
def test_runs_of_a_batch_are_one_statement_each(
    tmp_path: Path, store: SqliteStore, statements: list[str], items: list[NewMessage], inserts: int
) -> None:
    """Runs of a batch leave the same rows, windows and clock as messages that are inserted one by one."""
    queue = make_queue(store, partitions=4)
    statements.clear()
    bridge.run(store.messages.append(queue, items))
    assert sum("carray" in text for text in statements) == inserts
    with (
        replace_in(driver, driver.carray, None),
        closing(open_store(tmp_path / "plain", options=SqliteOptions(sweep_interval=None))) as plain,
    ):
        bridge.run(plain.applications.create_application(APP))
        bridge.run(plain.messages.append(make_queue(plain, partitions=4), items))
        assert rows_of(plain) == rows_of(store)


def test_posts_of_a_turn_are_one_commit(store: SqliteStore) -> None:
    """Posts begun in one turn of the loop are one commit, also those begun before the loop ends."""
    queue = make_queue(store)

    async def post() -> None:
        loop = asyncio.get_running_loop()
        store.adopt(loop)
        for _ in range(3):
            before = database_of(store).writer.commits
            posts = [store.messages.append(queue, [new_message("x")]) for _ in range(40)]
            await asyncio.wait_for(asyncio.gather(*posts), 60)
            assert database_of(store).writer.commits == before + 1
        last = loop.create_task(store.messages.append(queue, [new_message("last")]))
        await asyncio.sleep(0)
        store.adopt(None)
        await last

    asyncio.run(post())
    bridge.run(store.messages.append(queue, [new_message("x")]))
    assert "last" in bodies_in_partition(store, queue)


def test_reads_of_a_turn_are_one_transaction(store: SqliteStore, statements: list[str]) -> None:
    """Reads begun in one turn share a transaction and the clock. The next turn sees what was stored since."""
    queue = make_queue(store)
    readers = database_of(store).readers

    async def read() -> None:
        store.adopt(asyncio.get_running_loop())
        for stored in range(3):
            await store.messages.append(queue, [new_message("x")])
            await store.messages.read(queue, [Slice(1)])
            statements.clear()
            reads = await asyncio.gather(*(store.messages.read(queue, [Slice(1)]) for _ in range(40)))
            assert [len(pages[0].messages) for pages in reads] == [stored + 1] * 40
            assert [sum(word in text for text in statements) for word in ("BEGIN", "clock", "SELECT")] == [1, 1, 81]
        with pytest.raises(StoreUnavailable):
            readers.read_without_waiting(lambda connection: connection.execute("SELECT * FROM missing"))
        assert len((await store.messages.read(queue, [Slice(1)]))[0].messages) == 3
        await asyncio.sleep(0)
        assert readers.turn_connection is None
        store.adopt(None)

    asyncio.run(read())
    assert readers.read_without_waiting(lambda connection: connection.in_transaction) is False


def test_claims_cost_the_same_anywhere(
    store: SqliteStore, service: Service, access: QueueAccess, statements: list[str]
) -> None:
    """A claim and its acknowledgement cost the same number of statements, whatever was acknowledged before."""
    for acknowledged in (0, 2000):
        bridge.run(store.messages.append(access.queue, [new_message("x")] * acknowledged))
        for _ in range(acknowledged // 1000):
            claimed = blocking(service.claims).claim(access, limit=1000, ttl=600, partitions=[1])
            blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in claimed])
        for limit in (1, 100):
            statements.clear()
            claimed = blocking(service.claims).claim(access, limit=limit, ttl=600, partitions=[1])
            assert len(claimed) == limit
            # A log that is read for the first time; now and then the known messages are checked.
            assert len(statements) <= 15
            statements.clear()
            blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in claimed])
            assert len(statements) == 5


def test_info_and_names(
    store: SqliteStore, service: Service, access: QueueAccess, queue: Queue, count: Count[Any]
) -> None:
    """Sizes cost four statements per partition; each call about a name costs a fixed number, for any queue size."""
    assert count(partial(run_call, store.messages.inspect, queue)) == 4 * PARTITIONS + 1
    BlockingNames(service).create(access, "n", Draft("a"))
    assert count(partial(BlockingNames(service).replace, access, "n", Draft("b"))) <= 25
    assert count(partial(BlockingNames(service).fetch, access, "n")) <= 10
