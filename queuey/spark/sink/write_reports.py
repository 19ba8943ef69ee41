"""Reports of writes, recorded in the store's ledger when they commit."""

from __future__ import annotations

import msgspec

from queuey.spark.sink.exactly_once import WriteCounts
from queuey.spark.sink.write_task import TaskIdentity
from queuey.storage import Entry, Ledger, Store, bridge


class StreamCounts(msgspec.Struct, frozen=True):
    """Rows of a streaming write.

    Attributes:
        batch: The last micro-batch.
        last: Counts of the last micro-batch.
        total: Counts of all micro-batches, each counted once.
    """

    batch: int
    last: WriteCounts
    total: WriteCounts


def record_run(ledger: Ledger, application: str, run: str, counts: WriteCounts) -> None:
    work, value = _ledger_name("run", application, run), msgspec.msgpack.encode(counts)
    bridge.run(ledger.change(work, 0, lambda _: Entry(value)))


def report(store: Store, application: str, run: str) -> WriteCounts | None:
    raw = bridge.run(store.ledger.entry(_ledger_name("run", application, run), 0))
    return None if raw is None else msgspec.msgpack.decode(raw, type=WriteCounts)


def record_batch(ledger: Ledger, application: str, query: str, batch: int, counts: WriteCounts) -> None:
    """Records the counts of a micro-batch; the first call wins, because a repetition finds its rows already written."""

    def decide(stored: bytes | None) -> Entry | None:
        before = None if stored is None else msgspec.msgpack.decode(stored, type=StreamCounts)
        if before is not None and before.batch >= batch:
            return None
        total = counts if before is None else before.total + counts
        return Entry(msgspec.msgpack.encode(StreamCounts(batch, counts, total)))

    bridge.run(ledger.change(_ledger_name("stream", application, query), 0, decide))


def stream_report(store: Store, application: str, query: str) -> StreamCounts | None:
    """Returns the counts of a streaming query, or None if it has not committed a micro-batch.

    Args:
        store: The store of the target queues.
        application: The application that owns the target queues.
        query: Id of the query, which stays the same across restarts from its checkpoint.
    """
    raw = bridge.run(store.ledger.entry(_ledger_name("stream", application, query), 0))
    return None if raw is None else msgspec.msgpack.decode(raw, type=StreamCounts)


def _ledger_name(kind: str, application: str, name: str) -> str:
    return TaskIdentity.make(kind, application, name).shared_name("report")
