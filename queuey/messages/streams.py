"""Streams: the messages of several queues from one position on, followed by new messages as they arrive.

A stream's progress is its :class:`Cursor`: a *base*, below which every partition has been read, and *marks* for
the few partitions that were read further. So the cursor stays short however many queues the stream has. Any process can
continue from it without missing or repeating a message.

Usually only the queues with new messages are read, which adds marks. When the cursor would get too many marks, all
queues are read, which raises the base.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote
from weakref import WeakSet, WeakValueDictionary

from queuey.access.queue_access import QueueAccess
from queuey.messages.range_reads import NotShort, RangeSource, Reader
from queuey.messages.ranges import OTHER_PARTITIONS, Mark, RangeAnswer, RangeRequest, make_mark, parse_bound, parse_mark
from queuey.messages.read_marks import MarkNews, Marks
from queuey.model import ids
from queuey.model.errors import QueueyError
from queuey.model.ids import FIRST, LAST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.model.messages import Message, Queue
from queuey.runtime.waiters import Waiter

MAX_EARLY_PARTITIONS = 256
"""Max partitions tracked for early messages; with more, the lowest are dropped and get none."""
MAX_MARKS = 16
"""Max marks in a cursor; each event carries one."""
MIN_LIST_INTERVAL = TICKS_PER_SECOND // 4
"""Min interval in ticks between two lists of the queues."""
CREATION_MARGIN = 1.0
"""Seconds beyond the clock difference that are allowed between a list of queues and a write to a new queue."""
MAX_NOTIFIED = 32
"""Max streams with read marks of a queue that are notified at once when messages are removed."""
MAX_FOLLOWED = 16
"""Max queues of a stream with read marks that notify it so."""
NOW = "now"
QueuePartition = tuple[str, int]


class Cursor:
    """Progress in several queues.

    Args:
        base: All messages below this position have been read.
        marks: Next positions in the partitions that have been read further.
    """

    __slots__ = ("base", "marks")

    def __init__(self, base: Position = FIRST, marks: Mapping[QueuePartition, Position] | None = None) -> None:
        self.base = base
        self.marks = dict(marks or {})

    @classmethod
    def parse(cls, text: str, queue: str | None, now: Callable[[], int] = ids.now_ticks) -> Cursor:
        """Parses a cursor of a stream or a range read, an id, an instant, or ``now``. Blank means the beginning.

        Args:
            queue: The only queue, or None if the marks name several queues.
            now: Returns the clock of ids.

        Raises:
            ValueError: The text is not a cursor, an id, an instant or ``now``.

        Example:
            >>> cursor = Cursor.parse("0123456789ab1def8123456789abcdef,a%2Cb/2:0123456789ac1def8123456789abcdef", None)
            >>> cursor.to_text(None)
            '0123456789ab1def8123456789abcdef,a%2Cb/2:0123456789ac1def8123456789abcdef'
        """
        text = text.strip()
        if text == NOW:
            return cls((now(), LOW_MIN))
        if queue is not None:
            bound = parse_bound(text)
            if bound is None or isinstance(bound, Mark):
                return cls(FIRST if bound is None else bound.start)
            marks = {(queue, number): mark.start for number, mark in bound.items() if number != OTHER_PARTITIONS}
            return cls(bound[OTHER_PARTITIONS].start if OTHER_PARTITIONS in bound else FIRST, marks)
        if not text:
            return cls()
        base, *further = text.split(",")
        cursor = cls(parse_mark(base.strip()).start)
        for item in further:
            place, _, position = item.strip().partition(":")
            name, _, number = place.rpartition("/")
            if not name or not (number.isascii() and number.isdigit()) or len(number) > 3:  # noqa: PLR2004
                raise ValueError(f"{item!r} does not name a partition of a queue")
            cursor.marks[unquote(name), int(number)] = ids.parse_position(position)
        return cursor

    def to_text(self, queue: str | None) -> str:
        """Returns the cursor as text. A range read accepts the text of a single queue as ``since``."""
        marks = [
            f"{'' if queue is not None else quote(name, safe='') + '/'}{number}:{ids.to_hex(position)}"
            for (name, number), position in self.marks.items()
        ]
        return ",".join([ids.to_hex(self.base), *marks])

    def make_marks(self, queue: str) -> dict[int, Mark]:
        own = {number: make_mark(position) for (name, number), position in self.marks.items() if name == queue}
        return {OTHER_PARTITIONS: make_mark(self.base), **own}

    def advance(self, place: QueuePartition, position: Position, *, whole: bool) -> None:
        """Moves the cursor just past a position: the base if ``whole``, else the mark of one partition."""
        after = ids.following(position)
        if whole:
            self.raise_base(after)
        else:
            self.marks[place] = after

    def raise_base(self, base: Position) -> None:
        """Raises the base, never lowers it; drops the marks that it reaches."""
        if base > self.base:
            self.base = base
            self.marks = {place: position for place, position in self.marks.items() if position > base}


class Event(NamedTuple):
    """A message of a stream.

    Attributes:
        cursor: The stream's cursor after the message.
        early: True if the message is above the horizon: the cursor does not pass it, and it is sent again in order.
    """

    cursor: str
    queue: str
    message: Message
    early: bool = False


StreamRead = tuple[list[Event], list[tuple[str, QueueyError]]]


class OpenStreams:
    """The open streams of this process.

    Attributes:
        all: Streams that are still being read.
        followers: Streams that follow read marks, by the owner of the marks and by queue (uid). They keep the sets
            alive.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.all: WeakSet[Stream] = WeakSet()
        self.followers: WeakValueDictionary[str | int, WeakSet[Stream]] = WeakValueDictionary()

    def notify(self, owner: str | int, queue: Queue) -> None:
        """Notifies streams that an owner's read mark in a queue may have moved; from any thread."""
        if owner in self.followers:
            self.reader.watchers.schedule(self._notify, owner, queue)

    def notify_removed(self, queue: Queue) -> None:
        """Notifies streams with read marks that messages of a queue were removed or written by id; from any thread.

        If they are many, each finds that when it counts again.
        """
        if len(self.followers.get(queue.uid, ())) <= MAX_NOTIFIED:
            self.notify(queue.uid, queue)

    def _notify(self, owner: str | int, queue: Queue) -> None:
        for stream in list(self.followers.get(owner, ())):
            stream.on_unread_changed(queue)


class Stream:
    """Delivers the messages of several queues to one reader.

    Args:
        streams: The open streams of this process, to which this one is added.
        limit: Max messages per partition in one read.
        partitions: Partitions to read in each queue; None means all.
        queue: Name of the only queue, or None if there may be several or none yet.
        early: Include messages above the horizon, each at most once, and again later in order.

    Attributes:
        cursor: Progress of the stream.
        may_grow: True if queues may be added: the stream is of all that its reader may read, or has lost one by name.
        must_list: True if the queues should be listed again.
        listed: Position below which queues that are created later have no messages, as of the last list. None before
            the first list.
        marks: Changes of the reader's marks, or None if they are not followed.
    """

    __slots__ = (
        "__weakref__",
        "_early",
        "_early_cursor",
        "_followers",
        "_limit",
        "_partitions",
        "_queue",
        "_sources",
        "_streams",
        "_unfinished",
        "cursor",
        "listed",
        "marks",
        "may_grow",
        "must_list",
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
        self._early_cursor = Cursor()
        """The last early message of each partition; messages below it are only delivered in order."""
        self._sources: dict[str, QueueAccess] = {}
        self._unfinished: dict[str, dict[int, Mark]] = {}
        """Next position by partition in queues that were not read to the end. No unread message is below it."""
        self.cursor = cursor
        self.may_grow = False
        self.must_list = True
        self.listed: Position | None = None
        self.marks: MarkNews | None = None
        self._followers: dict[str | int, WeakSet[Stream]] | None = None

    @property
    def more(self) -> bool:
        """True if another attempt may return messages or marks at once."""
        return not self.waits_for_list and (bool(self._unfinished) or (self.marks is not None and self.marks.more))

    @property
    def waits_for_list(self) -> bool:
        """True if the cursor cannot advance until the queues are listed again."""
        return self.may_grow and self.must_list

    @property
    def text(self) -> str:
        return self.cursor.to_text(self._queue)

    @property
    def queues(self) -> Collection[str]:
        return self._sources.keys()

    @property
    def accesses(self) -> Sequence[QueueAccess]:
        return list(self._sources.values())

    def admit(self, access: QueueAccess) -> None:
        if access.queue.name not in self._sources:
            self._unfinished.setdefault(access.queue.name, {})
        self._sources[access.queue.name] = access
        self._follow(access.queue.uid)

    def mark_interval(self, longest: float) -> float:
        return longest if self.marks is None else min(longest, self.marks.pause)

    def follow_marks(self, marks: MarkNews) -> None:
        self.marks, self._followers = marks, {}
        self._follow(marks.reader)
        for access in self._sources.values():
            self._follow(access.queue.uid)

    def _follow(self, key: str | int) -> None:
        if self._followers is not None and len(self._followers) <= MAX_FOLLOWED and key not in self._followers:
            self._followers[key] = self._streams.followers.setdefault(key, WeakSet())
            self._followers[key].add(self)

    def on_unread_changed(self, queue: Queue) -> None:
        if self.marks is not None and queue.name in self._sources:
            self.marks.request_read(queue)

    @property
    def may_list(self) -> bool:
        return self.listed is None or self._since() - self.listed[0] >= MIN_LIST_INTERVAL

    def _since(self) -> int:
        reader = self._streams.reader
        return reader.now() - round((CREATION_MARGIN + reader.clock_difference) * TICKS_PER_SECOND)

    def record_list(self) -> None:
        self.must_list = False
        if self.may_grow:
            self.listed = self._since(), LOW_MIN

    def set_growing(self, *, may_grow: bool) -> None:
        """Sets whether a named queue is missing. If one is lost, the base stays until the queues are listed again."""
        self.may_grow = may_grow
        self.listed = (self.listed or self.cursor.base) if may_grow else None

    def drop(self, name: str) -> None:
        access = self._sources.pop(name, None)
        self._unfinished.pop(name, None)
        if self.marks is not None:
            self.marks.drop(name)
        if self._followers is not None and access is not None:
            self._followers.pop(access.queue.uid, None)
        for cursor in (self.cursor, self._early_cursor):
            cursor.marks = {place: position for place, position in cursor.marks.items() if place[0] != name}

    def find_ends(self, name: str) -> Marks:
        ends = {number: mark.start for number, mark in self.cursor.make_marks(name).items()}
        return ends if self._partitions is None else {n: ends.get(n, self.cursor.base) for n in self._partitions}

    def _make_range(self, name: str) -> RangeRequest:
        return RangeRequest(
            partitions=self._partitions,
            limit=self._limit,
            since=self.cursor.make_marks(name) | self._unfinished.get(name, {}),
            early=self._early,
            early_after=self._early_cursor.make_marks(name) if self._early else None,
            looks_ahead=True,
        )

    async def read(self, woken: frozenset[int] | None, waiter: Waiter, *, short: bool = False) -> StreamRead:
        """Returns new messages, and the queues that can no longer be read.

        Args:
            woken: The queues (qid) that may have new messages, as reported by the waiter; None means any.
            waiter: Woken when another read may return messages.
            short: Read only a stream of one queue, if that is a short read (:meth:`Reader.read_each`).

        Raises:
            NotShort: The read is more than ``short`` allows.
        """
        if short and len(self._sources) > 1:
            raise NotShort
        names, rows = self._find_behind(woken, waiter), [(name, access.queue) for name, access in self._sources.items()]
        waits_for = RangeRequest(partitions=self._partitions, early=self._early)
        results = await self._streams.reader.read_each(
            [RangeSource(self._sources[name], self._make_range(name)) for name in names],
            waiter=waiter,
            waits_for=[RangeSource(access, waits_for) for access in self._sources.values()],
            short=short,
        )
        readings: dict[str, RangeAnswer] = {}
        failed: list[tuple[str, QueueyError]] = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, RangeAnswer):
                readings[name] = result
            else:
                failed.append((name, result))
        events = self._make_events(readings, whole=len(readings) == len(self._sources))
        for name, row in rows:
            if self._sources[name].queue is not row:  # Only the next attempt subscribes to the new row: it must read.
                self._unfinished.setdefault(name, {})
        return events, failed

    def _find_behind(self, woken: frozenset[int] | None, waiter: Waiter) -> Sequence[str]:
        """Returns the queues to read, the one that is furthest behind first.

        These are the woken and unfinished queues, and those to whose present rows the waiter has not been subscribed.
        They are all queues if ``woken`` is None, or if the cursor could get too many marks.
        """
        names = list(self._sources)
        if woken is not None:
            subscribed = {key[:2] for key in waiter.keys}
            behind = {
                name
                for name, access in self._sources.items()
                if access.queue.qid in woken or (access.queue.qid, access.queue.version) not in subscribed
            } | self._unfinished.keys()
            other_marks = [place for place in self.cursor.marks if place[0] not in behind]
            expected_marks = len(other_marks) + sum(self._sources[name].queue.partitions for name in behind)
            if expected_marks <= MAX_MARKS:
                names = list(behind)
        return sorted(
            names, key=lambda name: min((m.start for m in self._unfinished.get(name, {}).values()), default=LAST)
        )

    def _make_events(self, readings: Mapping[str, RangeAnswer], *, whole: bool) -> list[Event]:
        """Returns the messages of readings as events in time order, and advances the cursor.

        ``whole`` is true if all queues were read. Messages that would need more than ``MAX_MARKS`` marks are read
        again.
        """
        ends = [end for reading in readings.values() for end in reading.next.values() if end is not None]
        floor = min(ends) if whole and ends else FIRST
        if self.listed is not None:
            floor = min(floor, self.listed)
        for name, reading in readings.items():
            self._unfinished.pop(name, None)
            if reading.more:
                self._unfinished[name] = {
                    number: make_mark(end) for number, end in reading.next.items() if end is not None
                }
        messages = sorted(
            ((message.position, name, message) for name, reading in readings.items() for message in reading.messages),
            key=lambda entry: entry[:2],
        )
        events = []
        for index, (position, name, message) in enumerate(messages):
            place = name, message.partition
            is_below = position < floor
            if not is_below and place not in self.cursor.marks and len(self.cursor.marks) >= MAX_MARKS:
                for left_position, queue, late in reversed(messages[index:]):
                    self._unfinished.setdefault(queue, {})[late.partition] = make_mark(left_position)
                self.must_list = self.listed is not None  # Only a new list lets the base rise.
                break
            # A batch may have one position in several partitions: only after the last of them is the position passed.
            is_last = index + 1 == len(messages) or messages[index + 1][0] != position
            self.cursor.advance(place, position, whole=is_below and is_last)
            events.append(Event(self.text, name, message))
        else:
            self.cursor.raise_base(floor)
            events += self._make_early_events(readings)
        return events

    def _make_early_events(self, readings: Mapping[str, RangeAnswer]) -> list[Event]:
        if not self._early or not readings:
            return []
        cursor = self._early_cursor
        cursor.raise_base((min(reading.horizon for reading in readings.values()), LOW_MIN))
        messages = [(message.position, name, message) for name, r in readings.items() for message in r.early]
        messages.sort(key=lambda entry: entry[:2])
        for position, name, message in messages:
            cursor.marks[name, message.partition] = position
        if len(cursor.marks) > MAX_EARLY_PARTITIONS:
            cursor.raise_base(sorted(cursor.marks.values())[-MAX_EARLY_PARTITIONS // 2])
        for name, reading in readings.items():
            if reading.early_more:
                self._unfinished.setdefault(name, {})
        return [Event(self.text, name, message, early=True) for _, name, message in messages]
