"""A driver of the store whose session of cassandra-driver has scripted answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

from cassandra.cqltypes import BytesType
from cassandra.protocol import ColumnMetadata
from cassandra.query import PreparedStatement

from queuey.storage.cassandra.cluster import Driver, Encoded, Statement, StatementRequest, connection
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.cluster.topology import RETRY_INTERVAL, new_cluster, resolve_addresses
from tests.replacing import replace_in
from tests.storage.cassandra.protocol.scripted_node import CQL, QUERY_ID
from tests.waiting import PATIENCE_SECONDS, join

STATEMENT = Statement(CQL)
CHANGE = Statement("UPDATE t SET a = ? IF a = ?", idempotent=False)
ENCODED = Encoded(STATEMENT, 1, [b"\0\0\0\1a"], b"key", "QUORUM", lambda body: [(body[-1:],)])
CONDITIONAL = StatementRequest(CHANGE, (b"a", b"b"), "QUORUM", "SERIAL", further=[(CHANGE, (b"c", b"d"))])
_COLUMN = ColumnMetadata("k", "t", "a", BytesType)


class ScriptedSession:
    """A session and the future of its requests. Each request calls back, in another thread, with the same answers.

    Args:
        ends: Rows, or errors: one for each attempt of a request.
        pages: The pages of one answer, instead.

    Attributes:
        asked_in: What it was asked, and in which threads.
        on_page: Called with the number of each page before it is returned.
    """

    attempted_hosts: Sequence[str] = ("one",)

    def __init__(self, *ends: Any, pages: Sequence[list[str]] = ()) -> None:  # noqa: ANN401 - rows or errors
        self._ends = ends or ([("driver",)],)
        self._pages = pages
        self._page = 0
        self._paging_state: bytes | None = None
        self.asked_in: list[tuple[str, int]] = []
        self.on_page: Callable[[int], object] = lambda _page: None

    def answer_always(self, *ends: Any) -> None:  # noqa: ANN401 - rows or errors
        self._ends = ends

    def set_keyspace(self, _keyspace: str) -> None:
        """Does nothing: there is one."""

    def prepare(self, cql: str) -> PreparedStatement:
        self.asked_in.append(("prepare", threading.get_ident()))
        count = cql.count("?") or 1
        query_id = QUERY_ID if CQL.split()[1] == cql.split()[1] else cql.encode()
        key = None if "IF" not in cql else [0]
        return PreparedStatement([_COLUMN] * count, query_id, key, cql, "k", 4, [], None)

    def execute_async(self, *_request: object, paging_state: bytes | None = None, **_how: object) -> ScriptedSession:
        self.asked_in.append(("execute", threading.get_ident()))
        self._page = 0 if paging_state is None else paging_state[0]
        return self

    def add_callbacks(self, good: Callable[[Any], None], bad: Callable[[BaseException], None]) -> None:
        thread = threading.Thread(target=self._call_back, args=(good, bad))
        thread.start()
        join(thread)

    def _call_back(self, good: Callable[[Any], None], bad: Callable[[BaseException], None]) -> None:
        if self._pages:
            page = self._page
            self._paging_state = bytes([page + 1]) if page + 1 < len(self._pages) else None
            self.on_page(page)
            good(self._pages[page])
            return
        for end in self._ends:
            (bad if isinstance(end, BaseException) else good)(end)


def cluster_of(*dcs: str) -> Any:  # noqa: ANN401 - what the driver uses of a cluster
    """Returns a cluster of one node in each of these data centres."""
    hosts = [SimpleNamespace(address=f"10.0.0.{number}", datacenter=dc, is_up=True) for number, dc in enumerate(dcs, 1)]
    metadata = SimpleNamespace(all_hosts=lambda: hosts, get_replicas=lambda *_: hosts, token_map=None)
    return SimpleNamespace(metadata=metadata)


@contextmanager
def scripted_driver(
    session: ScriptedSession,
    cluster: Any = None,  # noqa: ANN401 - a cluster
    *,
    ready: bool = True,
    **arguments: Any,  # noqa: ANN401 - as the driver takes them
) -> Iterator[Driver]:
    """Opens a driver whose cluster connects to the session; it looks after the cluster every 10 ms."""
    cluster = cluster or cluster_of("dc")
    cluster.metadata.keyspaces = {"k": None}
    cluster.connect, cluster.register_listener = lambda: session, lambda _: None
    cluster.shutdown = lambda: None
    options = CassandraOptions(timeout=60.0)
    with (
        replace_in(connection, new_cluster, lambda *_: cluster),
        replace_in(connection, resolve_addresses, lambda *_: frozenset()),
        replace_in(connection, RETRY_INTERVAL, 0.01),
        closing(Driver(DataCentreTarget(("10.0.0.1",), "k"), options, **arguments)) as driver,
    ):
        if ready:
            assert driver.ready(PATIENCE_SECONDS), driver.problem()
            with ThreadPoolExecutor(1) as other:  # A loop's thread cannot.
                other.submit(driver.prepare, [STATEMENT, CHANGE]).result(PATIENCE_SECONDS)
            session.asked_in.clear()
        yield driver
