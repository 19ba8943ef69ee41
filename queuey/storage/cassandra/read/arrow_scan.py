"""Whole ranges as Arrow columns: raw answers of Cassandra are cut into columns without an object for each cell.

Every bucket that may hold a message of the range is read by a :class:`Stream`, page by page in the order of ids; the
next page is asked for as soon as it is known where the present one ends, and is on its way while that is converted.
:func:`scan` puts the streams together::

    bucket  ──[page]──[page]──►            what lies below the lowest end of all pages at hand
    bucket  ────[page]─────────►  ──cut──► is complete: it is sorted, each id taken once, and given out
    bucket         [not begun]──►

NumPy and Arrow are needed here and nowhere else in the store, so only pipelines import this module.
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

from queuey import ids
from queuey.errors import StoreClosed, StoreUnavailable
from queuey.ids import FLIP, LOW_MIN, Position
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.driver import Driver, Encoded, Rows, TooManyDead
from queuey.storage.cassandra.read.reading import BucketSource, Extent, Probe, Span
from queuey.storage.columns import BYTES, PLACES, SCHEMA, TEXT, rows_as_bytes

FIRST_ROWS = 64
"""Max rows of the first page of a range, when nothing is known of how large bodies are."""
PAGE_ROWS = 5_000
PAGE_BYTES = 2 << 20
GROWTH = 16
"""Max ratio of the rows of a page to those of the one before."""
AHEAD = 4
"""Max buckets that are begun before anything of them is needed, where pages are large; else one."""
LARGE = 1000
"""Min rows of a large page."""

_HEAD = 16
"""Number of bytes of an answer before its rows."""
_ID = 16
_ID_AND_SIZE = 24
_EXPIRES = 8
_META = len(SCHEMA) - 1
Array = np.ndarray[Any, Any]


class ScanPage(NamedTuple):
    """An answer, and where its rows begin in it.

    Attributes:
        stride: The bytes of a row, if all rows have values of the same lengths; else 0.
    """

    body: bytes
    starts: Array
    stride: int = 0

    @property
    def last(self) -> Position:
        at = int(self.starts[-1])
        return message_codec.position_of(self.body[at + 4 : at + 20])


def page_of(body: bytes, columns: int) -> ScanPage:
    """Finds the rows of an answer (see ``driver.cql.protocol.ROWS``) of ``columns`` columns."""
    found, count = (int(value) for value in np.frombuffer(body, ">i4", 2, 8))
    if found != columns:
        msg = f"{found} columns, not {columns}"
        raise ValueError(msg)
    if not count:
        return ScanPage(body, np.empty(0, np.int64))
    stride, rest = divmod(len(body) - _HEAD, count)
    if not rest and _alike(np.frombuffer(body, np.uint8, offset=_HEAD).reshape(count, stride), columns):
        return ScanPage(body, np.arange(count, dtype=np.int64) * stride + _HEAD, stride)
    starts = _starts_by_ids(body, columns, count)
    return ScanPage(body, np.array(message_codec.starts(body, columns), np.int64) if starts is None else starts)


def _starts_by_ids(body: bytes, columns: int, count: int) -> Array | None:
    """Finds where rows begin by what looks like an id behind its length; None if a value looks like that, too.

    The rows are followed one by one only where this fails, because each of them costs half a microsecond then.
    """
    octets = np.frombuffer(body, np.uint8)
    ends = np.flatnonzero(octets == _ID)
    ends = ends[(octets[ends - 1] | octets[ends - 2] | octets[ends - 3]) == 0]
    starts: Array = ends[octets[np.minimum(ends + 7, len(body) - 1)] >> 4 == 1] - 3
    if len(starts) != count or starts[0] != _HEAD:
        return None
    sizes = np.ndarray((len(body) - 3,), ">i4", body, 0, (1,))
    at = starts + 4 + _ID
    for _ in range(columns - 1):
        at = np.minimum(at, len(sizes) - 1)
        at = at + 4 + np.maximum(sizes[at], 0)
    return starts if at[-1] == len(body) and (at[:-1] == starts[1:]).all() else None


def _alike(table: Array, columns: int) -> bool:
    """Returns whether rows that might be of equal size are: each value has the length that it has in the first row."""
    at = 0
    for _ in range(columns):
        lengths = table[:, at : at + 4]
        if lengths.shape[1] < 4 or not (lengths == lengths[0]).all():  # noqa: PLR2004 - bytes of a length
            return False
        at += 4 + max(0, int.from_bytes(lengths[0].tobytes(), "big", signed=True))
    return at == int(table.shape[1])


class Columns(NamedTuple):
    """Rows in the order of their ids.

    Attributes:
        ticks, low: Their positions.
        batch: All columns, of ``PLACES`` or ``SCHEMA``.
    """

    ticks: Array
    low: Array
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.ticks)

    def below(self, position: Position) -> int:
        at, end = np.searchsorted(self.ticks, [position[0], position[0] + 1])
        return int(at + np.searchsorted(self.low[at:end], position[1]))

    def slice(self, start: int, stop: int) -> Columns:
        """Returns some of them, without copying anything."""
        return Columns(self.ticks[start:stop], self.low[start:stop], self.batch.slice(start, stop - start))


def columns_of(page: ScanPage, *, bodies: bool) -> Columns:
    """Returns the rows of a page as columns, without those that have lost a value (they are about to end)."""
    body, starts, stride = page
    if not len(starts):
        return NOTHING[bodies]
    if stride and (found := _columns_alike(body, len(starts), stride, bodies=bodies)) is not None:
        return found
    words = np.ndarray((len(body) - 7,), ">u8", body, 0, (1,))
    sizes = np.ndarray((len(body) - 3,), ">i4", body, 0, (1,))
    after = starts + 20
    if bodies:
        lengths = sizes[after].astype(np.int64)
        after = starts + _ID_AND_SIZE + np.maximum(lengths, 0)
    whole = sizes[after] == _EXPIRES
    kept = whole & (lengths >= 0) if bodies else whole
    if not kept.all():
        starts, after = starts[kept], after[kept]
        if not len(starts):
            return NOTHING[bodies]
    texts = [_cut(body, starts + _ID_AND_SIZE, after), _metas(body, after + 4 + _EXPIRES, sizes)] if bodies else []
    return _columns(words[starts + 4], words[starts + 12], words[after + 4], *texts)


def _columns(high: Array, low: Array, expires: Array, *texts: pa.Array) -> Columns:
    high = high.astype(np.uint64)
    ticks = ((high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32).astype(np.int64)
    low = (low.astype(np.uint64) ^ FLIP).view(np.int64)
    columns = [pa.array(ticks), pa.array(low), pa.array(expires.astype(np.int64)), *texts]
    return Columns(ticks, low, pa.RecordBatch.from_arrays(columns, schema=SCHEMA if texts else PLACES))


def _columns_alike(body: bytes, count: int, stride: int, *, bodies: bool) -> Columns | None:
    """Returns the columns of rows whose values have the same lengths; None where a value is missing.

    Nothing is looked up row by row: a column is a slice of a table.
    """
    table = np.frombuffer(body, np.uint8, offset=_HEAD).reshape(count, stride)

    def length(at: int) -> int:
        return int.from_bytes(table[0, at : at + 4].tobytes(), "big", signed=True)

    def numbers(at: int) -> Array:
        return np.ndarray((count,), ">u8", body, _HEAD + at, (stride,))

    size = length(4 + _ID) if bodies else 0
    after = _ID_AND_SIZE + size if bodies else 4 + _ID
    if size < 0 or length(after) != _EXPIRES:
        return None
    found = [numbers(4), numbers(12), numbers(after + 4).view(">i8")]
    if not bodies:
        return _columns(*found)
    at = after + 4 + _EXPIRES
    metas = table[:, at + 4 : at + 4 + max(0, length(at))]
    nothing = metas.shape[1] == 0 or (metas.shape[1] == 1 and not metas.any())
    meta = pa.nulls(count, pa.binary()) if nothing else rows_as_bytes(np.ascontiguousarray(metas))
    if not nothing and metas.shape[1] == 1 and not metas.all():  # Some are null, which the lengths do not say.
        return None
    return _columns(*found, rows_as_bytes(np.ascontiguousarray(table[:, _ID_AND_SIZE:after])), meta)


def _metas(body: bytes, at: Array, sizes: Array) -> pa.Array:
    """Returns the column ``meta``; what says no more than that a body is text is null."""
    lengths = sizes[at].astype(np.int64)
    octets = np.frombuffer(body, np.uint8)
    first = octets[np.minimum(at + 4, len(body) - 1)]
    nothing = (lengths <= 0) | ((lengths == 1) & (first == 0))
    if nothing.all():
        return pa.nulls(len(at), pa.binary())
    return _cut(body, at + 4, at + 4 + np.maximum(lengths, 0), nothing)


def _cut(body: bytes, starts: Array, ends: Array, nothing: Array | None = None) -> pa.Array:
    """Returns pieces of an answer as a column: those between each start and end, in their order.

    Arrow is shown the whole answer as a column in which these take turns with what lies between them, and copies every
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
    for bodies, schema in ((False, PLACES), (True, SCHEMA))
}


class ScanContext(NamedTuple):
    """The common part of all streams of a range.

    Attributes:
        driver: The way to Cassandra.
        key: qid and partition.
        consistency: The queue's read level.
        bodies: They are read too.
        most_rows: A page has no more.
        most_bytes: Max bytes of bodies of a page, about.
        note: Called with each probe that found no row at all, to be cached.
    """

    driver: Driver
    key: tuple[int, int]
    consistency: str
    bodies: bool
    most_rows: int
    most_bytes: int
    note: Callable[[tuple[int, int], Probe], None] | None = None


class Pace:
    """How many rows to ask for: as many as fit, as far as is known by now."""

    def __init__(self, reading: ScanContext, *, page_bytes: int = PAGE_BYTES) -> None:
        self._most = min(reading.most_rows, PAGE_ROWS)
        self._bytes = min(reading.most_bytes, page_bytes)
        self.rows = min(self._most, FIRST_ROWS) if reading.bodies else self._most

    def note(self, page: ScanPage) -> None:
        if len(page.starts):
            fit = self._bytes * len(page.starts) // len(page.body)
            self.rows = max(1, min(self._most, fit, GROWTH * max(self.rows, len(page.starts))))

    def eases(self, failed: Probe) -> bool:
        """Asks for less after a failure, if it was for much: bodies may have become larger all of a sudden."""
        if failed.limit <= FIRST_ROWS:
            return False
        self.rows = max(1, failed.limit // GROWTH)
        return True


class Stream:
    """One bucket, page by page."""

    def __init__(
        self, reading: ScanContext, source: BucketSource, lower: Position, upper: Position, pace: Pace
    ) -> None:
        self._reading = reading
        self._place: Bucket = source.time_bucket
        self._pace = pace
        self.begin = self._at = max(lower, source.lowest)
        self._upper = min(upper, (source.time_bucket.end, LOW_MIN))
        self._span = Span()
        self._asked = False
        self._answers: SimpleQueue[tuple[Probe, Rows | StoreUnavailable]] = SimpleQueue()
        self._columns = NOTHING[reading.bodies]
        self.end = self._at
        """Up to here the rest of it is in memory."""

    @property
    def minted(self) -> bool:
        """True: rows that were put count more than those found here."""
        return self._place.new_ids_only

    @property
    def finished(self) -> bool:
        return self.end >= self._upper and not len(self._columns)

    def ask(self) -> None:
        if self._asked or self._at >= self._upper:
            return
        upper = self._upper
        if self._span.ticks:
            upper = min(upper, (self._at[0] + self._span.ticks, LOW_MIN))
        probe = Probe(self._place, self._at, upper, self._pace.rows, descending=False)
        self._asked = True

        def done(found: Rows | None, error: StoreUnavailable | None) -> None:
            self._answers.put((probe, error if error is not None else found or []))

        where = *self._reading.key, self._place.bucket
        statements = message_codec.BULK_UP if self._reading.bodies else message_codec.BULK_IDS_UP
        values = message_codec.encoded_range(
            message_codec.key_of(*where), probe.lower, ids.preceding(probe.upper), probe.limit
        )
        sent = statements[self._place.ttl_class], message_codec.RANGED, [values], message_codec.routing_of(*where)
        self._reading.driver.send(Encoded(*sent, self._reading.consistency, lambda body: [body]), done)

    def fill(self) -> None:
        while self.end < self._upper and not len(self._columns):
            self.ask()
            self._take(*self._answers.get())

    def _take(self, probe: Probe, answer: Rows | StoreUnavailable) -> None:
        self._asked = False
        if isinstance(answer, TooManyDead):
            self._span.narrow([probe])
            return
        if isinstance(answer, StoreUnavailable):
            if isinstance(answer, StoreClosed) or not self._pace.eases(probe):
                raise answer
            return
        columns = message_codec.COLUMNS if self._reading.bodies else message_codec.ID_COLUMNS
        # The driver gives rows; it is used when something went wrong, and not often.
        body = answer[0] if answer and isinstance(answer[0], bytes) else message_codec.packed(answer, columns)
        page = page_of(body, columns)
        self._pace.note(page)
        self._span.widen()
        if len(page.starts) < probe.limit:
            self._at = probe.upper
            if not len(page.starts) and self._reading.note is not None:
                self._reading.note(self._reading.key, probe)
        else:
            self._at = ids.following(page.last)
        self.ask()
        self._columns = columns_of(page, bodies=self._reading.bodies)
        self.end = self._at

    def cut(self, position: Position) -> Columns:
        """Removes and returns what lies below a position, up to which the stream is filled."""
        count = self._columns.below(position)
        found, self._columns = self._columns.slice(0, count), self._columns.slice(count, len(self._columns))
        return found


def scan(reading: ScanContext, extent: Extent, pace: Pace) -> Iterator[tuple[Columns, Position]]:
    """Reads an extent upwards.

    Yields:
        Columns of any size but 0, with messages that have expired among them; and up to where nothing is missing.
    """
    streams = [Stream(reading, source, extent.lower, extent.upper, pace) for source in extent.sources]
    waiting = deque(sorted((stream for stream in streams if not stream.finished), key=lambda stream: stream.begin))
    opened: list[Stream] = []
    while opened or waiting:
        if not opened:
            opened.append(waiting.popleft())
        needed = _filled(opened)
        while waiting and waiting[0].begin < needed:
            opened.append(waiting.popleft())
            needed = _filled(opened)
        for stream in islice(waiting, AHEAD if pace.rows >= LARGE else 1):
            stream.ask()
        cut = [(stream.minted, stream.cut(needed)) for stream in opened]
        opened = [stream for stream in opened if not stream.finished]
        found = merged([columns for _, columns in sorted(cut, key=lambda pair: pair[0]) if len(columns)])
        if found is not None:
            yield found, needed


def _filled(opened: Sequence[Stream]) -> Position:
    """Sees to it that streams have something at hand; returns up to where all of them are complete."""
    for stream in opened:
        stream.ask()
    for stream in opened:
        stream.fill()
    return min(stream.end for stream in opened)


def merged(parts: Sequence[Columns]) -> Columns | None:
    """Puts parts of one range together in the order of ids; of rows with one id that of the first part counts."""
    if len(parts) < 2:  # noqa: PLR2004 - nothing to be merged
        return parts[0] if parts else None
    ticks, low = np.concatenate([part.ticks for part in parts]), np.concatenate([part.low for part in parts])
    order = np.lexsort((low, ticks))
    ticks, low = ticks[order], low[order]
    new = np.ones(len(order), bool)
    new[1:] = (ticks[1:] != ticks[:-1]) | (low[1:] != low[:-1])
    batch = pa.concat_batches([part.batch for part in parts]).take(pa.array(order[new]))
    return Columns(ticks[new], low[new], batch)


def alive(found: Columns, now: int) -> Columns:
    left = found.batch.column(2).to_numpy() > now
    if left.all():
        return found
    return Columns(found.ticks[left], found.low[left], found.batch.filter(pa.array(left)))


def named(found: Columns) -> dict[int, tuple[str | None, bytes]]:
    """Returns of each row that was written as the value of a name: the name, and ``meta`` without it."""
    if found.batch.num_columns < len(SCHEMA):
        return {}
    metas = found.batch.column(_META)
    if metas.null_count == len(metas):
        return {}
    marked = pc.fill_null(pc.greater(pc.binary_slice(metas, 0, 1), BYTES), False)  # noqa: FBT003 - Arrow's
    rows = np.flatnonzero(marked.to_numpy(zero_copy_only=False))
    return {int(row): message_codec.unmarked(metas[int(row)].as_py()) for row in rows}


def unnamed(found: Columns, marked: dict[int, tuple[str | None, bytes]], shown: set[int]) -> Columns:
    """Returns the rows with the columns that users know, without those with names that are not shown."""
    metas = found.batch.column(_META).to_pylist()
    for row, (_, meta) in marked.items():
        metas[row] = None if meta == TEXT else meta
    columns = [*found.batch.columns[:_META], pa.array(metas, pa.binary())]
    left = np.ones(len(found), bool)
    left[[row for row in marked if row not in shown]] = False
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA).filter(pa.array(left))
    return Columns(found.ticks[left], found.low[left], batch)
