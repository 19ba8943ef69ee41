"""Tests of reading slices from many buckets: the requests, and the pages made of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import FIRST, LOW_MIN, Position
from queuey.model.messages import Message, Page, Slice, bytes_of
from queuey.storage.cassandra.read import slice_reads
from queuey.storage.cassandra.read.slice_reads import BucketSource, Extent, Gathered, Rounds
from queuey.storage.cassandra.time.bucketing import HOME_WIDTH, PUT_WIDTH, Bucket
from tests.storage.cassandra.read.partitions import (
    ALIVE,
    END,
    HOUR,
    NOW,
    SECOND,
    START,
    Partition,
    Row,
    driver_holding,
    partitions,
    place_at,
    positions,
    refuse_large_request,
)

LONGEST = 1 << 18
"""Max bytes of a body."""
NO_ROWS: dict[Bucket, dict[Position, Row]] = {place_at(START + hours * HOUR, 0, 3): {} for hours in (0, 400 * 24)}
"""Buckets of a class without messages."""


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    """Slices with all kinds of bounds and limits."""
    one, other = sorted((draw(positions() | st.just(FIRST)), draw(positions() | st.just(END))))
    return Slice(
        1,
        one,
        ids.following(other),
        limit=draw(st.integers(1, 70)),
        max_bytes=draw(st.just(1 << 20) | st.integers(1, 100)),
        descending=draw(st.booleans()),
    )


def reader_of(wanted: Slice, extent: Extent, longest: int = LONGEST) -> Rounds:
    """Returns the reader of one slice; ``longest`` is the max bytes of a body."""
    first, most = (
        slice_reads.room_for(wanted.max_bytes, longest, first=True),
        slice_reads.room_for(wanted.max_bytes, longest),
    )
    return slice_reads.read_rounds(wanted, extent, NOW, first_rows=first, max_rows=most)


def read_page(partition: Partition, wanted: Slice, bucket_ends: Sequence[Position], longest: int = LONGEST) -> Page:
    """Reads a page; ``bucket_ends`` are the ends of the known buckets of the partition."""
    lower, upper = wanted.lower, wanted.upper
    if wanted.descending:
        lower = max([lower, *(at for at in bucket_ends if at < upper)])
    else:
        upper = min([upper, *(at for at in bucket_ends if at > lower)])
    sources = [
        partition.source(time_bucket) for time_bucket in partition.time_buckets if (time_bucket.start, LOW_MIN) < upper
    ]
    extent = Extent(sources, lower, upper, complete=(lower, upper) == (wanted.lower, wanted.upper))
    reader = reader_of(wanted, extent, longest)
    return slice_reads.page_of(wanted, extent, partition.gather(reader), NOW)


def check_page(page: Page, wanted: Slice) -> None:
    assert len(page.messages) <= wanted.limit
    assert bytes_of(page.messages[:-1]) < wanted.max_bytes
    if page.next is None:
        assert wanted.descending
    elif wanted.descending:
        assert page.next < wanted.upper
        assert all(message.position > page.next for message in page.messages)
    else:
        assert page.next > wanted.lower
        assert all(message.position < page.next for message in page.messages)


def read_all(
    partition: Partition, wanted: Slice, bucket_ends: Sequence[Position], longest: int = LONGEST
) -> list[Message]:
    messages: list[Message] = []
    lower, upper = wanted.lower, wanted.upper
    while lower < upper:
        part = Slice(1, lower, upper, limit=wanted.limit, max_bytes=wanted.max_bytes, descending=wanted.descending)
        page = read_page(partition, part, bucket_ends, longest)
        check_page(page, part)
        messages += page.messages
        if not page.more or page.next is None:
            break
        lower, upper = (lower, ids.following(page.next)) if wanted.descending else (page.next, upper)
    return messages


@given(partitions(), slices(), st.lists(positions(), max_size=4), st.sampled_from([1, 100, LONGEST]))
def test_pages_give_all_live_messages_in_order_once(
    partition: Partition, wanted: Slice, looks: list[Position], longest: int
) -> None:
    """Pages chained by their cursors give the live messages between the bounds, in order, each once."""
    messages = read_all(partition, wanted, looks, longest)
    expected = partition.find_expected(wanted.lower, wanted.upper)
    if wanted.descending:
        expected.reverse()
    assert [(message.position, message.body) for message in messages] == expected


def read_once(partition: Partition, wanted: Slice, longest: int = LONGEST) -> list[Message]:
    extent = Extent(
        [partition.source(time_bucket) for time_bucket in partition.time_buckets],
        wanted.lower,
        wanted.upper,
        complete=True,
    )
    reader = reader_of(wanted, extent, longest)
    return partition.gather(reader).messages


@given(partitions(), slices(), st.sampled_from([1, 100, LONGEST]), st.booleans(), st.sampled_from([None, 0, 3]))
def test_a_page_of_one_bucket_is_that_of_the_general_way(
    partition: Partition,
    wanted: Slice,
    longest: int,
    bodies: bool,  # noqa: FBT001
    most_dead: int | None,
) -> None:
    """A page of one bucket is the same as a page that also reads buckets without rows.

    Bounds, limits, expired rows, dead rows that Cassandra refuses to pass, and buckets that are empty up to a position
    are drawn. Buckets without rows between the bounds are not queried.
    """
    wanted = structs.replace(wanted, bodies=bodies)
    for time_bucket in partition.time_buckets:
        alone = Partition({time_bucket: partition.time_buckets[time_bucket]}, partition.lowest, most_dead=most_dead)
        beside = replace(alone, time_buckets=alone.time_buckets | NO_ROWS, rounds=[])
        passed = [BucketSource(bucket, END) for bucket in partition.time_buckets if bucket != time_bucket]
        assert gathered_or_error(alone, wanted, passed, longest) == gathered_or_error(beside, wanted, [], longest)
        assert {probe.time_bucket for probes in alone.rounds for probe in probes} <= {time_bucket}


def gathered_or_error(
    partition: Partition, wanted: Slice, others: Sequence[BucketSource], longest: int
) -> Gathered | str:
    sources = [partition.source(time_bucket) for time_bucket in partition.time_buckets]
    reader = reader_of(wanted, Extent([*others, *sources], wanted.lower, wanted.upper, complete=True), longest)
    try:
        return partition.gather(reader)
    except StoreUnavailable as error:
        return str(error)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("short", [0, 1, 40])
def test_no_round_asks_for_more_bytes_than_a_few_pages_have(short: int, descending: bool) -> None:  # noqa: FBT001
    """No round requests more bytes than there is room for, or one row per bucket, also if messages get longer.

    Before the first row the room is four pages, or 4 MiB if that is more.
    """
    long = 100_000
    partition = Partition()
    for level in (HOME_WIDTH, 1, PUT_WIDTH):
        for number in range(60):
            time = START + number * 100 + level
            mine = number if not descending else 59 - number
            partition.add(place_at(time, level), (time, 0), "x" * (1 if mine < short else long))
    for max_bytes in (1, 500_000, 2_000_000):
        partition.rounds.clear()
        read_once(partition, Slice(1, upper=END, max_bytes=max_bytes, descending=descending), longest=long)
        for number, probes in enumerate(partition.rounds):
            room = max(4 * max_bytes, long * len(probes), slice_reads.MIN_ROUND_BYTES if number else 0)
            assert long * sum(probe.limit for probe in probes) <= room


@pytest.mark.parametrize("descending", [False, True])
def test_too_many_dead_rows_are_passed_in_smaller_windows(descending: bool) -> None:  # noqa: FBT001
    """If a query would pass more dead rows than Cassandra allows, the read continues in smaller and larger steps."""
    partition = Partition(most_dead=100)
    for number in range(5000):
        time = START + number * SECOND
        alive = number in {0, 2500, 4999}
        partition.add(place_at(time), (time, 0), f"{number}", ALIVE if alive else None)
    page = read_once(partition, Slice(1, upper=END, descending=descending))
    assert [message.body for message in page] == (["4999", "2500", "0"] if descending else ["0", "2500", "4999"])
    assert len(partition.rounds) < 250


def test_too_many_dead_rows_at_one_instant_are_an_error() -> None:
    """A read that cannot be divided any more fails instead of retrying for ever."""
    partition = Partition(most_dead=100)
    for number in range(200):
        partition.add(place_at(START), (START, number), "", None)
    with pytest.raises(StoreUnavailable, match="one instant"):
        read_once(partition, Slice(1, upper=END))


def test_too_many_dead_rows_of_one_partition() -> None:
    """Other partitions are read although one has too many dead rows, which is then read in smaller windows."""
    partition = Partition()
    for number in range(10):
        time = START + number * HOUR
        partition.add(place_at(time), (time, 0), f"{number}")
    driver = driver_holding(partition)
    driver.fail = refuse_large_request
    extent = Extent([*map(partition.source, partition.time_buckets)], FIRST, END, complete=True)
    readers = [reader_of(Slice(number, upper=END, bodies=False), extent) for number in (1, 2)]
    work = slice_reads.run_readers(driver, readers, [(7, 1), (7, 2)], "QUORUM")
    pages = driver.run_to_end(work)
    assert [message.ticks for message in pages[0].messages] == [START + number * HOUR for number in range(10)]
    assert pages[1].messages == []
