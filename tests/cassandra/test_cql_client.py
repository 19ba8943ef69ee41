"""Tests of the event loop's CQL client against a real node."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from queuey.errors import StoreUnavailable
from queuey.messages import LogEntry, NewMessage, QueueSpec, Slice
from queuey.storage.cassandra.driver import Driver, Encoded, Request, Rows, Statement
from queuey.storage.cassandra.driver.cql import CqlClient
from queuey.storage.cassandra.options import parse_url
from tests.cassandra.conftest import OpenStore
from tests.replacing import replace as replaced
from tests.servers.keyspaces import OPTIONS
from tests.servers.plugin import unique_name
from tests.waiting import PATIENCE_SECONDS, until_async


def blob(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def decode(body: bytes) -> Rows:
    (count,) = struct.unpack_from(">i", body, 12)
    rows, offset = [], 16
    for _ in range(count):
        (size,) = struct.unpack_from(">i", body, offset)
        rows.append((body[offset + 4 : offset + 4 + size],))
        offset += 4 + size
    return rows


class Table:
    """A test table, and requests to it from the loop's thread.

    Args:
        driver: A connected driver that has adopted the loop.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.name = unique_name("cql")
        self.insert = Statement(f"INSERT INTO {self.name} (k, n, v) VALUES (?, ?, ?)")
        self.select = Statement(f"SELECT v FROM {self.name} WHERE k = ?")
        self.change = Statement(f"UPDATE {self.name} SET v = ? WHERE k = ? AND n = ? IF v = ?", idempotent=False)
        self.remove = Statement(f"DELETE FROM {self.name} WHERE k = ? AND n = ?", idempotent=False)

    @property
    def client(self) -> CqlClient:
        client = self.driver._client
        assert client is not None
        return client

    def run(self, text: str) -> None:
        self.driver.run(Statement.make_unprepared(text), timeout=60.0)

    def make(self) -> None:
        keyspace = self.driver.target.keyspace
        self.run(f"CREATE TABLE {keyspace}.{self.name} (k blob, n int, v blob, PRIMARY KEY (k, n))")
        self.driver.prepare([self.insert, self.select, self.change, self.remove])

    async def ask(self, request: Request | Encoded) -> Rows | None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Rows | None] = loop.create_future()

        def done(rows: Rows | None, error: StoreUnavailable | None) -> None:
            assert asyncio.get_running_loop() is loop
            if error is None:
                future.set_result(rows)
            else:
                future.set_exception(error)

        self.driver.send(request, done)
        return await asyncio.wait_for(future, PATIENCE_SECONDS)

    async def write(self, rows: Sequence[tuple[int, bytes]]) -> None:
        encoded = [blob(b"key") + blob(struct.pack(">i", number)) + blob(value) for number, value in rows]
        await self.ask(Encoded(self.insert, 3, encoded, b"key", "QUORUM"))

    async def read(self) -> list[bytes]:
        rows = await self.ask(Encoded(self.select, 1, [blob(b"key")], b"key", "QUORUM", decode))
        return [value for (value,) in rows or ()]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def table(contract_keyspace: str) -> AsyncIterator[Table]:
    """A table whose driver goes over the loop, and cannot repeat requests by itself."""
    driver = Driver(parse_url(contract_keyspace), replace(OPTIONS, speculative=0.0))
    try:
        assert await asyncio.to_thread(driver.ready, 60), driver.problem()
        table = Table(driver)
        await asyncio.to_thread(table.make)
        driver.loop.adopt(asyncio.get_running_loop())
        await until_async(lambda: table.client.is_usable)

        send = Driver._send

        def send_at_first(*args: Any, **named: Any) -> None:  # noqa: ANN401 - whatever it takes
            is_at_first = "attempts" not in named or "host" in named  # Or the same once more, in another thread.
            assert is_at_first, "the driver was asked in the client's place"
            send(*args, **named)

        with replaced(Driver._send, send_at_first):
            yield table
        driver.loop.adopt(None)
    finally:
        await asyncio.to_thread(driver.close)


async def test_rows_are_written_and_read(table: Table) -> None:
    """One row, many rows of a partition at once, and a page of them are written and read over the loop."""
    await table.write([(0, b"zero")])
    await table.write([(number, b"%d" % number) for number in range(1, 100)])
    assert await table.read() == [b"zero", *(b"%d" % number for number in range(1, 100))]
    assert await asyncio.gather(*(table.read() for _ in range(200))) == [await table.read()] * 200
    assert next(table.client._turn) > 200


async def test_long_bodies(table: Table) -> None:
    """Several requests and answers of a megabyte each are sent at once."""
    await asyncio.gather(*(table.write([(number, bytes([number]) * (1 << 20))]) for number in range(4)))
    assert [len(value) for value in await table.read()] == [1 << 20] * 4


async def test_conditional_batches(table: Table) -> None:
    """Several statements of which one has a condition all take effect or none, and the answer says which."""
    await table.write([(1, b"old"), (2, b"other")])

    async def change(expected: bytes) -> bool:
        changed = table.change, (b"new", b"key", 1, expected)
        removed = table.remove, (b"key", 2)
        request = Request(*changed, "QUORUM", "SERIAL", further=[removed])
        rows = await table.ask(request)
        assert rows is not None
        return bool(rows[0][0])

    assert not await change(b"unexpected")
    assert await table.read() == [b"old", b"other"]
    assert await change(b"old")
    assert await table.read() == [b"new"]


async def test_the_schema_changes(table: Table) -> None:
    """Statements that nodes forget after a schema change are prepared again, and the driver is not asked."""
    await table.write([(1, b"one")])
    keyspace = table.driver.target.keyspace
    await asyncio.to_thread(table.run, f"ALTER TABLE {keyspace}.{table.name} ADD more text")
    await asyncio.gather(*(table.write([(number, b"more")]) for number in range(2, 6)))
    assert await table.read() == [b"one", *[b"more"] * 4]
    changed = Request(
        table.change, (b"new", b"key", 1, b"one"), "QUORUM", "SERIAL", further=[(table.remove, (b"key", 5))]
    )
    assert await table.ask(changed)
    assert await table.read() == [b"new", *[b"more"] * 3]


async def test_errors_of_the_node(table: Table) -> None:
    """An error of the node is the store's error, with the outcome "none"."""
    bad = Encoded(table.insert, 3, [blob(b"key") + blob(b"not an int") + blob(b"v")], b"key", "QUORUM")
    with pytest.raises(StoreUnavailable, match="refused the request") as refused:
        await table.ask(bad)
    assert refused.value.outcome == "none"


async def test_a_connection_that_breaks_is_made_anew(table: Table) -> None:
    """The client reconnects to its node by itself, and the driver's list of nodes shows it."""
    [node] = table.client._nodes.values()
    connection = node.connection
    assert connection is not None
    connection._transport.abort()  # type: ignore[union-attr]
    await until_async(lambda: table.client.is_up(node.address) is False)
    assert not any(host.up for host in table.driver.hosts())
    await until_async(lambda: table.client.is_up(node.address))
    assert node.connection is not connection
    await table.write([(1, b"one")])
    assert await table.read() == [b"one"]


async def test_requests_to_one_node(table: Table) -> None:
    """A node may be asked by its address; other addresses are unknown."""
    [address] = [host.address for host in table.driver.hosts()]
    now = Encoded(table.select, 1, [blob(b"key")], b"", "ONE", decode, host=address)
    assert await table.ask(now) == []
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await table.ask(now._replace(host="127.9.9.9"))


async def test_a_store_reads_and_claims_over_the_loop(open_with: OpenStore, application: str) -> None:
    """A store with a named loop reads pages and claim log entries over it."""
    store = open_with()
    queue, _ = await store.catalogue.create_queue(application, "q", QueueSpec())
    await store.messages.append(queue, [NewMessage(body="first", partition=1, ttl=600)])
    part = Slice(1, delayed=False, early=True)
    store.adopt(asyncio.get_running_loop())
    client = store._driver._client
    assert client is not None
    await until_async(lambda: client.is_usable)

    turns = next(client._turn)
    [page] = await store.messages.read(queue, [part])
    assert [message.body for message in page.messages] == ["first"]
    for number in range(1, 4):
        assert await store.claim_logs.append_entry(queue, 1, LogEntry(number, b"entry"))
    assert not await store.claim_logs.append_entry(queue, 1, LogEntry(3, b"other"))
    assert next(client._turn) > turns + 4
    store.adopt(None)
