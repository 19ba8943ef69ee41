"""Reading slices out of many buckets: what is asked for, and what comes of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import FIRST, LOW_MIN, Position
from queuey.messages import Message, Page, Slice, bytes_of
from queuey.storage.cassandra.bucketing import HOME_WIDTH, PUT, Bucket
from queuey.storage.cassandra.read import reading
from queuey.storage.cassandra.read.reading import BucketSource, Extent, Gathered, Rounds
from tests.unit.cassandra.read.partitions import (
    ALIVE,
    END,
    HOUR,
    NOW,
    SECOND,
    START,
    Partition,
    Row,
    holding,
    partitions,
    place_at,
    positions,
    too_much,
)

LONGEST = 1 << 18
"""Bytes that a body may have."""
NO_ROWS: dict[Bucket, dict[Position, Row]] = {place_at(START + hours * HOUR, 0, 3): {} for hours in (0, 400 * 24)}
"""Buckets of a class that no drawn message has."""


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
    """Returns what reads a slice alone; ``longest``: bytes that a body may have."""
    first, most = reading.room_for(wanted.max_bytes, longest, first=True), reading.room_for(wanted.max_bytes, longest)
    return reading.rounds(wanted, extent, NOW, first=first, most=most)


def read_page(partition: Partition, wanted: Slice, looks: Sequence[Position], longest: int = LONGEST) -> Page:
    """Reads a page; ``looks``: where what is known of the partition's buckets ends."""
    lower, upper = wanted.lower, wanted.upper
    if wanted.descending:
        lower = max([lower, *(at for at in looks if at < upper)])
    else:
        upper = min([upper, *(at for at in looks if at > lower)])
    sources = [
        partition.source(time_bucket) for time_bucket in partition.time_buckets if (time_bucket.start, LOW_MIN) < upper
    ]
    extent = Extent(sources, lower, upper, complete=(lower, upper) == (wanted.lower, wanted.upper))
    reader = reader_of(wanted, extent, longest)
    return reading.page_of(wanted, extent, partition.gather(reader), NOW)


def check_page(page: Page, wanted: Slice) -> None:
    """Sees that a page keeps to its limits and that its cursor leads on."""
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


def read_all(partition: Partition, wanted: Slice, looks: Sequence[Position], longest: int = LONGEST) -> list[Message]:
    """Reads page after page from where the one before ended."""
    found: list[Message] = []
    lower, upper = wanted.lower, wanted.upper
    while lower < upper:
        part = Slice(1, lower, upper, limit=wanted.limit, max_bytes=wanted.max_bytes, descending=wanted.descending)
        page = read_page(partition, part, looks, longest)
        check_page(page, part)
        found += page.messages
        if not page.more or page.next is None:
            break
        lower, upper = (lower, ids.following(page.next)) if wanted.descending else (page.next, upper)
    return found


@given(partitions(), slices(), st.lists(positions(), max_size=4), st.sampled_from([1, 100, LONGEST]))
def test_pages_give_all_live_messages_in_order_once(
    partition: Partition, wanted: Slice, looks: list[Position], longest: int
) -> None:
    """Pages chained by their cursors give what is alive between the bounds, in order, each message once."""
    found = read_all(partition, wanted, looks, longest)
    expected = partition.expected(wanted.lower, wanted.upper)
    if wanted.descending:
        expected.reverse()
    assert [(message.position, message.body) for message in found] == expected


def read_once(partition: Partition, wanted: Slice, longest: int = LONGEST) -> list[Message]:
    """Reads one page, with everything known."""
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
    """Where one bucket is left, its rows make the same page as if buckets without rows were read beside it.

    Bounds, limits, rows that have expired, dead rows that Cassandra refuses to pass, and buckets that are empty up to a
    position are drawn. Buckets that hold nothing between the bounds are not asked.
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
    """Reads a page of a partition, and of buckets that are known to hold nothing; returns the text of an error."""
    sources = [partition.source(time_bucket) for time_bucket in partition.time_buckets]
    reader = reader_of(wanted, Extent([*others, *sources], wanted.lower, wanted.upper, complete=True), longest)
    try:
        return partition.gather(reader)
    except StoreUnavailable as error:
        return str(error)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("short", [0, 1, 40])
def test_no_round_asks_for_more_bytes_than_a_few_pages_have(short: int, descending: bool) -> None:  # noqa: FBT001
    """Also where short messages come before long ones, no round asks for more than it has room for, or a row a bucket.

    Before any row has come that is four pages, then 4 MiB if that is more.
    """
    long = 100_000
    partition = Partition()
    for level in (HOME_WIDTH, 1, PUT):
        for number in range(60):
            at = START + number * 100 + level
            mine = number if not descending else 59 - number
            partition.add(place_at(at, level), (at, 0), "x" * (1 if mine < short else long))
    for max_bytes in (1, 500_000, 2_000_000):
        partition.rounds.clear()
        read_once(partition, Slice(1, upper=END, max_bytes=max_bytes, descending=descending), longest=long)
        for number, probes in enumerate(partition.rounds):
            room = max(4 * max_bytes, long * len(probes), reading.LEAST_BYTES if number else 0)
            assert long * sum(probe.limit for probe in probes) <= room


@pytest.mark.parametrize("descending", [False, True])
def test_too_many_dead_rows_are_passed_in_smaller_windows(descending: bool) -> None:  # noqa: FBT001
    """Where a query would pass more dead rows than Cassandra lets it, the read goes on in smaller and larger steps."""
    partition = Partition(most_dead=100)
    for number in range(5000):
        at = START + number * SECOND
        alive = number in {0, 2500, 4999}
        partition.add(place_at(at), (at, 0), f"{number}", ALIVE if alive else None)
    found = read_once(partition, Slice(1, upper=END, descending=descending))
    assert [message.body for message in found] == (["4999", "2500", "0"] if descending else ["0", "2500", "4999"])
    assert len(partition.rounds) < 250


def test_too_many_dead_rows_at_one_instant_are_an_error() -> None:
    """A read that cannot be divided any more says so instead of trying for ever."""
    partition = Partition(most_dead=100)
    for number in range(200):
        partition.add(place_at(START), (START, number), "", None)
    with pytest.raises(StoreUnavailable, match="one instant"):
        read_once(partition, Slice(1, upper=END))


def test_too_many_dead_rows_of_one_partition() -> None:
    """What is read together with it is read nevertheless, and so is the partition, in smaller windows."""
    partition = Partition()
    for number in range(10):
        at = START + number * HOUR
        partition.add(place_at(at), (at, 0), f"{number}")
    driver = holding(partition)
    driver.fail = too_much
    extent = Extent([*map(partition.source, partition.time_buckets)], FIRST, END, complete=True)
    readers = [reader_of(Slice(number, upper=END, bodies=False), extent) for number in (1, 2)]
    work = reading.run(driver, readers, [(7, 1), (7, 2)], "QUORUM")
    found = driver.ended(work)
    assert [message.ticks for message in found[0].messages] == [START + number * HOUR for number in range(10)]
    assert found[1].messages == []
