"""A task of a read, of a batch or a stream: it scans slices and follows changes of their queues."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

from queuey import ids
from queuey.errors import QueueChanged, QueueNotFound, StoreUnavailable
from queuey.ids import LOW_MIN, Position
from queuey.messages import Queue, Slice
from queuey.spark import open_stores
from queuey.spark.errors import DataLoss
from queuey.spark.options import SourceOptions
from queuey.spark.slices import QueueSlice
from queuey.spark.source import columns
from queuey.spark.source.latest_offsets import TRIES
from queuey.storage import Store, bridge

log = logging.getLogger(__name__)

BATCH_ROWS = 10_000
"""Max rows of a record batch."""
BATCH_BYTES = 8 << 20
"""Max bytes of its bodies, roughly."""
READ_TIMEOUT = 30.0
"""Timeout for an unavailable store, or for the horizon of a machine whose clock is behind, in seconds."""
LOOK_EVERY = 0.05


def scanned(
    options: SourceOptions, slices: Iterable[QueueSlice], schema: pa.Schema, *, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Returns the rows of a task, at most so many in a record batch.

    Raises:
        DataLoss: A queue is gone or is not the one that was planned for, and that is not to be overlooked.
        StoreUnavailable: The store does not answer, or this machine's clock is far behind the driver's.
    """
    store = open_stores.opened(options.store)
    owner = open_stores.application(store, options.store)
    bodies = columns.needs_bodies(schema)
    queues: dict[str, Queue] = {}
    gone: set[str] = set()
    for one in slices:
        try:
            for batch in () if one.queue in gone else _scanned(store, owner, queues, one, rows=rows, bodies=bodies):
                yield columns.rows_of(batch, one.queue, one.partition, schema)
        except QueueNotFound:
            gone.add(one.queue)
            lose(options, f"Queue {one.queue!r} was purged or deleted while it was being read.")


def lose(options: SourceOptions, what: str) -> None:
    """Fails, or goes on with a warning.

    Raises:
        DataLoss: The options say that nothing may be lost.
    """
    if options.fail_on_data_loss:
        raise DataLoss(f"{what} With option failOnDataLoss=false what is left of it is left out.")
    log.warning("%s What is left of it is left out, because failOnDataLoss is false.", what)


def _scanned(
    store: Store, owner: str, queues: dict[str, Queue], one: QueueSlice, *, rows: int, bodies: bool
) -> Iterator[pa.RecordBatch]:
    """Scans a slice; a queue that changes is looked up again, and the scan goes on where it was.

    Raises:
        QueueNotFound: The queue is gone, or is not the one that was planned for.
        QueueChanged: The queue changed during every attempt.
    """
    lower = one.lower
    for _ in range(TRIES):
        if one.queue not in queues:
            queues[one.queue] = bridge.run(store.catalogue.queue(owner, one.queue, fresh=True))
        queue = queues[one.queue]
        if one.qid is not None and (queue.uid, queue.qid) != (one.uid, one.qid):
            raise QueueNotFound(one.queue, f"queue {one.queue!r} is not the one that was planned for")
        try:
            await_horizon(store, queue, one.upper)
            part = Slice(one.partition, lower, one.upper, limit=rows, max_bytes=BATCH_BYTES)
            for batch in bridge.iterate(store.bulk.scan_arrow(queue, part, bodies=bodies)):
                ticks, low = (batch.column(name)[-1].as_py() for name in ("ticks", "low"))
                lower = ids.following((ticks, low))
                yield batch
        except QueueChanged:
            del queues[one.queue]
        else:
            return
    raise QueueChanged(f"queue {one.queue!r} changed {TRIES} times while it was read")


def await_horizon(store: Store, queue: Queue, upper: Position) -> None:
    """Waits until this process, too, may read up to a position: clocks of machines differ a little.

    Raises:
        StoreUnavailable: That takes too long.
    """
    until = time.monotonic() + READ_TIMEOUT
    while (bridge.run(store.bulk.horizon(queue)), LOW_MIN) < upper:
        if time.monotonic() > until:
            raise StoreUnavailable(
                f"the read ends above what may be read of queue {queue.name!r} on this machine: is its clock behind, "
                "or was an older copy of the store put in place?"
            )
        time.sleep(LOOK_EVERY)
