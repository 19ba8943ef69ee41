"""Stands between a store and the real node it talks to: requests are held, lost, failed or late when a test says so.

A rule is for statements, takes effect on the next so many requests of them, and is done by events, never by time::

    gate = wire.hold(INSERTS)            # they wait before they are sent
    gate = wire.hold(INSERTS, answered=True)   # they are sent, their answers wait
    wire.fail(INSERTS)                   # they are not sent, and it is said that nothing was written
    wire.lose(INSERTS)                   # they are sent, their answers are lost
    wire.stumble(INSERTS)                # beginning them raises what a driver never should
    wire.meanwhile(INSERTS, meddle)      # when Cassandra has answered them, something is done first

The wire is handed in where a store makes its driver: ``open_store(url, driver=wire.driver)``. Everything that a rule
does not name goes to Cassandra as it is. Cassandra's answers about its time are those of the test's world, if it has
one (see :mod:`tests.cassandra.scene`).
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

from queuey.errors import StoreClosed, StoreUnavailable
from queuey.storage.cassandra import bucket_index, message_codec
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.clocks import clock_watch
from queuey.storage.cassandra.driver import Decode, Driver, Encoded, InDoubt, Request, Rows, Statement
from queuey.storage.cassandra.store import claim_logs
from tests.servers.keyspaces import LastingDriver

INSERTS = message_codec.INSERT
DELETES = message_codec.DELETE
READS = (*message_codec.UP, *message_codec.DOWN)
RECORDS = (bucket_index._RECORD,)
LOOKS = (bucket_index.FIRST,)
LOW_WATERMARKS = (bucket_index.SET_LOW_WATERMARK,)
CLOCKS = (clock_watch.NOW,)
QUEUES = (queue_cache.FIND,)
APPENDS = (claim_logs._ADVANCE, claim_logs._ADVANCE_AND_NAME)

ALWAYS = math.inf
"""How often a rule takes effect that stays."""
PATIENCE = 60.0
"""Seconds that anything waits for anything at most: a test that went wrong must end."""

Answer = tuple[Any, StoreUnavailable | None]
Done = Callable[[Any, StoreUnavailable | None], None]
Which = Iterable[Statement] | Callable[[Statement], bool]
"""The requests that a rule is for: by their statements, or by what it says of each."""


class Gate:
    """Where requests wait for the test, and the test for requests."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        self._opened = threading.Event()
        self._passed = threading.Semaphore(0)

    def reached(self) -> None:
        """Waits until a request has come."""
        assert self._reached.acquire(timeout=PATIENCE), "no request has come"

    def open(self) -> None:
        """Lets all requests pass from now on."""
        self._opened.set()

    def passed(self) -> None:
        """Waits until Cassandra has answered a request that passed."""
        assert self._passed.acquire(timeout=PATIENCE), "no request has passed"

    def stop_request(self) -> None:
        """Is called by a request, which waits here until the gate is open."""
        self._reached.release()
        self._opened.wait(PATIENCE)

    def note(self) -> None:
        """Is called when a request has been answered."""
        self._passed.release()


@dataclass
class Rule:
    """What happens to requests.

    Attributes:
        concerns: Tells of a request whether the rule is for it.
        times: How many of them.
        before, after: Where they wait before they are sent, and their answers after.
        sent: They are.
        error: Is told instead of the answer.
        stumbles: Nothing of this happens: the call that was to begin the request fails.
        then: Is done when they are answered, or are not to be sent, before that is told.
    """

    concerns: Callable[[Statement], bool]
    times: float
    before: Gate | None = None
    after: Gate | None = None
    sent: bool = True
    error: StoreUnavailable | None = None
    stumbles: bool = False
    then: Callable[[], object] | None = None

    def play(self, ask: Callable[[], Answer], tell: Done) -> None:
        """Does it to one request.

        Args:
            ask: Sends it and waits for the answer.
            tell: Takes the answer.
        """
        if self.before is not None:
            self.before.stop_request()
        answer: Answer = ask() if self.sent else (None, None)
        for gate in (self.before, self.after):
            if gate is not None:
                gate.note()
        if self.after is not None:
            self.after.stop_request()
        if self.then is not None:
            self.then()
        tell(*(answer if self.error is None else (None, self.error)))


@dataclass
class Log:
    """Which statements were sent, in order; how many side by side each time that some were.

    Also the rows and bytes of the answers that messages and rows of names were read by.
    """

    statements: list[Statement] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0

    def clear(self) -> None:
        """Forgets all of it."""
        for what in (self.statements, self.rounds):
            what.clear()
        self.bytes = self.rows = 0

    def count(self, wanted: Iterable[Statement]) -> int:
        """Returns how many of these were sent."""
        names = set(wanted)
        return sum(statement in names for statement in self.statements)


class Wire:
    """The way of one process to Cassandra.

    Args:
        now: The time of the nodes, as the id of a message; None: their own.
    """

    def __init__(self, now: Callable[[], UUID] | None = None) -> None:
        self._now = now
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self.log = Log()

    def driver(self, *arguments: Any, **options: Any) -> Driver:  # noqa: ANN401 - the driver's
        """Makes a driver whose requests go this way."""
        return _Interposed(self, *arguments, **options)

    # For tests

    def hold(self, which: Which, times: float = 1, *, answered: bool = False) -> Gate:
        """Lets requests wait before they are sent, or their answers."""
        gate = Gate()
        self._add(Rule(_chosen(which), times, None if answered else gate, gate if answered else None))
        return gate

    def fail(
        self,
        which: Which,
        times: float = 1,
        error: StoreUnavailable | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Sends nothing; unless an error is given, says that nothing was written."""
        error = error or StoreUnavailable("too few replicas")
        self._add(Rule(_chosen(which), times, sent=False, error=error, then=then))

    def lose(self, which: Which, times: float = 1, then: Callable[[], object] | None = None) -> None:
        """Loses the answers."""
        self._add(Rule(_chosen(which), times, error=InDoubt("the answer was lost"), then=then))

    def stumble(self, which: Which, times: float = 1) -> None:
        """Raises an error that no driver should from the calls that begin requests."""
        self._add(Rule(_chosen(which), times, stumbles=True))

    def meanwhile(self, which: Which, then: Callable[[], object], times: float = 1) -> None:
        """Does something else when Cassandra has answered requests, before whoever sent them hears of it."""
        self._add(Rule(_chosen(which), times, then=then))

    def clear(self) -> None:
        """Lets everything pass from now on, what waits included."""
        with self._lock:
            for rule in self._rules:
                for gate in (rule.before, rule.after):
                    if gate is not None:
                        gate.open()
                rule.times = 0

    # For its drivers

    def start(self, request: Request | Encoded, done: Done, send: Callable[[Done], None]) -> None:
        """Sends a request, or does to it what a rule says."""
        statement = request.statement
        if self._now is not None and statement in CLOCKS:
            send = self._telling_time(request, send, self._now)
        rule = self._take(statement)
        if rule is None:
            send(done)
        elif rule.stumbles:
            raise RuntimeError("broken")
        else:
            threading.Thread(target=rule.play, args=(lambda: _awaited(send), done), daemon=True).start()

    def _telling_time(
        self, request: Request | Encoded, send: Callable[[Done], None], now: Callable[[], UUID]
    ) -> Callable[[Done], None]:
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
        with self._lock:
            self.log.statements.append(statement)
            for rule in self._rules:
                if rule.times and rule.concerns(statement):
                    rule.times -= 1
                    return rule
        return None


class _Interposed(LastingDriver):
    """A driver whose requests a wire decides about.

    Args:
        wire: Decides.
        arguments, options: The driver's.
    """

    def __init__(self, wire: Wire, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        self._wire = wire
        super().__init__(*arguments, **options)

    def send(self, request: Request | Encoded, done: Done) -> None:
        """See the driver. The store's clock says which write is too late; the driver waits as long as it takes."""
        send = super().send
        if isinstance(request, Encoded):
            done = partial(self._tell_in_loop, done)
            if request.decode is None or request.host is not None:
                request = request._replace(timeout=PATIENCE)
            else:
                request = request._replace(decode=partial(self._weighed, request.decode))
        try:
            if not request.statement.reads:
                self._deadline.sent()
        except StoreUnavailable as error:
            done(None, error)
            return
        self._wire.start(request, done, partial(self._within, self._deadline.call, send, request))

    async def ask_all(self, requests: Sequence[Request | Encoded], **options: Any) -> list[Rows]:  # noqa: ANN401
        """See the driver."""
        self._wire.log.rounds.append(len(requests))
        return await super().ask_all(requests, **options)

    def _tell_in_loop(self, done: Done, rows: Any, error: StoreUnavailable | None) -> None:  # noqa: ANN401
        with suppress(StoreClosed):
            self.loop.call(done, rows, error)

    def _weighed(self, decode: Decode, body: bytes) -> Rows:
        found = decode(body)
        self._wire.log.bytes += len(body)
        self._wire.log.rows += len(found)
        return found


def _chosen(which: Which) -> Callable[[Statement], bool]:
    return which if callable(which) else frozenset(which).__contains__


def _awaited(send: Callable[[Done], None]) -> Answer:
    answered = threading.Event()
    answer: list[Answer] = []

    def done(rows: Any, error: StoreUnavailable | None) -> None:  # noqa: ANN401
        answer.append((rows, error))
        answered.set()

    send(done)
    # Nothing is answered that was under way when a test closed its store.
    return answer[0] if answered.wait(PATIENCE) else (None, StoreUnavailable("Cassandra did not answer"))
