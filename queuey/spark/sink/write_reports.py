"""What a batch write that has a name has done, as noted in the store's ledger when it was committed."""

from __future__ import annotations

import msgspec

from queuey.spark.sink.exactly_once import WriteCounts
from queuey.spark.sink.write_task import TaskIdentity
from queuey.storage import Ledger


def note(ledger: Ledger, application: str, run: str, counts: WriteCounts) -> None:
    """Notes what a run has done; the last time counts."""
    work, value = _work(application, run), msgspec.msgpack.encode(counts)
    standing = ledger.entry(work, 0)
    while (found := ledger.enter(work, 0, value, expected=standing)) != value:
        standing = found


def report(ledger: Ledger, application: str, run: str) -> WriteCounts | None:
    """Returns what a run has done when it was last committed; None: it never was."""
    found = ledger.entry(_work(application, run), 0)
    return None if found is None else msgspec.msgpack.decode(found, type=WriteCounts)


def _work(application: str, run: str) -> str:
    return TaskIdentity.of("run", application, run).work("report")
