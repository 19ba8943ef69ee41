"""A storm over posts in which some read early: what lies above the horizon as well, which they keep apart.

They read by the use cases of the service: ranges of one partition, and streams over all of them. When the queue is
purged they go on with the cursors that they have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queuey.errors import QueueChanged
from queuey.ids import FIRST, LOW_MIN, Position
from queuey.messages import Message, Page, Queue
from queuey.metrics import Metrics
from queuey.service import Limits, QueueAccess, reading
from queuey.service.ranges import OTHERS, Range, Reading, mark_of
from queuey.service.streams import Cursor, OpenStreams, Stream
from queuey.service.watching import Waiter
from tests.sim.cassandra.messages import PARTITIONS, QUEUE, Site
from tests.sim.cassandra.posts import PostReader, PostSite, PostStorm


class EarlySite(PostSite):
    """A web process that has the use cases of reading, too."""

    def _start(self) -> None:
        super()._start()
        self.reader = reading.Reader(self.store, Limits(), Metrics(), self.core)

    def access(self, queue: Queue) -> QueueAccess:
        """Returns a way to a queue that ends when the queue is purged."""

        def check(now: Queue) -> None:
            if now.qid != queue.qid:
                raise QueueChanged(queue.name)

        return QueueAccess(self.core, self.store, queue, check)

    async def read(self, access: QueueAccess, wanted: Range) -> Reading:
        """Reads as the service does: without a thread if that can be."""
        short = await access.apply(lambda queue: self.reader.read_short(queue, wanted))
        if short is not None:
            return short
        return await self.core.in_thread(lambda: self.reader.read(access, wanted))


class EarlyReader(PostReader):
    """Reads a partition early.

    Attributes:
        early: What it was given early.
    """

    _site: EarlySite

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 - see the base class
        super().__init__(*args)
        self.early: dict[Position, str] = {}
        self._last: Position | None = None
        """Of what it was given early."""
        self._access = self._site.access(self._queue)

    @property
    def cursors(self) -> Mapping[int, Position]:
        """Where to go on, by partition."""
        return {self.partition: self.cursor}

    def records(self) -> Sequence[EarlyReader]:
        """Returns what the partitions that it reads have given."""
        return [self]

    def begin_at(self, cursors: Mapping[int, Position]) -> None:
        """Begins where another reader has ended."""
        self.cursor = cursors[self.partition]

    async def read(self, limit: int) -> bool:
        """See the base class. Every other time it asks only for what is above that which it has."""
        if self._site.process.world.rng.random() < 0.5:
            self._last = None
        wanted = Range(
            partitions=(self.partition,),
            limit=limit,
            since={self.partition: mark_of(self.cursor)},
            early=True,
            early_after=None if self._last is None else {self.partition: mark_of(self._last)},
        )
        found = await self._site.read(self._access, wanted)
        horizon, cursor = (found.horizon, LOW_MIN), found.next[self.partition]
        assert cursor is not None
        if cursor > max(self.cursor, horizon):
            self.wrong.append(f"horizon: the cursor went to {cursor}, past {horizon}")
        if any((message.position >= horizon) != early for early, message in _marked(found)):
            self.wrong.append(f"horizon: of {[*_marked(found)]} some are not on the right side of {horizon}")
        self.take(Page(found.messages, found.horizon, cursor, more=found.more))
        self.take_early(found.early)
        return found.more

    def take_early(self, messages: Sequence[Message]) -> None:
        """Takes what was given early, which ascends, also from what it was given before."""
        for message in messages:
            position = message.position
            if position < self.cursor or position in self.shown:
                self.wrong.append(f"early: {message.body!r} was given early below the cursor")
            if self._last is not None and position <= self._last:
                self.wrong.append(f"early: {message.body!r} was given after what is above it, or twice")
            self._last = position
            self.early[position] = str(message.body)

    def move(self, cursor: Position) -> None:
        """Goes on from a place."""
        if cursor < self.cursor:
            self.wrong.append(f"order: the cursor went back from {self.cursor} to {cursor}")
        self.cursor = cursor


def _marked(found: Reading) -> Iterator[tuple[bool, Message]]:
    yield from ((False, message) for message in found.messages)
    yield from ((True, message) for message in found.early)


class StreamReader(EarlyReader):
    """Reads an early stream over all partitions; what each gives it keeps apart."""

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 - see the base class
        super().__init__(*args)
        site, queue, _, *others = args
        self._parts = {number: EarlyReader(site, queue, number, *others) for number in range(1, PARTITIONS + 1)}
        self._waiter = Polling(site.reader.watchers)
        self._limit = site.process.world.rng.choice((1, 3, 100))
        self._open({})

    def _open(self, cursors: Mapping[int, Position]) -> None:
        cursor = Cursor(FIRST, {(QUEUE, number): position for number, position in cursors.items()})
        self._stream = Stream(OpenStreams(self._site.reader), cursor, self._limit, None, QUEUE, early=True)
        self._stream.admit(self._access)

    @property
    def cursors(self) -> Mapping[int, Position]:
        """See the base class."""
        return {number: part.cursor for number, part in self._parts.items()}

    def records(self) -> Sequence[EarlyReader]:
        """See the base class."""
        return [*self._parts.values()]

    def begin_at(self, cursors: Mapping[int, Position]) -> None:
        """See the base class."""
        for number, part in self._parts.items():
            part.cursor = cursors[number]
        self._open(cursors)

    async def read(self, _limit: int) -> bool:
        """See the base class."""
        stream, core = self._stream, self._site.core
        found = await stream.read_short(self._waiter)
        if found is None:
            found = await core.in_thread(lambda: stream.read(None, self._waiter))
        events, failed = found
        assert not failed
        for event in events:
            part, message = self._parts[event.message.partition], event.message
            cursors = Cursor.parse(event.cursor, QUEUE).of(QUEUE)
            if event.early:
                self._move(event.cursor)
                part.take_early([message])
            else:
                cursor = cursors.get(part.partition, cursors[OTHERS]).start
                part.take(Page([message], 0, cursor, more=False))
                self._move(event.cursor)
        self._move(stream.text)
        return stream.more

    def _move(self, text: str) -> None:
        marks = Cursor.parse(text, QUEUE).of(QUEUE)
        for number, part in self._parts.items():
            part.move(marks.get(number, marks[OTHERS]).start)


class Polling(Waiter):
    """Is never woken: its stream looks from time to time."""

    def wake(self, qid: int | None = None) -> None:
        """See the base class."""

    def expect(self, _wanted: object) -> None:
        """See the base class."""


class EarlyStorm(PostStorm):
    """One history."""

    sites: list[EarlySite]  # type: ignore[assignment]
    always_on_loop = True

    def _new_site(self) -> EarlySite:
        return EarlySite(self.world, self.cluster, generous=self._generous, on_loop=self._on_loop)

    def _read(self, site: Site, queue: Queue | None = None) -> None:
        super()._read(site, queue)
        for partition in range(1, PARTITIONS + 1):
            self._read_early(EarlyReader, site, partition, queue or self.queue)
        self._read_early(StreamReader, site, 0, queue or self.queue)

    def _read_early(
        self,
        kind: type[EarlyReader],
        site: Site,
        partition: int,
        queue: Queue,
        before: EarlyReader | None = None,
    ) -> EarlyReader:
        def again(queue: Queue) -> None:
            self._read_early(kind, site, partition, queue, reader)

        reader = kind(site, queue, partition, self.pace.scale, again)
        if before is not None:
            reader.begin_at(before.cursors)
        self.readers.extend(reader.records())
        site.begin(reader.read_on())
        return reader

    @property
    def early_readers(self) -> list[EarlyReader]:
        """What was given early, by reader and partition."""
        return [reader for reader in self.readers if isinstance(reader, EarlyReader)]

    # What must hold

    def _violations(self) -> Iterator[str]:
        yield from super()._violations()
        told: defaultdict[tuple[int, int], dict[Position, str]] = defaultdict(dict)
        for post in self.posts:
            if post.outcome == "acknowledged":
                for (partition, position), body in zip(post.locations, post.bodies, strict=True):
                    told[post.qid, partition][position] = body
        for reader in self.early_readers:
            yield from self._of_early(reader, told[reader.qid, reader.partition])

    def _of_early(self, reader: EarlyReader, told: Mapping[Position, str]) -> Iterator[str]:
        """What was acknowledged was given early as it is, or not at all, and comes in its place in any case."""
        for position, body in told.items():
            given = {kept.get(position, body) for kept in (reader.early, reader.shown)}
            if given != {body}:
                yield f"early: {body!r} at {position} was given as {given}"
            if position < reader.cursor and position not in reader.shown:
                kind = "again" if position in reader.early else "missed"
                yield f"{kind}: {body!r} at {position} did not come in its place, below {reader.cursor}"
