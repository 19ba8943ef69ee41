"""The driver package reports the end of a request once, whatever cassandra-driver does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import OperationTimedOut, ReadFailure
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.cqltypes import BytesType
from cassandra.protocol import ColumnMetadata
from cassandra.query import PreparedStatement

from queuey.errors import StoreUnavailable
from queuey.storage.calls import Deadline
from queuey.storage.cassandra.driver import Driver, Encoded, InDoubt, Request, Statement, TooManyDead
from queuey.storage.cassandra.driver.errors import translate
from queuey.storage.cassandra.driver.fast_request import FastRequest
from queuey.storage.cassandra.driver.store_loop import StoreLoop
from queuey.storage.cassandra.options import CassandraOptions, DataCentreTarget
from tests.waiting import until_async

STATEMENT = Statement("UPDATE queues SET options = ? WHERE application = 'a' AND name = 'q'")
OPTIONS = ColumnMetadata("queuey", "queues", "options", BytesType)
PREPARED = PreparedStatement([OPTIONS], b"query", None, STATEMENT.cql, "queuey", 5, [], None)


class Attempts:
    """A session and its future in one: it calls back for each attempt, as cassandra-driver does after a second one."""

    _paging_state = None

    def __init__(self, ends: list[Any], attempted_hosts: Sequence[str] = ("one", "two")) -> None:
        self._ends = ends
        self.attempted_hosts = attempted_hosts

    def execute_async(self, _request: object, **_options: object) -> Attempts:
        return self

    def add_callbacks(self, good: Callable[[Any], None], bad: Callable[[BaseException], None]) -> None:
        for end in self._ends:
            if isinstance(end, BaseException):
                bad(end)
            else:
                good(end)


@pytest.mark.parametrize(
    ("ends", "rows", "outcome"),
    [
        ([["a"], ["b"]], ["a"], None),
        ([["a"], OperationTimedOut()], ["a"], None),
        ([OperationTimedOut(), ["a"]], None, "unknown"),
    ],
)
def test_the_first_end_counts(ends: list[Any], rows: list[str] | None, outcome: str | None) -> None:
    """Only the first end of two attempts is reported."""
    told: list[tuple[Any, StoreUnavailable | None]] = []
    driver = object.__new__(Driver)
    driver._session, driver._usable, driver._deadline = Attempts(ends), True, Deadline(math.inf)
    driver._send(None, 1.0, lambda found, error: told.append((found, error)), reads=False)
    ((found, error),) = told
    assert found == rows
    assert (error and error.outcome) == outcome


class Pages:
    """A session whose answers have several pages."""

    attempted_hosts = ("one",)

    def __init__(self, pages: list[list[str]], fetched: Callable[[int], None] = lambda _: None) -> None:
        self._pages = pages
        self._fetched = fetched
        self._paging_state: bytes | None = None

    def execute_async(self, _request: object, *, paging_state: bytes | None, **_options: object) -> Pages:
        self._at = 0 if paging_state is None else paging_state[0]
        return self

    def add_callbacks(self, good: Callable[[Any], None], _bad: Callable[[BaseException], None]) -> None:
        at = self._at
        self._paging_state = bytes([at + 1]) if at + 1 < len(self._pages) else None
        self._fetched(at)
        good(self._pages[at])


def driver_with(session: object) -> tuple[Driver, list[tuple[Any, StoreUnavailable | None]]]:
    driver = object.__new__(Driver)
    driver._session, driver._usable, driver._problem, driver._closed = session, True, "away", Event()
    driver.target, driver._prepared = DataCentreTarget(("127.0.0.1",), "queuey"), {STATEMENT: PREPARED}
    driver._thread, driver._client, driver.loop = Thread(), None, StoreLoop()
    driver._options, driver._deadline, driver.requests = CassandraOptions(), Deadline(math.inf), 0
    return driver, []


def test_all_pages_are_one_answer() -> None:
    """An answer in several pages has the rows of all of them."""
    driver, told = driver_with(Pages([["a"], [], ["b", "c"]]))
    driver._send(None, 1.0, lambda *end: told.append(end), reads=True)
    assert told == [(["a", "b", "c"], None)]


def test_a_connection_that_ends_between_two_pages() -> None:
    """If the connection ends between two pages the request fails, instead of returning fewer rows."""

    def end(at: int) -> None:
        driver._usable = at < 1

    driver, told = driver_with(Pages([["a"], ["b"], ["c"]], end))
    driver._send(None, 1.0, lambda *end: told.append(end), reads=True)
    ((rows, error),) = told
    assert (rows, str(error)) == (None, "away")


class Client:
    """A client of this thread's loop, whose nodes answer nothing."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sent: list[FastRequest] = []
        self.send = self.sent.append


async def test_what_no_node_answers_is_asked_once_more_through_the_driver() -> None:
    """Frequent requests and conditional batches without an answer end with the driver's answer, or its error."""
    driver, told = driver_with(Attempts([["row"]]))
    client: Any = Client()
    driver._client = client
    frequent = Encoded(STATEMENT, 1, [b"\0\0\0\1a"], b"key", "QUORUM")
    conditional = Request(STATEMENT, (b"a",), "QUORUM", "SERIAL", further=[(STATEMENT, (b"b",))])
    for request in (frequent, conditional):
        driver.send(request, lambda *end: told.append(end))
    for sent in client.sent:
        sent.driver_fallback(sent.done, 2, 1.0)
    await until_async(lambda: len(told) == 2)
    assert told == [(["row"], None)] * 2
    driver._usable = False
    for sent in client.sent:
        sent.driver_fallback(sent.done, 2, 1.0)
    await until_async(lambda: len(told) == 4)
    assert [(rows, str(error)) for rows, error in told[2:]] == [(None, "away")] * 2


@pytest.mark.parametrize(("asked", "outcome"), [(0, "none"), (1, "unknown")])
async def test_a_write_that_a_node_may_have_is_in_doubt(asked: int, outcome: str) -> None:
    """A write that was sent and lost with its connection is in doubt, also if the driver then reaches no node."""
    unreachable = NoHostAvailable("no node", {"one": ConnectionException("Pool is shutdown")})
    driver, told = driver_with(Attempts([unreachable], attempted_hosts=()))
    client: Any = Client()
    driver._client = client
    driver.send(Encoded(STATEMENT, 1, [b"\0\0\0\1a"], b"key", "QUORUM"), lambda *end: told.append(end))
    (sent,) = client.sent
    sent.driver_fallback(sent.done, asked, 1.0)
    await until_async(lambda: told)
    ((_, error),) = told
    assert error is not None
    assert error.outcome == outcome


@pytest.mark.parametrize(("reads", "kind", "outcome"), [(True, TooManyDead, "none"), (False, InDoubt, "unknown")])
def test_a_write_whose_read_failed_is_in_doubt(reads: bool, kind: type[StoreUnavailable], outcome: str) -> None:  # noqa: FBT001 - parameter
    """A failed read had no effect. A conditional write that failed to read may have been applied by an earlier try."""
    error = translate(ReadFailure("failed"), reads=reads)
    assert (type(error), error.outcome) == (kind, outcome)


async def test_a_request_for_one_node_goes_to_no_other() -> None:
    """A request for one node goes to no other, and its error names the node."""
    driver, told = driver_with(Attempts([["row"]]))
    client: Any = Client()
    driver._client, driver._cluster = client, None
    driver.send(Encoded(STATEMENT, 1, [b"\0\0\0\1a"], b"", "ONE", host="127.0.0.7"), lambda *end: told.append(end))
    (sent,) = client.sent
    sent.driver_fallback(sent.done, 1, 1.0)
    driver.send(Request(STATEMENT, (b"a",), host="127.0.0.8"), lambda *end: told.append(end))
    await until_async(lambda: len(told) == 2)
    texts = [str(error) for _, error in told]
    assert texts == ["Cassandra node 127.0.0.7 did not answer", "Cassandra has no node 127.0.0.8"]


def test_a_driver_that_is_not_connected_says_why() -> None:
    """Before the connection is made, and after its end, requests are refused with the reason."""
    driver, told = driver_with(None)
    driver.send(Request(STATEMENT, (b"a",)), lambda *end: told.append(end))
    driver.send(Encoded(STATEMENT, 1, [b"\0\0\0\1a"], b"key", "QUORUM"), lambda *end: told.append(end))
    driver._session = Attempts([])
    driver._closed.set()
    driver.loop.close()
    driver.send(Encoded(STATEMENT, 1, [b"\0\0\0\1a"], b"key", "QUORUM"), lambda *end: told.append(end))
    assert [str(error) for _, error in told] == ["away", "away", "the store is closed"]


def test_several_data_centres_need_a_local_one() -> None:
    """A cluster with several data centres is not used until the options name the local one."""
    driver, _ = driver_with(Attempts([]))
    hosts = [SimpleNamespace(address=f"127.0.0.{at}", datacenter=dc, is_up=True) for at, dc in enumerate(["b", "a"])]
    driver._cluster = SimpleNamespace(metadata=SimpleNamespace(all_hosts=lambda: hosts))
    assert driver._attempt(open_anew=False) == "Cassandra has several data centres (a, b): set the local one"
