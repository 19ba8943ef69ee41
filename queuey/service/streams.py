"""Streams: the messages of some queues from one position on, and then all that come.

A stream's progress is its :class:`Cursor`: a *base*, below which every partition has been read, and *marks* of
the few partitions that were read further. So a cursor stays short however many queues there are, and any process can go
on from it: nothing is missed, and nothing comes twice.

Mostly only the queues with new messages are read; that adds marks. When there would be too many, all queues
are read, which raises the base.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote
from weakref import WeakSet, WeakValueDictionary

from msgspec.structs import replace

from queuey import ids
from queuey.errors import QueueyError
from queuey.ids import FIRST, LAST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import Message, Queue
from queuey.service.queue_access import QueueAccess
from queuey.service.ranges import OTHERS, Mark, Range, Reading, mark_of, parse_bound, parse_mark
from queuey.service.reading import Reader, Source
from queuey.service.unread import MarkNews
from queuey.service.watching import Waiter

MOST_EARLY = 256
"""Max partitions tracked for early messages; with more, the lowest are dropped and get none."""
MOST_MARKS = 16
"""Max marks in a cursor, which each event has."""
LOOK = TICKS_PER_SECOND // 4
"""Interval in ticks, at least, between two lists of the queues."""
SPARE = 1.0
"""Number of seconds, beyond the clock difference, between two processes that list queues and store in a new one."""
NOW = "now"
Place = tuple[str, int]
"""A queue and a partition of it."""


class Cursor:
    """Progress in some queues.

    Args:
        base: All messages below it have been read.
        marks: Positions of partitions that have been read further.
    """

    __slots__ = ("base", "marks")

    def __init__(self, base: Position = FIRST, marks: Mapping[Place, Position] | None = None) -> None:
        self.base = base
        self.marks = dict(marks or {})

    @classmethod
    def parse(cls, text: str, queue: str | None, now: Callable[[], int] = ids.now_ticks) -> Cursor:
        """Reads a stream's cursor, that of a range read, an id, an instant, or ``now``; blank: the beginning.

        Args:
            text: The cursor.
            queue: The only queue; None: there are several, which the marks name.
            now: Returns the clock of ids.

        Raises:
            ValueError: It is none of these.

        Example:
            >>> cursor = Cursor.parse("0123456789ab1def8123456789abcdef,a%2Cb/2:0123456789ac1def8123456789abcdef", None)
            >>> cursor.text(None)
            '0123456789ab1def8123456789abcdef,a%2Cb/2:0123456789ac1def8123456789abcdef'
        """
        text = text.strip()
        if text == NOW:
            return cls((now(), LOW_MIN))
        if queue is not None:
            bound = parse_bound(text)
            if bound is None or isinstance(bound, Mark):
                return cls(FIRST if bound is None else bound.start)
            marks = {(queue, number): mark.start for number, mark in bound.items() if number != OTHERS}
            return cls(bound[OTHERS].start if OTHERS in bound else FIRST, marks)
        if not text:
            return cls()
        base, *further = text.split(",")
        found = cls(parse_mark(base.strip()).start)
        for item in further:
            place, _, position = item.strip().partition(":")
            name, _, number = place.rpartition("/")
            if not name or not (number.isascii() and number.isdigit()) or len(number) > 3:  # noqa: PLR2004
                raise ValueError(f"{item!r} does not name a partition of a queue")
            found.marks[unquote(name), int(number)] = ids.parse_position(position)
        return found

    def text(self, queue: str | None) -> str:
        """Returns it as a text. That of one queue can be used as ``since`` of a range read."""
        marks = [
            f"{'' if queue is not None else quote(name, safe='') + '/'}{number}:{ids.to_hex(at)}"
            for (name, number), at in self.marks.items()
        ]
        return ",".join([ids.to_hex(self.base), *marks])

    def of(self, queue: str) -> dict[int, Mark]:
        """Returns where to go on in each partition of a queue."""
        own = {number: mark_of(at) for (name, number), at in self.marks.items() if name == queue}
        return {OTHERS: mark_of(self.base), **own}

    def pass_over(self, place: Place, position: Position, *, whole: bool) -> None:
        """Records that a message of a partition was given; ``whole``: so was everything below it, in all partitions."""
        after = ids.following(position)
        if whole:
            self.raise_base(after)
        else:
            self.marks[place] = after

    def raise_base(self, base: Position) -> None:
        """Records that all partitions were read up to a position."""
        if base > self.base:
            self.base = base
            self.marks = {place: at for place, at in self.marks.items() if at > base}


class Event(NamedTuple):
    """A message of a stream.

    Attributes:
        cursor: The stream's position after it.
        queue: Its queue's name.
        message: The message.
        early: It lies above the horizon: the cursor does not pass it, and it comes again in its place.
    """

    cursor: str
    queue: str
    message: Message
    early: bool = False


Found = tuple[list[Event], list[tuple[str, QueueyError]]]
"""Messages, and queues that cannot be read any more, with the errors."""


class OpenStreams:
    """The open streams of this process.

    Args:
        reader: Reads their queues.

    Attributes:
        all: Streams that somebody still reads.
        followers: The streams that follow read marks, by their owner. They keep these sets.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.all: WeakSet[Stream] = WeakSet()
        self.followers: WeakValueDictionary[str, WeakSet[Stream]] = WeakValueDictionary()

    def notify(self, owner: str, queue: Queue) -> None:
        """Notifies the streams that follow an owner's marks that the one in a queue may have moved; from any thread."""
        self.reader.watchers.tell(self._notify, owner, queue)

    def _notify(self, owner: str, queue: Queue) -> None:
        for stream in list(self.followers.get(owner, ())):
            stream.hear_of_mark(queue)


class Stream:
    """One reader of some queues.

    Args:
        streams: The open streams of this process; it joins them.
        cursor: The start.
        limit: Messages of a partition that are read together.
        partitions: Of the queues; None: all.
        queue: The only one; None: there may be several, or none yet.
        early: Include messages above the horizon, each once at most, and later in its place.

    Attributes:
        cursor: Its progress.
        is_of_all: It has all queues that its reader may read.
        looks_again: It may be time to list these again.
        looked: Time of the last list: queues that are found later have no messages below. None: there was none.
        marks: News of its reader's marks; None: they are not followed.
    """

    __slots__ = (
        "__weakref__",
        "_early",
        "_followers",
        "_given_early",
        "_left",
        "_limit",
        "_partitions",
        "_queue",
        "_sources",
        "_streams",
        "cursor",
        "is_of_all",
        "looked",
        "looks_again",
        "marks",
    )

    def __init__(
        self,
        streams: OpenStreams,
        cursor: Cursor,
        limit: int,
        partitions: tuple[int, ...] | None,
        queue: str | None,
        *,
        early: bool = False,
    ) -> None:
        self._streams = streams
        streams.all.add(self)
        self._limit = limit
        self._partitions = partitions
        self._queue = queue
        self._early = early
        self._given_early = Cursor()
        """The last early message of each partition; messages below one are given in their places only."""
        self._sources: dict[str, QueueAccess] = {}
        self._left: dict[str, dict[int, Mark]] = {}
        """Next position, by partition, in queues that were not read to their ends: nothing lies below it."""
        self.cursor = cursor
        self.is_of_all = False
        self.looks_again = True
        self.looked: Position | None = None
        self.marks: MarkNews | None = None
        self._followers: WeakSet[Stream] | None = None

    @property
    def more(self) -> bool:
        """True if another try may give messages or marks at once."""
        return not self.rests and (bool(self._left) or (self.marks is not None and self.marks.more))

    @property
    def rests(self) -> bool:
        """True if it waits until it lists the queues again: until then its cursor can advance no further."""
        return self.is_of_all and self.looks_again

    @property
    def text(self) -> str:
        return self.cursor.text(self._queue)

    @property
    def queues(self) -> Collection[str]:
        return self._sources.keys()

    @property
    def accesses(self) -> Sequence[QueueAccess]:
        return list(self._sources.values())

    def admit(self, access: QueueAccess) -> None:
        """Adds a queue, which is read at the next try whatever woke it, or replaces its rights."""
        if access.queue.name not in self._sources:
            self._left.setdefault(access.queue.name, {})
        self._sources[access.queue.name] = access

    def beat(self, longest: float) -> float:
        """Returns the seconds until its reader's marks are read again, at most ``longest``."""
        return longest if self.marks is None else min(longest, self.marks.pause)

    def follow_marks(self, marks: MarkNews) -> None:
        self.marks = marks
        self._followers = self._streams.followers.setdefault(marks.reader, WeakSet())
        self._followers.add(self)

    def hear_of_mark(self, queue: Queue) -> None:
        """Reads a mark again that may have moved, if it is of one of its queues."""
        if self.marks is not None and queue.name in self._sources:
            self.marks.hear(queue)

    @property
    def may_look(self) -> bool:
        """True if the last list of queues is not too recent."""
        return self.looked is None or self._since() - self.looked[0] >= LOOK

    def _since(self) -> int:
        """Returns ticks below which nothing can lie in a queue that does not exist yet."""
        reader = self._streams.reader
        return reader.now() - round((SPARE + reader.clock_difference) * TICKS_PER_SECOND)

    def look(self) -> None:
        """Records that the queues are listed now."""
        self.looks_again = False
        if self.is_of_all:
            self.looked = self._since(), LOW_MIN

    def drop(self, name: str) -> None:
        self._sources.pop(name, None)
        self._left.pop(name, None)
        if self.marks is not None:
            self.marks.drop(name)
        for cursor in (self.cursor, self._given_early):
            cursor.marks = {place: at for place, at in cursor.marks.items() if place[0] != name}

    def _range(self, name: str) -> Range:
        return Range(
            partitions=self._partitions,
            limit=self._limit,
            since=self.cursor.of(name) | self._left.get(name, {}),
            early=self._early,
            early_after=self._given_early.of(name) if self._early else None,
            looks_ahead=True,
        )

    async def read_short(self, waiter: Waiter) -> Found | None:
        """Does what :meth:`read` does for the only partition of a single queue; None: the read is not short."""
        if len(self._sources) != 1:
            return None
        [(name, access)] = self._sources.items()
        if (self._partitions or tuple(range(1, access.queue.partitions + 1))) != (1,):
            return None
        wanted = replace(self._range(name), partitions=(1,))
        reading = await access.apply(lambda queue: self._streams.reader.read_short(queue, wanted, waiter))
        return None if reading is None else (self._given({name: reading}, whole=True), [])

    def read(self, woken: frozenset[int] | None, waiter: Waiter) -> Found:
        """Returns new messages, and the queues that cannot be read any more; blocks.

        Args:
            woken: The queues (qid) that may have news, as the waiter had them; None: any.
            waiter: Is woken when another read may give something.
        """
        names = self._behind(woken)
        waits_for = Range(partitions=self._partitions, early=self._early)
        every = [Source(access, waits_for) for access in self.accesses]
        asked = [Source(self._sources[each], self._range(each)) for each in names]
        results = self._streams.reader.read_woken(every, asked, waiter)
        readings: dict[str, Reading] = {}
        failed: list[tuple[str, QueueyError]] = []
        for each, result in zip(names, results, strict=True):
            if isinstance(result, Reading):
                readings[each] = result
            else:
                failed.append((each, result))
        return self._given(readings, whole=len(readings) == len(self._sources)), failed

    def _behind(self, woken: frozenset[int] | None) -> Sequence[str]:
        """Returns the queues to read, that with the oldest message first; None: all may have news."""
        found = list(self._sources)
        if woken is not None:
            some = {name for name, access in self._sources.items() if access.queue.qid in woken} | self._left.keys()
            beside = [place for place in self.cursor.marks if place[0] not in some]
            expected = len(beside) + sum(self._sources[name].queue.partitions for name in some)
            if expected <= MOST_MARKS:
                found = list(some)
        return sorted(found, key=lambda name: min((at.start for at in self._left.get(name, {}).values()), default=LAST))

    def _given(self, readings: Mapping[str, Reading], *, whole: bool) -> list[Event]:
        """Returns readings as events, in time order, and advances the cursor; ``whole``: they are of all queues."""
        ends = [at for reading in readings.values() for at in reading.next.values() if at is not None]
        floor = min(ends) if whole and ends else FIRST
        if self.looked is not None:
            floor = min(floor, self.looked)
        for name, reading in readings.items():
            self._left.pop(name, None)
            if reading.more:
                self._left[name] = {number: mark_of(at) for number, at in reading.next.items() if at is not None}
        found = sorted(
            ((message.position, name, message) for name, reading in readings.items() for message in reading.messages),
            key=lambda each: each[:2],
        )
        events = []
        for number, (position, name, message) in enumerate(found):
            place = name, message.partition
            is_below = position < floor
            if not is_below and place not in self.cursor.marks and len(self.cursor.marks) >= MOST_MARKS:
                for at, each, late in reversed(found[number:]):
                    self._left.setdefault(each, {})[late.partition] = mark_of(at)
                self.looks_again = self.looked is not None  # Only that lets the base rise.
                break
            # A batch may have one position in several partitions: the first of these does not say that all were given.
            is_last = number + 1 == len(found) or found[number + 1][0] != position
            self.cursor.pass_over(place, position, whole=is_below and is_last)
            events.append(Event(self.text, name, message))
        else:
            self.cursor.raise_base(floor)
            events += self._early_events(readings)
        return events

    def _early_events(self, readings: Mapping[str, Reading]) -> list[Event]:
        """Returns messages above the horizons, in time order, and records them as given."""
        if not self._early or not readings:
            return []
        given = self._given_early
        given.raise_base((min(reading.horizon for reading in readings.values()), LOW_MIN))
        found = [(message.position, name, message) for name, each in readings.items() for message in each.early]
        found.sort(key=lambda each: each[:2])
        for position, name, message in found:
            given.marks[name, message.partition] = position
        if len(given.marks) > MOST_EARLY:
            given.raise_base(sorted(given.marks.values())[-MOST_EARLY // 2])
        for name, reading in readings.items():
            if reading.early_more:
                self._left.setdefault(name, {})
        return [Event(self.text, name, message, early=True) for _, name, message in found]
