"""Reads whole ranges as Arrow columns: cuts raw Cassandra answers into columns, without an object for each cell.

A :class:`BucketStream` reads one bucket that may hold messages of the range, page by page in the order of ids. It
requests the next page as soon as the end of the present one is known, so the request runs while the present page is
converted. :func:`scan` merges the streams::

    bucket  ──[page]──[page]──►            rows below the lowest end of all pages in memory
    bucket  ────[page]─────────►  ──cut──► are complete: they are sorted, deduplicated and yielded
    bucket         [not begun]──►

This module needs NumPy and Arrow, so only pipelines import it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queuey.model import ids
from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.model.ids import FLIP, LOW_MIN, Position
from queuey.storage.arrow_format import BYTES, SCHEMA, SCHEMA_WITHOUT_BODIES, TEXT, rows_as_bytes
from queuey.storage.cassandra.cluster import Driver, Encoded, Rows, TooManyDead
from queuey.storage.cassandra.read.slice_reads import BucketSource, Extent, Probe, RoundSpan
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.time.bucketing import Bucket

FIRST_ROWS = 64
"""Max rows of the first page of a range, while the size of bodies is unknown."""
PAGE_ROWS = 5_000
PAGE_BYTES = 2 << 20
MAX_GROWTH_RATIO = 16
"""Max ratio of the rows of a page to the rows of the page before."""
MAX_BUCKETS_AHEAD = 4
"""Max buckets that are requested before their rows are needed, if pages are large; otherwise one."""
LARGE = 1000
"""Min rows of a large page."""

_HEAD_BYTES = 16
"""Number of bytes of an answer before its rows."""
_ID_BYTES = 16
_ID_AND_SIZE_BYTES = 24
_EXPIRES_BYTES = 8
_META = len(SCHEMA) - 1
Array = np.ndarray[Any, Any]


class ScanPage(NamedTuple):
    """An answer, and the offsets of its rows.

    Attributes:
        stride: Bytes of a row if the values of all rows have the same lengths; otherwise 0.
    """

    body: bytes
    starts: Array
    stride: int = 0

    @property
    def last(self) -> Position:
        start = int(self.starts[-1])
        return message_codec.position_of(self.body[start + 4 : start + 20])


def page_of(body: bytes, columns: int) -> ScanPage:
    """Finds the rows of an answer (see ``driver.cql.protocol.ROWS``) of ``columns`` columns.

    Raises ValueError if it has another number of columns.
    """
    column_count, count = (int(value) for value in np.frombuffer(body, ">i4", 2, 8))
    if column_count != columns:
        msg = f"{column_count} columns, not {columns}"
        raise ValueError(msg)
    if not count:
        return ScanPage(body, np.empty(0, np.int64))
    stride, remainder = divmod(len(body) - _HEAD_BYTES, count)
    if not remainder and _is_uniform(np.frombuffer(body, np.uint8, offset=_HEAD_BYTES).reshape(count, stride), columns):
        return ScanPage(body, np.arange(count, dtype=np.int64) * stride + _HEAD_BYTES, stride)
    starts = _find_starts_by_ids(body, columns, count)
    return ScanPage(body, np.array(message_codec.find_starts(body, columns), np.int64) if starts is None else starts)


def _find_starts_by_ids(body: bytes, columns: int, count: int) -> Array | None:
    """Finds the starts of rows by the pattern of an id behind its length. Returns None if a value has the pattern, too.

    Only then are the rows walked one by one, because that costs half a microsecond for each.
    """
    octets = np.frombuffer(body, np.uint8)
    ends = np.flatnonzero(octets == _ID_BYTES)
    ends = ends[(octets[ends - 1] | octets[ends - 2] | octets[ends - 3]) == 0]
    starts: Array = ends[octets[np.minimum(ends + 7, len(body) - 1)] >> 4 == 1] - 3
    if len(starts) != count or starts[0] != _HEAD_BYTES:
        return None
    sizes = np.ndarray((len(body) - 3,), ">i4", body, 0, (1,))
    offsets = starts + 4 + _ID_BYTES
    for _ in range(columns - 1):
        offsets = np.minimum(offsets, len(sizes) - 1)
        offsets = offsets + 4 + np.maximum(sizes[offsets], 0)
    return starts if offsets[-1] == len(body) and (offsets[:-1] == starts[1:]).all() else None


def _is_uniform(table: Array, columns: int) -> bool:
    offset = 0
    for _ in range(columns):
        lengths = table[:, offset : offset + 4]
        if lengths.shape[1] < 4 or not (lengths == lengths[0]).all():  # noqa: PLR2004 - bytes of a length
            return False
        offset += 4 + max(0, int.from_bytes(lengths[0].tobytes(), "big", signed=True))
    return offset == int(table.shape[1])


class Columns(NamedTuple):
    """Rows in the order of their ids.

    Attributes:
        ticks, low: The positions of the rows.
        batch: All columns, with the schema ``SCHEMA_WITHOUT_BODIES`` or ``SCHEMA``.
    """

    ticks: Array
    low: Array
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.ticks)

    def count_below(self, position: Position) -> int:
        start, end = np.searchsorted(self.ticks, [position[0], position[0] + 1])
        return int(start + np.searchsorted(self.low[start:end], position[1]))

    def slice(self, start: int, stop: int) -> Columns:
        return Columns(self.ticks[start:stop], self.low[start:stop], self.batch.slice(start, stop - start))


def columns_of(page: ScanPage, *, bodies: bool) -> Columns:
    """Returns the rows of a page as columns, without rows that have lost a value (they are about to expire)."""
    body, starts, stride = page
    if not len(starts):
        return NOTHING[bodies]
    if stride and (columns := _make_uniform_columns(body, len(starts), stride, bodies=bodies)) is not None:
        return columns
    words = np.ndarray((len(body) - 7,), ">u8", body, 0, (1,))
    sizes = np.ndarray((len(body) - 3,), ">i4", body, 0, (1,))
    body_ends = starts + 20
    if bodies:
        lengths = sizes[body_ends].astype(np.int64)
        body_ends = starts + _ID_AND_SIZE_BYTES + np.maximum(lengths, 0)
    whole = sizes[body_ends] == _EXPIRES_BYTES
    kept = whole & (lengths >= 0) if bodies else whole
    if not kept.all():
        starts, body_ends = starts[kept], body_ends[kept]
        if not len(starts):
            return NOTHING[bodies]
    texts = (
        [
            _cut_column(body, starts + _ID_AND_SIZE_BYTES, body_ends),
            _make_metas(body, body_ends + 4 + _EXPIRES_BYTES, sizes),
        ]
        if bodies
        else []
    )
    return _make_columns(words[starts + 4], words[starts + 12], words[body_ends + 4], *texts)


def _make_columns(high: Array, low: Array, expires: Array, *texts: pa.Array) -> Columns:
    high = high.astype(np.uint64)
    ticks = ((high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32).astype(np.int64)
    low = (low.astype(np.uint64) ^ FLIP).view(np.int64)
    columns = [pa.array(ticks), pa.array(low), pa.array(expires.astype(np.int64)), *texts]
    return Columns(ticks, low, pa.RecordBatch.from_arrays(columns, schema=SCHEMA if texts else SCHEMA_WITHOUT_BODIES))


def _make_uniform_columns(body: bytes, count: int, stride: int, *, bodies: bool) -> Columns | None:
    """Returns the columns of rows whose values have the same lengths, or None if a value is missing.

    Each column is a slice of a table, so no row is visited.
    """
    table = np.frombuffer(body, np.uint8, offset=_HEAD_BYTES).reshape(count, stride)

    def length(at: int) -> int:
        return int.from_bytes(table[0, at : at + 4].tobytes(), "big", signed=True)

    def numbers(at: int) -> Array:
        return np.ndarray((count,), ">u8", body, _HEAD_BYTES + at, (stride,))

    size = length(4 + _ID_BYTES) if bodies else 0
    body_end = _ID_AND_SIZE_BYTES + size if bodies else 4 + _ID_BYTES
    if size < 0 or length(body_end) != _EXPIRES_BYTES:
        return None
    fixed = [numbers(4), numbers(12), numbers(body_end + 4).view(">i8")]
    if not bodies:
        return _make_columns(*fixed)
    at = body_end + 4 + _EXPIRES_BYTES
    metas = table[:, at + 4 : at + 4 + max(0, length(at))]
    nothing = metas.shape[1] == 0 or (metas.shape[1] == 1 and not metas.any())
    meta = pa.nulls(count, pa.binary()) if nothing else rows_as_bytes(np.ascontiguousarray(metas))
    if not nothing and metas.shape[1] == 1 and not metas.all():  # Some values are null, although the lengths are equal.
        return None
    return _make_columns(*fixed, rows_as_bytes(np.ascontiguousarray(table[:, _ID_AND_SIZE_BYTES:body_end])), meta)


def _make_metas(body: bytes, offsets: Array, sizes: Array) -> pa.Array:
    lengths = sizes[offsets].astype(np.int64)
    octets = np.frombuffer(body, np.uint8)
    first = octets[np.minimum(offsets + 4, len(body) - 1)]
    nothing = (lengths <= 0) | ((lengths == 1) & (first == 0))
    if nothing.all():
        return pa.nulls(len(offsets), pa.binary())
    return _cut_column(body, offsets + 4, offsets + 4 + np.maximum(lengths, 0), nothing)


def _cut_column(body: bytes, starts: Array, ends: Array, nothing: Array | None = None) -> pa.Array:
    """Returns the pieces of an answer between each start and end as a column.

    Arrow views the whole answer as a column in which these pieces and the gaps between them alternate, and copies every
    other value.
    """
    count = len(starts)
    offsets = np.empty(2 * count, np.int32)
    offsets[::2], offsets[1::2] = starts, ends
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(body)]
    )
    return everything.take(pa.array(np.arange(0, 2 * count, 2), mask=nothing))


NOTHING = {
    bodies: Columns(
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema),
    )
    for bodies, schema in ((False, SCHEMA_WITHOUT_BODIES), (True, SCHEMA))
}


class ScanContext(NamedTuple):
    """What all streams of a range share.

    Attributes:
        key: qid and partition.
        max_bytes: Approximate max body bytes of a page.
        record_empty: Called with each probe that found no row, to remember the empty range.
    """

    driver: Driver
    key: tuple[int, int]
    consistency: str
    bodies: bool
    max_rows: int
    max_bytes: int
    record_empty: Callable[[tuple[int, int], Probe], None] | None = None


class Pace:
    """Chooses how many rows to request, from the size of the rows so far.

    A page with rows changes ``rows``, to at most ``MAX_GROWTH_RATIO`` times as many as before.
    """

    def __init__(self, reading: ScanContext, *, page_bytes: int = PAGE_BYTES) -> None:
        self._most = min(reading.max_rows, PAGE_ROWS)
        self._bytes = min(reading.max_bytes, page_bytes)
        self.rows = min(self._most, FIRST_ROWS) if reading.bodies else self._most

    def record_page(self, page: ScanPage) -> None:
        if len(page.starts):
            fit = self._bytes * len(page.starts) // len(page.body)
            self.rows = max(1, min(self._most, fit, MAX_GROWTH_RATIO * max(self.rows, len(page.starts))))

    def reduce(self, failed: Probe) -> bool:
        """Requests fewer rows after a request failed; bodies may have become larger. Returns False if it was small."""
        if failed.limit <= FIRST_ROWS:
            return False
        self.rows = max(1, failed.limit // MAX_GROWTH_RATIO)
        return True


class BucketStream:
    """Reads one bucket page by page."""

    def __init__(
        self, reading: ScanContext, source: BucketSource, lower: Position, upper: Position, pace: Pace
    ) -> None:
        self._reading = reading
        self._time_bucket: Bucket = source.time_bucket
        self._pace = pace
        self.begin = self._at = max(lower, source.lowest)
        self._upper = min(upper, (source.time_bucket.end, LOW_MIN))
        self._span = RoundSpan()
        self._is_requested = False
        self._answers: SimpleQueue[tuple[Probe, Rows | StoreUnavailable]] = SimpleQueue()
        self._columns = NOTHING[reading.bodies]
        self.end = self._at
        """Position up to which the remaining rows are in memory."""

    @property
    def has_new_ids_only(self) -> bool:
        return self._time_bucket.new_ids_only

    @property
    def is_finished(self) -> bool:
        return self.end >= self._upper and not len(self._columns)

    def ask(self) -> None:
        if self._is_requested or self._at >= self._upper:
            return
        upper = self._upper
        if self._span.ticks:
            upper = min(upper, (self._at[0] + self._span.ticks, LOW_MIN))
        probe = Probe(self._time_bucket, self._at, upper, self._pace.rows, descending=False)
        self._is_requested = True

        def done(found: Rows | None, error: StoreUnavailable | None) -> None:
            self._answers.put((probe, error if error is not None else found or []))

        bucket_key = *self._reading.key, self._time_bucket.code
        statements = message_codec.SELECT_BULK_UP if self._reading.bodies else message_codec.SELECT_BULK_IDS_UP
        values = message_codec.encode_range(
            message_codec.key_of(*bucket_key), probe.lower, ids.preceding(probe.upper), probe.limit
        )
        sent = (
            statements[self._time_bucket.ttl_class],
            message_codec.RANGE_VALUE_COUNT,
            [values],
            message_codec.routing_of(*bucket_key),
        )
        self._reading.driver.send(Encoded(*sent, self._reading.consistency, lambda body: [body]), done)

    def fill(self) -> None:
        while self.end < self._upper and not len(self._columns):
            self.ask()
            self._add_answer(*self._answers.get())

    def _add_answer(self, probe: Probe, answer: Rows | StoreUnavailable) -> None:
        """Adds a page, requests the next, and notes a range that was empty.

        After a failure, requests become smaller; raises if they are small. After too many dead rows, ranges shrink.
        """
        self._is_requested = False
        if isinstance(answer, TooManyDead):
            self._span.narrow([probe])
            return
        if isinstance(answer, StoreUnavailable):
            if isinstance(answer, StoreClosed) or not self._pace.reduce(probe):
                raise answer
            return
        columns = message_codec.COLUMN_COUNT if self._reading.bodies else message_codec.ID_COLUMN_COUNT
        # The rows come decoded if Cassandra has sent a warning with them.
        body = answer[0] if answer and isinstance(answer[0], bytes) else message_codec.pack_rows(answer, columns)
        page = page_of(body, columns)
        self._pace.record_page(page)
        self._span.widen()
        if len(page.starts) < probe.limit:
            self._at = probe.upper
            if not len(page.starts) and self._reading.record_empty is not None:
                self._reading.record_empty(self._reading.key, probe)
        else:
            self._at = ids.following(page.last)
        self.ask()
        self._columns = columns_of(page, bodies=self._reading.bodies)
        self.end = self._at

    def cut(self, position: Position) -> Columns:
        count = self._columns.count_below(position)
        removed, self._columns = self._columns.slice(0, count), self._columns.slice(count, len(self._columns))
        return removed


def scan(reading: ScanContext, extent: Extent, pace: Pace) -> Iterator[tuple[Columns, Position]]:
    """Reads an extent upwards.

    Yields:
        Columns with at least one row, including expired messages, and the position up to which they are complete.
    """
    streams = [BucketStream(reading, source, extent.lower, extent.upper, pace) for source in extent.sources]
    waiting = deque(sorted((stream for stream in streams if not stream.is_finished), key=lambda stream: stream.begin))
    opened: list[BucketStream] = []
    while opened or waiting:
        if not opened:
            opened.append(waiting.popleft())
        needed = _wait_until_filled(opened)
        while waiting and waiting[0].begin < needed:
            opened.append(waiting.popleft())
            needed = _wait_until_filled(opened)
        for stream in islice(waiting, MAX_BUCKETS_AHEAD if pace.rows >= LARGE else 1):
            stream.ask()
        cut = [(stream.has_new_ids_only, stream.cut(needed)) for stream in opened]
        opened = [stream for stream in opened if not stream.is_finished]
        complete = merge([columns for _, columns in sorted(cut, key=lambda pair: pair[0]) if len(columns)])
        if complete is not None:
            yield complete, needed


def _wait_until_filled(opened: Sequence[BucketStream]) -> Position:
    for stream in opened:
        stream.ask()
    for stream in opened:
        stream.fill()
    return min(stream.end for stream in opened)


def merge(parts: Sequence[Columns]) -> Columns | None:
    """Merges parts of one range in the order of ids. If an id is in several parts, the row of the first one counts.

    Returns a single part unchanged, and None without parts.
    """
    if len(parts) < 2:  # noqa: PLR2004 - nothing to be merged
        return parts[0] if parts else None
    ticks, low = np.concatenate([part.ticks for part in parts]), np.concatenate([part.low for part in parts])
    order = np.lexsort((low, ticks))
    ticks, low = ticks[order], low[order]
    new = np.ones(len(order), bool)
    new[1:] = (ticks[1:] != ticks[:-1]) | (low[1:] != low[:-1])
    batch = pa.concat_batches([part.batch for part in parts]).take(pa.array(order[new]))
    return Columns(ticks[new], low[new], batch)


def select_alive(rows: Columns, now: int) -> Columns:
    is_alive = rows.batch.column(2).to_numpy() > now
    if is_alive.all():
        return rows
    return Columns(rows.ticks[is_alive], rows.low[is_alive], rows.batch.filter(pa.array(is_alive)))


def find_named(columns: Columns) -> dict[int, tuple[str | None, bytes]]:
    """Returns the name, and ``meta`` without the name, of each row that was written as the value of a name."""
    if columns.batch.num_columns < len(SCHEMA):
        return {}
    metas = columns.batch.column(_META)
    if metas.null_count == len(metas):
        return {}
    marked = pc.fill_null(pc.greater(pc.binary_slice(metas, 0, 1), BYTES), False)  # noqa: FBT003 - Arrow's
    rows = np.flatnonzero(marked.to_numpy(zero_copy_only=False))
    return {int(row): message_codec.split_name(metas[int(row)].as_py()) for row in rows}


def select_shown(rows: Columns, marked: dict[int, tuple[str | None, bytes]], shown: set[int]) -> Columns:
    metas = rows.batch.column(_META).to_pylist()
    for row, (_, meta) in marked.items():
        metas[row] = None if meta == TEXT else meta
    columns = [*rows.batch.columns[:_META], pa.array(metas, pa.binary())]
    is_shown = np.ones(len(rows), bool)
    is_shown[[row for row in marked if row not in shown]] = False
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA).filter(pa.array(is_shown))
    return Columns(rows.ticks[is_shown], rows.low[is_shown], batch)
