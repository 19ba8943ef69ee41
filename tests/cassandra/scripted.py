"""A driver that answers from a script, for what has to be decided when Cassandra does not answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver import Driver, InDoubt, Statement
from queuey.storage.cassandra.ids.clock import Clock

Answer = list[tuple[Any, ...]] | StoreUnavailable

LOST = InDoubt("no answer")
REFUSED = StoreUnavailable("no node is up")
APPLIED: Answer = [(True,)]


class ScriptedDriver:
    """Gives the answers of a script, the last one for ever, and moves a clock with each."""

    def __init__(self, *script: Answer, seconds: float = 0.0) -> None:
        self.script = list(script)
        self.sent: list[tuple[Statement, tuple[Any, ...]]] = []
        self.begun: list[Callable[..., None]] = []
        self.boottime = 1000.0
        self.seconds = seconds

    def run(self, statement: Statement, values: Sequence[Any] = (), **_: object) -> list[tuple[Any, ...]]:
        """Answers."""
        self.sent.append((statement, tuple(values)))
        self.boottime += self.seconds
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    def begin(self, statement: Statement, values: Sequence[Any], *, done: Callable[..., None], **_: object) -> None:
        """Notes that something was begun; the test ends it."""
        self.sent.append((statement, tuple(values)))
        self.begun.append(done)

    def clock(self) -> Clock:
        """A clock that this moves."""
        return Clock(boottime=lambda: round(self.boottime * 1e9), wall=lambda: 1_700_000_000_000_000_000)

    def driver(self) -> Driver:
        """Itself, where a driver is asked for."""
        return cast("Driver", self)
