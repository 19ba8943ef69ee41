"""A task of a batch or streaming read: scans slices and handles changes of their queues."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

from queuey.model import ids
from queuey.model.errors import QueueChanged, QueueNotFound, StoreUnavailable
from queuey.model.ids import LOW_MIN, Position
from queuey.model.messages import Queue, Slice
from queuey.spark import open_stores
from queuey.spark.errors import DataLoss
from queuey.spark.options import SourceOptions
from queuey.spark.slices import QueueSlice
from queuey.spark.source import columns
from queuey.spark.source.latest_offsets import MAX_TRIES
from queuey.storage import Store, bridge

log = logging.getLogger(__name__)

MAX_BATCH_ROWS = 10_000
MAX_BATCH_BYTES = 8 << 20
"""Max bytes of the bodies in a record batch, approximately."""
READ_TIMEOUT = 30.0
"""Timeout for an unavailable store, or for the horizon of a machine with a slow clock, in seconds."""
POLL_INTERVAL = 0.05


def scan_rows(
    options: SourceOptions, slices: Iterable[QueueSlice], schema: pa.Schema, *, rows: int = MAX_BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task, at most ``rows`` in a record batch; skips the other slices of a queue that is gone.

    Raises:
        DataLoss: A queue was purged, deleted or replaced, and the option ``failOnDataLoss`` is true.
        StoreUnavailable: The store does not answer, or this machine's clock is far behind the driver's.
    """
    store = open_stores.opened(options.store)
    owner = open_stores.application(store, options.store)
    bodies = columns.needs_bodies(schema)
    queues: dict[str, Queue] = {}
    gone: set[str] = set()
    for item in slices:
        try:
            for batch in () if item.queue in gone else _scan_part(store, owner, queues, item, rows=rows, bodies=bodies):
                yield columns.make_rows(batch, item.queue, item.partition, schema)
        except QueueNotFound:
            gone.add(item.queue)
            report_loss(options, f"Queue {item.queue!r} was purged or deleted while it was being read.")


def report_loss(options: SourceOptions, what: str) -> None:
    """Raises DataLoss if the option ``failOnDataLoss`` is true, else logs a warning.

    Raises:
        DataLoss: The option ``failOnDataLoss`` is true.
    """
    if options.fail_on_data_loss:
        raise DataLoss(f"{what} To skip the rest of it, set option failOnDataLoss=false.")
    log.warning("%s The rest of it is skipped, because failOnDataLoss is false.", what)


def _scan_part(
    store: Store, owner: str, queues: dict[str, Queue], queue_slice: QueueSlice, *, rows: int, bodies: bool
) -> Iterator[pa.RecordBatch]:
    """Scans a slice. If the queue changes, looks it up again and continues at the same position.

    Waits first until the horizon has reached the end of the slice. ``queues`` caches the rows of queues.

    Raises:
        QueueNotFound: The queue does not exist, or is not the planned one.
        QueueChanged: The queue changed during every attempt.
    """
    lower = queue_slice.lower
    for _ in range(MAX_TRIES):
        if queue_slice.queue not in queues:
            queues[queue_slice.queue] = bridge.run(store.catalogue.queue(owner, queue_slice.queue, fresh=True))
        queue = queues[queue_slice.queue]
        if queue_slice.qid is not None and (queue.uid, queue.qid) != (queue_slice.uid, queue_slice.qid):
            raise QueueNotFound(
                queue_slice.queue, f"queue {queue_slice.queue!r} is not the planned one: it was purged or replaced"
            )
        try:
            await_horizon(store, queue, queue_slice.upper)
            rest = Slice(queue_slice.partition, lower, queue_slice.upper, limit=rows, max_bytes=MAX_BATCH_BYTES)
            for batch in bridge.iterate(store.bulk.scan_arrow(queue, rest, bodies=bodies)):
                ticks, low = (batch.column(name)[-1].as_py() for name in ("ticks", "low"))
                lower = ids.following((ticks, low))
                yield batch
        except QueueChanged:
            del queues[queue_slice.queue]
        else:
            return
    raise QueueChanged(f"queue {queue_slice.queue!r} changed {MAX_TRIES} times while it was read")


def await_horizon(store: Store, queue: Queue, upper: Position) -> None:
    """Waits until the horizon in this process reaches a position, because clocks of machines differ a little.

    Raises:
        StoreUnavailable: The horizon did not reach the position in ``READ_TIMEOUT`` seconds.
    """
    until = time.monotonic() + READ_TIMEOUT
    while (bridge.run(store.bulk.horizon(queue)), LOW_MIN) < upper:
        if time.monotonic() > until:
            raise StoreUnavailable(
                f"the read ends above the horizon of queue {queue.name!r} on this machine. Check whether its clock is "
                "slow, or an older copy of the store was restored."
            )
        time.sleep(POLL_INTERVAL)
