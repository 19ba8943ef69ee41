"""Stands between a store and its real node: a test can hold, lose, fail or delay requests.

A rule applies to the next matching requests. It is driven by events, never by time::

    gate = wire.hold(INSERTS)            # requests wait before they are sent
    gate = wire.hold(INSERTS, answered=True)   # requests are sent, their answers wait
    wire.fail(INSERTS)                   # requests are not sent and fail with outcome "none"
    wire.lose(INSERTS)                   # requests are sent, their answers are lost
    wire.after_answer(INSERTS, meddle)   # meddle() runs after Cassandra has answered, before the caller hears

Pass the wire where a store makes its driver: ``open_store(url, driver=wire.driver)``. Requests without a rule go to
Cassandra unchanged. Cassandra's answers about its time are replaced by the time of the test's world, if it has one
(see :mod:`tests.storage.cassandra.scene`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.cluster import Decode, Driver, Encoded, InDoubt, Rows, Statement, StatementRequest
from queuey.storage.cassandra.read import bucket_index
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.tables import claim_logs
from queuey.storage.cassandra.time import clock_watch
from tests.replacing import with_fields
from tests.servers.keyspaces import LastingDriver

INSERTS = message_codec.INSERT
DELETES = message_codec.DELETE
READS = (*message_codec.SELECT_UP, *message_codec.SELECT_DOWN)
RECORDS = (bucket_index._RECORD_BUCKET,)
CLOCKS = (clock_watch.SELECT_NOW,)
QUEUES = (queue_cache.SELECT_QUEUE,)
APPENDS = (claim_logs._ADVANCE_NUMBER, claim_logs._ADVANCE_AND_NAME)

UNLIMITED = math.inf
"""The count of a rule that is permanent."""
WAIT_TIMEOUT = 60.0
"""Timeout of every wait, in seconds, so that a failed test ends."""

Answer = tuple[Any, StoreUnavailable | None]
Done = Callable[[Any, StoreUnavailable | None], None]
Which = Iterable[Statement] | Callable[[Statement], bool]
"""The requests that a rule applies to: their statements, or a predicate."""


class Gate:
    """Holds requests until the test opens it, and lets the test wait for requests."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        self._opened = threading.Event()
        self._passed = threading.Semaphore(0)

    def wait_until_reached(self) -> None:
        """Waits until a request has come. Each call waits for another one."""
        assert self._reached.acquire(timeout=WAIT_TIMEOUT), "no request has come"

    def open(self) -> None:
        self._opened.set()

    def wait_until_passed(self) -> None:
        """Waits until Cassandra has answered a request that passed. Each call waits for another one."""
        assert self._passed.acquire(timeout=WAIT_TIMEOUT), "no request has passed"

    def stop_request(self) -> None:
        """Reports the calling request to the test, and blocks it until the gate is open, at most WAIT_TIMEOUT."""
        self._reached.release()
        self._opened.wait(WAIT_TIMEOUT)

    def record_answer(self) -> None:
        self._passed.release()


@dataclass
class Rule:
    """What happens to matching requests.

    Attributes:
        matches: Returns whether the rule applies to a statement.
        times: How many more requests it applies to.
        before: Holds requests before they are sent.
        after: Holds the answers.
        sent: Whether requests are sent.
        error: Replaces the answer.
        then: Called when the request is answered, or would be sent, before its caller gets the end.
    """

    matches: Callable[[Statement], bool]
    times: float
    before: Gate | None = None
    after: Gate | None = None
    sent: bool = True
    error: StoreUnavailable | None = None
    then: Callable[[], object] | None = None

    def apply(self, ask: Callable[[], Answer], tell: Done) -> None:
        """Applies the rule to one request: gate, sending, gate, ``then``; last it tells the answer, or the error.

        Args:
            ask: Sends the request and waits for the answer.
            tell: Receives the answer.
        """
        if self.before is not None:
            self.before.stop_request()
        answer: Answer = ask() if self.sent else (None, None)
        for gate in (self.before, self.after):
            if gate is not None:
                gate.record_answer()
        if self.after is not None:
            self.after.stop_request()
        if self.then is not None:
            self.then()
        tell(*(answer if self.error is None else (None, self.error)))


@dataclass
class Log:
    """The statements that were sent, in order, and the sizes of concurrent batches.

    Also the rows and bytes of answers to reads of messages and of rows of names.
    """

    statements: list[Statement] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0

    def clear(self) -> None:
        for what in (self.statements, self.rounds):
            what.clear()
        self.bytes = self.rows = 0

    def count(self, wanted: Iterable[Statement]) -> int:
        names = set(wanted)
        return sum(statement in names for statement in self.statements)


class Wire:
    """One process's connection to Cassandra.

    Args:
        now: Returns the time of the nodes, as the id of a message. None: the nodes' own time.
    """

    def __init__(self, now: Callable[[], UUID] | None = None) -> None:
        self._now = now
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self.log = Log()

    def driver(self, *arguments: Any, **options: Any) -> Driver:  # noqa: ANN401 - the driver's
        return _Interposed(self, *arguments, **options)

    # For tests

    def hold(self, which: Which, times: float = 1, *, answered: bool = False) -> Gate:
        """Holds requests before they are sent, or their answers."""
        gate = Gate()
        self._add(Rule(_make_matcher(which), times, None if answered else gate, gate if answered else None))
        return gate

    def fail(
        self,
        which: Which,
        times: float = 1,
        error: StoreUnavailable | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Fails requests without sending them; by default the error says that nothing was written."""
        error = error or StoreUnavailable("too few replicas")
        self._add(Rule(_make_matcher(which), times, sent=False, error=error, then=then))

    def lose(self, which: Which, times: float = 1, then: Callable[[], object] | None = None) -> None:
        """Sends matching requests and replaces their answers by InDoubt; calls ``then`` before the caller gets it."""
        self._add(Rule(_make_matcher(which), times, error=InDoubt("the answer was lost"), then=then))

    def after_answer(self, which: Which, then: Callable[[], object], times: float = 1) -> None:
        """Calls ``then`` when a matching request is answered, before its caller gets the answer."""
        self._add(Rule(_make_matcher(which), times, then=then))

    def clear(self) -> None:
        """Ends all rules and opens their gates."""
        with self._lock:
            for rule in self._rules:
                for gate in (rule.before, rule.after):
                    if gate is not None:
                        gate.open()
                rule.times = 0

    # For its drivers

    def start(self, request: StatementRequest | Encoded, done: Done, send: Callable[[Done], None]) -> None:
        """Sends a request, or applies the first matching rule in a thread of its own."""
        statement = request.statement
        if self._now is not None and statement in CLOCKS:
            send = self._replace_time(request, send, self._now)
        rule = self._take(statement)
        if rule is None:
            send(done)
        else:
            threading.Thread(target=rule.apply, args=(lambda: _await_answer(send), done), daemon=True).start()

    def _replace_time(
        self, request: StatementRequest | Encoded, send: Callable[[Done], None], now: Callable[[], UUID]
    ) -> Callable[[Done], None]:
        """Returns a way to send a request for the time, which is answered with the time of the test's world."""

        def send_telling(done: Done) -> None:
            def told(rows: Any, error: StoreUnavailable | None) -> None:  # noqa: ANN401
                if error is None:
                    rows = [(now().time if isinstance(request, Encoded) else now(),)]
                done(rows, error)

            send(told)

        return send_telling

    def _add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def _take(self, statement: Statement) -> Rule | None:
        """Logs a statement. Returns the first rule that matches it, and uses the rule up by one."""
        with self._lock:
            self.log.statements.append(statement)
            for rule in self._rules:
                if rule.times and rule.matches(statement):
                    rule.times -= 1
                    return rule
        return None


class _Interposed(LastingDriver):
    """A driver whose requests go through a wire.

    Args:
        wire: Decides what happens to requests.
        arguments, options: The driver's.
    """

    def __init__(self, wire: Wire, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        self._wire = wire
        super().__init__(*arguments, **options)

    def send(self, request: StatementRequest | Encoded, done: Done) -> None:
        """Sends a request through the wire. Fails if the deadline of the call is over.

        The store's clock decides whether a write is too late; the driver waits without a timeout.
        """
        send = super().send
        if isinstance(request, Encoded):
            done = partial(self._tell_in_loop, done)
            if request.decode is None or request.host is not None:
                request = with_fields(request, timeout=WAIT_TIMEOUT)
            else:
                request = with_fields(request, decode=partial(self._decode_and_count, request.decode))
        try:
            if request.statement.reads:
                self._deadline.time_left()
            else:
                self._deadline.mark_sent()
        except StoreUnavailable as error:
            done(None, error)
            return
        call = self._deadline.call

        def start(done: Done) -> None:
            with self._deadline.running(call):
                send(request, done)

        self._wire.start(request, done, start)

    async def ask_all(self, requests: Sequence[StatementRequest | Encoded], **options: Any) -> list[Rows]:  # noqa: ANN401
        self._wire.log.rounds.append(len(requests))
        return await super().ask_all(requests, **options)

    def _tell_in_loop(self, done: Done, rows: Any, error: StoreUnavailable | None) -> None:  # noqa: ANN401
        with suppress(StoreClosed):
            self.loop.call(done, rows, error)

    def _decode_and_count(self, decode: Decode, body: bytes) -> Rows:
        decoded = decode(body)
        self._wire.log.bytes += len(body)
        self._wire.log.rows += len(decoded)
        return decoded


def _make_matcher(which: Which) -> Callable[[Statement], bool]:
    return which if callable(which) else frozenset(which).__contains__


def _await_answer(send: Callable[[Done], None]) -> Answer:
    """Sends a request and waits; the answer is StoreUnavailable if none comes within WAIT_TIMEOUT."""
    answered = threading.Event()
    answer: list[Answer] = []

    def done(rows: Any, error: StoreUnavailable | None) -> None:  # noqa: ANN401
        answer.append((rows, error))
        answered.set()

    send(done)
    # Requests in flight get no answer when a test closes its store.
    return answer[0] if answered.wait(WAIT_TIMEOUT) else (None, StoreUnavailable("Cassandra did not answer"))
