"""A storm over posts with early readers, who also read above the horizon and keep those messages apart.

They read through the service's use cases: ranges of one partition, and streams over all of them. When the queue is
purged they go on with their cursors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queuey.access.queue_access import QueueAccess
from queuey.messages import range_reads
from queuey.messages.ranges import OTHER_PARTITIONS, RangeAnswer, RangeRequest, make_mark
from queuey.messages.streams import Cursor, OpenStreams, Stream
from queuey.model.errors import QueueChanged
from queuey.model.ids import FIRST, LOW_MIN, Position
from queuey.model.messages import Message, Page, Queue
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.runtime.waiters import Waiter
from tests.sim.cassandra.messages import PARTITIONS, QUEUE, Site
from tests.sim.cassandra.posts import PostReader, PostSite, PostStorm


class EarlySite(PostSite):
    """A web process that also has the use cases of reading."""

    def start(self) -> None:
        super().start()
        self.reader = range_reads.Reader(self.store, Limits(), Metrics(), self.core)

    def access(self, queue: Queue) -> QueueAccess:
        """Returns access to a queue that fails once the queue is purged."""

        async def check(now: Queue) -> None:
            if now.qid != queue.qid:
                raise QueueChanged(queue.name)

        return QueueAccess(self.store, queue, check)

    async def read(self, access: QueueAccess, wanted: RangeRequest) -> RangeAnswer:
        sources = [range_reads.RangeSource(access, wanted)]
        try:
            [result] = await self.reader.read_each(sources, short=True)
        except range_reads.NotShort:
            return await self.core.read_in_thread(lambda: self.reader.read(access, wanted))
        assert isinstance(result, RangeAnswer)
        return result


class EarlyReader(PostReader):
    """Reads a partition early.

    Attributes:
        early: The bodies of messages that it got early.
    """

    _site: EarlySite

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 - see the base class
        super().__init__(*args)
        self.early: dict[Position, str] = {}
        self._last: Position | None = None
        """The position of the last early message."""
        self._access = self._site.access(self._queue)

    @property
    def cursors(self) -> Mapping[int, Position]:
        return {self.partition: self.cursor}

    def records(self) -> Sequence[EarlyReader]:
        """Returns a reader for each partition, with the messages that it got."""
        return [self]

    def begin_at(self, cursors: Mapping[int, Position]) -> None:
        self.cursor = cursors[self.partition]

    async def read(self, limit: int) -> bool:
        """Reads a page, and checks it against the horizon. Returns whether there is more.

        Every other time it asks only for messages above its last early one.
        """
        if self._site.process.world.rng.random() < 0.5:
            self._last = None
        range_ = RangeRequest(
            partitions=(self.partition,),
            limit=limit,
            since={self.partition: make_mark(self.cursor)},
            early=True,
            early_after=None if self._last is None else {self.partition: make_mark(self._last)},
        )
        reading_ = await self._site.read(self._access, range_)
        horizon, cursor = (reading_.horizon, LOW_MIN), reading_.next[self.partition]
        assert cursor is not None
        if cursor > max(self.cursor, horizon):
            self.wrong.append(f"horizon: the cursor went to {cursor}, past {horizon}")
        if any((message.position >= horizon) != early for early, message in _flag_early(reading_)):
            self.wrong.append(f"horizon: of {[*_flag_early(reading_)]} some are not on the right side of {horizon}")
        self.record_page(Page(reading_.messages, reading_.horizon, cursor, more=reading_.more))
        self.take_early(reading_.early)
        return reading_.more

    def take_early(self, messages: Sequence[Message]) -> None:
        """Records early messages. They must ascend, also from the earlier ones."""
        for message in messages:
            position = message.position
            if position < self.cursor or position in self.shown:
                self.wrong.append(f"early: {message.body!r} was given early below the cursor")
            if self._last is not None and position <= self._last:
                self.wrong.append(f"early: {message.body!r} was given after what is above it, or twice")
            self._last = position
            self.early[position] = str(message.body)

    def move(self, cursor: Position) -> None:
        """Moves the cursor; a move backwards is recorded as wrong."""
        if cursor < self.cursor:
            self.wrong.append(f"order: the cursor went back from {self.cursor} to {cursor}")
        self.cursor = cursor


def _flag_early(found: RangeAnswer) -> Iterator[tuple[bool, Message]]:
    yield from ((False, message) for message in found.messages)
    yield from ((True, message) for message in found.early)


class StreamReader(EarlyReader):
    """Reads an early stream over all partitions, and records each partition separately."""

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
        return {number: part.cursor for number, part in self._parts.items()}

    def records(self) -> Sequence[EarlyReader]:
        return [*self._parts.values()]

    def begin_at(self, cursors: Mapping[int, Position]) -> None:
        for number, part in self._parts.items():
            part.cursor = cursors[number]
        self._open(cursors)

    async def read(self, _limit: int) -> bool:
        """Reads the stream's next events, and records each by its partition. Returns whether there is more."""
        stream, core = self._stream, self._site.core
        try:
            events, failed = await stream.read(None, self._waiter, short=True)
        except range_reads.NotShort:
            events, failed = await core.read_in_thread(lambda: stream.read(None, self._waiter))
        assert not failed
        for event in events:
            part, message = self._parts[event.message.partition], event.message
            cursors = Cursor.parse(event.cursor, QUEUE).make_marks(QUEUE)
            if event.early:
                self._move_cursors(event.cursor)
                part.take_early([message])
            else:
                cursor = cursors.get(part.partition, cursors[OTHER_PARTITIONS]).start
                part.record_page(Page([message], 0, cursor, more=False))
                self._move_cursors(event.cursor)
        self._move_cursors(stream.text)
        return stream.more

    def _move_cursors(self, text: str) -> None:
        marks = Cursor.parse(text, QUEUE).make_marks(QUEUE)
        for number, part in self._parts.items():
            part.move(marks.get(number, marks[OTHER_PARTITIONS]).start)


class Polling(Waiter):
    """Ignores wake-ups: its stream polls."""

    def wake(self, qid: int | None = None) -> None:
        pass

    def expect(self, _wanted: object) -> None:
        pass


class EarlyStorm(PostStorm):
    sites: list[EarlySite]  # type: ignore[assignment]
    always_on_loop = True

    def _new_site(self) -> EarlySite:
        return EarlySite(self.world, self.cluster, generous=self._generous, on_loop=self._on_loop)

    def start_readers(self, site: Site, queue: Queue | None = None) -> None:
        super().start_readers(site, queue)
        for partition in range(1, PARTITIONS + 1):
            self.read_early(EarlyReader, site, partition, queue or self.queue)
        self.read_early(StreamReader, site, 0, queue or self.queue)

    def read_early(
        self, kind: type[EarlyReader], site: Site, partition: int, queue: Queue, before: EarlyReader | None = None
    ) -> EarlyReader:
        """Starts an early reader and returns it.

        It begins at the cursors of the one before. After a purge another one follows it.
        """

        def again(queue: Queue) -> None:
            self.read_early(kind, site, partition, queue, reader)

        reader = kind(site, queue, partition, self.pace.scale, again)
        if before is not None:
            reader.begin_at(before.cursors)
        self.readers.extend(reader.records())
        site.begin(reader.read_on())
        return reader

    @property
    def early_readers(self) -> list[EarlyReader]:
        return [reader for reader in self.readers if isinstance(reader, EarlyReader)]

    # Checks

    def violations(self) -> Iterator[str]:
        yield from super().violations()
        told: defaultdict[tuple[int, int], dict[Position, str]] = defaultdict(dict)
        for post in self.posts:
            if post.outcome == "acknowledged":
                for (partition, position), body in zip(post.locations, post.bodies, strict=True):
                    told[post.qid, partition][position] = body
        for reader in self.early_readers:
            yield from self._check_early(reader, told[reader.qid, reader.partition])

    def _check_early(self, reader: EarlyReader, told: Mapping[Position, str]) -> Iterator[str]:
        for position, body in told.items():
            bodies = {kept.get(position, body) for kept in (reader.early, reader.shown)}
            if bodies != {body}:
                yield f"early: {body!r} at {position} was given as {bodies}"
            if position < reader.cursor and position not in reader.shown:
                kind = "again" if position in reader.early else "missed"
                yield f"{kind}: {body!r} at {position} did not come in its place, below {reader.cursor}"
