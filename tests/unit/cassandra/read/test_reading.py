"""Reading slices out of many buckets: what is asked for, and what comes of the answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import FIRST, LOW_MIN, Position
from queuey.messages import Message, Page, Slice, bytes_of
from queuey.storage.cassandra import PREPARED, bucketing, message_codec
from queuey.storage.cassandra.bucketing import HOME_WIDTH, PUT, Bucket
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.driver import Encoded, fast_path
from queuey.storage.cassandra.read import reading
from queuey.storage.cassandra.read.reading import Extent, Probe, Rounds
from tests.unit.cassandra.read.answered import ASKING, answered
from tests.unit.cassandra.read.partitions import (
    ALIVE,
    END,
    HOUR,
    NOW,
    SECOND,
    START,
    Partition,
    partitions,
    place_at,
    positions,
)

LONGEST = 1 << 18
"""Bytes that a body may have."""


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
    first, most = reading.room_for([wanted], longest, first=True), reading.room_for([wanted], longest)
    return (reading.descend if wanted.descending else reading.ascend)(wanted, extent, NOW, first=first, most=most)


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
    before = len(partition.rounds)
    gathered = partition.gather(reader)
    for probes in partition.rounds[before:]:
        check_round(partition, probes, extent, wanted)
    assert len(partition.rounds) - before <= len(sources) + sum(map(len, partition.time_buckets.values())) + 1
    return reading.page_of(wanted, extent, gathered, NOW)


def check_round(partition: Partition, probes: Sequence[Probe], extent: Extent, wanted: Slice) -> None:
    """Sees that a round asks each bucket once, and for nothing that cannot be wanted."""
    assert probes
    assert len({probe.time_bucket for probe in probes}) == len(probes)
    for probe in probes:
        assert extent.lower <= probe.lower < probe.upper <= extent.upper
        assert (probe.time_bucket.start, LOW_MIN) <= partition.source(probe.time_bucket).lowest <= probe.lower
        assert probe.upper <= (probe.time_bucket.end, LOW_MIN)
        assert 1 <= probe.limit <= wanted.limit
        assert probe.descending == wanted.descending


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


def idle(count: int, step: int = HOUR) -> Partition:
    """A partition with messages in the wide buckets only."""
    partition = Partition()
    for number in range(count):
        at = START + number * step
        partition.add(place_at(at), (at, 0), f"{number}")
    return partition


def hot(count: int, level: int = 4) -> Partition:
    """A partition with a message in each of many narrow buckets, and an empty wide one."""
    partition = Partition({place_at(START): {}})
    size = bucketing.width(1, level)
    for number in range(count):
        at = START // size * size + number * size
        partition.add(place_at(at, level), (at, 0), f"{number}")
    return partition


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


@pytest.mark.parametrize("descending", [False, True])
def test_an_idle_queue_costs_one_round_of_two_probes(descending: bool) -> None:  # noqa: FBT001
    """With nothing but two wide buckets, each is asked once, side by side."""
    partition = idle(20, 8 * HOUR)
    partition.time_buckets.setdefault(place_at(START - 96 * HOUR), {})
    assert len(partition.time_buckets) <= 3
    found = read_once(partition, Slice(1, (START - 40 * HOUR, 0), (START + 50 * HOUR, 0), descending=descending))
    assert len(found) == 7
    assert [len(probes) for probes in partition.rounds] == [2]


@pytest.mark.parametrize("descending", [False, True])
def test_a_page_that_lies_in_one_narrow_place_costs_one_round(descending: bool) -> None:  # noqa: FBT001
    """Reading the head or the tail of a hot partition asks one narrow bucket, and the wide one beside it."""
    partition = hot(300)
    assert len(read_once(partition, Slice(1, upper=END, limit=1, descending=descending))) == 1
    [probes] = partition.rounds
    assert sorted(probe.time_bucket.width_index for probe in probes) == [HOME_WIDTH, 4]


def test_empty_places_are_passed_in_growing_strides() -> None:
    """Behind a hundred empty narrow buckets a page takes a few rounds, none of more than 16 of them."""
    partition = hot(101)
    narrow = sorted(
        (time_bucket for time_bucket in partition.time_buckets if not time_bucket.wide),
        key=lambda time_bucket: time_bucket.start,
    )
    for time_bucket in narrow[:-1]:
        partition.time_buckets[time_bucket].clear()
    found = read_once(partition, Slice(1, upper=END, limit=10))
    assert [message.body for message in found] == ["100"]
    assert [sum(not probe.time_bucket.wide for probe in probes) for probes in partition.rounds[:6]] == [
        1,
        2,
        4,
        8,
        16,
        16,
    ]
    assert len(partition.rounds) <= 12


@pytest.mark.parametrize("descending", [False, True])
def test_many_wide_places_are_not_all_asked_at_once(descending: bool) -> None:  # noqa: FBT001
    """Where messages were put at ids of many years, a page asks a bounded number of buckets at a time."""
    partition = Partition()
    for number in range(500):
        at = START + number * 6 * HOUR
        partition.add(place_at(at, PUT, kind=0), (at, 0), f"{number}")
    found = read_once(partition, Slice(1, limit=10, descending=descending))
    numbers = range(499, 489, -1) if descending else range(10)
    assert [message.body for message in found] == [f"{number}" for number in numbers]
    assert [len(probes) for probes in partition.rounds] == [16]


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


def test_partitions_that_are_read_together() -> None:
    """They share rounds as far as there is room, and all get past dead rows of one; empty probes are told."""
    found = {1: idle(30), 2: hot(40), 3: idle(2), 4: Partition({place_at(START): {}}), 5: Partition(most_dead=3)}
    for number in range(10):
        found[5].add(place_at(START), (START + number * SECOND, 0), f"{number}", ALIVE if number == 9 else None)
    wanted = [Slice(number, upper=END, limit=35, descending=number == 3, bodies=number != 2) for number in found]
    asked: list[int] = []
    empty: list[tuple[int, int]] = []

    def run(room: float) -> list[int]:
        extents = [
            Extent([one.source(each) for each in one.time_buckets], FIRST, END, complete=True) for one in found.values()
        ]
        readers = [reader_of(part, extent) for part, extent in zip(wanted, extents, strict=True)]
        work = reading.run(
            ASKING,
            readers,
            [(7, number) for number in found],
            "QUORUM",
            note=lambda key, _: empty.append(key),
            room=room,
        )
        asked.clear()
        gathered = answered(work, answer)
        assert [message.partition for one in gathered for message in one.messages[:1]] == [1, 2, 3, 5]
        return [len(one.messages) for one in gathered]

    def answer(request: Encoded) -> list[object]:
        partition = int.from_bytes(fast_path.values_of(request.rows[0])[1], "big")
        asked.append(partition)
        return found[partition].reply(request)

    assert run(math.inf) == [30, 35, 2, 0, 1]
    assert len({*asked[:6]}) > 3
    assert (7, 4) in empty
    assert run(1.0) == [30, 35, 2, 0, 1]
    assert asked == sorted(asked)


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize("descending", [False, True])
def test_what_threads_that_must_not_wait_send_is_prepared(*, descending: bool, bodies: bool) -> None:
    """Reads go on in the thread that delivers all answers; others write, undo writes and read rows of queues."""
    for time_bucket in (Bucket(kind, place_at(START).bucket) for kind in range(len(bucketing.NAMES))):
        call = reading.query((7, 1), Probe(time_bucket, FIRST, END, 1, descending, bodies), "QUORUM")
        assert call.statement in PREPARED
    assert {*message_codec.INSERT, *message_codec.DELETE, queue_cache.FIND} <= {*PREPARED}
