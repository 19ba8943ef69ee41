"""Ranges as Arrow columns: answers taken apart, and buckets put together."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import LOW_MIN, Position
from queuey.messages import Message, Meta, NewMessage
from queuey.storage import columns
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.bucketing import PUT, Bucket
from queuey.storage.cassandra.driver import Encoded, TooManyDead, fast_path
from queuey.storage.cassandra.read import arrow_scan
from queuey.storage.cassandra.read.reading import Extent, Probe
from tests import strategies
from tests.cassandra.scripted import AnsweringDriver
from tests.replacing import replace
from tests.unit.cassandra.read.test_reading import END, NOW, START, Partition, partitions, place_at, positions
from tests.unit.cassandra.test_message_codec import answer_of, longs, metas

SOME = st.lists(
    st.tuples(strategies.positions(), strategies.bodies() | st.just("same"), st.none() | metas, longs), max_size=8
)


def cells(message: tuple[Position, str | bytes, Meta | None, int]) -> tuple[bytes, bytes, bytes, bytes | None]:
    """The serialized columns of a message."""
    position, body, meta, expires = message
    data, column = message_codec.encode(body, meta)
    kept = column if isinstance(column, bytes) else None
    return message_codec.id_bytes(*position), data, expires.to_bytes(8, "big", signed=True), kept


def taken_apart(answer: bytes, *, bodies: bool) -> pa.RecordBatch:
    """An answer's columns."""
    page = arrow_scan.page_of(answer, message_codec.COLUMNS if bodies else message_codec.ID_COLUMNS)
    return arrow_scan.columns_of(page, bodies=bodies).batch


@given(SOME, st.booleans())
def test_an_answer_gives_its_columns(
    found: list[tuple[Position, str | bytes, Meta | None, int]],
    explicit: bool,  # noqa: FBT001 - hypothesis passes it
) -> None:
    """Whatever sizes the rows have, the columns are those of the messages; what says nothing but text is null."""
    every = [cells(one) for one in found]
    if explicit:
        every = [(*one[:3], b"\0" if one[3] is None else one[3]) for one in every]
    messages = [Message(*position, 1, expires, body, meta) for position, body, meta, expires in found]
    assert taken_apart(answer_of(list(every)), bodies=True) == columns.batch_of(messages)
    pairs: list[tuple[bytes | None, ...]] = [(one[0], one[2]) for one in every]
    batch = taken_apart(answer_of(pairs, message_codec.ID_COLUMNS), bodies=False)
    assert batch == columns.batch_of(messages, bodies=False)


@given(
    SOME, st.lists(st.tuples(st.integers(0, 8), st.integers(1, 2), strategies.positions(), st.none() | st.just(b"\1")))
)
def test_rows_that_lack_values_are_left_out(
    found: list[tuple[Position, str | bytes, Meta | None, int]], lost: list[tuple[int, int, Position, bytes | None]]
) -> None:
    """A row whose body or end is gone is no message, wherever it stands, but the page may end with it."""
    every: list[tuple[bytes | None, ...]] = [cells(one) for one in found]
    for at, missing, position, meta in lost:
        row = [message_codec.id_bytes(*position), b"body", bytes(8), meta]
        row[missing] = None
        every.insert(at, tuple(row))
    messages = [Message(*position, 1, expires, body, meta) for position, body, meta, expires in found]
    answer = answer_of(every)
    assert taken_apart(answer, bodies=True) == columns.batch_of(messages)
    if every:
        assert arrow_scan.page_of(answer, message_codec.COLUMNS).last == message_codec.position_of(
            cast("bytes", every[-1][0])
        )
    pairs: list[tuple[bytes | None, ...]] = [(row[0], row[2]) for row in every]
    whole = [row for row in pairs if row[1] is not None]
    only = taken_apart(answer_of(pairs, message_codec.ID_COLUMNS), bodies=False)
    assert only == taken_apart(answer_of(whole, message_codec.ID_COLUMNS), bodies=False)


@given(
    st.lists(
        st.tuples(
            strategies.positions(),
            strategies.bodies(),
            st.none() | metas,
            longs,
            st.sampled_from(["", "a", "é"]),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_values_of_names(found: list[tuple[Position, str | bytes, Meta | None, int, str, bool]]) -> None:
    """Rows with names are told apart, and are without their marks as others; those that are not shown are left out."""
    every: list[tuple[bytes | None, ...]] = []
    for position, body, meta, expires, name, _ in found:
        marked = message_codec.named(NewMessage(body, 1, 1, meta), name).meta if name else meta
        every.append(cells((position, body, marked, expires)))
    whole = arrow_scan.columns_of(arrow_scan.page_of(answer_of(every), message_codec.COLUMNS), bodies=True)
    named = arrow_scan.named(whole)
    assert {row: name for row, (name, _) in named.items()} == {row: one[4] for row, one in enumerate(found) if one[4]}
    left = arrow_scan.unnamed(whole, named, {row for row in named if found[row][5]})
    messages = [
        Message(*position, 1, expires, body, meta)
        for position, body, meta, expires, name, is_shown in found
        if is_shown or not name
    ]
    assert left.batch == columns.batch_of(messages)
    assert [(int(ticks), int(low)) for ticks, low in zip(left.ticks, left.low, strict=True)] == [
        message.position for message in messages
    ]


@given(SOME)
def test_rows_of_the_drivers_own_way(found: list[tuple[Position, str | bytes, Meta | None, int]]) -> None:
    """Rows that came decoded, because something went wrong, become the answer that they were."""
    decoded = []
    for one in found:
        key, body, _, meta = cells(one)
        decoded.append((UUID(bytes=key), body, one[3], meta))
    assert message_codec.packed(decoded, message_codec.COLUMNS) == answer_of([cells(one) for one in found])


def test_an_answer_of_another_shape() -> None:
    """An answer that does not have the columns that were asked for is not read as if it had."""
    with pytest.raises(ValueError, match="2 columns"):
        arrow_scan.page_of(answer_of([(bytes(16), bytes(8))], message_codec.ID_COLUMNS), message_codec.COLUMNS)


class Places(AnsweringDriver):
    """Stands in for the driver: answers at once, out of a partition that lies in memory.

    Args:
        partition: What there is.
        decoded: Answers as the driver's own way does.
    """

    def __init__(self, partition: Partition, *, decoded: bool = False) -> None:
        super().__init__()
        self.partition = partition
        self.decoded = decoded
        self.asked: list[Probe] = []
        self.most = 1 << 30
        """Rows that may be asked for without a failure."""

    def answer(self, request: Encoded) -> list[Any]:
        """Answers reads."""
        assert request.consistency == "QUORUM"
        assert request.decode is not None
        bodies = request.statement in message_codec.BULK_UP
        kind = (message_codec.BULK_UP if bodies else message_codec.BULK_IDS_UP).index(request.statement)
        _, _, bucket, first, last, limit = fast_path.values_of(request.rows[0])
        time_bucket = Bucket(kind, int.from_bytes(bucket, "big", signed=True))
        upper = ids.following(message_codec.position_of(last))
        probe = Probe(
            time_bucket, message_codec.position_of(first), upper, int.from_bytes(limit, "big"), descending=False
        )
        self.asked.append(probe)
        if probe.limit > self.most:
            raise StoreUnavailable("too slow")
        if self.partition.refuses(probe):
            raise TooManyDead("too many")
        found = [row if bodies else (row[0], row[2]) for row in self.partition.answer(probe)]
        rows = [(UUID(bytes=row[0]), *row[1:]) for row in found]
        return rows if self.decoded else request.decode(message_codec.packed(rows, 4 if bodies else 2))


def scanned(
    time_buckets: Places,
    bounds: tuple[Position, Position],
    *,
    rows_of_page: int,
    bodies: bool = True,
    page_bytes: int = arrow_scan.PAGE_BYTES,
) -> list[tuple[Position, str]]:
    """Everything between two positions, as a scan gives it; bodies empty where they are not read."""
    extent = Extent(
        [time_buckets.partition.source(time_bucket) for time_bucket in time_buckets.partition.time_buckets],
        *bounds,
        complete=True,
    )
    reading = arrow_scan.ScanContext(time_buckets, (1, 1), "QUORUM", bodies, rows_of_page, 1 << 20)
    found: list[tuple[Position, str]] = []
    before = bounds[0]
    for some, end in arrow_scan.scan(reading, extent, arrow_scan.Pace(reading, page_bytes=page_bytes)):
        left = arrow_scan.alive(some, NOW).batch
        texts = left.column("body").to_pylist() if bodies else [b""] * len(left)
        ticks, low = left.column("ticks").to_pylist(), left.column("low").to_pylist()
        new = [((at, half), text.decode()) for at, half, text in zip(ticks, low, texts, strict=True)]
        assert all(before <= position < end for position, _ in new), "between the end before and this one"
        before = end
        found += new
    assert before <= bounds[1]
    return found


@given(partitions(), positions(), positions() | st.just(END), st.integers(1, 20), st.booleans(), st.booleans())
def test_a_scan_gives_all_live_messages_in_order_once(
    partition: Partition,
    one: Position,
    other: Position,
    rows_of_page: int,
    bodies: bool,  # noqa: FBT001 - hypothesis passes it
    decoded: bool,  # noqa: FBT001
) -> None:
    """From any buckets, by pages of any size: each message once, in order; of two with one id the one that was put."""
    bounds = min(one, other), max(one, other)
    found = scanned(Places(partition, decoded=decoded), bounds, rows_of_page=rows_of_page, bodies=bodies)
    expected = partition.expected(*bounds)
    assert found == (expected if bodies else [(position, "") for position, _ in expected])


def crowded(count: int) -> Partition:
    """A narrow bucket with a message a second, half of them dead."""
    partition = Partition()
    for number in range(count):
        at = START + number * ids.TICKS_PER_SECOND
        partition.add(place_at(START), (at, 0), f"{number}", None if number % 2 else NOW + 1)
    return partition


def test_too_many_dead_rows() -> None:
    """Where a probe would pass too many dead rows less is asked for at a time, and everything is found nevertheless."""
    partition = crowded(200)
    partition.most_dead = 9
    time_buckets = Places(partition)
    bounds = (START, LOW_MIN), (START + 200 * ids.TICKS_PER_SECOND, LOW_MIN)
    assert scanned(time_buckets, bounds, rows_of_page=50) == partition.expected(*bounds)
    assert len(time_buckets.asked) < 60
    partition.most_dead = 0
    partition.add(place_at(START), (START + ids.TICKS_PER_SECOND, 1), "dead", None)
    with pytest.raises(StoreUnavailable, match="at one instant"):
        scanned(Places(partition), bounds, rows_of_page=50)


def test_a_page_is_asked_for_before_the_one_before_is_converted() -> None:
    """As soon as it is known where a page ends the next is requested, also of the next bucket, before it is needed."""
    partition = crowded(100)
    later = place_at(START + 30 * 24 * 3600 * ids.TICKS_PER_SECOND)
    partition.add(later, (later.start, 0), "later")
    time_buckets = Places(partition)
    asked: list[int] = []
    convert = arrow_scan.columns_of

    def noting(page: arrow_scan.ScanPage, *, bodies: bool) -> arrow_scan.Columns:
        asked.append(len(time_buckets.asked))
        return convert(page, bodies=bodies)

    with replace(convert, noting):
        found = scanned(time_buckets, ((START, LOW_MIN), (later.end, LOW_MIN)), rows_of_page=10)
    assert len(found) == 51
    assert asked[:3] == [2, 4, 5]


def test_pages_follow_the_size_of_bodies() -> None:
    """A page has as many rows as fit; of small ones many, of large ones few, and never more than were asked for."""
    partition = Partition()
    time_bucket = place_at(START, PUT)
    for number in range(600):
        partition.add(time_bucket, (START + number, 0), "x" * (100_000 if 300 < number < 310 else 10))
    time_buckets = Places(partition)
    scanned(time_buckets, ((START, LOW_MIN), END), rows_of_page=500, page_bytes=20_000)
    limits = [probe.limit for probe in time_buckets.asked]
    assert limits[0] == arrow_scan.FIRST_ROWS
    assert max(limits) <= 500
    assert limits[1] > 2 * limits[0]
    assert min(limits) <= 8


def test_what_fails_is_asked_for_in_smaller_pages() -> None:
    """Where a large page fails smaller ones may not; where those fail too the range cannot be read now."""
    partition = crowded(300)
    time_buckets = Places(partition)
    time_buckets.most = 20
    bounds = (START, LOW_MIN), END
    assert scanned(time_buckets, bounds, rows_of_page=250, bodies=False) == [
        (position, "") for position, _ in partition.expected(*bounds)
    ]
    assert sum(probe.limit > 20 for probe in time_buckets.asked) <= 3 * len(time_buckets.asked) // 4
    time_buckets.most = 0
    with pytest.raises(StoreUnavailable, match="too slow"):
        scanned(time_buckets, bounds, rows_of_page=250)
