"""A driver that answers from a script, for what has to be decided when Cassandra does not answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.driver import Done, Driver, Encoded, InDoubt, Request, Statement
from queuey.storage.deadlines import Deadline

Answer = list[tuple[Any, ...]] | StoreUnavailable

LOST = InDoubt("no answer")
REFUSED = StoreUnavailable("no node is up")
APPLIED: Answer = [(True,)]


class AnsweringDriver(Driver):
    """A driver that answers every request at once; tests say how."""

    def __init__(self) -> None:
        self._deadline = Deadline(math.inf)

    def answer(self, request: Any) -> list[Any]:  # noqa: ANN401 - of any kind
        """Returns the rows.

        Raises:
            StoreUnavailable: It fails.
        """
        raise NotImplementedError

    def send(self, request: Request | Encoded, done: Done) -> None:
        """See the driver."""
        try:
            rows = self.answer(request)
        except StoreUnavailable as error:
            done(None, error)
        else:
            done(rows, None)


class ScriptedDriver(AnsweringDriver):
    """Gives the answers of a script, the last one for ever, and moves a clock with each."""

    def __init__(self, *script: Answer, seconds: float = 0.0) -> None:
        super().__init__()
        self.script = list(script)
        self.sent: list[tuple[Statement, tuple[Any, ...]]] = []
        self.begun: list[Callable[..., None]] = []
        self.boottime = 1000.0
        self.seconds = seconds

    def run(self, statement: Statement, values: Sequence[Any] = (), *_: object, **__: object) -> list[tuple[Any, ...]]:
        """Answers."""
        self.sent.append((statement, tuple(values)))
        self.boottime += self.seconds
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    def send(self, request: Any, done: Callable[..., None]) -> None:  # noqa: ANN401 - of any kind
        """Notes that something was begun; the test ends it."""
        self.sent.append((request.statement, tuple(request.values)))
        self.begun.append(done)

    def clock(self) -> Clock:
        """A clock that this moves."""
        return Clock(boottime=lambda: round(self.boottime * 1e9), wall=lambda: 1_700_000_000_000_000_000)

    def driver(self) -> Driver:
        """Itself, where a driver is asked for."""
        return cast("Driver", self)
