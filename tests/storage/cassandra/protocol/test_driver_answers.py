"""The driver package reports the end of a request once, whatever nodes, cassandra-driver and the adopted loop do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ReadFailure

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.storage.cassandra.cluster import (
    Driver,
    Encoded,
    InDoubt,
    Rows,
    Statement,
    StatementRequest,
    TooManyDead,
    connection,
)
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.cluster.topology import RETRY_INTERVAL, new_cluster
from queuey.storage.cassandra.protocol.errors import translate
from queuey.storage.deadlines import Deadline
from tests.replacing import replace_in, with_fields
from tests.storage.cassandra.protocol.scripted_driver import (
    CHANGE,
    CONDITIONAL,
    ENCODED,
    STATEMENT,
    ScriptedSession,
    cluster_of,
    scripted_driver,
)
from tests.storage.cassandra.protocol.scripted_node import ROW, Scene, make_page
from tests.waiting import PATIENCE_SECONDS, call_until, join, until, until_async

LATE = Statement("SELECT b FROM t WHERE a = ?")
"""A statement that is not prepared."""
Ends = list[tuple[Rows | None, StoreUnavailable | None, int]]
"""Rows or error of each request, and the thread in which it ended."""


class Adopted:
    """A connected driver that has adopted the test's loop, and nodes whose answers the test decides."""

    def __init__(self, scene: Scene, driver: Driver, session: ScriptedSession) -> None:
        self.scene, self.driver, self.session = scene, driver, session
        self.ended: Ends = []

    def send(self, request: StatementRequest | Encoded) -> None:
        self.driver.send(request, lambda rows, error: self.ended.append((rows, error, threading.get_ident())))

    def are_up(self) -> list[bool]:
        return [host.up for host in self.driver.hosts()]

    async def await_ended(self, count: int = 1) -> None:
        await until_async(lambda: len(self.ended) >= count)


@pytest.fixture
async def adopted() -> AsyncIterator[Adopted]:
    """A driver that has adopted the loop, with two nodes."""
    scene, session = Scene(), ScriptedSession()
    scene.client.close()
    deadline = Deadline(float("inf"), lambda: scene.now)
    scene.loop.create_connection = scene.connect  # type: ignore[method-assign,assignment]
    with scripted_driver(session, scene.cluster, deadline=deadline) as driver:
        driver.loop.adopt(scene.loop)
        await scene.await_wires()
        await asyncio.to_thread(driver.prepare, [STATEMENT, CHANGE])
        yield Adopted(scene, driver, session)
        await asyncio.to_thread(driver.close)


@pytest.mark.parametrize("request_", [ENCODED, CONDITIONAL])
async def test_requests_from_the_loops_thread(adopted: Adopted, request_: StatementRequest | Encoded) -> None:
    """Frequent requests and conditional batches from the loop's thread go over the client and end in that thread."""
    adopted.send(request_)
    [wire] = await adopted.scene.await_requests()
    assert not adopted.ended
    wire.answer(ROW)
    [(rows, refused, thread)] = adopted.ended
    assert (bool(rows), refused, thread) == (True, None, threading.get_ident())


async def test_requests_from_other_threads(adopted: Adopted) -> None:
    """Requests from other threads end in the loop, also those that no node can get."""
    await asyncio.to_thread(adopted.send, ENCODED)
    [wire] = await adopted.scene.await_requests()
    wire.answer(ROW)
    for node in adopted.scene.nodes:
        node.is_reachable = False
        node.wire.abort()
    await until_async(lambda: not any(adopted.are_up()))
    await asyncio.to_thread(adopted.send, ENCODED)
    await adopted.await_ended(2)
    here = threading.get_ident()
    [good, (rows, refused, thread)] = adopted.ended
    assert good == ([(b"a",)], None, here)
    assert (rows, refused and refused.outcome, thread) == (None, "none", here)


async def test_the_timeout_is_that_of_the_call_at_the_time_of_sending(adopted: Adopted) -> None:
    """A request has the remaining time of its call when and where it is sent."""
    with adopted.driver.calls.deadline.running(call_until(adopted.scene.now + 0.5)):
        adopted.send(ENCODED)
    await adopted.scene.await_requests()
    adopted.scene.now += 0.6
    await adopted.await_ended()
    [(_, refused, _)] = adopted.ended
    assert refused is not None
    assert refused.outcome == "none"


@pytest.mark.parametrize(
    ("request_", "rows"),
    [
        (StatementRequest(LATE, (b"a",)), [(b"a",)]),
        (with_fields(ENCODED, statement=LATE), [(b"a",)]),
        (with_fields(CONDITIONAL, further=[(LATE, (b"a",))]), [(100.0,)]),
    ],
)
async def test_a_statement_is_prepared_when_it_is_needed(
    adopted: Adopted, request_: StatementRequest | Encoded, rows: Rows
) -> None:
    """A statement that was not prepared ahead is prepared first, once; the request has the rest of its call's time."""
    for _ in range(2):
        adopted.send(request_)
        [wire] = await adopted.scene.await_requests()
        wire.answer(ROW)
    assert [found for found, _, _ in adopted.ended] == [rows, rows]
    assert [cql for node in adopted.scene.nodes for cql in node.prepared].count(LATE.qualify_tables("k")) == 1


async def test_a_statement_that_cannot_be_prepared(adopted: Adopted) -> None:
    """A request whose statement no node prepares fails without effect."""
    for node in adopted.scene.nodes:
        node.refused.append(LATE.qualify_tables("k"))
    adopted.send(with_fields(ENCODED, statement=LATE, decode=None))
    await adopted.await_ended()
    [(_, refused, _)] = adopted.ended
    assert refused is not None
    assert refused.outcome == "none"


async def test_the_schema_is_changed_in_a_thread(adopted: Adopted) -> None:
    """A schema change goes through the driver, which may block, in another thread than the loop's."""
    adopted.send(StatementRequest(Statement.make_unprepared("ALTER TABLE t")))
    await adopted.await_ended()
    assert [rows for rows, _, _ in adopted.ended] == [[]]
    assert threading.get_ident() not in adopted.session.asked_in


async def test_hosts_by_the_clients_own_connections(adopted: Adopted) -> None:
    """A node is up if the client is connected to it; for other nodes the driver's state counts."""
    first = adopted.scene.nodes[0]
    first.is_reachable = False
    first.wire.abort()
    await until_async(lambda: adopted.are_up() == [False, True])
    far = SimpleNamespace(address="10.9.9.9", datacenter="far", is_up=True)
    near = adopted.scene.cluster.metadata.all_hosts()
    adopted.scene.cluster.metadata.all_hosts = lambda: [*near, far]
    assert adopted.are_up() == [False, True, True]


async def test_close(adopted: Adopted) -> None:
    """Waiting requests end as closed or in doubt, in the loop's thread; the connections are closed."""
    for request in (ENCODED, CONDITIONAL):
        adopted.send(request)
    wires = await adopted.scene.await_requests(2)
    adopted.scene.cluster.shutdown = adopted.driver._update_client  # As the last look after the cluster, if it is late.
    await asyncio.to_thread(adopted.driver.close)
    await adopted.await_ended(2)
    assert {thread for _, _, thread in adopted.ended} == {threading.get_ident()}
    outcomes = {type(refused): refused.outcome for _, refused, _ in adopted.ended if refused is not None}
    assert outcomes.pop(StoreClosed) == "none"
    assert list(outcomes.values()) == ["unknown"]
    assert not any(wire.is_open for wire in wires)
    adopted.driver.loop.adopt(None)
    adopted.send(ENCODED)
    assert [type(refused) for _, refused, _ in adopted.ended[2:]] == [StoreClosed]


async def test_a_loop_that_comes_later(adopted: Adopted) -> None:
    """Idempotent requests in flight go over the next loop, here in vain, as later ones do; others are in doubt."""
    for request in (ENCODED, CONDITIONAL):
        adopted.send(request)
    await adopted.scene.await_requests(2)
    for node in adopted.scene.nodes:
        node.is_reachable = False
    with another_loop() as (loop, thread):
        await asyncio.to_thread(run_in, loop, adopted.driver.loop.adopt, loop)
        await adopted.await_ended(2)
        outcomes = sorted(str(None if refused is None else refused.outcome) for _, refused, _ in adopted.ended)
        assert outcomes == ["none", "unknown"]
        adopted.send(ENCODED)
        await adopted.await_ended(3)
        assert adopted.ended[2][2] == thread
        await asyncio.to_thread(run_in, loop, adopted.driver.loop.adopt, None)


@contextmanager
def another_loop() -> Iterator[tuple[asyncio.AbstractEventLoop, int | None]]:
    """Runs an event loop in another thread; yields both."""
    loop = asyncio.new_event_loop()
    loop.create_connection = refuse_connection  # type: ignore[method-assign]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop, thread.ident
    finally:
        loop.call_soon_threadsafe(loop.stop)
        join(thread)
        loop.close()


async def refuse_connection(*_arguments: object, **_named: object) -> Any:  # noqa: ANN401 - never returns
    raise ConnectionRefusedError


def run_in(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    async def made() -> None:
        call(*args)

    asyncio.run_coroutine_threadsafe(made(), loop).result(PATIENCE_SECONDS)


ALTER = StatementRequest(Statement.make_unprepared("ALTER TABLE t"))


def ends_of(driver: Driver, *requests: StatementRequest | Encoded) -> list[tuple[Rows | None, StoreUnavailable | None]]:
    """Sends requests from this thread, and returns how each ended, in order of their ends."""
    ended: list[tuple[Rows | None, StoreUnavailable | None]] = []
    for request in requests:
        driver.send(request, lambda *end: ended.append(end))
    until(lambda: len(ended) >= len(requests))
    return ended


async def test_all_pages_are_one_answer(adopted: Adopted) -> None:
    """An answer in several pages has the rows of all of them."""
    adopted.send(StatementRequest(STATEMENT))
    for state, row in ((b"more", b"a"), (b"and more", b"b"), (b"", b"c")):
        [wire] = await adopted.scene.await_requests()
        wire.answer(make_page(row, state))
    await adopted.await_ended()
    assert [rows for rows, _, _ in adopted.ended] == [[(b"a",), (b"b",), (b"c",)]]


async def test_a_write_that_a_node_may_have_is_in_doubt(adopted: Adopted) -> None:
    """A write that was sent and lost with its connection is in doubt, also if no other node can be reached then."""
    write = with_fields(ENCODED, decode=None)
    adopted.send(write)
    await adopted.scene.await_requests()
    for node in adopted.scene.nodes:
        node.is_reachable = False
        node.wire.abort()
    await adopted.await_ended()
    await until_async(lambda: not any(adopted.are_up()))
    adopted.send(write)
    await adopted.await_ended(2)
    assert [error and error.outcome for _, error, _ in adopted.ended] == ["unknown", "none"]


@pytest.mark.parametrize(("reads", "kind", "outcome"), [(True, TooManyDead, "none"), (False, InDoubt, "unknown")])
def test_a_write_whose_read_failed_is_in_doubt(reads: bool, kind: type[StoreUnavailable], outcome: str) -> None:  # noqa: FBT001 - parameter
    """A failed read had no effect. A conditional write that failed to read may have been applied by an earlier try."""
    error = translate(ReadFailure("failed"), reads=reads)
    assert (type(error), error.outcome) == (kind, outcome)


async def test_a_request_for_one_node_goes_to_no_other(adopted: Adopted) -> None:
    """A request for one node goes to no other, and its error names the node."""
    adopted.send(with_fields(ENCODED, host="127.0.0.7"))
    adopted.send(StatementRequest(STATEMENT, host="127.0.0.8"))
    texts = [str(error) for _, error, _ in adopted.ended]
    assert texts == [f"Cassandra node 127.0.0.{number} did not answer" for number in (7, 8)]


def test_several_data_centres_need_a_local_one() -> None:
    """A cluster with several data centres is not used until the options name the local one; requests say so."""
    with scripted_driver(ScriptedSession(), cluster_of("b", "a"), ready=False) as driver:
        reason = "Cassandra has several data centres (a, b): set the local one"
        until(lambda: driver.problem() == reason)
        assert [str(error) for _, error in ends_of(driver, ENCODED, ALTER)] == [reason] * 2


def cluster_in(net: SimpleNamespace) -> Any:  # noqa: ANN401 - what the connection uses of the driver's cluster
    """Makes a cluster that knows the present addresses, as the driver does; records it in ``net.made``.

    Connecting fails if no node answers. Its shutdown is recorded in ``net.ended``.
    """

    def hosts(known: list[str] = net.named) -> list[Any]:
        return [SimpleNamespace(address=one, datacenter="dc", is_up=one in net.answering) for one in known]

    def connect() -> ScriptedSession:
        if not any(host.is_up for host in hosts()):
            raise OSError("nobody answers")
        return ScriptedSession()

    metadata = SimpleNamespace(all_hosts=hosts, keyspaces={"k": None}, get_replicas=lambda *_: None, token_map=None)
    opened = SimpleNamespace(metadata=metadata, connect=connect, register_listener=lambda _: None)
    opened.shutdown = lambda: net.ended.append(opened)
    net.made.append(opened)
    return opened


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Addresses that a host name stands for, those that answer, and the clusters that a driver has made."""
    addresses = ["10.0.0.1", "10.0.0.2"]
    net = SimpleNamespace(named=addresses, answering=addresses, made=[], ended=[])
    resolved = lambda *_, **__: [(0, 0, 0, "", (address, 9042)) for address in net.named]  # noqa: E731 - short
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with replace_in(connection, new_cluster, lambda *_: cluster_in(net)), replace_in(connection, RETRY_INTERVAL, 0.01):
        yield net


TARGET = DataCentreTarget(("store",), "k")


def test_names_that_stand_for_other_addresses(net: SimpleNamespace) -> None:
    """If all nodes are gone, the host names are resolved again, and the former connection is closed."""
    driver = Driver(TARGET, CassandraOptions())
    try:
        assert driver.ready(PATIENCE_SECONDS)
        net.answering, net.named = [], ["10.0.0.7"]
        until(lambda: "nobody answers" in (driver.problem() or ""))
        assert net.made[0] not in net.ended
        net.answering = ["10.0.0.7"]
        until(lambda: driver.problem() is None)
        assert [host.address for host in driver.hosts()] == ["10.0.0.7"]
        assert net.ended == [*net.made[1:-1], net.made[0]]
    finally:
        driver.close()
    assert net.ended[-1] is net.made[-1]


def test_nothing_is_sent_before_the_schema_is_verified(net: SimpleNamespace) -> None:
    """While a connection is verified, and after a failed verification, requests of other calls are refused."""
    problems, refused = ["the keyspace is newer than this program", None], list[bool]()

    def is_refused(driver: Driver) -> bool:
        [(_, error)] = ends_of(driver, ALTER)
        return error is not None

    def verify(driver: Driver) -> str | None:
        with ThreadPoolExecutor(1) as other:
            refused.append(other.submit(is_refused, driver).result(PATIENCE_SECONDS))
        assert not is_refused(driver)
        return problems.pop(0) if problems else "the keyspace is another one"

    driver = Driver(TARGET, CassandraOptions(), verify=verify)
    try:
        assert driver.ready(PATIENCE_SECONDS)
        assert not is_refused(driver)
        net.answering = net.named = ["10.0.0.7"]
        until(lambda: driver.problem() == "the keyspace is another one")
        assert is_refused(driver)
    finally:
        driver.close()
    assert len(refused) > 2
    assert all(refused)


def test_reserved_words_as_keyspaces() -> None:
    """A keyspace may have any name, also one that CQL reserves."""
    cql = Statement("SELECT a FROM queues WHERE b = ?").qualify_tables("order")
    assert cql == 'SELECT a FROM "order".queues WHERE b = ?'
