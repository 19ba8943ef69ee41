"""Bulk loads: writes many messages with given ids, in batches of one Cassandra partition each, several in flight.

Messages arrive as columns and stay columns until their statements are bytes: no value becomes an object. This module
needs NumPy and Arrow, so only pipelines import it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuey.model.errors import StoreUnavailable
from queuey.model.ids import EPOCH_TICKS, FLIP, TICKS_PER_SECOND
from queuey.storage.arrow_format import Integers, MessageColumns, bytes_values, rows_as_bytes
from queuey.storage.cassandra.catalogue.queue_cache import CachedQueue
from queuey.storage.cassandra.cluster import Driver, Encoded, Rows
from queuey.storage.cassandra.read.bucket_index import BucketIndex
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.statements.consistency_levels import ResolvedLevel
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import Bucket
from queuey.storage.cassandra.time.clock import TICKS_PER_MICROSECOND, Stamps, SteadyClock

WIDE_ROWS = 200_000
WIDE_BYTES = 64_000_000
"""Max rows and bytes of a wide bucket of loaded messages. They exceed those of other buckets because the next narrower
width is much narrower, and many small buckets cost a reader more than a few large ones."""
BATCH_ROWS = 100
BATCH_BYTES = 128 << 10
MAX_IN_FLIGHT = 8
"""Max batches in flight; a batch with a long body counts as several, by its length."""


_NO_META = b"\0"
"""Metadata of a loaded message without metadata: it overwrites that of an earlier message."""
_NO_SEPARATOR = pa.scalar(b"", pa.binary())

# Each value follows its length, in the order of ``message_codec.INSERT``.
_HEAD = np.dtype(
    [
        *(("qid_size", ">i4"), ("qid", ">i8"), ("partition_size", ">i4"), ("partition", ">i4")),
        *(("bucket_size", ">i4"), ("bucket", ">i8")),
        *(("id_size", ">i4"), ("first", ">u4"), ("middle", ">u2"), ("last", ">u2"), ("low", ">u8")),
        ("body_size", ">i4"),
    ]
)
_MIDDLE = np.dtype([("expires_size", ">i4"), ("expires", ">i8"), ("meta_size", ">i4")])
_TAIL = np.dtype([("stamp_size", ">i4"), ("stamp", ">i8"), ("ttl_size", ">i4"), ("ttl", ">i4")])
_END = np.dtype([*_MIDDLE.descr, ("meta", "u1"), *_TAIL.descr])
"""``_MIDDLE`` and ``_TAIL`` in one, used if no row has metadata."""


def encode_inserts(
    qid: int, partitions: Integers, buckets: Integers, batch: pa.RecordBatch, stamps: Integers, ttls: Integers
) -> list[bytes]:
    ticks, low, expires = (batch.column(place).to_numpy() for place in range(3))
    body, meta = batch.column(3), batch.column(4)
    head = np.empty(len(batch), _HEAD)
    time = ticks.view(np.uint64)
    _fill_columns(
        head,
        qid_size=8,
        qid=qid,
        partition_size=4,
        partition=partitions,
        bucket_size=8,
        bucket=buckets,
        id_size=16,
        first=time & np.uint64(0xFFFFFFFF),
        middle=time >> np.uint64(32) & np.uint64(0xFFFF),
        last=time >> np.uint64(48) | np.uint64(0x1000),
        low=low.view(np.uint64) ^ np.uint64(FLIP),
        body_size=pc.binary_length(body).to_numpy(),
    )
    if meta.null_count == len(meta):
        end = np.empty(len(batch), _END)
        _fill_columns(end, expires_size=8, expires=expires, meta_size=1, meta=0)
        _fill_columns(end, stamp_size=8, stamp=stamps, ttl_size=4, ttl=ttls)
        ends = [rows_as_bytes(end)]
    else:
        middle, tail, meta = np.empty(len(batch), _MIDDLE), np.empty(len(batch), _TAIL), meta.fill_null(_NO_META)
        _fill_columns(middle, expires_size=8, expires=expires, meta_size=pc.binary_length(meta).to_numpy())
        _fill_columns(tail, stamp_size=8, stamp=stamps, ttl_size=4, ttl=ttls)
        ends = [rows_as_bytes(middle), meta, rows_as_bytes(tail)]
    return bytes_values(pc.binary_join_element_wise(rows_as_bytes(head), body, *ends, _NO_SEPARATOR))


def _fill_columns(table: NDArray[np.void], **values: Any) -> None:  # noqa: ANN401 - a number, or one for each row
    for name, value in values.items():
        table[name] = value


class Placed(NamedTuple):
    """Messages by partition and bucket.

    Attributes:
        messages: Messages sorted by partition and bucket.
        buckets: The bucket of each message.
        runs: Partition and bucket of each run of messages, and the index of its first message.
    """

    messages: MessageColumns
    buckets: Integers
    runs: list[tuple[int, Bucket, int]]


class Loader:
    """Loads messages into one queue."""

    def __init__(
        self,
        driver: Driver,
        bucket_index: BucketIndex,
        row: CachedQueue,
        level: ResolvedLevel,
        clock: SteadyClock,
        stamps: Stamps,
    ) -> None:
        self._driver = driver
        self._bucket_index = bucket_index
        self._row = row
        self._level = level
        self._clock = clock
        self._stamps = stamps

    def write(self, messages: MessageColumns) -> int:
        now = self._clock.now()
        placed = self.place(messages, now)
        self.record_buckets(placed)
        return self.send(placed, now, self._stamps_above)

    def _stamps_above(self, ticks: Integers) -> Integers:
        return np.fromiter(map(self._stamps.make_above, ticks.tolist()), np.int64, len(ticks))

    def place(self, messages: MessageColumns, now: int) -> Placed:
        """Drops messages that have expired by ``now`` (ticks), and sorts the others by partition and bucket.

        A message's class covers its lifetime, and is never below the home class.
        """
        alive = messages.where(messages.expires > now)
        width_index = _choose_width_class(alive)
        lifetimes = (alive.expires - np.minimum(alive.ticks, now)) / TICKS_PER_SECOND
        kinds = np.searchsorted(bucketing.CLASSES[:-1], lifetimes).clip(min=self._row.home_class)
        widths = np.array([bucketing.width(kind, width_index) for kind in range(len(bucketing.CLASSES))])
        buckets = (alive.ticks // widths[kinds]) << 3 | width_index
        keys = np.stack([alive.partitions, kinds, buckets])
        order = np.lexsort(keys[::-1])
        if (np.diff(order) != 1).any():
            alive, keys = alive.take(order), keys[:, order]
        new = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
        firsts = [0, *new.tolist()] if len(alive) else []
        runs = [(int(keys[0, first]), Bucket(int(keys[1, first]), int(keys[2, first])), first) for first in firsts]
        return Placed(alive, keys[2], runs)

    def record_buckets(self, placed: Placed) -> None:
        by_partition: dict[int, list[Bucket]] = {}
        for partition, time_bucket, _ in placed.runs:
            by_partition.setdefault(partition, []).append(time_bucket)
        for partition, time_buckets in by_partition.items():
            recording = self._bucket_index.record(
                self._row.queue.qid, partition, time_buckets, consistency=self._level.writes
            )
            self._driver.calls.run(recording)

    def send(self, placed: Placed, now: int, stamps: Callable[[Integers], Integers]) -> int:
        """Writes messages to their buckets, which must be recorded. Waits for all; returns their number.

        After an error begins no further batches of a run, and raises the first error at the end.
        """
        messages = placed.messages
        if not messages:
            return 0
        qid = self._row.queue.qid
        lives = (messages.expires - now + TICKS_PER_SECOND - 1) // TICKS_PER_SECOND + 1
        ttls = lives.clip(1, bucketing.max_cassandra_ttl(now))
        encoded = encode_inserts(qid, messages.partitions, placed.buckets, messages.batch, stamps(messages.ticks), ttls)
        slots = threading.Semaphore(MAX_IN_FLIGHT)
        errors: list[StoreUnavailable] = []

        def done(weight: int, _rows: Rows | None, error: StoreUnavailable | None) -> None:
            if error is not None:
                errors.append(error)
            slots.release(weight)

        sizes = _body_sizes(messages)
        ends = [*(first for _, _, first in placed.runs[1:]), len(messages)]
        for (partition, time_bucket, first), end in zip(placed.runs, ends, strict=True):
            for start, stop, weight in _divide_rows(sizes[first:end]):
                for _ in range(weight):
                    self._driver.calls.deadline.wait(slots.acquire)
                if errors:
                    slots.release(weight)
                    break
                request = Encoded(
                    message_codec.INSERT[time_bucket.ttl_class],
                    message_codec.INSERT_VALUE_COUNT,
                    encoded[first + start : first + stop],
                    message_codec.routing_of(qid, partition, time_bucket.code),
                    self._level.writes,
                )
                self._driver.send(request, partial(done, weight))
        for _ in range(MAX_IN_FLIGHT):
            self._driver.calls.deadline.wait(slots.acquire)
        if errors:
            raise errors[0]
        return len(messages)


def stamps_at(now: int, ahead: int, ticks: Integers) -> Integers:
    return (ticks.clip(now, now + ahead) - EPOCH_TICKS) // TICKS_PER_MICROSECOND


def _body_sizes(messages: MessageColumns) -> Integers:
    sizes: Integers = pc.binary_length(messages.batch.column(3)).to_numpy().astype(np.int64)
    return sizes


def find_longest_row(messages: MessageColumns) -> int:
    columns = messages.batch.columns[3:]
    return message_codec.ROW_OVERHEAD_BYTES + sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in columns)


def _choose_width_class(messages: MessageColumns) -> int:
    """Returns the width class: that of dense loads if the time span of the messages would overfill wide buckets."""
    if not messages:
        return bucketing.LOAD_WIDTH
    # A job that loads a few messages with close ids is likely to load the next ones soon.
    span = max(int(np.ptp(messages.ticks)) + 1, bucketing.width(0, bucketing.DENSE_LOAD_WIDTH))
    fill = max(len(messages) / WIDE_ROWS, int(_body_sizes(messages).sum()) / WIDE_BYTES)
    full = fill * bucketing.width(0, bucketing.LOAD_WIDTH) / span > 1
    return bucketing.DENSE_LOAD_WIDTH if full else bucketing.LOAD_WIDTH


def _divide_rows(sizes: Integers) -> list[tuple[int, int, int]]:
    ends = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        first = bounds[-1]
        full = ends[first] - sizes[first] + BATCH_BYTES
        bounds.append(int(min(np.searchsorted(ends, full) + 1, first + BATCH_ROWS, len(sizes))))
    return [
        (first, end, max(1, min(MAX_IN_FLIGHT, int(ends[end - 1] - ends[first] + sizes[first]) // BATCH_BYTES)))
        for first, end in pairwise(bounds)
    ]
