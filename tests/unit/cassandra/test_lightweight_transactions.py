"""What becomes of lightweight transactions."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.errors import StoreBusy, StoreClosed, StoreUnavailable
from queuey.storage.cassandra.driver import InDoubt, Statement
from queuey.storage.cassandra.lightweight_transactions import (
    STUCK,
    CheckResult,
    Conclusion,
    LightweightTransactions,
    judge,
)
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.deadlines import Deadline
from tests.unit.cassandra.simulated import CalmDriver

CHANGE = Statement("UPDATE queues SET version = ? WHERE application = ? AND name = ? IF version = ?", idempotent=False)
ROW = Statement("INSERT INTO queues (application, name, version) VALUES (?, ?, ?) IF NOT EXISTS", idempotent=False)
OURS, THEIRS, OLD = 7, 8, 6
LOST, REFUSED = InDoubt("no answer"), StoreUnavailable("no node is up")


class Changing:
    """Transactions of a process, and the row that they change; deadlines are ten seconds."""

    def __init__(self, version: int | None = OLD, *, seconds: float = 0.0) -> None:
        self.driver = CalmDriver()
        if version is not None:
            self.driver.run(ROW, ("a", "q", version))
        self.errors: list[StoreUnavailable] = []
        """What the next attempts end with; the last of them is given for ever if it is `endless`."""
        self.endless = False
        self.seconds = seconds
        self.driver.fail = self._fail
        self.driver.sent.clear()
        self.closing = threading.Event()
        self.cas = self.transactions(Deadline(15, self.driver.clock().boottime))

    def transactions(self, deadline: Deadline) -> LightweightTransactions:
        """Those of a process whose calls have such a deadline."""
        return LightweightTransactions(self.driver, CassandraOptions(), self.driver.clock(), self.closing, deadline)

    def _fail(self, _request: object) -> StoreUnavailable | None:
        self.driver.advance(self.seconds)
        if not self.errors:
            return None
        return self.errors[0] if self.endless and len(self.errors) == 1 else self.errors.pop(0)

    def change(self) -> CheckResult:
        """Makes the change."""
        return self.cas.run(CHANGE, (OURS, "a", "q", OLD))


@pytest.mark.parametrize(
    ("version", "errors", "conclusion"),
    [
        (OLD, [], Conclusion.DONE),
        (THEIRS, [], Conclusion.REFUSED),
        (None, [], Conclusion.REFUSED),
        (OLD, [LOST], Conclusion.DONE),
        (OLD, [LOST, LOST, LOST], Conclusion.DONE),
        (OURS, [LOST], Conclusion.DONE),
        (THEIRS, [LOST], Conclusion.UNCLEAR),
        (None, [LOST], Conclusion.UNCLEAR),
        (OURS, [LOST, REFUSED], Conclusion.DONE),
    ],
)
def test_sent_until_decided(version: int | None, errors: Sequence[StoreUnavailable], conclusion: Conclusion) -> None:
    """A change in doubt is sent again, the same, until Cassandra decides; what it says then is what happened."""
    changing = Changing(version)
    changing.errors = [*errors]
    assert changing.change().conclude(OURS) is conclusion
    assert len(changing.driver.sent) == 1 + len(errors)


@given(st.booleans(), st.sampled_from([LOST, REFUSED, StoreClosed("x", outcome="unknown")]), st.floats(-10, 10))
def test_judge(doubted: bool, error: StoreUnavailable, left: float) -> None:  # noqa: FBT001 - a drawn value
    """An outcome of none is reported only when nothing sent before is in doubt, and doubts end with the deadline."""
    final = judge(error, doubted=doubted, left=left)
    if final is None:
        assert doubted or error.outcome == "unknown"
        assert left > 0
        assert not isinstance(error, StoreClosed)
    else:
        assert final.outcome == ("unknown" if doubted or error.outcome == "unknown" else "none")


@pytest.mark.parametrize(("held", "allowed", "kind"), [(STUCK + 0.1, 15.0, StoreBusy), (0.0, 0.3, StoreUnavailable)])
def test_nobody_waits_for_a_change_that_is_stuck(held: float, allowed: float, kind: type[StoreUnavailable]) -> None:
    """Who would have to wait for very long, or longer than his call may take, is told so, and has changed nothing."""
    changing = Changing()
    deadline = Deadline(allowed)
    cas = changing.transactions(deadline)
    refused: list[StoreUnavailable] = []

    def wait() -> None:
        try:
            with deadline.running(), cas.turn("key"):
                pass
        except StoreUnavailable as error:
            refused.append(error)

    with cas.turn("key"):
        changing.driver.advance(held)
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(60)
    [error] = refused
    assert (type(error), error.outcome) == (kind, "none")
