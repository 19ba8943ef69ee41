"""A driver and its adopted loop: which requests go over the client, and what happens when the loop changes."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra.cqltypes import BytesType
from cassandra.protocol import ColumnMetadata
from cassandra.query import PreparedStatement

from queuey.errors import StoreClosed, StoreUnavailable
from queuey.storage.calls import Call, Deadline
from queuey.storage.cassandra.driver import Driver, Encoded, Request, Rows, Statement
from queuey.storage.cassandra.driver import connection as connection_module
from queuey.storage.cassandra.driver.cql import CqlClient
from queuey.storage.cassandra.driver.store_loop import StoreLoop
from queuey.storage.cassandra.driver.topology import new_cluster, resolve_addresses
from queuey.storage.cassandra.options import CassandraOptions, DataCentreTarget
from tests.replacing import replace_in
from tests.sim.cassandra.protocol.frames import ERROR, UNPREPARED, error, text
from tests.unit.cassandra.cql.scripted_node import CQL, QUERY_ID, ROW, Scene, ScriptedNode
from tests.waiting import PATIENCE_SECONDS, call_until, join, until, until_async

STATEMENT = Statement(CQL)
CHANGE = Statement("UPDATE t SET a = ? IF a = ?", idempotent=False)
COLUMN = ColumnMetadata("k", "t", "a", BytesType)
ENCODED = Encoded(STATEMENT, 1, [b"\0\0\0\1a"], b"key", "QUORUM", lambda body: [(body[-1:],)])
CONDITIONAL = Request(CHANGE, (b"a", b"b"), "QUORUM", "SERIAL", further=[(CHANGE, (b"c", b"d"))])


class Adopted:
    """A connected driver that has adopted the loop, with the client of a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.deadline = Deadline(math.inf)
        self.ended: list[tuple[Rows | None, StoreUnavailable | None, int]] = []
        self.asked_in: list[tuple[str, int]] = []
        """Requests to the session, and their threads."""
        driver = self.driver = object.__new__(Driver)
        driver.target, driver._options = DataCentreTarget(("10.0.0.1",), "k"), CassandraOptions()
        driver._deadline, driver.requests, driver._usable, driver._problem = self.deadline, 0, True, "away"
        driver._session, driver._cluster = self, scene.cluster
        driver._prepared = {
            STATEMENT: PreparedStatement([COLUMN], QUERY_ID, None, CQL, "k", 4, [], None),
            CHANGE: PreparedStatement([COLUMN, COLUMN], b"change", [0], "UPDATE", "k", 4, None, None),
        }
        driver._closed, driver._thread, driver._client = threading.Event(), threading.Thread(), scene.client
        driver._preparing, driver._preparer = threading.Lock(), ThreadPoolExecutor(1)
        driver.loop = StoreLoop(lambda _: partial(driver._end_client, scene.client))
        driver.loop.adopt(scene.loop)
        driver.loop._enter = driver._enter_loop

    def send(self, request: Request | Encoded) -> None:
        self.driver.send(request, lambda rows, error: self.ended.append((rows, error, threading.get_ident())))

    def prepare(self, cql: str) -> PreparedStatement:
        self.asked_in.append(("prepare", threading.get_ident()))
        return PreparedStatement([COLUMN], b"late", None, cql, "k", 4, [], None)

    def execute_async(self, *_args: object, **_named: object) -> Any:  # noqa: ANN401 - as of a session
        """Calls back with rows at once, in another thread."""
        self.asked_in.append(("execute", threading.get_ident()))

        def add_callbacks(good: Any, _bad: Any) -> None:  # noqa: ANN401 - callbacks
            thread = threading.Thread(target=good, args=([("driver",)],))
            thread.start()
            join(thread)

        return SimpleNamespace(attempted_hosts=(), _paging_state=None, add_callbacks=add_callbacks)


@pytest.fixture
def adopted(scene: Scene) -> Adopted:
    """A driver with the client of the scene."""
    return Adopted(scene)


@pytest.mark.parametrize("request_", [ENCODED, CONDITIONAL])
async def test_requests_from_the_loops_thread(adopted: Adopted, request_: Request | Encoded) -> None:
    """Frequent requests and conditional batches from the loop's thread go over the client and end in that thread."""
    adopted.send(request_)
    [wire] = await adopted.scene.await_requests()
    assert not adopted.ended
    wire.answer(ROW)
    [(rows, refused, thread)] = adopted.ended
    assert (bool(rows), refused, thread) == (True, None, threading.get_ident())


async def test_requests_from_other_threads(adopted: Adopted) -> None:
    """Requests from other threads end in the loop, also those sent while the client is connected to no node."""
    await asyncio.to_thread(adopted.send, ENCODED)
    [wire] = await adopted.scene.await_requests()
    wire.answer(ROW)
    for node in adopted.scene.nodes:
        node.is_reachable = False
        node.wire.abort()
    await until_async(lambda: not adopted.scene.client.is_usable)
    await asyncio.to_thread(adopted.send, ENCODED)
    await until_async(lambda: len(adopted.ended) == 2)
    here = threading.get_ident()
    assert adopted.ended == [([(b"a",)], None, here), ([("driver",)], None, here)]


async def test_the_timeout_is_that_of_the_call_at_the_time_of_sending(adopted: Adopted) -> None:
    """A request has the remaining time of its call when and where it is sent."""
    with adopted.deadline.running(call_until(adopted.deadline.clock() + 0.5)):
        adopted.send(ENCODED)
    await adopted.scene.await_requests()
    adopted.scene.now += 0.6
    await until_async(lambda: adopted.ended)
    [(_, refused, _)] = adopted.ended
    assert refused is not None
    assert refused.outcome == "none"


async def test_what_the_driver_answers_instead(adopted: Adopted) -> None:
    """A request that the driver repeats is answered in the loop's thread."""
    adopted.send(ENCODED)
    [wire] = await adopted.scene.await_requests()
    wire.abort()
    await until_async(lambda: adopted.ended)
    assert adopted.ended == [([("driver",)], None, threading.get_ident())]


LATE = Statement("SELECT b FROM t")


@pytest.mark.parametrize(
    ("request_", "asked"),
    [
        (Request(LATE, (b"a",)), ["prepare", "execute"]),
        (Request(STATEMENT, (b"a",)), ["execute"]),
        (ENCODED._replace(statement=LATE), ["prepare"]),
        (CONDITIONAL._replace(further=[(LATE, (b"a",))]), ["prepare"]),
        (Request(Statement.make_unprepared("ALTER TABLE t")), ["execute"]),
    ],
)
async def test_the_loop_waits_for_no_node(adopted: Adopted, request_: Request | Encoded, asked: list[str]) -> None:
    """A statement that is not prepared, or goes through the driver, is sent in another thread in the call's time."""
    adopted.driver._options = CassandraOptions(timeout=60.0)
    with adopted.deadline.running(call_until(adopted.deadline.clock() + 30.0)):
        adopted.send(request_)
    if asked[-1] == "prepare":
        await adopted.scene.await_requests()
        adopted.scene.now += 30.1
    await until_async(lambda: adopted.ended)
    assert [call for call, _ in adopted.asked_in] == asked
    assert threading.get_ident() not in {thread for _, thread in adopted.asked_in}
    [(rows, refused, _)] = adopted.ended
    assert rows == [("driver",)] if asked[-1] == "execute" else refused is not None


@pytest.mark.parametrize("request_", [Request(LATE, (b"a",)), Request(Statement.make_unprepared("ALTER TABLE t"))])
async def test_what_verifies_the_schema_is_sent_in_any_thread(adopted: Adopted, request_: Request) -> None:
    """A request of the call that verifies the schema is sent in any thread; others are refused meanwhile."""
    adopted.driver._usable, adopted.driver._verifying = False, Call()
    with adopted.deadline.running(adopted.driver._verifying):
        adopted.send(request_)
    await until_async(lambda: adopted.ended)
    assert [rows for rows, _, _ in adopted.ended] == [[("driver",)]]
    adopted.send(request_)
    assert adopted.ended[1][1] is not None


async def test_the_fallback_through_the_driver_is_sent_in_another_thread(adopted: Adopted) -> None:
    """A fallback through the driver is sent in another thread, because a session may wait for a stream."""
    adopted.send(ENCODED)
    [wire] = await adopted.scene.await_requests()
    wire.abort()
    await until_async(lambda: adopted.ended)
    [(call, thread)] = adopted.asked_in
    assert (call, thread != threading.get_ident()) == ("execute", True)


async def test_what_cannot_be_sent_any_more(adopted: Adopted) -> None:
    """A write that a node may have is in doubt if the call's time is over or the store is closed."""
    prepare = adopted.prepare

    def prepare_slowly(cql: str) -> PreparedStatement:
        until(lambda: adopted.deadline.clock() > ends)
        return prepare(cql)

    adopted.prepare = prepare_slowly  # type: ignore[method-assign]
    ends = adopted.deadline.clock() + 0.01
    with adopted.deadline.running(call_until(ends)):
        adopted.send(Request(LATE, (b"a",)))
    await until_async(lambda: len(adopted.ended) == 1)
    assert "longer than" in str(adopted.ended[0][1])
    adopted.driver._session = None
    adopted.driver._closed.set()
    refused: list[StoreUnavailable | None] = []
    for attempts in (0, 1):
        adopted.driver._send(None, 1.0, lambda _rows, error: refused.append(error), reads=False, attempts=attempts)
        await until_async(lambda: len(refused) == attempts + 1)  # noqa: B023 - awaited here
    assert [error and error.outcome for error in refused] == ["none", "unknown"]


async def test_an_event_loop_whose_threads_have_ended(adopted: Adopted) -> None:
    """After its threads have ended, a request that needs one is refused; a write that a node may have is in doubt."""
    await adopted.scene.loop.shutdown_default_executor()
    adopted.driver._preparer.shutdown()
    adopted.send(Request(LATE, (b"a",)))
    for attempts in (0, 1):
        adopted.driver._send(None, 1.0, lambda *end: adopted.ended.append((*end, 0)), reads=False, attempts=attempts)
    refused = [error for _, error, _ in adopted.ended if error is not None]
    assert [error.outcome for error in refused] == ["none", "none", "unknown"]


async def test_a_forgotten_statement_is_known_by_its_id(adopted: Adopted) -> None:
    """The client prepares statements that the driver has prepared, by their ids."""
    client = CqlClient(adopted.scene.loop, "k", 0.0, adopted.driver._find_cql)
    assert client.find_cql(QUERY_ID) == CQL
    assert client.find_cql(b"other") is None
    adopted.send(ENCODED)
    [wire] = await adopted.scene.await_requests()
    wire.answer(error(UNPREPARED, text("id")), ERROR)
    [wire] = await adopted.scene.await_requests()
    assert wire.node.prepared == [CQL]


async def test_hosts_by_the_clients_own_connections(adopted: Adopted) -> None:
    """A node is up if the client is connected to it; for other nodes the driver's state counts."""
    first, second = adopted.scene.nodes
    first.is_reachable = False
    first.wire.abort()
    await until_async(lambda: adopted.scene.client.is_up(first.address) is False)
    far = SimpleNamespace(address="10.9.9.9", datacenter="far", is_up=True)
    near = [SimpleNamespace(address=node.address, datacenter="dc", is_up=True) for node in (first, second)]
    adopted.driver._cluster = SimpleNamespace(metadata=SimpleNamespace(all_hosts=lambda: [*near, far]))
    assert [host.up for host in adopted.driver.hosts()] == [False, True, True]


async def test_a_driver_that_connects_anew(adopted: Adopted) -> None:
    """The client switches to the new cluster in the loop's thread; the former connections are closed."""
    former = [node.wire for node in adopted.scene.nodes]
    cluster = adopted.scene.new_cluster(adopted.scene.nodes[1:])
    cluster.register_listener = cluster.shutdown = lambda *_: None
    adopted.scene.cluster.shutdown = lambda: None
    driver = adopted.driver
    session = SimpleNamespace(use_client_timestamp=True)
    with (
        replace_in(connection_module, new_cluster, lambda *_: cluster),
        replace_in(connection_module, resolve_addresses, lambda *_: frozenset()),
    ):
        driver._connect = lambda _: session  # type: ignore[method-assign,assignment]
        await asyncio.to_thread(driver._open)
    await until_async(lambda: not any(wire.is_open for wire in former))
    await until_async(lambda: adopted.scene.client.is_usable)
    assert adopted.scene.client.is_up(adopted.scene.nodes[0].address) is None


async def test_the_drivers_thread_computes_the_replicas(adopted: Adopted) -> None:
    """The driver's thread computes replicas, which for many tokens would block the loop; the client then uses them."""
    computed_in: list[int] = []
    scene = adopted.scene
    scene.cluster.metadata.get_replicas = lambda *_: computed_in.append(threading.get_ident())
    third = ScriptedNode("10.0.0.3")
    scene.cluster.known.append(third)
    scene.nodes = [*scene.nodes, third]
    scene.cluster.metadata.token_map.tokens_to_hosts_by_ks = {"k": object()}
    await asyncio.to_thread(adopted.driver._update_client)
    await scene.await_connected()
    assert len(computed_in) == 1
    assert threading.get_ident() not in computed_in


async def test_close(adopted: Adopted) -> None:
    """Waiting requests end as closed or in doubt, in the loop's thread; the connections are closed."""
    adopted.send(ENCODED)
    adopted.send(CONDITIONAL)
    wires = await adopted.scene.await_requests(2)
    adopted.driver._thread = threading.Thread(target=lambda: None)
    adopted.driver._thread.start()
    adopted.scene.cluster.shutdown = lambda: None
    await asyncio.to_thread(adopted.driver.close)
    await until_async(lambda: len(adopted.ended) == 2)
    assert {thread for _, _, thread in adopted.ended} == {threading.get_ident()}
    outcomes = {type(refused): refused.outcome for _, refused, _ in adopted.ended if refused is not None}
    assert outcomes.pop(StoreClosed) == "none"
    assert list(outcomes.values()) == ["unknown"]
    assert not any(wire.is_open for wire in wires)
    adopted.driver.loop.adopt(None)
    adopted.send(ENCODED)
    assert [type(refused) for _, refused, _ in adopted.ended[2:]] == [StoreClosed]


async def test_close_with_many_requests_under_way(adopted: Adopted) -> None:
    """All requests that could be sent again end at once, as closed."""
    for _ in range(50):
        adopted.send(ENCODED)
    await adopted.scene.await_requests(50)
    adopted.driver._thread = threading.Thread(target=lambda: None)
    adopted.driver._thread.start()
    adopted.scene.cluster.shutdown = lambda: None
    await asyncio.to_thread(adopted.driver.close)
    assert [type(refused) for _, refused, _ in adopted.ended] == [StoreClosed] * 50


async def test_a_loop_that_comes_later(adopted: Adopted) -> None:
    """Requests in flight on the former loop end once, by its rules; later requests go over the next loop."""
    adopted.send(ENCODED)
    adopted.send(CONDITIONAL)
    await adopted.scene.await_requests(2)
    former, driver = adopted.scene.client, adopted.driver
    driver._cluster = None
    other = Thread()
    try:
        await asyncio.to_thread(other.run, driver.loop.adopt, other.loop)
        assert not former.is_usable
        assert driver._client is not former
        await asyncio.to_thread(until, lambda: len(adopted.ended) == 2)
        outcomes = sorted(str(None if refused is None else refused.outcome) for _, refused, _ in adopted.ended)
        assert outcomes == ["None", "unknown"]
        adopted.driver.loop.adopt(None)
        assert driver._client is not None
        adopted.send(ENCODED)
        await asyncio.to_thread(until, lambda: len(adopted.ended) == 3)
        assert adopted.ended[2] == ([("driver",)], None, other.ident)
        await asyncio.to_thread(other.run, driver.loop.adopt, None)
        assert driver._client is None
    finally:
        other.end()


class Thread:
    """A thread that runs an event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def run(self, call: Callable[..., object], *args: object) -> None:
        async def made() -> None:
            call(*args)

        asyncio.run_coroutine_threadsafe(made(), self.loop).result(PATIENCE_SECONDS)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        join(self._thread)
        self.loop.close()
