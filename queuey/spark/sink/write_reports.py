"""Reports of writes, noted in the store's ledger at their commit."""

from __future__ import annotations

import msgspec

from queuey.spark.sink.exactly_once import WriteCounts
from queuey.spark.sink.write_task import TaskIdentity
from queuey.storage import Ledger, Store, bridge, exchange


class StreamCounts(msgspec.Struct, frozen=True):
    """Rows of a streaming write.

    Attributes:
        batch: Its last micro-batch.
        last: What became of the rows of that.
        total: Of all micro-batches, each counted once.
    """

    batch: int
    last: WriteCounts
    total: WriteCounts


def note(ledger: Ledger, application: str, run: str, counts: WriteCounts) -> None:
    """Notes what a run has done; the last time counts."""
    work, value = _work("run", application, run), msgspec.msgpack.encode(counts)
    standing = bridge.run(ledger.entry(work, 0))
    while (standing := bridge.run(exchange(ledger, work, 0, value, expected=standing))) != value:
        pass


def report(store: Store, application: str, run: str) -> WriteCounts | None:
    """Returns what a run has done when it was last committed; None: it never was."""
    found = bridge.run(store.ledger.entry(_work("run", application, run), 0))
    return None if found is None else msgspec.msgpack.decode(found, type=WriteCounts)


def note_batch(ledger: Ledger, application: str, query: str, batch: int, counts: WriteCounts) -> None:
    """Notes what a micro-batch of a query has done; the first time counts: a repetition finds its rows done."""
    work = _work("stream", application, query)
    standing = bridge.run(ledger.entry(work, 0))
    while True:
        before = None if standing is None else msgspec.msgpack.decode(standing, type=StreamCounts)
        if before is not None and before.batch >= batch:
            return
        total = counts if before is None else before.total + counts
        value = msgspec.msgpack.encode(StreamCounts(batch, counts, total))
        standing = bridge.run(exchange(ledger, work, 0, value, expected=standing))
        if standing == value:
            return


def stream_report(store: Store, application: str, query: str) -> StreamCounts | None:
    """Returns what a streaming query has written.

    Args:
        store: What it writes to.
        application: The application that owns the target queues.
        query: Its id, which it keeps over restarts from its checkpoint.

    Returns:
        None: it has committed no micro-batch.
    """
    found = bridge.run(store.ledger.entry(_work("stream", application, query), 0))
    return None if found is None else msgspec.msgpack.decode(found, type=StreamCounts)


def _work(kind: str, application: str, name: str) -> str:
    return TaskIdentity.of(kind, application, name).work("report")
