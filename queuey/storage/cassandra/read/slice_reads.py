"""Reads a slice of a partition from the buckets that may hold it.

A slice is read in rounds. A round covers a window of time: it queries the wide buckets that overlap the window and a
limited number of narrow ones, and asks each for at most what the page still lacks. If a bucket returns as many rows as
were requested, it may have more after the last one, so the round ends there and the next begins. If only one bucket may
hold messages, its rows are the page: no window is chosen, nothing is merged, and no rest of a bucket is remembered. The
logic is a generator that yields probes and is sent their rows. So slices of several partitions share their round trips,
and the logic runs without a server.

The memory of a read is bounded by the bytes that its pages may have. Because the length of a row is not known before it
arrives, each row counts as the longest that the queue may have (``longest_row`` of its row). The rows in flight take at
most :data:`MAX_ROUND_RATIO` times the pages' bytes, or :data:`MIN_ROUND_BYTES`. A read holds these rows, the pages, and
one body for each slice. It holds more only if a round asks every bucket of one partition for a single row.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import LOW_MIN, Position
from queuey.model.messages import Message, Page, Slice, bytes_at_most, bytes_of, rendered_bytes
from queuey.storage.cassandra.catalogue.queue_cache import MIN_LONGEST_ROW
from queuey.storage.cassandra.cluster import Driver, Encoded, Rows, TooManyDead
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.time.bucketing import Bucket

MAX_ROUND_RATIO = 4
"""Max ratio of a round's bytes to its page's bytes, if every row were as long as the queue's longest."""
MIN_ROUND_BYTES = 4 << 20
"""Min bytes that a round may request, however small its page, if the queue has no long rows (a hundred rows of each of
32 buckets fit) or once the page has messages."""
MAX_NARROW_BUCKETS = 16
MAX_WIDE_BUCKETS = 16
"""Max narrow and max wide buckets in one round. A window has more wide ones only if old ids were put."""
_END: Position = (ids.TICKS_MAX + 1, LOW_MIN)


class Probe(NamedTuple):
    """A query for rows (or only ids) of one bucket in ``[lower, upper)``, at most ``limit`` of them from one end."""

    time_bucket: Bucket
    lower: Position
    upper: Position
    limit: int
    descending: bool
    bodies: bool = True


class BucketSource(NamedTuple):
    """A bucket, and the position below which no message in it is alive."""

    time_bucket: Bucket
    lowest: Position


class Extent(NamedTuple):
    """The part of a partition that is to be read.

    Attributes:
        sources: The buckets that may hold a message of the part, in any order.
        lower, upper: The bounds of the part.
        complete: False if there may be further buckets beyond the far bound.
    """

    sources: Sequence[BucketSource]
    lower: Position
    upper: Position
    complete: bool


Key = tuple[int, int]
"""qid and partition."""


class EmptyRanges:
    """Remembers the latest range of each bucket that was found empty and will stay empty.

    Buckets for new ids only gain rows at or above the horizon (see :mod:`..time.bucketing`), and dead rows stay dead.
    So a range below the horizon that was found empty need not be read again. On a busy queue this is mostly the wide
    bucket beside the narrow ones, and saves half of all queries. It is correct only if a read finds all acknowledged
    writes; otherwise no range is recorded (:meth:`..statements.consistency_levels.ConsistencyLevels.empty_below`).
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranges: OrderedDict[tuple[int, int, Bucket], tuple[Position, Position]] = OrderedDict()
        self._lock = threading.Lock()

    def record(self, key: Key, probe: Probe, below: Position) -> None:
        """Records the range of a probe that found no row, up to ``below``: above it rows may still arrive.

        Ignores buckets that are not for new ids only. The range joins the known one if they touch, else replaces it.
        """
        low, high = probe.lower, min(probe.upper, below)
        if not probe.time_bucket.new_ids_only or low >= high:
            return
        name = (*key, probe.time_bucket)
        with self._lock:
            present = self._ranges.pop(name, None)
            if present is not None and present[0] <= high and low <= present[1]:
                low, high = min(low, present[0]), max(high, present[1])
            self._ranges[name] = low, high
            while len(self._ranges) > self._size:
                self._ranges.popitem(last=False)

    def shorten(self, key: Key, source: BucketSource, lower: Position) -> BucketSource:
        empty = self._ranges.get((*key, source.time_bucket))
        start = max(lower, source.lowest)
        if empty is not None and empty[0] <= start < empty[1]:
            return BucketSource(source.time_bucket, empty[1])
        return source


EmptyProbeCallback = Callable[[Key, Probe], None]
"""Called with a reader's key and a probe that found no row at all."""
Rounds = Generator[list[Probe], list[Rows] | None, "Gathered"]
"""Yields probes and is sent their rows, or None if their ranges have too many dead rows."""


class Gathered(NamedTuple):
    """The result of the rounds.

    Attributes:
        messages: Live messages in the slice's order.
        end: The first position that was not read: the lowest one if ascending, the highest one if descending.
        more: True if the page is full. False if everything up to the extent's far bound was read.
    """

    messages: list[Message]
    end: Position
    more: bool


GIVEN_UP = Gathered([], ids.FIRST, more=True)


def read_rounds(requested: Slice, extent: Extent, now: int, *, first_rows: float, max_rows: float) -> Rounds:
    """Reads a slice in its direction.

    Yields the probes of a round, and is sent their answers, or None if they met too many dead rows.

    Args:
        now: The time (ticks); messages that have expired by then are left out.
        first_rows: Max rows of the requests before any row has arrived (see :func:`room_for`).
        max_rows: Max rows of the requests of any other round.
    """
    down = requested.descending
    nearest = max if down else min
    sources = [one for one in extent.sources if one.lowest < min(extent.upper, (one.time_bucket.end, LOW_MIN))]
    position, bound = (extent.upper, extent.lower) if down else (extent.lower, extent.upper)
    if is_merged := len(sources) > 1:
        sources.sort(key=lambda source: source.time_bucket.end if down else source.time_bucket.start, reverse=down)
    filling, narrow = _PageBuilder(requested, first_rows, max_rows), 1
    span = RoundSpan()
    while position > bound if down else position < bound:
        stop = filling.window(sources, position, bound, narrow) if is_merged else bound
        probes = filling.probes(sources, position, stop)
        if probes and span.ticks:
            stop = nearest(stop, span.end(probes, down=down))
            probes = filling.probes(sources, position, stop)
        answers = (yield probes) if probes else []
        if answers is None:
            span.narrow(probes)
            continue
        if span.ticks:
            span.widen()
        cut: Position | None = None
        if len(probes) == 1:
            messages = _decode_messages(probes[0], answers[0], requested.partition, now)
        else:
            cut = _find_cut(probes, answers, stop)
            messages = _merge(probes, answers, cut, requested, now)
        if filling.add(messages):
            last = filling.messages[-1].position
            return Gathered(filling.messages, ids.preceding(last) if down else ids.following(last), more=True)
        position = _find_cut(probes, answers, stop) if cut is None else cut
        if is_merged:
            filling.record_rests(probes, answers, position)
        narrow = min(MAX_NARROW_BUCKETS, narrow * 2)
    return Gathered(filling.messages, ids.preceding(bound) if down else bound, more=False)


def _find_cut(probes: Sequence[Probe], answers: Sequence[Rows], stop: Position) -> Position:
    """Returns the position up to which a round is complete: the nearest last row of a bucket that may have more."""
    for probe, answer in zip(probes, answers, strict=True):
        if len(answer) >= probe.limit:
            last = message_codec.position_of(answer[-1][0])
            stop = max(stop, last) if probe.descending else min(stop, ids.following(last))
    return stop


class _PageBuilder:
    """Builds one page over several rounds."""

    __slots__ = ("_first", "_most", "_requested", "_rest", "_size", "_sized", "messages")

    def __init__(self, requested: Slice, first: float, most: float) -> None:
        self._requested = requested
        self._first = first
        self._most = most
        self._size = self._sized = 0
        """Bytes and number of the messages of earlier rounds."""
        self._rest: dict[Bucket, Position] = {}
        """By bucket, the position up to which the bucket is known to hold no further messages."""
        self.messages: list[Message] = []

    def probes(self, sources: Sequence[BucketSource], begin: Position, stop: Position) -> list[Probe]:
        descending, bodies = self._requested.descending, self._requested.bodies
        spans = self._find_spans(sources, stop, begin) if descending else self._find_spans(sources, begin, stop)
        limit = self._choose_limit(len(spans))
        return [Probe(*bounds, limit, descending, bodies) for bounds in spans]

    def _find_spans(
        self, sources: Sequence[BucketSource], start: Position, stop: Position
    ) -> list[tuple[Bucket, Position, Position]]:
        spans = []
        for time_bucket, lowest in sources:
            low, high = max(start, lowest), min(stop, (time_bucket.end, LOW_MIN))
            if self._rest and (rest := self._rest.get(time_bucket)) is not None:
                low, high = (low, min(high, rest)) if self._requested.descending else (max(low, rest), high)
            if low < high:
                spans.append((time_bucket, low, high))
        return spans

    def window(self, sources: Sequence[BucketSource], begin: Position, bound: Position, narrow: int) -> Position:
        """Returns the end of the window that begins at ``begin``, at the latest ``bound``.

        The window has a limited number of buckets (see :func:`_find_window_end`). It ends before the known rest of a
        bucket, or upwards before a wide bucket, if other buckets may hold messages until then.
        """
        down = self._requested.descending
        stop = _find_window_end(sources, begin, narrow, down=down)
        if down:
            return self._shorten_to_rest(sources, max(bound, stop), begin)[0]
        return self._shorten_to_rest(sources, begin, _end_before_next_wide(sources, begin, min(bound, stop)))[1]

    def _shorten_to_rest(
        self, sources: Sequence[BucketSource], start: Position, stop: Position
    ) -> tuple[Position, Position]:
        """Ends a window where the known rest of a bucket begins, if other buckets may hold messages before that.

        The next rows of that bucket were read once; they are not read again until the page reaches them.
        """
        rests = [rest for rest in self._rest.values() if start < rest < stop]
        if rests:
            nearer = (max(rests), stop) if self._requested.descending else (start, min(rests))
            if self._find_spans(sources, *nearer):
                return nearer
        return start, stop

    def record_rests(self, probes: Sequence[Probe], answers: Sequence[Rows], cut: Position) -> None:
        down = self._requested.descending
        for probe, answer in zip(probes, answers, strict=True):
            index = bisect_left(answer, x=True, key=lambda row: (message_codec.position_of(row[0]) < cut) == down)
            if index < len(answer):
                rest = message_codec.position_of(answer[index][0])
                self._rest[probe.time_bucket] = ids.following(rest) if down else rest
            elif len(answer) < probe.limit:
                self._rest[probe.time_bucket] = probe.lower if down else probe.upper

    def _choose_limit(self, time_buckets: int) -> int:
        requested, count = self._requested, len(self.messages)
        if not requested.bodies:
            return requested.limit - count
        row_budget, limit = self._first, requested.limit - count
        if count:
            self._size += bytes_of(self.messages[self._sized :])
            self._sized, row_budget = count, self._most
            limit = min(limit, 1 + (requested.max_bytes - self._size) // max(1, self._size // count))
        return max(1, int(min(limit, row_budget // max(1, time_buckets))))

    def add(self, merged: list[Message]) -> bool:
        requested = self._requested
        del merged[requested.limit - len(self.messages) :]
        self.messages += merged
        if requested.bodies and self._size + bytes_at_most(merged) >= requested.max_bytes:
            size = self._size
            for number, message in enumerate(merged, self._sized + 1):
                size += rendered_bytes(message.body, message.meta)
                if size >= requested.max_bytes:
                    del self.messages[number:]
                    return True
        return len(self.messages) >= requested.limit


class RoundSpan:
    """The max time that a round covers: unlimited until a range has too many dead rows.

    Then it is shortened at each such range, and doubled after each round that was answered.
    """

    ticks: int | None = None

    def narrow(self, probes: Sequence[Probe]) -> None:
        covered = max(probe.upper for probe in probes)[0] - min(probe.lower for probe in probes)[0]
        self.ticks = covered // 4
        if not self.ticks:
            raise StoreUnavailable("Cassandra has too many deleted messages at one instant of this queue")

    def end(self, probes: Sequence[Probe], *, down: bool) -> Position:
        assert self.ticks is not None  # noqa: S101 - callers check it
        if down:
            return max(probe.upper for probe in probes)[0] - self.ticks, LOW_MIN
        return min(probe.lower for probe in probes)[0] + self.ticks, LOW_MIN

    def widen(self) -> None:
        if self.ticks:
            self.ticks *= 2


def _find_window_end(sources: Sequence[BucketSource], begin: Position, narrow: int, *, down: bool) -> Position:
    """Returns the end of the window that begins at ``begin``; without enough buckets to limit it, the end of time.

    A window has ``narrow`` narrow buckets and ``MAX_WIDE_BUCKETS`` wide ones (more if they overlap). ``down``: it lies
    below ``begin``, so a bucket's end comes before its start.
    """
    if len(sources) <= narrow:
        return ids.FIRST if down else _END

    def is_ahead(tick: int) -> bool:
        return (tick, LOW_MIN) < begin if down else (tick, LOW_MIN) > begin

    time_buckets = [source.time_bucket for source in sources]
    stops: list[int] = []
    for wide, max_buckets in ((False, narrow), (True, MAX_WIDE_BUCKETS)):
        edges = [(b.end, b.start) if down else (b.start, b.end) for b in time_buckets if b.wide == wide]
        ahead = [near for near, far in edges if is_ahead(far)]
        stops += [near for near in ahead[max_buckets:] if is_ahead(near)][:1]
    if not stops:
        return ids.FIRST if down else _END
    return (max(stops) if down else min(stops)), LOW_MIN


def _end_before_next_wide(sources: Sequence[BucketSource], begin: Position, stop: Position) -> Position:
    """Ends the window where the first partly empty wide bucket may hold messages, if other buckets may before.

    The page mostly fills before that, and then the wide bucket is not queried.
    """
    starts = [
        lowest
        for time_bucket, lowest in sources
        if time_bucket.wide and begin < lowest < stop and lowest[0] > time_bucket.start
    ]
    if not starts:
        return stop
    nearest = min(starts)
    has_earlier = any(lowest < nearest and (time_bucket.end, LOW_MIN) > begin for time_bucket, lowest in sources)
    return nearest if has_earlier else stop


def _merge(
    probes: Sequence[Probe], answers: Sequence[Rows], cut: Position, requested: Slice, now: int
) -> list[Message]:
    """Returns the live messages of a round up to ``cut``, in the slice's order and without duplicates.

    While a message is put at an existing id, it may be in two buckets; the put one counts.
    """
    filled = [(probe, answer) for probe, answer in zip(probes, answers, strict=True) if answer]
    if len(filled) == 1:
        merged = _decode_messages(*filled[0], requested.partition, now)
    else:
        by_position: dict[Position, Message] = {}
        for probe, answer in sorted(filled, key=lambda pair: not pair[0].time_bucket.new_ids_only):
            for message in _decode_messages(probe, answer, requested.partition, now):
                if probe.time_bucket.new_ids_only and message.position in by_position:
                    continue
                by_position[message.position] = message
        merged = [by_position[position] for position in sorted(by_position, reverse=requested.descending)]
    if len(probes) > 1:
        while merged and (merged[-1].position < cut) == requested.descending:
            merged.pop()
    return merged


def _decode_messages(probe: Probe, answer: Rows, partition: int, now: int) -> list[Message]:
    if not probe.bodies:
        answer = [(data, b"", expires, None) for data, expires in answer]
    return message_codec.decode_alive(answer, partition, now)


def page_of(requested: Slice, extent: Extent, gathered: Gathered, horizon: int) -> Page:
    """Returns the page of a slice. Downwards, it has a next position only if there may be further messages."""
    more = gathered.more or not extent.complete
    if requested.descending:
        further = more and gathered.end > ids.FIRST
        return Page(gathered.messages, horizon, gathered.end if further else None, further)
    return Page(gathered.messages, horizon, max(requested.lower, gathered.end), more)


async def run_readers(
    driver: Driver,
    readers: Sequence[Rounds],
    keys: Sequence[Key],
    consistency: str,
    *,
    record_empty: EmptyProbeCallback | None = None,
    max_rows: float = math.inf,
    enough_bytes: float = math.inf,
) -> list[Gathered]:
    """Runs readers side by side, the probes of a round together as far as memory allows.

    Args:
        readers: One for each slice.
        keys: qid and partition of each reader.
        consistency: The queue's read level.
        max_rows: Max rows requested at a time, unless one reader alone requests more.
        enough_bytes: When the results have this many bytes, all unfinished readers but the first are given up.

    Returns:
        The result of each reader; ``GIVEN_UP`` if it was given up.
    """
    results = [GIVEN_UP] * len(readers)
    waiting: dict[int, list[Probe]] = {}
    answers: dict[int, list[Rows] | None] = dict.fromkeys(range(len(readers)))
    while True:
        for number in [*answers]:
            rows = answers.pop(number)  # Not kept while the next ones are read.
            if record_empty is not None and rows is not None and not all(rows):
                _report_empty_probes(record_empty, keys[number], waiting[number], rows)
            try:
                waiting[number] = readers[number].send(rows)
            except StopIteration as ended:
                waiting.pop(number, None)
                results[number] = ended.value
                enough_bytes -= bytes_of(results[number].messages) if enough_bytes < math.inf else 0
        if enough_bytes <= 0:
            for number in [*waiting][1:]:
                del waiting[number]
        if not waiting:
            return results
        pending = waiting.copy() if len(waiting) == 1 else _select_fitting(waiting, max_rows)
        answers = await _send_probes(driver, keys, pending, consistency)


def room_for(max_bytes: int, longest: int, *, first: bool = False) -> float:
    """Returns how many rows may be in flight for pages of ``max_bytes`` together.

    ``longest``: bytes of the longest row. ``first``: no row has arrived yet. A page of long rows is full after a few,
    and further rows would be read in vain.
    """
    room = MAX_ROUND_RATIO * max_bytes
    return (room if first and longest > MIN_LONGEST_ROW else max(room, MIN_ROUND_BYTES)) / longest


def _report_empty_probes(note: EmptyProbeCallback, key: Key, probes: Sequence[Probe], answers: Sequence[Rows]) -> None:
    for probe, answer in zip(probes, answers, strict=True):
        if not answer:
            note(key, probe)


def _select_fitting(waiting: dict[int, list[Probe]], room: float) -> dict[int, list[Probe]]:
    fitting: dict[int, list[Probe]] = {}
    for number, probes in waiting.items():
        room -= sum([probe.limit for probe in probes])
        if room < 0 and fitting:
            break
        fitting[number] = probes
    return fitting


async def _send_probes(
    driver: Driver, keys: Sequence[Key], probes_of: dict[int, list[Probe]], consistency: str
) -> dict[int, list[Rows] | None]:
    """Sends all probes together, or one reader after the other if one has too many dead rows. That one gets None."""
    queries = [query(keys[number], probe, consistency) for number, probes in probes_of.items() for probe in probes]
    try:
        rows = await driver.ask_all(queries)
    except TooManyDead:
        if len(probes_of) == 1:
            return dict.fromkeys(probes_of)
    else:
        if len(probes_of) == 1:
            return dict.fromkeys(probes_of, rows)
        answer_iterator = iter(rows)
        return {number: [next(answer_iterator) for _ in probes] for number, probes in probes_of.items()}
    answers: dict[int, list[Rows] | None] = {}
    for reader_probes in probes_of.items():
        answers |= await _send_probes(driver, keys, dict([reader_probes]), consistency)
    return answers


def query(key: Key, probe: Probe, consistency: str) -> Encoded:
    """Returns a probe's request. The rows are id, body, expires and meta; without ``bodies``, id and expires."""
    bucket_key = (*key, probe.time_bucket.code)
    values = message_codec.encode_range(
        message_codec.key_of(*bucket_key), probe.lower, ids.preceding(probe.upper), probe.limit
    )
    if probe.bodies:
        statements, decode = (
            message_codec.SELECT_DOWN if probe.descending else message_codec.SELECT_UP,
            message_codec.decode,
        )
    else:
        statements = message_codec.SELECT_IDS_DOWN if probe.descending else message_codec.SELECT_IDS_UP
        decode = message_codec.decode_ids
    statement = statements[probe.time_bucket.ttl_class]
    routing = message_codec.routing_of(*bucket_key)
    return Encoded(statement, message_codec.RANGE_VALUE_COUNT, [values], routing, consistency, decode)
