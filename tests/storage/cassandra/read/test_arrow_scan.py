"""Tests of ranges as Arrow columns: decoding answers, and merging buckets."""

from __future__ import annotations

from typing import cast
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuey.model.errors import StoreUnavailable
from queuey.model.ids import FIRST, Position
from queuey.model.messages import Message, Meta, NewMessage
from queuey.storage import arrow_format
from queuey.storage.cassandra.read import arrow_scan
from queuey.storage.cassandra.read.slice_reads import Extent
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.time.bucketing import Bucket
from tests import strategies
from tests.storage.cassandra.read.partitions import (
    END,
    NOW,
    Partition,
    driver_holding,
    partitions,
    positions,
    refuse_large_request,
)
from tests.storage.cassandra.simulated import FaultlessDriver
from tests.storage.cassandra.statements.test_message_codec import answer_of, longs, metas

LIKE_A_ROW = b"\0\0\0\x10" + message_codec.id_bytes(1, 2)
"""A body with the bytes that mark the start of a row."""
SOME = st.lists(
    st.tuples(
        strategies.positions(), strategies.bodies() | st.sampled_from(["same", LIKE_A_ROW]), st.none() | metas, longs
    ),
    max_size=8,
)


def cells(message: tuple[Position, str | bytes, Meta | None, int]) -> tuple[bytes, bytes, bytes, bytes | None]:
    position, body, meta, expires = message
    data, column = message_codec.encode(body, meta)
    kept = column if isinstance(column, bytes) else None
    return message_codec.id_bytes(*position), data, expires.to_bytes(8, "big", signed=True), kept


def taken_apart(answer: bytes, *, bodies: bool) -> pa.RecordBatch:
    page = arrow_scan.page_of(answer, message_codec.COLUMN_COUNT if bodies else message_codec.ID_COLUMN_COUNT)
    return arrow_scan.columns_of(page, bodies=bodies).batch


@given(
    SOME, st.lists(st.tuples(st.integers(0, 8), st.integers(1, 2), strategies.positions(), st.none() | st.just(b"\1")))
)
def test_rows_that_lack_values_are_left_out(
    found: list[tuple[Position, str | bytes, Meta | None, int]], lost: list[tuple[int, int, Position, bytes | None]]
) -> None:
    """A row without a body or an end is not a message, wherever it is, but the page may end with it."""
    every: list[tuple[bytes | None, ...]] = [cells(one) for one in found]
    for at, missing, position, meta in lost:
        row = [message_codec.id_bytes(*position), b"body", bytes(8), meta]
        row[missing] = None
        every.insert(at, tuple(row))
    messages = [Message(*position, 1, expires, body, meta) for position, body, meta, expires in found]
    answer = answer_of(every)
    assert taken_apart(answer, bodies=True) == arrow_format.batch_from_messages(messages)
    if every:
        assert arrow_scan.page_of(answer, message_codec.COLUMN_COUNT).last == message_codec.position_of(
            cast("bytes", every[-1][0])
        )
    pairs: list[tuple[bytes | None, ...]] = [(row[0], row[2]) for row in every]
    whole = [row for row in pairs if row[1] is not None]
    only = taken_apart(answer_of(pairs, message_codec.ID_COLUMN_COUNT), bodies=False)
    assert only == taken_apart(answer_of(whole, message_codec.ID_COLUMN_COUNT), bodies=False)


@given(SOME)
def test_values_of_names(found: list[tuple[Position, str | bytes, Meta | None, int]]) -> None:
    """Values of names are recognized, and otherwise decoded like other rows; values that are not shown are left out."""
    every: list[tuple[bytes | None, ...]] = []
    names = {row: "aé"[row % 3] for row in range(len(found)) if row % 3 < 2}
    for row, (position, body, meta, expires) in enumerate(found):
        marked = message_codec.mark_named(NewMessage(body, 1, 1, meta), names[row]).meta if row in names else meta
        every.append(cells((position, body, marked, expires)))
    whole = arrow_scan.columns_of(arrow_scan.page_of(answer_of(every), message_codec.COLUMN_COUNT), bodies=True)
    named = arrow_scan.find_named(whole)
    assert {row: name for row, (name, _) in named.items()} == names
    unnamed = arrow_scan.select_shown(whole, named, {row for row in named if row % 2})
    shown = [one for row, one in enumerate(found) if row % 2 or row not in names]
    messages = [Message(*position, 1, expires, body, meta) for position, body, meta, expires in shown]
    assert unnamed.batch == arrow_format.batch_from_messages(messages)
    assert [(int(ticks), int(low)) for ticks, low in zip(unnamed.ticks, unnamed.low, strict=True)] == [
        message.position for message in messages
    ]


@given(SOME)
def test_rows_of_the_drivers_own_way(found: list[tuple[Position, str | bytes, Meta | None, int]]) -> None:
    """Rows that the driver decoded, because of an error, are encoded as the same answer."""
    decoded = []
    for one in found:
        key, body, _, meta = cells(one)
        decoded.append((UUID(bytes=key), body, one[3], meta))
    assert message_codec.pack_rows(decoded, message_codec.COLUMN_COUNT) == answer_of([cells(one) for one in found])


@given(partitions(), positions(), positions() | st.just(END), st.integers(1, 200), st.booleans())
@settings(max_examples=30)
def test_a_scan_gives_all_live_messages_in_order_once(
    partition: Partition,
    one: Position,
    other: Position,
    rows_of_page: int,
    bodies: bool,  # noqa: FBT001 - hypothesis passes it
) -> None:
    """From any buckets and pages a scan gives each message once, in order; of two with one id the one that was put."""
    bounds = min(one, other), max(one, other)
    driver = driver_holding(partition)
    driver.fail = refuse_large_request
    expected = partition.find_expected(*bounds)
    assert run_scan(driver, partition, bounds, rows_of_page, bodies=bodies) == (
        expected if bodies else [(position, "") for position, _ in expected]
    )


def test_a_page_that_cannot_be_shortened_is_an_error() -> None:
    """A scan whose shortest pages fail, too, raises their error, because its columns are incomplete."""
    partition = Partition({Bucket(1, 0): {}})
    driver = driver_holding(partition)
    driver.fail = lambda _request: StoreUnavailable("away")
    with pytest.raises(StoreUnavailable, match="away"):
        run_scan(driver, partition, (FIRST, END), 500, bodies=True)


def run_scan(
    driver: FaultlessDriver, partition: Partition, bounds: tuple[Position, Position], rows_of_page: int, *, bodies: bool
) -> list[tuple[Position, str]]:
    """Returns the live messages of a scan between two positions; bodies are empty if they are not read.

    Fails if a part has messages outside its bounds.
    """
    sources = [partition.source(time_bucket) for time_bucket in partition.time_buckets]
    context = arrow_scan.ScanContext(driver, (7, 1), "QUORUM", bodies, rows_of_page, 1 << 20)
    messages: list[tuple[Position, str]] = []
    before = bounds[0]
    pace = arrow_scan.Pace(context)
    for scanned, end in arrow_scan.scan(context, Extent(sources, *bounds, complete=True), pace):
        batch = arrow_scan.select_alive(scanned, NOW).batch
        texts = batch.column("body").to_pylist() if bodies else [b""] * len(batch)
        ticks, low = batch.column("ticks").to_pylist(), batch.column("low").to_pylist()
        new = [((at, half), text.decode()) for at, half, text in zip(ticks, low, texts, strict=True)]
        assert all(before <= position < end for position, _ in new), "between the end before and this one"
        before = end
        messages += new
    return messages
