"""Reading slices out of many buckets: what is asked for, and what comes of the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import FIRST, LOW_MAX, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import Message, Page, Slice, bytes_of, rendered_bytes
from queuey.storage.cassandra import PREPARED, bucketing, message_codec
from queuey.storage.cassandra.bucketing import DENSE_LOAD, HOME_WIDTH, LOAD, PUT, WIDTHS, Bucket
from queuey.storage.cassandra.driver import Encoded, Request, Statement, TooManyDead, fast_path
from queuey.storage.cassandra.driver.callbacks import begin, wait
from queuey.storage.cassandra.read import reading
from queuey.storage.cassandra.read.reading import BucketSource, Extent, Gathered, Probe, Rounds
from queuey.storage.deadlines import Deadline
from tests.cassandra.scripted import AnsweringDriver

START = ids.seconds_to_ticks(1_750_000_000)
SECOND = TICKS_PER_SECOND
HOUR = 3600 * SECOND
NOW = START + 10 * HOUR
ALIVE, DEAD = NOW + HOUR, NOW
END: Position = (START + 400 * HOUR, LOW_MIN)
LONGEST = 1 << 18
"""Bytes that a body may have."""

Row = tuple[bytes, bytes | None, int | None, bytes | None]


@dataclass
class Partition:
    """The buckets of a partition: what lies in each, and what was asked of them."""

    time_buckets: dict[Bucket, dict[Position, Row]] = field(default_factory=dict)
    lowest: dict[Bucket, Position] = field(default_factory=dict)
    rounds: list[list[Probe]] = field(default_factory=list)
    most_dead: int | None = None
    """Dead rows (without an end here; Cassandra does not give them) that one probe may pass."""

    def add(self, time_bucket: Bucket, position: Position, body: str, expires: int | None = ALIVE) -> None:
        """Puts a row into a bucket."""
        meta = None if time_bucket.new_ids_only else b"\0"
        value = None if expires is None else body.encode()
        self.time_buckets.setdefault(time_bucket, {})[position] = (
            message_codec.id_bytes(*position),
            value,
            expires,
            meta,
        )

    def source(self, time_bucket: Bucket) -> BucketSource:
        """A bucket as the reader is told of it."""
        return BucketSource(time_bucket, self.lowest.get(time_bucket, (time_bucket.start, LOW_MIN)))

    def answer(self, probe: Probe) -> list[Row]:
        """Gives what a query gives."""
        found = sorted(at for at in self.time_buckets[probe.time_bucket] if probe.lower <= at < probe.upper)
        if probe.descending:
            found.reverse()
        return [self.time_buckets[probe.time_bucket][at] for at in found[: probe.limit]]

    def refuses(self, probe: Probe) -> bool:
        """Tells whether a query passes too many dead rows."""
        if self.most_dead is None:
            return False
        rows_of_it = self.time_buckets[probe.time_bucket]
        return sum(rows_of_it[at][2] is None for at in rows_of_it if probe.lower <= at < probe.upper) > self.most_dead

    def gather(self, reader: Rounds) -> Gathered:
        """Answers a reader's probes until it is done."""
        answers: list[list[Row]] | None = None
        while True:
            try:
                probes = reader.send(answers)
            except StopIteration as ended:
                gathered: Gathered = ended.value
                return gathered
            self.rounds.append(probes)
            answers = None if any(map(self.refuses, probes)) else [self.answer(probe) for probe in probes]

    def expected(self, lower: Position, upper: Position) -> list[tuple[Position, str]]:
        """All live messages between two positions; of two with one id the one that was put."""
        found: dict[Position, str] = {}
        for time_bucket in sorted(self.time_buckets, key=lambda time_bucket: not time_bucket.new_ids_only):
            for at, (_, body, expires, _) in self.time_buckets[time_bucket].items():
                if max(lower, self.source(time_bucket).lowest) <= at < upper and body and expires is not None:
                    if expires > NOW:
                        found[at] = body.decode()
                    else:
                        found.pop(at, None)
        return sorted(found.items())


def place_at(at: int, level: int = HOME_WIDTH, kind: int = 1) -> Bucket:
    """The bucket of a time."""
    return bucketing.bucket_of(at, kind, level)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    """Positions in a few hours, many close to each other and to where buckets begin."""
    corner = START // HOUR * HOUR + draw(st.sampled_from([0, HOUR, 2 * HOUR, 2 * HOUR + 15 * 60 * SECOND, 7 * HOUR]))
    away = draw(st.integers(-3, 3) | st.integers(0, 40).map(lambda n: n * 7 * SECOND))
    return corner + away, draw(st.sampled_from([LOW_MIN, -5, 0, 5, LOW_MAX]))


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    """Messages in buckets of all levels and two classes, some expired, some in a second bucket as they were put."""
    partition = Partition()
    given_levels = [level for level in WIDTHS if level >= PUT]
    for number, at in enumerate(draw(st.lists(positions(), max_size=60, unique=True))):
        kind = draw(st.integers(0, 1))
        ends = draw(st.sampled_from([ALIVE, ALIVE, ALIVE, DEAD, None]))
        minted, put = draw(st.sampled_from([(True, False), (True, False), (False, True), (True, True)]))
        if minted:
            time_bucket = place_at(at[0], draw(st.sampled_from([HOME_WIDTH, HOME_WIDTH, 1, 2, 3, 4])), kind)
            partition.add(time_bucket, at, f"minted {number}", ALIVE if put else ends)
        if put:
            partition.add(place_at(at[0], draw(st.sampled_from(given_levels)), kind), at, f"put {number}", ALIVE)
    for time_bucket in draw(st.lists(st.builds(place_at, positions().map(lambda at: at[0]), st.sampled_from(WIDTHS)))):
        partition.time_buckets.setdefault(time_bucket, {})
    low_watermark = draw(st.just(FIRST) | positions())
    for time_bucket in partition.time_buckets:
        if time_bucket.new_ids_only:
            partition.lowest[time_bucket] = max(low_watermark, (time_bucket.start, LOW_MIN))
    return partition


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


@given(partitions(), st.lists(positions(), max_size=3))
def test_both_directions_give_the_same(partition: Partition, looks: list[Position]) -> None:
    """What is read downwards is what is read upwards, turned round."""
    up = read_all(partition, Slice(1, upper=END, limit=7), looks)
    down = read_all(partition, Slice(1, upper=END, limit=5, descending=True), looks)
    assert up == down[::-1]


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


def test_a_read_does_not_wait_for_places_after_its_page() -> None:
    """Further rounds ask only for what the page lacks, and none follows when it is full."""
    partition = hot(300)
    assert len(read_once(partition, Slice(1, upper=END, limit=3))) == 3
    assert [[probe.limit for probe in probes] for probes in partition.rounds] == [[3, 3], [2, 2, 2]]


def test_large_bodies_are_not_asked_for_in_vain() -> None:
    """Once it is known how large bodies are, no more of them are asked for than the page may hold."""
    partition = Partition()
    for number in range(1000):
        partition.add(place_at(START), (START + number, 0), "x" * 1000)
    max_bytes = 20 * rendered_bytes("x" * 1000, None) + 500
    found = read_once(partition, Slice(1, upper=END, limit=900, max_bytes=max_bytes), longest=8_000)
    assert len(found) == 21
    assert sum(probe.limit for probes in partition.rounds for probe in probes) <= 22


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


def test_a_page_of_short_messages_comes_in_one_round() -> None:
    """With the service's default lengths a page of a hundred is asked for in one query."""
    partition = idle(200, SECOND)
    assert len(read_once(partition, Slice(1, upper=END))) == 100
    assert [[probe.limit for probe in probes] for probes in partition.rounds] == [[100]]


def test_a_place_below_its_lowest_is_not_asked() -> None:
    """Nothing is asked of a bucket in which nothing can be alive."""
    partition = hot(3)
    last = max(partition.time_buckets, key=lambda time_bucket: time_bucket.start)
    for time_bucket in partition.time_buckets:
        partition.lowest[time_bucket] = (last.start, LOW_MIN) if time_bucket != last else (last.start + 1, LOW_MIN)
    assert read_once(partition, Slice(1, upper=END)) == []
    assert {probe.time_bucket for probes in partition.rounds for probe in probes} == {place_at(START), last}


def test_what_was_loaded_or_put_counts_more_than_what_was_minted() -> None:
    """A message in two buckets is shown once, as it was put."""
    for level in (PUT, LOAD, DENSE_LOAD):
        partition = Partition()
        partition.add(place_at(START), (START, 0), "minted")
        partition.add(place_at(START, level), (START, 0), "given")
        for descending in (False, True):
            found = read_once(partition, Slice(1, upper=END, descending=descending))
            assert [message.body for message in found] == ["given"]


class Answering(AnsweringDriver):
    """Answers queries of several partitions, and notes how many came together."""

    def __init__(self, partitions_by_number: dict[int, Partition]) -> None:
        super().__init__()
        self.partitions = partitions_by_number
        self.calls: list[int] = []
        self.rows: list[int] = []
        """How many rows queries that came together asked for."""

    def send_all(self, some: Sequence[Request | Encoded], done: Callable[..., None]) -> None:
        """Notes how many queries come together."""
        self.calls.append(len(some))
        encoded = [request for request in some if isinstance(request, Encoded)]
        self.rows.append(sum(int.from_bytes(fast_path.values_of(request.rows[0])[-1], "big") for request in encoded))
        super().send_all(some, done)

    def answer(self, request: Encoded) -> list[Any]:
        """Answers a query by its encoded values, or says that it would pass too many dead rows."""
        values = fast_path.values_of(request.rows[0])
        assert len(values) == request.markers
        assert request.decode is not None
        _, part, bucket, low, high, limit = values
        numbers = [int.from_bytes(value, "big") for value in (part, bucket, limit)]
        answer = self._answer(request.statement, numbers[0], numbers[1], (low, high), numbers[2])
        if "body" in request.statement.cql:
            assert request.decode is message_codec.decode
            return answer
        return request.decode(message_codec.packed([(UUID(bytes=row[0]), row[2]) for row in answer], 2))

    def _answer(
        self, statement: Statement, part: int, bucket: int, bounds: tuple[bytes, bytes], limit: int
    ) -> list[Row]:
        time_bucket = Bucket(next(n for n, name in enumerate(bucketing.NAMES) if f"_{name} " in statement.cql), bucket)
        lower, upper = message_codec.position_of(bounds[0]), ids.following(message_codec.position_of(bounds[1]))
        probe = Probe(time_bucket, lower, upper, limit, "DESC" in statement.cql)
        if self.partitions[part].refuses(probe):
            raise TooManyDead("too many")
        return self.partitions[part].answer(probe)


@pytest.mark.parametrize("bodies", [False, True])
def test_slices_of_several_partitions_share_their_rounds(bodies: bool) -> None:  # noqa: FBT001
    """However many partitions are read, there are as many round trips as the one that takes most of them."""
    partitions_by_number = {1: idle(30), 2: hot(40), 3: idle(2), 4: Partition({place_at(START): {}})}
    driver = Answering(partitions_by_number)
    wanted = [
        Slice(number, upper=END, limit=35, descending=number == 3, bodies=bodies) for number in partitions_by_number
    ]
    readers = [
        reader_of(
            part,
            Extent(
                [one.source(time_bucket) for time_bucket in one.time_buckets], part.lower, part.upper, complete=True
            ),
        )
        for part, one in zip(wanted, partitions_by_number.values(), strict=True)
    ]
    keys = [(7, part.partition) for part in wanted]
    found = waited(reading.run(driver, readers, keys, "QUORUM"))
    assert [len(one.messages) for one in found] == [30, 35, 2, 0]
    assert [one.more for one in found] == [False, True, False, False]
    assert all(message.body == "" for one in found for message in one.messages) == (not bodies)
    assert len(driver.calls) == 6


def test_readers_ask_together_only_for_what_there_is_room_for() -> None:
    """Where the longest bodies that there may be would not fit, partitions are read a few at a time, each in full."""
    partitions_by_number = {number: idle(5) for number in range(1, 11)}
    driver = Answering(partitions_by_number)
    wanted = [Slice(number, upper=END, max_bytes=2000) for number in partitions_by_number]
    extents = [
        Extent([one.source(time_bucket) for time_bucket in one.time_buckets], FIRST, END, complete=True)
        for one in partitions_by_number.values()
    ]
    room = reading.room_for(wanted[:3], 2000, first=True)
    readers = [
        reading.ascend(part, extent, NOW, first=4, most=room) for part, extent in zip(wanted, extents, strict=True)
    ]
    keys = [(7, part.partition) for part in wanted]
    found = waited(reading.run(driver, readers, keys, "QUORUM", room=room))
    assert [[message.body for message in one.messages] for one in found] == [["0", "1", "2", "3", "4"]] * 10
    assert [message.partition for one in found for message in one.messages[:1]] == list(partitions_by_number)
    assert driver.rows
    assert max(driver.rows) <= 12


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


def waited(work: Any) -> list[Gathered]:  # noqa: ANN401 - a coroutine
    """Waits for readers."""
    found: list[Gathered] = wait(Deadline(math.inf), work, "late")
    return found


def begun(driver: Any, reader: Rounds, note: Any = None) -> tuple[Gathered | None, Exception | None]:  # noqa: ANN401
    """Lets a reader run by itself; it must say once how that ended."""
    ends: list[tuple[list[Gathered] | None, Exception | None]] = []
    work = reading.run(driver, [reader], [(7, 1)], "QUORUM", note=note)
    begin(work, lambda *end: ends.append(end))
    [(found, error)] = ends
    return (None if found is None else found[0]), error


@given(partitions(), slices(), st.none() | st.integers(1, 20))
def test_a_reader_that_runs_by_itself_finds_the_same(partition: Partition, wanted: Slice, dead: int | None) -> None:
    """A read that was begun gives what one gives that is waited for, also around dead rows."""
    partition.most_dead = dead
    extent = Extent(
        [partition.source(time_bucket) for time_bucket in partition.time_buckets],
        wanted.lower,
        wanted.upper,
        complete=True,
    )
    found, error = begun(Answering({1: partition}), reader_of(wanted, extent))
    if error is None:
        assert found == partition.gather(reader_of(wanted, extent))
        return
    with pytest.raises(type(error), match="one instant"):
        partition.gather(reader_of(wanted, extent))


def test_a_reader_that_runs_by_itself_notes_empty_places() -> None:
    """Probes without a row are told of, with the key of the partition."""
    noted: list[tuple[tuple[int, int], Probe]] = []
    partition = Partition(time_buckets={place_at(START): {}})
    extent = Extent([partition.source(place_at(START))], FIRST, END, complete=True)
    begun(Answering({1: partition}), reader_of(Slice(1, upper=END), extent), lambda *one: noted.append(one))
    [(key, probe)] = noted
    assert (key, probe.time_bucket) == ((7, 1), place_at(START))


class Failing(Answering):
    """Answers the first query and fails the others."""

    asked = False

    def answer(self, request: Encoded) -> list[Any]:
        """Answers or fails."""
        if self.asked:
            raise StoreUnavailable("no node is there")
        self.asked = True
        return super().answer(request)


def test_a_reader_that_runs_by_itself_tells_of_failures() -> None:
    """When one of the queries of a round fails the read fails, once."""
    partition = idle(20, 8 * HOUR)
    extent = Extent(
        [partition.source(time_bucket) for time_bucket in partition.time_buckets], FIRST, END, complete=True
    )
    assert len(partition.time_buckets) > 1
    found, error = begun(Failing({1: partition}), reader_of(Slice(1, upper=END), extent))
    assert (found, str(error)) == (None, "no node is there")


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize("descending", [False, True])
def test_what_reads_send_is_prepared_before(descending: bool, bodies: bool) -> None:  # noqa: FBT001
    """A read goes on in the thread that delivers all answers, which cannot wait for a statement to be prepared."""
    for time_bucket in (Bucket(kind, place_at(START).bucket) for kind in range(len(bucketing.NAMES))):
        call = reading.query((7, 1), Probe(time_bucket, FIRST, END, 1, descending, bodies), "QUORUM")
        assert call.statement in PREPARED
