"""Notes of a write in the store's ledger, whose entries expire after a month."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from queuey.errors import Conflict
from queuey.ids import TICKS_PER_SECOND
from queuey.spark.sink import write_reports
from queuey.spark.sink.exactly_once import WriteCounts
from queuey.spark.sink.rate_limit import RateLimit
from queuey.storage import Ledger, Store

ONE, TWO = WriteCounts(written=1), WriteCounts(written=2)


class Forgetful(Ledger):
    """A ledger in which an entry expires after it was read."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.forgets = False

    async def now(self) -> int:
        return TICKS_PER_SECOND

    async def entry(self, work: str, piece: int) -> bytes | None:
        """Returns an entry; a forgotten one for the last time."""
        assert piece == 0
        return self.kept.pop(work, None) if self.forgets else self.kept.get(work)

    async def enter(self, work: str, piece: int, value: bytes, *, expected: bytes | None, **named: float) -> bytes:
        """Sets an entry if the present one is the expected one. Returns the entry that is kept.

        Raises Conflict if the expected entry has expired.
        """
        assert piece == 0
        present = self.kept.get(work)
        if present is None and expected is not None:
            raise Conflict("there is no entry")
        if present == expected:
            self.kept[work] = value
        return self.kept[work]


def test_an_entry_that_expires_meanwhile() -> None:
    """A report, a micro-batch's counts and a turn are noted even if the former entry expires between two steps."""
    ledger = Forgetful()
    for forgets in (False, True):
        ledger.forgets = forgets
        write_reports.record_run(ledger, "acme", "run", TWO if forgets else ONE)
        write_reports.record_batch(ledger, "acme", "query", 1 + forgets, ONE)
        RateLimit(ledger, "turns", 10, sleep=lambda _: None).reserve_time(1)
    ledger.forgets = False
    store = cast("Store", SimpleNamespace(ledger=ledger))
    assert write_reports.report(store, "acme", "run") == TWO
    counts = write_reports.stream_report(store, "acme", "query")
    assert counts is not None
    assert (counts.batch, counts.last, counts.total) == (2, ONE, ONE)
