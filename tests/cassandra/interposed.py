"""Stands between a store and the real node it talks to: requests are held, lost, failed or late when a test says so.

A rule is for statements, takes effect on the next so many requests of them, and is done by events, never by time::

    gate = wire.hold(INSERTS)            # they wait before they are sent
    gate = wire.hold(INSERTS, answered=True)   # they are sent, their answers wait
    wire.fail(INSERTS)                   # they are not sent, and it is said that nothing was written
    wire.lose(INSERTS)                   # they are sent, their answers are lost
    gate = wire.straggle(INSERTS)        # they are given up at once, and reach Cassandra when the gate is opened

Everything that a rule does not name goes to Cassandra as it is. Cassandra's answers about its time are those of the
test's world (see :mod:`tests.cassandra.scene`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra import catalogue, queue_rows, rows, segments, skew
from queuey.storage.cassandra.driver import Driver, Encoded, InDoubt, Statement

INSERTS = rows.INSERT
DELETES = rows.DELETE
READS = (*rows.UP, *rows.DOWN)
RECORDS = (segments._RECORD,)
LOOKS = (segments.FIRST,)
FLOORS = (segments.FLOOR,)
CLOCKS = (skew._NOW,)
QUEUES = (queue_rows.FIND,)
CHANGES = (catalogue._UPDATE, catalogue._PURGE, catalogue._DELETE)

PATIENCE = 60.0
"""Seconds that anything waits for anything at most: a test that went wrong must end."""

Answer = tuple[Any, StoreUnavailable | None]
Done = Callable[[Any, StoreUnavailable | None], None]


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

    def wait(self) -> None:
        """Is called by a request."""
        self._reached.release()
        self._opened.wait(PATIENCE)

    def note(self) -> None:
        """Is called when a request has been answered."""
        self._passed.release()


@dataclass
class Rule:
    """What happens to requests.

    Attributes:
        statements: Which.
        times: How many of them.
        before, after: Where they wait before they are sent, and their answers after.
        sent: They are.
        error: Is told in place of the answer.
        hasty: It is told before anything else.
    """

    statements: frozenset[Statement]
    times: int
    before: Gate | None = None
    after: Gate | None = None
    sent: bool = True
    error: StoreUnavailable | None = None
    hasty: bool = False

    def play(self, ask: Callable[[], Answer], tell: Done) -> None:
        """Does it to one request.

        Args:
            ask: Sends it and waits for the answer.
            tell: Takes the answer.
        """
        if self.hasty:
            tell(None, self.error)
        if self.before is not None:
            self.before.wait()
        answer: Answer = ask() if self.sent else (None, None)
        for gate in (self.before, self.after):
            if gate is not None:
                gate.note()
        if self.after is not None:
            self.after.wait()
        if not self.hasty:
            tell(*(answer if self.error is None else (None, self.error)))


@dataclass
class Log:
    """Which statements were sent, in order."""

    statements: list[Statement] = field(default_factory=list)

    def count(self, wanted: Iterable[Statement]) -> int:
        """Returns how many of these were sent."""
        names = set(wanted)
        return sum(statement in names for statement in self.statements)


class Wire:
    """Takes the place of a driver's methods.

    Args:
        driver: Of the store under test.
        now: The time of the nodes, as the id of a message.
    """

    def __init__(self, driver: Driver, now: Callable[[], UUID]) -> None:
        self._run, self._batch = driver.run, driver.batch
        self._begin, self._begin_rows = driver.begin, driver.begin_rows
        self._begin_encoded = driver.begin_encoded
        self._now = now
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self.log = Log()
        for name in ("run", "batch", "begin", "begin_encoded", "begin_rows"):
            setattr(driver, name, getattr(self, name))

    # For tests

    def hold(self, statements: Iterable[Statement], times: int = 1, *, answered: bool = False) -> Gate:
        """Lets requests wait before they are sent, or their answers."""
        gate = Gate()
        self._add(Rule(frozenset(statements), times, None if answered else gate, gate if answered else None))
        return gate

    def fail(self, statements: Iterable[Statement], times: int = 1, error: StoreUnavailable | None = None) -> None:
        """Sends nothing; unless an error is given, says that nothing was written."""
        error = error or StoreUnavailable("too few replicas")
        self._add(Rule(frozenset(statements), times, sent=False, error=error))

    def lose(self, statements: Iterable[Statement], times: int = 1) -> None:
        """Loses the answers."""
        self._add(Rule(frozenset(statements), times, error=InDoubt("the answer was lost")))

    def straggle(self, statements: Iterable[Statement], times: int = 1) -> Gate:
        """Gives requests up at once, and sends them when the gate is opened."""
        gate = Gate()
        self._add(Rule(frozenset(statements), times, before=gate, error=InDoubt("timed out"), hasty=True))
        return gate

    def clear(self) -> None:
        """Lets everything pass from now on, what waits included."""
        with self._lock:
            for rule in self._rules:
                for gate in (rule.before, rule.after):
                    if gate is not None:
                        gate.open()
                rule.times = 0

    # In place of the driver's

    def run(self, statement: Statement, values: Sequence[Any] = (), **options: Any) -> Any:  # noqa: ANN401
        """See the driver."""
        return self._block(statement, lambda: self._run(statement, values, **options))

    def batch(self, calls: Any, **options: Any) -> Any:  # noqa: ANN401
        """See the driver."""
        return self._block(calls[0][0], lambda: self._batch(calls, **options))

    def begin(self, statement: Statement, values: Sequence[Any], *, done: Done, **options: Any) -> None:  # noqa: ANN401
        """See the driver."""
        told = self._telling_time(done) if statement in CLOCKS else done
        self._start(statement, told, lambda done: self._begin(statement, values, done=done, **options))

    def begin_encoded(self, call: Encoded, *given: Any, done: Done, **options: Any) -> None:  # noqa: ANN401
        """See the driver; ``run_encoded`` asks by it too."""
        self._start(call.statement, done, lambda done: self._begin_encoded(call, *given, done=done, **options))

    def begin_rows(self, statement: Statement, *given: Any, done: Done, **options: Any) -> None:  # noqa: ANN401
        """See the driver."""
        self._start(statement, done, lambda done: self._begin_rows(statement, *given, done=done, **options))

    def _telling_time(self, done: Done) -> Done:
        return lambda rows, error: done([(self._now(),)] if error is None else rows, error)

    def _add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def _take(self, statement: Statement) -> Rule | None:
        with self._lock:
            self.log.statements.append(statement)
            for rule in self._rules:
                if rule.times and statement in rule.statements:
                    rule.times -= 1
                    return rule
        return None

    def _block(self, statement: Statement, send: Callable[[], Any]) -> Any:  # noqa: ANN401
        rule = self._take(statement)
        if rule is None:
            return send()
        ended: list[Answer] = []
        rule.play(lambda: _asked(send), lambda rows, error: ended.append((rows, error)))
        [(rows, error)] = ended
        if error is not None:
            raise error
        return rows

    def _start(self, statement: Statement, done: Done, send: Callable[[Done], None]) -> None:
        rule = self._take(statement)
        if rule is None:
            send(done)
        else:
            threading.Thread(target=rule.play, args=(lambda: _awaited(send), done), daemon=True).start()


def _asked(send: Callable[[], Any]) -> Answer:
    try:
        return send(), None
    except StoreUnavailable as error:
        return None, error


def _awaited(send: Callable[[Done], None]) -> Answer:
    answered = threading.Event()
    answer: list[Answer] = []

    def done(rows: Any, error: StoreUnavailable | None) -> None:  # noqa: ANN401
        answer.append((rows, error))
        answered.set()

    send(done)
    assert answered.wait(PATIENCE), "Cassandra did not answer"
    return answer[0]
