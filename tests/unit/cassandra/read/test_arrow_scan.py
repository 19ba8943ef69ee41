"""Ranges as Arrow columns: answers taken apart, and buckets put together."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import LOW_MIN, Position
from queuey.messages import Message, Meta, NewMessage
from queuey.storage import columns
from queuey.storage.cassandra import bucketing, message_codec
from queuey.storage.cassandra.bucketing import PUT
from queuey.storage.cassandra.driver import TooManyDead, fast_path
from queuey.storage.cassandra.read import arrow_scan
from queuey.storage.cassandra.read.reading import Extent
from tests import strategies
from tests.sim.cassandra import cql
from tests.sim.cassandra.cql import Cell, Row
from tests.unit.cassandra.read.partitions import END, HOUR, NOW, START, Partition, partitions, place_at, positions
from tests.unit.cassandra.simulated import CalmDriver
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


@given(partitions(), positions(), positions() | st.just(END), st.integers(1, 200), st.booleans())
@settings(max_examples=30)
def test_a_scan_gives_all_live_messages_in_order_once(
    partition: Partition,
    one: Position,
    other: Position,
    rows_of_page: int,
    bodies: bool,  # noqa: FBT001 - hypothesis passes it
) -> None:
    """From any buckets, by pages of any size: each message once, in order; of two with one id the one that was put."""
    bounds = min(one, other), max(one, other)
    driver = holding(partition)
    driver.fail = too_much
    expected = partition.expected(*bounds)
    assert scanned(driver, partition, bounds, rows_of_page, bodies=bodies) == (
        expected if bodies else [(position, "") for position, _ in expected]
    )


def test_pages_follow_the_size_of_bodies() -> None:
    """A page has as many rows as fit: of small ones many, of large ones few, and never more than were asked for."""
    partition, bounds = Partition(), ((START, LOW_MIN), END)
    for number in range(600):
        partition.add(place_at(START, PUT), (START + number, 0), "x" * (100_000 if 300 < number < 310 else 10))
    driver = holding(partition)
    scanned(driver, partition, bounds, 500, page_bytes=20_000)
    limits = [limit_of(request) for request in driver.sent]
    assert limits[0] == arrow_scan.FIRST_ROWS
    assert max(limits) <= 500
    assert limits[1] > 2 * limits[0]
    assert min(limits) <= 8
    driver.fail = lambda _request: StoreUnavailable("away")
    with pytest.raises(StoreUnavailable, match="away"):
        scanned(driver, partition, bounds, 500)


def holding(partition: Partition) -> CalmDriver:
    """A driver whose cluster holds a partition."""
    driver = CalmDriver()
    driver.world.now = (NOW - ids.EPOCH_TICKS) / ids.TICKS_PER_SECOND
    for time_bucket, rows in partition.time_buckets.items():
        for at, (_, body, expires, meta) in rows.items():
            given = {"body": body, "expires": expires, "meta": meta}
            cells = {name: Cell(1, value) for name, value in given.items() if value is not None}
            row = cql.Partition(rows={(message_codec.uuid_of(at),): Row(marker=Cell(1, ""), cells=cells)})
            place = f"messages_{bucketing.NAMES[time_bucket.ttl_class]}", (7, 1, time_bucket.bucket)
            for node in driver.cluster.nodes:
                node.data[place].absorb(row)
    return driver


def too_much(request: Any) -> StoreUnavailable | None:  # noqa: ANN401 - an encoded request
    """Has large pages of bodies be too slow, and ids of many hours be among too many dead rows."""
    if "body" in request.statement.cql:
        return StoreUnavailable("too slow") if limit_of(request) > arrow_scan.FIRST_ROWS else None
    low, high = (message_codec.position_of(value)[0] for value in fast_path.values_of(request.rows[0])[3:5])
    return TooManyDead("too many") if high - low > HOUR else None


def limit_of(request: Any) -> int:  # noqa: ANN401 - an encoded request
    """How many rows a request asks for."""
    return int.from_bytes(fast_path.values_of(request.rows[0])[-1], "big")


def scanned(
    driver: CalmDriver,
    partition: Partition,
    bounds: tuple[Position, Position],
    rows_of_page: int,
    *,
    bodies: bool = True,
    page_bytes: int = arrow_scan.PAGE_BYTES,
) -> list[tuple[Position, str]]:
    """Everything between two positions, as a scan gives it; bodies empty where they are not read."""
    sources = [partition.source(time_bucket) for time_bucket in partition.time_buckets]
    context = arrow_scan.ScanContext(driver, (7, 1), "QUORUM", bodies, rows_of_page, 1 << 20)
    found: list[tuple[Position, str]] = []
    before = bounds[0]
    pace = arrow_scan.Pace(context, page_bytes=page_bytes)
    for some, end in arrow_scan.scan(context, Extent(sources, *bounds, complete=True), pace):
        left = arrow_scan.alive(some, NOW).batch
        texts = left.column("body").to_pylist() if bodies else [b""] * len(left)
        ticks, low = left.column("ticks").to_pylist(), left.column("low").to_pylist()
        new = [((at, half), text.decode()) for at, half, text in zip(ticks, low, texts, strict=True)]
        assert all(before <= position < end for position, _ in new), "between the end before and this one"
        before = end
        found += new
    return found
