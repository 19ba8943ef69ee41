"""Reading a slice of a partition out of the buckets it may lie in.

A slice is read in rounds. A round reads a window of time: the wide buckets that overlap it, and as many narrow ones
as it is given; each is asked for at most what the page still lacks. If a bucket gave as much as it was asked for, there
may be more behind its last row, so the round ends there and the next begins. If only one bucket may hold something, its
rows are the page as they come: no window is chosen, nothing is merged, and no rest of a bucket is remembered. The logic
is a generator that yields probes and is sent their rows, so slices of several partitions share their round trips, and
it runs without a server.

What a read holds is bounded by the bytes that its pages may have. As it is not known before how long rows are, each
counts as the longest that the queue may have (``longest_row`` of its row). Then the rows that are on their way at a
time make at most :data:`TIMES` times the pages' bytes, or :data:`LEAST_BYTES`. A read holds these, the pages
themselves, and one body for each slice; more only where a round asks every bucket of one partition for a single row.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import LOW_MIN, Position
from queuey.messages import Message, Page, Slice, bytes_at_most, bytes_of, rendered_bytes
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.catalogue.queue_cache import SHORTEST
from queuey.storage.cassandra.driver import Driver, Encoded, Rows, TooManyDead

TIMES = 4
"""Max ratio of the bytes that a round asks for to those of its page, were all its rows as long as any can be."""
LEAST_BYTES = 4 << 20
"""Min bytes that a round may ask for, however few its page may have, if it takes no long rows for that: where the queue
has none (a hundred rows of each of 32 buckets fit), and when the rows that came before were short."""
MOST_NARROW = 16
MOST_WIDE = 16
"""Max narrow and wide buckets in one round. Of wide ones there are more only where old ids were put."""
_END: Position = (ids.TICKS_MAX + 1, LOW_MIN)


class Probe(NamedTuple):
    """One query: rows of a bucket with ids in ``[lower, upper)``, ``limit`` of them from one end, or only their ids."""

    time_bucket: Bucket
    lower: Position
    upper: Position
    limit: int
    descending: bool
    bodies: bool = True


class BucketSource(NamedTuple):
    """A bucket, and the position below which nothing in it is alive."""

    time_bucket: Bucket
    lowest: Position


class Extent(NamedTuple):
    """The part of a partition that is to be read.

    Attributes:
        sources: Everything that may hold a message of it, in any order.
        lower, upper: The bounds.
        complete: False: beyond the far bound there may be buckets that are not named here.
    """

    sources: Sequence[BucketSource]
    lower: Position
    upper: Position
    complete: bool


Key = tuple[int, int]
"""qid and partition."""


class EmptyRanges:
    """Ranges of buckets in which nothing was found, and nothing ever will be: of each bucket the latest.

    Buckets for new ids only gain rows at or above the horizon (see :mod:`..bucketing`), and dead rows stay dead. So a
    range below it that a reader found empty need not be read again: of a busy queue that is mostly the wide bucket
    beside its narrow ones, half of all queries. That holds only where a read meets all acknowledged writes; elsewhere
    nothing is noted (:meth:`..consistency_levels.ConsistencyLevels.empty_below`).
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranges: OrderedDict[tuple[int, int, Bucket], tuple[Position, Position]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, key: Key, probe: Probe, below: Position) -> None:
        """Remembers a probe that found no row; above ``below`` something may still come."""
        low, high = probe.lower, min(probe.upper, below)
        if not probe.time_bucket.new_ids_only or low >= high:
            return
        name = (*key, probe.time_bucket)
        with self._lock:
            known = self._ranges.pop(name, None)
            if known is not None and known[0] <= high and low <= known[1]:
                low, high = min(low, known[0]), max(high, known[1])
            self._ranges[name] = low, high
            while len(self._ranges) > self._size:
                self._ranges.popitem(last=False)

    def shorten(self, key: Key, source: BucketSource, lower: Position) -> BucketSource:
        """Returns a source without what is known to be empty from ``lower`` on."""
        known = self._ranges.get((*key, source.time_bucket))
        start = max(lower, source.lowest)
        if known is not None and known[0] <= start < known[1]:
            return BucketSource(source.time_bucket, known[1])
        return source


Note = Callable[[tuple[int, int], Probe], None]
"""Called with a reader's key and a probe that found no row at all."""
Rounds = Generator[list[Probe], list[Rows] | None, "Gathered"]
"""Yields probes and is sent their rows, or None if there are too many dead rows in between."""


class Gathered(NamedTuple):
    """The result of the rounds.

    Attributes:
        messages: Live ones, in the slice's order.
        end: How far was read: ascending the lowest position not read, descending the highest.
        more: The page is full; else everything up to the extent's far bound was read.
    """

    messages: list[Message]
    end: Position
    more: bool


GIVEN_UP = Gathered([], ids.FIRST, more=True)


def rounds(requested: Slice, extent: Extent, now: int, *, first: float, most: float) -> Rounds:
    """Reads a slice in its direction.

    Args:
        requested: The slice.
        extent: The buckets to read.
        now: Ticks; what has expired by then is left out.
        first: Rows that may be asked for before any has come (see :func:`room_for`).
        most: Rows that may be asked for in any other round.
    """
    down, sources = requested.descending, _not_empty(extent)
    nearest = max if down else min
    position, bound = (extent.upper, extent.lower) if down else (extent.lower, extent.upper)
    if several := len(sources) > 1:
        sources.sort(key=lambda source: source.time_bucket.end if down else source.time_bucket.start, reverse=down)
    filling, narrow = _PageBuilder(requested, first, most), 1
    span = Span()
    while position > bound if down else position < bound:
        stop = filling.window(sources, position, bound, narrow) if several else bound
        probes = filling.probes(sources, position, stop)
        if probes and span.ticks:
            stop = nearest(stop, span.end(probes, down=down))
            probes = filling.probes(sources, position, stop)
        answers = (yield probes) if probes else []
        if answers is None:
            span.narrow(probes)
            continue
        span.widen()
        cut = stop
        for probe, answer in zip(probes, answers, strict=True):
            if len(answer) >= probe.limit:
                last = message_codec.position_of(answer[-1][0])
                cut = nearest(cut, last if down else ids.following(last))
        merged = _merge(probes, answers, cut, requested, now)
        if filling.take(merged):
            last = filling.messages[-1].position
            return Gathered(filling.messages, ids.preceding(last) if down else ids.following(last), more=True)
        if several:
            filling.learn(probes, answers, cut)
        position = cut
        narrow = min(MOST_NARROW, narrow * 2)
    return Gathered(filling.messages, ids.preceding(bound) if down else bound, more=False)


def _not_empty(extent: Extent) -> list[BucketSource]:
    """Returns the sources that may hold something below the extent's upper bound."""
    return [source for source in extent.sources if source.lowest < min(extent.upper, (source.time_bucket.end, LOW_MIN))]


class _PageBuilder:
    """A page that is being filled, and what it still lacks."""

    __slots__ = ("_first", "_most", "_rest", "_size", "_sized", "_wanted", "messages")

    def __init__(self, wanted: Slice, first: float, most: float) -> None:
        self._wanted = wanted
        self._first = first
        self._most = most
        self._size = self._sized = 0
        """Bytes of the messages that are counted, and how many are: all of the rounds before the present one."""
        self._rest: dict[Bucket, Position] = {}
        """Of the buckets that were asked: up to where they are known to hold nothing more."""
        self.messages: list[Message] = []

    def probes(self, sources: Sequence[BucketSource], begin: Position, stop: Position) -> list[Probe]:
        """Returns the queries between two positions, the first of which is met first in the slice's direction."""
        descending, bodies = self._wanted.descending, self._wanted.bodies
        spans = self._spans(sources, stop, begin) if descending else self._spans(sources, begin, stop)
        limit = self._limit(len(spans))
        return [Probe(time_bucket, low, high, limit, descending, bodies) for time_bucket, low, high in spans]

    def _spans(
        self, sources: Sequence[BucketSource], start: Position, stop: Position
    ) -> list[tuple[Bucket, Position, Position]]:
        """Returns the buckets that may hold something between two positions, and where."""
        found = []
        for time_bucket, lowest in sources:
            low, high = max(start, lowest), min(stop, (time_bucket.end, LOW_MIN))
            if self._rest and (rest := self._rest.get(time_bucket)) is not None:
                low, high = (low, min(high, rest)) if self._wanted.descending else (max(low, rest), high)
            if low < high:
                found.append((time_bucket, low, high))
        return found

    def window(self, sources: Sequence[BucketSource], begin: Position, bound: Position, narrow: int) -> Position:
        """Returns where the window ends that begins at ``begin``, at the latest at ``bound``."""
        down = self._wanted.descending
        stop = _window(sources, begin, narrow, down=down)
        if down:
            return self._near(sources, max(bound, stop), begin)[0]
        return self._near(sources, begin, _before_next_wide(sources, begin, min(bound, stop)))[1]

    def _near(self, sources: Sequence[BucketSource], start: Position, stop: Position) -> tuple[Position, Position]:
        """Ends a window where a bucket continues that was asked before, if others may hold something before that.

        Its next rows, which have come once already, are not asked for again until the page reaches them.
        """
        known = [rest for rest in self._rest.values() if start < rest < stop]
        if known:
            nearer = (max(known), stop) if self._wanted.descending else (start, min(known))
            if self._spans(sources, *nearer):
                return nearer
        return start, stop

    def learn(self, probes: Sequence[Probe], answers: Sequence[Rows], cut: Position) -> None:
        """Notes what a round has shown of its buckets beyond the position up to which the page has everything."""
        down = self._wanted.descending
        for probe, answer in zip(probes, answers, strict=True):
            place = bisect_left(answer, x=True, key=lambda row: (message_codec.position_of(row[0]) < cut) == down)
            if place < len(answer):
                rest = message_codec.position_of(answer[place][0])
                self._rest[probe.time_bucket] = ids.following(rest) if down else rest
            elif len(answer) < probe.limit:
                self._rest[probe.time_bucket] = probe.lower if down else probe.upper

    def _limit(self, time_buckets: int) -> int:
        """Returns how many rows to ask each bucket for: what is lacking, but no more than the page's bytes allow.

        How long rows are is not known before they are here, and the next may be longer than those that are.
        """
        wanted, count = self._wanted, len(self.messages)
        if not wanted.bodies:
            return wanted.limit - count
        room, limit = self._first, wanted.limit - count
        if count:
            self._size += bytes_of(self.messages[self._sized :])
            self._sized, room = count, self._most
            limit = min(limit, 1 + (wanted.max_bytes - self._size) // max(1, self._size // count))
        return max(1, int(min(limit, room // max(1, time_buckets))))

    def take(self, merged: list[Message]) -> bool:
        """Adds messages until the page is full; returns whether it is."""
        wanted = self._wanted
        del merged[wanted.limit - len(self.messages) :]
        self.messages += merged
        if wanted.bodies and self._size + bytes_at_most(merged) >= wanted.max_bytes:
            size = self._size
            for number, message in enumerate(merged, self._sized + 1):
                size += rendered_bytes(message.body, message.meta)
                if size >= wanted.max_bytes:
                    del self.messages[number:]
                    return True
        return len(self.messages) >= wanted.limit


class Span:
    """How much time a round may cover: all there is, until it turns out that there are too many dead rows in it."""

    ticks: int | None = None

    def narrow(self, probes: Sequence[Probe]) -> None:
        """Covers a quarter of what the probes covered."""
        covered = max(probe.upper for probe in probes)[0] - min(probe.lower for probe in probes)[0]
        self.ticks = covered // 4
        if not self.ticks:
            raise StoreUnavailable("Cassandra has too many deleted messages at one instant of this queue")

    def end(self, probes: Sequence[Probe], *, down: bool) -> Position:
        """Returns where a round ends that covers no more."""
        assert self.ticks is not None  # noqa: S101 - asked only then
        if down:
            return max(probe.upper for probe in probes)[0] - self.ticks, LOW_MIN
        return min(probe.lower for probe in probes)[0] + self.ticks, LOW_MIN

    def widen(self) -> None:
        if self.ticks:
            self.ticks *= 2


def _window(sources: Sequence[BucketSource], begin: Position, narrow: int, *, down: bool) -> Position:
    """Returns where a window ends that begins at a position and holds ``narrow`` narrow buckets (more if they overlap).

    ``down``: it lies below its begin, and buckets are met at their ends first.
    """
    if len(sources) <= narrow:
        return ids.FIRST if down else _END

    def is_ahead(tick: int) -> bool:
        return (tick, LOW_MIN) < begin if down else (tick, LOW_MIN) > begin

    time_buckets = [source.time_bucket for source in sources]
    stops: list[int] = []
    for wide, most in ((False, narrow), (True, MOST_WIDE)):
        edges = [(one.end, one.start) if down else (one.start, one.end) for one in time_buckets if one.wide == wide]
        ahead = [near for near, far in edges if is_ahead(far)]
        stops += [near for near in ahead[most:] if is_ahead(near)][:1]
    if not stops:
        return ids.FIRST if down else _END
    return (max(stops) if down else min(stops)), LOW_MIN


def _before_next_wide(sources: Sequence[BucketSource], at: Position, stop: Position) -> Position:
    """Ends the window before the first wide bucket that is known to be empty until then, if others come before.

    A page mostly fills before that, and then the wide one is not asked at all.
    """
    known = [
        lowest
        for time_bucket, lowest in sources
        if time_bucket.wide and at < lowest < stop and lowest[0] > time_bucket.start
    ]
    if not known:
        return stop
    ahead = min(known)
    before = any(lowest < ahead and (time_bucket.end, LOW_MIN) > at for time_bucket, lowest in sources)
    return ahead if before else stop


def _merge(
    probes: Sequence[Probe], answers: Sequence[Rows], cut: Position, requested: Slice, now: int
) -> list[Message]:
    """Returns the live messages of a round up to where it ends, in the slice's order, each once.

    While a message is being written under an id that exists already, it may be in two buckets; what was put counts.
    """
    filled = [(probe, answer) for probe, answer in zip(probes, answers, strict=True) if answer]
    if len(filled) == 1:
        merged = _messages(*filled[0], requested.partition, now)
    else:
        by_position: dict[Position, Message] = {}
        for probe, answer in sorted(filled, key=lambda pair: not pair[0].time_bucket.new_ids_only):
            for message in _messages(probe, answer, requested.partition, now):
                if probe.time_bucket.new_ids_only and message.position in by_position:
                    continue
                by_position[message.position] = message
        merged = [by_position[position] for position in sorted(by_position, reverse=requested.descending)]
    if len(probes) > 1:
        while merged and (merged[-1].position < cut) == requested.descending:
            merged.pop()
    return merged


def _messages(probe: Probe, answer: Rows, partition: int, now: int) -> list[Message]:
    if not probe.bodies:
        answer = [(data, b"", expires, None) for data, expires in answer]
    return message_codec.messages(answer, partition, now)


def page_of(wanted: Slice, extent: Extent, gathered: Gathered, horizon: int) -> Page:
    more = gathered.more or not extent.complete
    if wanted.descending:
        further = more and gathered.end > ids.FIRST
        return Page(gathered.messages, horizon, gathered.end if further else None, further)
    return Page(gathered.messages, horizon, max(wanted.lower, gathered.end), more)


async def run(
    driver: Driver,
    readers: Sequence[Rounds],
    keys: Sequence[tuple[int, int]],
    consistency: str,
    *,
    note: Note | None = None,
    room: float = math.inf,
    enough: float = math.inf,
) -> list[Gathered]:
    """Runs readers side by side, the probes of a round together as far as memory allows.

    Args:
        driver: The connection.
        readers: One for each slice.
        keys: qid and partition of each.
        consistency: The queue's read level.
        note: Remembers empty probes.
        room: Max rows asked for at a time, unless one reader alone asks for more.
        enough: When results have as many bytes, readers that have none yet are given up, but for the first of them.

    Returns:
        Their results, ``GIVEN_UP`` for those that were given up.
    """
    results = [GIVEN_UP] * len(readers)
    waiting: dict[int, list[Probe]] = {}

    def advance(number: int, answers: list[Rows] | None) -> None:
        try:
            waiting[number] = readers[number].send(answers)
        except StopIteration as ended:
            results[number] = ended.value
            waiting.pop(number, None)

    for number in range(len(readers)):
        advance(number, None)
    while waiting:
        pending = waiting.copy() if len(waiting) == 1 else _fitting(waiting, room)
        answers = await _answers(driver, keys, pending, consistency)
        for number, probes in pending.items():
            found = answers.pop(number)
            if note is not None and found is not None and not all(found):
                _note_empty(note, keys[number], probes, found)
            advance(number, found)
        if len(waiting) > 1 and enough < math.inf:
            enough -= sum([bytes_of(results[number].messages) for number in pending])
            if enough <= 0:
                for number in [*waiting][1:]:
                    del waiting[number]
    return results


def room_for(max_bytes: int, longest: int, *, first: bool = False) -> float:
    """Returns how many rows may be on their way at a time for pages of ``max_bytes`` together.

    ``longest``: bytes of the longest row. ``first``: no row has come yet; a page of long rows ends after a few, and the
    others would be read for nothing.
    """
    room = TIMES * max_bytes
    return (room if first and longest > SHORTEST else max(room, LEAST_BYTES)) / longest


def _note_empty(note: Note, key: tuple[int, int], probes: Sequence[Probe], answers: Sequence[Rows]) -> None:
    for probe, answer in zip(probes, answers, strict=True):
        if not answer:
            note(key, probe)


def _fitting(waiting: dict[int, list[Probe]], room: float) -> dict[int, list[Probe]]:
    fitting: dict[int, list[Probe]] = {}
    for number, probes in waiting.items():
        room -= sum([probe.limit for probe in probes])
        if room < 0 and fitting:
            break
        fitting[number] = probes
    return fitting


async def _answers(
    driver: Driver, keys: Sequence[tuple[int, int]], asked: dict[int, list[Probe]], consistency: str
) -> dict[int, list[Rows] | None]:
    """Asks for all readers at once, or one by one if a reader asks for too much; that one gets None."""
    wanted = [query(keys[number], probe, consistency) for number, probes in asked.items() for probe in probes]
    try:
        rows = await driver.ask_all(wanted)
    except TooManyDead:
        if len(asked) == 1:
            return dict.fromkeys(asked)
    else:
        if len(asked) == 1:
            return dict.fromkeys(asked, rows)
        found = iter(rows)
        return {number: [next(found) for _ in probes] for number, probes in asked.items()}
    answers: dict[int, list[Rows] | None] = {}
    for one in asked.items():
        answers |= await _answers(driver, keys, dict([one]), consistency)
    return answers


def query(key: tuple[int, int], probe: Probe, consistency: str) -> Encoded:
    """Returns the query for a probe, whose rows are: id, body, expires, meta; or id, expires."""
    where = (*key, probe.time_bucket.bucket)
    values = message_codec.encoded_range(
        message_codec.key_of(*where), probe.lower, ids.preceding(probe.upper), probe.limit
    )
    if probe.bodies:
        statements, decode = message_codec.DOWN if probe.descending else message_codec.UP, message_codec.decode
    else:
        statements = message_codec.IDS_DOWN if probe.descending else message_codec.IDS_UP
        decode = message_codec.decode_ids
    statement = statements[probe.time_bucket.ttl_class]
    routing = message_codec.routing_of(*where)
    return Encoded(statement, message_codec.RANGED, [values], routing, consistency, decode)
