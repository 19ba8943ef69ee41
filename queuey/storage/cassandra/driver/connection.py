"""The connection to a Cassandra cluster: made in the background, kept by the driver, and never waited for too long.

States::

    connecting ──(connected, keyspace there, schema known)──► ready ──(close)──► closed
        │  ▲
        └──┘ every second; calls meanwhile raise StoreUnavailable

Once ready, nodes may come and go: the driver reconnects.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any

from cassandra.cluster import Cluster, NoHostAvailable, ResponseFuture, Session
from cassandra.query import PreparedStatement

from queuey.errors import StoreClosed, StoreUnavailable
from queuey.storage.cassandra.driver import fast_path, requests
from queuey.storage.cassandra.driver.countdown import MOST, Countdown
from queuey.storage.cassandra.driver.errors import DRIVER_ERRORS, InDoubt, translate, worst
from queuey.storage.cassandra.driver.fast_path import Decode, Encoded, FastPath
from queuey.storage.cassandra.driver.requests import Call, Done, RowBatch, Rows, Statement
from queuey.storage.cassandra.driver.topology import (
    CONNECT_TIMEOUT,
    RETRY_EVERY,
    Host,
    Watchman,
    copies_of,
    new_cluster,
)
from queuey.storage.cassandra.options import CassandraOptions, DataCentreTarget
from queuey.storage.deadlines import Deadline

log = logging.getLogger(__name__)

_EVENT_LOOPS = {"event_loop", "asyncore_cassandra_driver_event_loop"}
"""What the driver calls the thread that receives all answers; it would wait for one of them in vain."""


class Driver:
    """The cluster, as one process uses it. All methods may be called from any thread.

    Args:
        target: Where it is.
        options: Timeouts, credentials and certificates.
        verify: Called with the driver once connected; returns what is wrong with the schema, or None.
        keyspace: False: connect without it (for making it).
        deadline: That of the calls on whose behalf requests are made; None: they have none.
    """

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
        self._express: FastPath | None = None
        self._usable = False
        self._copies: tuple[object, Mapping[str, int]] = None, {}
        """The keyspace's strategy, and what it means."""
        self._prepared: dict[Statement, PreparedStatement] = {}
        self._preparing = threading.Lock()
        self._ready = threading.Event()
        self._closed = threading.Event()
        self.requests = 0
        """How many requests were made; for tests and metrics, roughly right under threads."""
        self._thread = threading.Thread(target=self._connect, name="queuey-cassandra", daemon=True)
        self._thread.start()

    # Connecting

    def ready(self, timeout: float) -> bool:
        """Waits until the connection stands; returns whether it does."""
        return self._ready.wait(timeout)

    def problem(self) -> str | None:
        """Says why calls are refused now, None if they are not."""
        return None if self._usable else self._problem

    def _connect(self) -> None:
        while not self._closed.is_set():
            problem = self._attempt()
            if problem is None:
                return
            if problem != self._problem:
                log.warning("%s", problem)
            self._problem = problem
            self._closed.wait(RETRY_EVERY)

    def _attempt(self) -> str | None:
        """Makes one attempt; returns what was wrong."""
        try:
            if self._session is None:
                self._open()
            dcs = {host.dc for host in self.hosts()}
            if self._options.local_dc is None and len(dcs) > 1:
                return f"Cassandra has several data centres ({', '.join(sorted(dcs))}): say which one is local"
            self._usable = True
            problem = self._verify(self)
        except DRIVER_ERRORS as error:
            problem = str(translate(error, reads=True, attempts=0))
        except StoreUnavailable as error:
            problem = str(error)
        except Exception as error:
            log.exception("Connecting to Cassandra failed.")
            problem = f"Connecting to Cassandra failed: {error}"
        if problem is not None:
            self._usable = False
            return problem
        self._ready.set()
        return None

    def _open(self) -> None:
        cluster = new_cluster(self.target, self._options)
        cluster.register_listener(Watchman())
        try:
            session = self._start(cluster)
        except BaseException:
            cluster.shutdown()
            raise
        session.use_client_timestamp = False
        self._express = FastPath(session, self.target.keyspace, self._options.speculative)
        self._cluster, self._session = cluster, session

    def _start(self, cluster: Cluster) -> Session:
        """Connects; if the driver only says that no host can be reached, the error here says why.

        Raises:
            StoreUnavailable: There is no such data centre, or no such keyspace.
        """
        keyspace, local = self.target.keyspace, self._options.local_dc
        try:
            session = cluster.connect()
        except NoHostAvailable as error:
            dcs = sorted({str(host.datacenter) for host in cluster.metadata.all_hosts() if host.datacenter})
            if dcs and local is not None and local not in dcs:
                raise StoreUnavailable(f"Cassandra has no data centre {local!r} (but {', '.join(dcs)})") from error
            raise
        if self._keyspace:
            if keyspace not in cluster.metadata.keyspaces:
                raise StoreUnavailable(f"keyspace {keyspace} is not there; run `queuey migrate`")
            session.set_keyspace(keyspace)
        return session

    def close(self) -> None:
        """Ends the connection. Idempotent; later calls raise ``StoreClosed``."""
        self._closed.set()
        self._usable = False
        self._problem = "the store is closed"
        self._thread.join(CONNECT_TIMEOUT * 2)
        cluster, self._cluster, self._session = self._cluster, None, None
        self._prepared.clear()
        express, self._express = self._express, None
        if express is not None:
            express.close()
        if cluster is not None:
            cluster.shutdown()

    # What the driver knows of the cluster

    def hosts(self) -> list[Host]:
        """The nodes, those that are down included."""
        cluster = self._cluster
        if cluster is None:
            return []
        return [
            Host(str(host.address), str(host.datacenter), up=bool(host.is_up)) for host in cluster.metadata.all_hosts()
        ]

    def await_pools(self, timeout: float) -> None:
        """Waits until the nodes that are up can be asked by name: the first one that answers makes a session usable."""
        session = self._open_session()
        futures.wait(session._initial_connect_futures, timeout)  # noqa: SLF001 - the driver offers no other way

    def replication(self) -> Mapping[str, int]:
        """Copies by data centre; one entry under an empty name where the strategy knows no data centres.

        They are up to date: the driver reads the schema again when Cassandra reports a change, and after it has lost
        the connection for such reports.

        Raises:
            StoreUnavailable: Not connected.
        """
        cluster = self._cluster
        keyspace = None if cluster is None else cluster.metadata.keyspaces.get(self.target.keyspace)
        if keyspace is None:
            raise self._refusal()
        known, copies = self._copies
        strategy = keyspace.replication_strategy
        if strategy is not known:  # A new object with each change; every read asks.
            copies = copies_of(strategy)
            self._copies = strategy, copies
        return copies

    def agrees(self) -> bool:
        """Waits for the nodes to agree on the schema, up to the driver's limit; returns whether they do."""
        cluster = self._cluster
        return cluster is not None and bool(cluster.control_connection.wait_for_schema_agreement())

    # Requests

    def prepare(self, statements: Iterable[Statement]) -> None:
        """Prepares statements before they are needed: those that are sent from threads that must never wait.

        Raises:
            StoreUnavailable: As for a read.
        """
        try:
            for statement in statements:
                self._prepare(self._open_session(), statement)
        except DRIVER_ERRORS as error:
            raise translate(error, reads=True) from error

    def run(
        self,
        statement: Statement,
        values: Sequence[Any] = (),
        *,
        consistency: str = "QUORUM",
        serial: str | None = None,
        timeout: float | None = None,
        host: str | None = None,
    ) -> Rows:
        """Runs a statement and returns all its rows, as many pages as they take.

        Args:
            statement: What to run.
            values: Python values in the order of its markers.
            consistency: Of the read, the write or the commit of a conditional write.
            serial: ``SERIAL`` or ``LOCAL_SERIAL`` for a conditional write.
            timeout: Seconds for each page; the options' if None.
            host: Address of the node to ask, and no other.

        Raises:
            StoreUnavailable: It failed; ``outcome`` says what became of a write (``InDoubt``: unknown).
        """
        session = self._open_session()
        self.requests += 1
        future: ResponseFuture | None = None
        try:
            request = requests.bound(self._prepare(session, statement), values, consistency, serial, pages=True)
            future = session.execute_async(
                request,
                timeout=self._patience(timeout, reads=statement.reads),
                host=self._host(host),
            )
            return self._all_pages(future)
        except DRIVER_ERRORS as error:
            raise translate(error, reads=statement.reads, attempts=_attempts(future)) from error

    def run_text(self, cql: str, *, timeout: float | None = None, host: str | None = None) -> Rows:
        """Runs a statement that cannot be prepared (schema changes), or whose table may not be there, like ``run``."""
        session = self._open_session()
        try:
            seconds = self._patience(timeout, reads=False)
            return self._all_pages(session.execute_async(cql, timeout=seconds, host=self._host(host)))
        except DRIVER_ERRORS as error:
            raise translate(error, reads=False) from error

    def run_all(
        self, calls: Sequence[Call], *, consistency: str = "QUORUM", timeout: float | None = None, most: int = MOST
    ) -> list[Rows]:
        """Runs statements side by side; returns the rows of each, in order (for small answers: one page each).

        Args:
            calls: The statements, with their values.
            consistency: Of the reads or writes.
            timeout: Seconds for each; the options' if None.
            most: How many may be on the way at a time.

        Raises:
            StoreUnavailable: Any of them failed; ``InDoubt`` if any write is in doubt, or some were made and some not.
        """
        begun = [
            partial(self.begin, statement, values, consistency=consistency, timeout=timeout)
            for statement, values in calls
        ]
        return self.side_by_side(begun, reads=all(statement.reads for statement, _ in calls), most=most)

    def side_by_side(self, begun: Sequence[Callable[..., None]], *, reads: bool, most: int = MOST) -> list[Rows]:
        """Does what :meth:`run_all` does with functions that each begin a request, whose end goes to ``done``."""
        if not begun:
            return []
        self._deadline.left()
        if not reads:
            self._deadline.sent()
        gathering = Countdown(len(begun), self._deadline, most)
        for number, begin in enumerate(begun):
            begin(done=gathering.taker(number))
        rows, errors = gathering.wait()
        if errors:
            raise worst(errors, some_made=not reads and len(errors) < len(begun))
        return rows

    def batch(
        self,
        calls: Sequence[Call],
        *,
        consistency: str = "QUORUM",
        serial: str | None = None,
        timeout: float | None = None,
    ) -> Rows:
        """Runs one unlogged batch, all of one Cassandra partition; with conditions in it, as one conditional write.

        Raises:
            StoreUnavailable: It failed (``InDoubt``: perhaps not).
        """
        session = self._open_session()
        self.requests += 1
        future: ResponseFuture | None = None
        try:
            prepared = [(self._prepare(session, statement), values) for statement, values in calls]
            idempotent = all(statement.idempotent for statement, _ in calls)
            request = requests.batch(prepared, consistency, serial, idempotent=idempotent)
            future = session.execute_async(request, timeout=self._patience(timeout, reads=False))
            return self._all_pages(future)
        except DRIVER_ERRORS as error:
            raise translate(error, reads=False, attempts=_attempts(future)) from error

    def begin_batch(self, calls: Sequence[Call], *, consistency: str, serial: str, done: Done) -> None:
        """Starts what :meth:`batch` does with a condition; never raises, all errors go to ``done``."""
        with _telling(done, reads=False):
            session, express = self._open_session(), self._open_express()
            self.requests += 1
            prepared = [(self._prepare(session, statement), values) for statement, values in calls]
            request = requests.batch(prepared, consistency, serial, idempotent=False)
            levels = requests.LEVELS[consistency], requests.LEVELS[serial]

            def own_way(tell: Done, attempts: int, left: float) -> None:
                self._ask_again(request, left, tell, reads=False, attempts=attempts)

            express.send(
                fast_path.BATCH,
                fast_path.conditional_batch(request, *levels),
                request.routing_key,
                None,
                timeout=self._patience(None, reads=False),
                decode=_nothing,
                done=done,
                own_way=own_way,
                reads=False,
                idempotent=False,
            )

    def begin(
        self,
        statement: Statement,
        values: Sequence[Any],
        *,
        done: Done,
        consistency: str = "QUORUM",
        serial: str | None = None,
        timeout: float | None = None,
        host: str | None = None,
    ) -> None:
        """Starts a statement whose answer is one page; never raises, all errors go to ``done``."""
        with _telling(done, reads=statement.reads):
            session = self._open_session()
            self.requests += 1
            request = requests.bound(self._prepare(session, statement), values, consistency, serial, pages=False)
            seconds = self._patience(timeout, reads=statement.reads)
            self._send(session, request, seconds, done, reads=statement.reads, host=host)

    def begin_rows(
        self,
        statement: Statement,
        rows: Sequence[bytes],
        count: int,
        *,
        routing_key: bytes,
        consistency: str,
        timeout: float,
        done: Done,
    ) -> None:
        """Starts an idempotent write of serialized rows of one Cassandra partition as one request; never raises.

        Args:
            statement: Writes one row.
            rows: Of each its values, encoded as in :class:`Encoded`.
            count: How many values a row has.
            routing_key: The partition key all of them share, as it is hashed.
            consistency: Of the write.
            timeout: Seconds. The deadline of the call in whose thread this runs does not count: writers have their own.
            done: Called with the result.
        """
        with _telling(done, reads=False):
            session, express = self._open_session(), self._open_express()
            self.requests += 1
            prepared = self._prepare(session, statement)
            level = requests.LEVELS[consistency]
            if len(rows) == 1:
                opcode, body = fast_path.EXECUTE, fast_path.execute(prepared.query_id, count, rows[0], level)
            else:
                opcode, body = fast_path.BATCH, fast_path.batch(prepared.query_id, count, rows, level)

            def own_way(tell: Done, attempts: int, left: float) -> None:
                values = [fast_path.values_of(row) for row in rows]
                request = requests.raw(prepared, values, routing_key, level, self.target.keyspace)
                self._ask_again(request, left, tell, reads=False, attempts=attempts)

            express.send(
                opcode,
                body,
                routing_key,
                None,
                timeout=timeout,
                decode=_nothing,
                done=done,
                own_way=own_way,
                reads=False,
            )

    def run_rows(self, batches: Sequence[RowBatch], *, consistency: str) -> None:
        """Writes serialized rows, each batch as one request, side by side (see :meth:`begin_rows`).

        Raises:
            StoreUnavailable: As :meth:`run_all`.
        """
        gathering = Countdown(len(batches), self._deadline)
        for number, batch in enumerate(batches):
            done, timeout, key = gathering.taker(number), self._patience(None, reads=False), batch.routing_key
            self.begin_rows(*batch[:3], routing_key=key, consistency=consistency, timeout=timeout, done=done)
        _, errors = gathering.wait()
        if errors:
            raise worst(errors, some_made=len(errors) < len(batches))

    def run_encoded(self, calls: Sequence[tuple[Encoded, Decode]], *, consistency: str) -> list[Rows]:
        """Runs reads of one page side by side; returns the rows of each, in order.

        Args:
            calls: Each with what makes rows of the body of its answer (see :mod:`.fast_path`).
            consistency: Of the reads.

        Raises:
            StoreUnavailable: Any of them failed.
        """
        begun = [partial(self.begin_encoded, call, decode, consistency=consistency) for call, decode in calls]
        return self.side_by_side(begun, reads=True, most=len(calls))

    def begin_encoded(self, call: Encoded, decode: Decode, *, consistency: str, done: Done) -> None:
        """Starts a read of one page; never raises, all errors go to ``done`` (see :meth:`run_encoded`)."""
        with _telling(done, reads=True):
            session, express = self._open_session(), self._open_express()
            self.requests += 1
            level = requests.LEVELS[consistency]
            prepared = self._prepare(session, call.statement)

            def own_way(tell: Done, attempts: int, left: float) -> None:
                values = [fast_path.values_of(call.values)]
                request = requests.raw(prepared, values, call.routing_key, level, self.target.keyspace)
                self._ask_again(request, left, tell, reads=True, attempts=attempts)

            express.send(
                fast_path.EXECUTE,
                fast_path.execute(prepared.query_id, call.markers, call.values, level),
                call.routing_key,
                prepared.result_metadata,
                timeout=self._patience(None, reads=True),
                decode=decode,
                done=done,
                own_way=own_way,
                reads=True,
            )

    def _ask_again(self, request: Any, timeout: float, done: Done, *, reads: bool, attempts: int) -> None:  # noqa: ANN401
        """Asks by the driver's own way; ``attempts`` nodes may have had the request before."""
        with _telling(done, reads=reads, attempts=attempts):
            self._send(self._open_session(), request, timeout, done, reads=reads, attempts=attempts)

    def _send(
        self,
        session: Session,
        request: Any,  # noqa: ANN401 - a statement of the driver
        timeout: float,
        done: Done,
        *,
        reads: bool,
        host: str | None = None,
        attempts: int = 0,
    ) -> None:
        future = session.execute_async(request, timeout=timeout, host=self._host(host))
        hosts = future.attempted_hosts
        waiting = [done]

        def tell(rows: Rows | None, error: StoreUnavailable | None) -> None:
            # The driver calls back whenever an attempt ends; with a speculative one that is twice.
            try:
                first = waiting.pop()
            except IndexError:
                return
            first(rows, error)

        def failed(error: BaseException) -> None:
            tell(None, translate(error, reads=reads, attempts=attempts + len(hosts)))

        # What it calls must not lead back to it: nothing would be freed before the collector of cycles comes.
        future.add_callbacks(lambda rows: tell(rows, None), failed)

    def _patience(self, timeout: float | None, *, reads: bool) -> float:
        """Returns the seconds to wait for a request that is sent now: no longer than the call has that needs it.

        Raises:
            StoreUnavailable: It has none left.
        """
        seconds = self._deadline.left(self._options.timeout if timeout is None else timeout)
        if not reads:
            self._deadline.sent()
        return seconds

    def _all_pages(self, future: ResponseFuture) -> Rows:
        result = future.result()
        if not result.column_names:
            return []
        found = list(result.current_rows)
        while result.has_more_pages:
            self._deadline.left()
            result.fetch_next_page()
            found += result.current_rows
        return found

    def _open_session(self) -> Session:
        session = self._session
        if session is None or not self._usable:
            raise self._refusal()
        return session

    def _open_express(self) -> FastPath:
        express = self._express
        if express is None:
            raise self._refusal()
        return express

    def _refusal(self) -> StoreUnavailable:
        if self._closed.is_set():
            return StoreClosed("the store is closed")
        return StoreUnavailable(self._problem)

    def _prepare(self, session: Session, statement: Statement) -> PreparedStatement:
        prepared = self._prepared.get(statement)
        if prepared is None:
            if threading.current_thread().name in _EVENT_LOOPS:
                raise StoreUnavailable("a statement that was not prepared cannot be asked from the driver's own thread")
            # One at a time, or a burst at the start would prepare the same statement many times over.
            with self._preparing:
                prepared = self._prepared.get(statement)
                if prepared is None:
                    prepared = session.prepare(statement.within(self.target.keyspace))
                    prepared.is_idempotent = statement.idempotent
                    self._prepared[statement] = prepared
        return prepared

    def _host(self, address: str | None) -> Any:  # noqa: ANN401 - the driver's host
        if address is None:
            return None
        cluster = self._cluster
        hosts = [] if cluster is None else cluster.metadata.all_hosts()
        for host in hosts:
            if str(host.address) == address:
                return host
        raise StoreUnavailable(f"Cassandra has no node {address}")


@contextlib.contextmanager
def _telling(done: Done, *, reads: bool, attempts: int = 0) -> Iterator[None]:
    """Passes errors of the block to ``done``; so many nodes may have the request already."""
    try:
        yield
    except DRIVER_ERRORS as error:
        done(None, translate(error, reads=reads, attempts=attempts))
    except StoreUnavailable as error:
        done(None, error if reads or not attempts else InDoubt(str(error)))


def _nothing(_body: bytes) -> Rows:
    return []


def _attempts(future: ResponseFuture | None) -> int:
    return 0 if future is None else len(future.attempted_hosts)
