"""The connection to a Cassandra cluster: made in the background, kept by the driver, with a limit on every wait.

States::

    connecting ──(connected, keyspace exists, schema known)──► ready ──(close)──► closed
        │  ▲
        └──┘ every second; calls meanwhile raise StoreUnavailable

Once ready, nodes may come and go: the driver reconnects to their addresses. If no node is up, and the host names
resolve to other addresses than before, the cluster is connected anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any

from cassandra.cluster import Cluster, NoHostAvailable, Session
from cassandra.protocol import PrepareMessage
from cassandra.query import PreparedStatement, SimpleStatement

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.cluster.store_loop import Calls, StoreLoop, wait_for_callback
from queuey.storage.cassandra.cluster.topology import (
    CONNECT_TIMEOUT,
    RETRY_INTERVAL,
    Host,
    HostLogger,
    count_copies,
    new_cluster,
    resolve_addresses,
)
from queuey.storage.cassandra.protocol import CqlClient, encoding, requests
from queuey.storage.cassandra.protocol.attempts import CqlRequest
from queuey.storage.cassandra.protocol.errors import DRIVER_ERRORS, InDoubt, choose_worst, translate
from queuey.storage.cassandra.protocol.requests import Done, Encoded, Rows, Statement, StatementRequest
from queuey.storage.deadlines import Deadline, StoreCall

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 128
"""Max requests of one call in flight, so that a call with very many does not hold up other calls."""

_FAILURES = (*DRIVER_ERRORS, StoreUnavailable)


class Driver:
    """The connection to a cluster. All methods except coroutines may be called from any thread.

    Args:
        verify: Called with the driver once connected; returns why the schema cannot be used, or None.
        keyspace: False connects without the keyspace, to create it.
        deadline: Limits the calls for which requests are sent.

    Attributes:
        loop: The event loop that sends requests and receives their answers.
        calls: The coroutines that send requests, in the loop's thread.
    """

    _verifying: StoreCall | None = None
    """The call that verifies the schema. Its requests are sent before the driver is usable."""

    def __init__(
        self,
        target: DataCentreTarget,
        options: CassandraOptions,
        *,
        verify: Callable[[Driver], str | None] = lambda _: None,
        keyspace: bool = True,
        deadline: Deadline | None = None,
    ) -> None:
        self.target = target
        self._deadline = deadline or Deadline(math.inf)
        self._options = options
        self._verify = verify
        self._keyspace = keyspace
        self._problem: str = "Cassandra has not been reached yet"
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._client: CqlClient | None = None
        self.loop = StoreLoop(self._enter_loop)
        self.calls = Calls(self.loop, self._deadline)
        self._addresses: frozenset[str] = frozenset()
        """Addresses that the host names resolved to when the cluster was connected."""
        self._usable = False
        self._copies: tuple[object, Mapping[str, int]] = None, {}
        """The keyspace's replication strategy, and the copies by data centre that follow from it."""
        self._prepared: dict[Statement, PreparedStatement] = {}
        self._ready = threading.Event()
        self._closed = threading.Event()
        self.requests = 0
        """Number of requests made, for tests and metrics. Not exact under threads."""
        self._thread = threading.Thread(target=self._keep_connected, name="queuey-cassandra", daemon=True)
        self._thread.start()

    # Connecting

    def _enter_loop(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        options = self._options
        client = self._client = CqlClient(
            loop,
            self.target.keyspace if self._keyspace else None,
            options.speculative,
            self._find_cql,
            local_dc=options.local_dc,
            clock=self._deadline.clock,
        )
        self._pass_cluster_to_client()
        return partial(self._end_client, client)

    def _end_client(self, client: CqlClient) -> None:
        if self._client is client:
            self._client = None
        client.close()

    def _pass_cluster_to_client(self) -> None:
        cluster = self._cluster  # None while it is replaced, or the store closes. Requests in flight continue.
        if self._client is not None and cluster is not None:
            self._client.adopt_cluster(cluster)

    def ready(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds until the keyspace was verified once; returns whether it was.

        Whether requests may be sent now is what :meth:`problem` says.
        """
        return self._ready.wait(timeout)

    def problem(self) -> str | None:
        return None if self._usable else self._problem

    def _keep_connected(self) -> None:
        while not self._closed.is_set():
            has_moved = self._session is None or self._has_moved()
            problem = self._attempt(open_anew=has_moved) if has_moved or not self._usable else None
            if self._closed.is_set():
                return
            if problem not in {None, self._problem}:
                log.warning("%s", problem)
                self._problem = str(problem)
            self._update_client()
            self._closed.wait(RETRY_INTERVAL)

    def _has_moved(self) -> bool:
        cluster = self._cluster
        hosts = [] if cluster is None else cluster.metadata.all_hosts()
        if any(host.is_up for host in hosts) or any(host.up for host in self.hosts()):
            return False
        return resolve_addresses(self.target) not in {self._addresses, frozenset()}

    def _attempt(self, *, open_anew: bool) -> str | None:
        # Only requests of the verification may be sent yet: a program too old for the schema must not write.
        self._usable = False
        try:
            if open_anew:
                self._open()
            dcs = {host.dc for host in self.hosts()}
            if self._options.local_dc is None and len(dcs) > 1:
                return f"Cassandra has several data centres ({', '.join(sorted(dcs))}): set the local one"
            self._verifying = StoreCall()
            with self._deadline.running(self._verifying):
                problem = self._verify(self)
        except DRIVER_ERRORS as error:
            problem = str(translate(error, reads=True, attempts=0))
        except StoreUnavailable as error:
            problem = str(error)
        except Exception as error:
            log.exception("Connecting to Cassandra failed.")
            problem = f"Connecting to Cassandra failed: {error}"
        if problem is None:
            self._usable = True
            self._ready.set()
        return problem

    def _open(self) -> None:
        """Connects to the cluster, and only then replaces the former connection. An error leaves that in place."""
        addresses = resolve_addresses(self.target)
        cluster = new_cluster(self.target, self._options)
        cluster.register_listener(HostLogger())
        try:
            session = self._connect(cluster)
        except BaseException:
            cluster.shutdown()
            raise
        session.use_client_timestamp = False
        self._close_cluster()
        self._cluster, self._session, self._addresses = cluster, session, addresses
        self._update_client()

    def _update_client(self) -> None:
        """Passes the current nodes and replicas to the client.

        The driver computes the replicas when they are first needed. That takes 50 ms for 30 nodes with 256 tokens each,
        so it is done here, not in the loop.
        """
        cluster = self._cluster
        if cluster is not None:
            cluster.metadata.get_replicas(self.target.keyspace, b"")
        if self._client is not None:
            self.loop.call(self._pass_cluster_to_client)

    def _close_cluster(self) -> None:
        cluster, self._cluster, self._session = self._cluster, None, None
        self._prepared.clear()
        if cluster is not None:
            cluster.shutdown()

    def _connect(self, cluster: Cluster) -> Session:
        keyspace, local = self.target.keyspace, self._options.local_dc
        try:
            session = cluster.connect()
        except NoHostAvailable as error:
            dcs = sorted({str(host.datacenter) for host in cluster.metadata.all_hosts() if host.datacenter})
            if dcs and local is not None and local not in dcs:
                raise StoreUnavailable(f"Cassandra has no data centre {local!r}, only {', '.join(dcs)}") from error
            raise
        if self._keyspace:
            if keyspace not in cluster.metadata.keyspaces:
                raise StoreUnavailable(f"keyspace {keyspace} does not exist; run `queuey migrate`")
            session.set_keyspace(keyspace)
        return session

    def close(self) -> None:
        self._closed.set()
        self._usable = False
        self._problem = "the store is closed"
        self._thread.join(CONNECT_TIMEOUT * 2)
        self._close_cluster()
        self.loop.close()

    # The cluster's state

    def hosts(self) -> list[Host]:
        cluster, client = self._cluster, self._client
        if cluster is None:
            return []
        hosts = []
        for host in cluster.metadata.all_hosts():
            address = str(host.address)
            is_up = None if client is None else client.is_up(address)
            hosts.append(Host(address, str(host.datacenter), up=bool(host.is_up) if is_up is None else is_up))
        return hosts

    def await_pools(self, timeout: float) -> None:
        """Waits up to ``timeout`` seconds until each node can be asked by name; a session needs only the first one."""
        session = self._require_session()
        futures.wait(session._initial_connect_futures, timeout)  # noqa: SLF001 - the driver offers no other way

    def replication(self) -> Mapping[str, int]:
        """Returns the copies by data centre, or one entry under an empty name if the strategy knows no data centres.

        They are current: the driver reads the schema again when Cassandra reports a change, and after it has lost the
        connection for such reports.
        """
        cluster = self._cluster
        keyspace = None if cluster is None else cluster.metadata.keyspaces.get(self.target.keyspace)
        if keyspace is None:
            raise self._make_refusal()
        known_strategy, copies = self._copies
        strategy = keyspace.replication_strategy
        if strategy is not known_strategy:  # A new object after each change; every read comes here.
            copies = count_copies(strategy)
            self._copies = strategy, copies
        return copies

    def await_schema_agreement(self) -> bool:
        cluster = self._cluster
        return cluster is not None and bool(cluster.control_connection.wait_for_schema_agreement())

    # Requests

    def prepare(self, statements: Iterable[Statement]) -> None:
        """Prepares statements now, so that later requests need not wait for it. Blocks. Raises StoreUnavailable."""
        self.calls.run(self._prepare_all(statements))

    async def _prepare_all(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            if statement not in self._prepared:
                await wait_for_callback(partial(self._prepare, statement))

    def send(self, request: StatementRequest | Encoded, done: Done) -> None:
        """Sends a request. Never raises: ``done`` gets the rows or the error, once, in the loop's thread if it is open.

        A statement that was not prepared ahead is prepared first. The error of a write is :class:`InDoubt` if it may
        have been applied.
        """
        self._send_page(request, done, None)

    def _send_page(self, request: StatementRequest | Encoded, done: Done, page: bytes | None) -> None:
        try:
            session = self._require_session()
            if not request.statement.prepared:
                self._send_by_driver(session, request, done)
                return
            unprepared = self._find_unprepared(request)
            if unprepared is not None:
                self._prepare(unprepared, partial(self._send_prepared, self._deadline.call, request, done, page))
                return
            self.requests += 1
            if isinstance(request, Encoded):
                cql_request = self._make_encoded(request, done)
            else:
                cql_request = self._make_bound(request, done, page)
        except _FAILURES as error:
            done(None, _make_failure(error, reads=request.statement.reads))
            return
        self._send_over_client(cql_request)

    async def ask(self, request: StatementRequest | Encoded) -> Rows:
        rows: Rows | None = await wait_for_callback(partial(self.send, request))
        return rows or []

    async def ask_all(
        self, requests: Sequence[StatementRequest | Encoded], *, max_in_flight: int = MAX_IN_FLIGHT
    ) -> list[Rows]:
        """Sends requests concurrently, ``max_in_flight`` at a time; returns the rows of each.

        After an error, sends no further ones.

        Raises:
            StoreUnavailable: A request failed. ``InDoubt``: a write's result is unknown, or only some were applied.
        """
        if len(requests) == 1:
            return [await self.ask(requests[0])]
        answers: list[Rows] = []
        for first in range(0, len(requests), max_in_flight):
            ends: list[Any] = await wait_for_callback(partial(self._send_all, requests[first : first + max_in_flight]))
            if errors := [error for _, error in ends if error is not None]:
                writes = not all(request.statement.reads for request in requests)
                raise choose_worst(errors, some_made=writes and first + len(ends) > len(errors))
            answers += [rows or [] for rows, _ in ends]
        return answers

    def _send_all(self, requests: Sequence[StatementRequest | Encoded], done: Callable[[Any, Any], object]) -> None:
        ends: list[Any] = [None] * len(requests)
        missing = itertools.count(len(requests) - 1, -1)

        def end(number: int, *answer: Any) -> None:  # noqa: ANN401 - rows and error, from any thread
            ends[number] = answer
            if not next(missing):
                done(ends, None)

        for number, request in enumerate(requests):
            self.send(request, partial(end, number))

    def run(self, statement: Statement, values: Sequence[Any] = (), consistency: str = "QUORUM", **how: Any) -> Rows:  # noqa: ANN401
        return self.calls.run(self.ask(StatementRequest(statement, values, consistency, **how)))

    def _find_unprepared(self, request: StatementRequest | Encoded) -> Statement | None:
        prepared = self._prepared
        if request.statement not in prepared:
            return request.statement
        if isinstance(request, Encoded) or not request.further:
            return None
        return next((statement for statement, _ in request.further if statement not in prepared), None)

    def _prepare(self, statement: Statement, done: Done) -> None:
        """Has a node prepare a statement; the other nodes do when they are first asked for it."""
        cql, cluster, prepared = statement.qualify_tables(self.target.keyspace), self._cluster, self._prepared

        def answered(rows: Rows | None, error: StoreUnavailable | None) -> None:
            if rows and cluster is not None:
                [message] = rows
                columns = message.query_id, message.bind_metadata, message.pk_indexes, cluster.metadata
                results = message.column_metadata, message.result_metadata_id
                prepared[statement] = PreparedStatement.from_message(*columns, cql, None, encoding.PROTOCOL, *results)
            done(None, error)

        self._send_over_client(
            CqlRequest(
                opcode=encoding.PREPARE,
                body=encoding.encode_body(PrepareMessage(cql)),
                routing_key=None,
                timeout=self._timeout_in_call(None, reads=True),
                done=answered,
                resend=self._resend,
                reads=True,
            )
        )

    def _send_prepared(
        self,
        call: StoreCall,
        request: StatementRequest | Encoded,
        done: Done,
        page: bytes | None,
        _: Rows | None,
        error: StoreUnavailable | None,
    ) -> None:
        if error is not None:
            done(None, error)
            return
        try:
            with self._deadline.running(call):
                self._send_page(request, done, page)
        except Exception as failure:  # noqa: BLE001 - the caller gets it, who would wait for ever otherwise
            done(None, StoreUnavailable(f"the request could not be made: {failure}"))

    def _make_encoded(self, request: Encoded, done: Done) -> CqlRequest:
        prepared = self._prepared[request.statement]
        level, rows, reads = requests.LEVELS[request.consistency], request.rows, request.decode is not None
        if len(rows) == 1:
            opcode, body = encoding.EXECUTE, encoding.encode_execute(prepared.query_id, request.markers, rows[0], level)
        else:
            opcode, body = encoding.BATCH, encoding.encode_batch(prepared.query_id, request.markers, rows, level)
        return CqlRequest(
            opcode=opcode,
            body=body,
            routing_key=request.routing_key,
            address=request.host,
            metadata=prepared.result_metadata if reads else None,
            timeout=self._timeout_in_call(None, reads=reads) if request.timeout is None else request.timeout,
            decode=request.decode,
            done=done,
            resend=self._resend,
            reads=reads,
        )

    def _make_bound(self, request: StatementRequest, done: Done, page: bytes | None) -> CqlRequest:
        calls = (request.statement, request.values), *request.further
        bound = [self._prepared[statement].bind(values) for statement, values in calls]
        level = requests.LEVELS[request.consistency]
        serial = None if request.serial is None else requests.LEVELS[request.serial]
        metadata, reads = bound[0].prepared_statement.result_metadata, request.statement.reads
        if request.further:
            opcode, body = encoding.BATCH, encoding.encode_mixed_batch(bound, level, serial)
        else:
            opcode, body = encoding.EXECUTE, encoding.encode_bound(bound[0], level, serial, page)
        return CqlRequest(
            opcode=opcode,
            body=body,
            routing_key=bound[0].routing_key,
            address=request.host,
            metadata=metadata if reads else None,
            timeout=self._timeout_in_call(request.timeout, reads=reads),
            decode=partial(encoding.decode_rows, metadata) if reads else None,
            done=done,
            resend=self._resend,
            on_page=partial(self._send_next_page, self._deadline.call, request, done) if reads else None,
            reads=reads,
            idempotent=request.idempotent,
        )

    def _send_next_page(self, call: StoreCall, request: StatementRequest, done: Done, rows: Rows, page: bytes) -> None:
        def collect(more: Rows | None, error: StoreUnavailable | None) -> None:
            done(None if more is None else [*rows, *more], error)

        with self._deadline.running(call):
            self._send_page(request, collect, page)

    def _send_over_client(self, request: CqlRequest) -> None:
        client = self._client
        if client is not None and asyncio._get_running_loop() is client.loop:  # noqa: SLF001 - the quick form of get_running_loop
            client.send(request)
        elif self.loop.is_here or self._closed.is_set():
            request.refuse(self._make_refusal())
        else:
            self._resend(request)

    def _resend(self, request: CqlRequest) -> None:
        try:
            self.loop.soon(self._send_over_client, request)
        except StoreClosed as error:
            request.refuse(error)

    def _send_by_driver(self, session: Session, request: StatementRequest | Encoded, done: Done) -> None:
        """Sends a schema change through the driver, in a thread, because the driver may block."""
        timeout = self._timeout_in_call(request.timeout, reads=False)
        statement = SimpleStatement(request.statement.cql, consistency_level=requests.LEVELS[request.consistency])

        def execute() -> None:
            attempted: Sequence[object] = ()
            try:
                future = session.execute_async(statement, timeout=timeout, host=self._find_host(request.host))
                attempted = future.attempted_hosts
                rows = list(future.result())
            except _FAILURES as error:
                done(None, _make_failure(error, reads=False, attempts=len(attempted)))
            else:
                done(rows, None)

        threading.Thread(target=execute, name="queuey-schema", daemon=True).start()

    def _timeout_in_call(self, timeout: float | None, *, reads: bool) -> float:
        seconds = self._deadline.time_left(self._options.timeout if timeout is None else timeout)
        if not reads:
            self._deadline.mark_sent()
        return seconds

    def _require_session(self) -> Session:
        session = self._session
        if session is None or not (self._usable or self._deadline.call is self._verifying):
            raise self._make_refusal()
        return session

    def _make_refusal(self) -> StoreUnavailable:
        if self._closed.is_set():
            return StoreClosed("the store is closed")
        return StoreUnavailable(self._problem)

    def _find_cql(self, query_id: bytes) -> str | None:
        statements = list(self._prepared.values())
        return next((statement.query_string for statement in statements if statement.query_id == query_id), None)

    def _find_host(self, address: str | None) -> Any:  # noqa: ANN401 - the driver's host
        if address is None:
            return None
        cluster = self._cluster
        hosts = [] if cluster is None else cluster.metadata.all_hosts()
        for host in hosts:
            if str(host.address) == address:
                return host
        raise StoreUnavailable(f"Cassandra has no node {address}")


def _make_failure(error: Exception, *, reads: bool, attempts: int = 0) -> StoreUnavailable:
    """Returns the error of a request that could not be sent; ``attempts`` nodes may have it already."""
    if not isinstance(error, StoreUnavailable):
        return translate(error, reads=reads, attempts=attempts)
    return error if reads or not attempts else InDoubt(str(error))


@contextlib.contextmanager
def open_driver(
    target: DataCentreTarget,
    options: CassandraOptions,
    timeout: float,
    *,
    keyspace: bool = True,
    driver: Callable[..., Driver] = Driver,
) -> Iterator[Driver]:
    opened = driver(target, options, keyspace=keyspace)
    try:
        if not opened.ready(timeout):
            raise StoreUnavailable(opened.problem() or "Cassandra cannot be reached")
        yield opened
    finally:
        opened.close()
