"""Exactly-once writes: ids are reserved in the store's ledger before rows are written at them.

A task writes its rows in chunks. The first attempt that comes to a chunk enters in the ledger which ids its rows get;
every other attempt, a retry or one that was believed dead, finds them there and writes at the same ids.
The ids lie ``lead`` seconds ahead of the clock, so no reader has passed them, and ``load_unread`` makes sure of it when
the rows are acknowledged. States of a row, and what moves it::

    reserved ──(written in time)──► done
       │  └──(too late to write, but found there: an attempt that was killed has written it)──► done, kept
       └──(too late and not there, or acknowledged too late)──► moved: reserved again, at ids of a new generation

Every step is a compare-and-set of the chunk's entry. A row that moves is fenced: each attempt deletes its older ids
before it writes at newer ones. No attempt can write at the older ids by then, because they were found to be too late,
and they stay so. The ledger says what moved before anything is deleted, and nothing that is done ever changes, so an
attempt may end between any two steps. A stream's next micro-batch, which Spark begins when all before it are done,
takes the entries over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from queuey import ids
from queuey.errors import QueueChanged, QueueyError, StoreClosed, StoreUnavailable, TooLate
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import Message, Queue
from queuey.spark.sink.ledger_entry import (
    FORMAT,
    ChunkEntry,
    ReservedIds,
    decode,
    encode,
    lacking,
    members,
    ranges,
    union,
)
from queuey.storage import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

TRIES = 7
"""Of each call while the store does not serve."""
FIRST_PAUSE = 0.1
"""Seconds; each further one is twice as long."""
MOST_MOVES = 10
"""Of one row. Each time it lies twice as far ahead as before, so this is reached by no slow store."""
MOST_LEAD = 3600.0
"""Seconds."""
LONGEST_SETTLING = 10.0
"""Seconds. Read delays are longer than writes take, and a queue may have one of hours."""


class NotRepeatable(QueueyError):
    """An attempt brings other rows than the one before it, so it is unknown which of them are written already."""

    code = "NotRepeatable"


class ReservableRows(Protocol):
    """Rows of one chunk: messages that lack their ids; ``MessageBuilder`` makes them."""

    @property
    def indexes(self) -> Sequence[int]:
        """What is added to the base of the ids, of each row."""

    @property
    def count(self) -> int:
        """All indexes of the chunk are below, also those of rows that are not here."""

    @property
    def order(self) -> bytes:
        """Equal for equal rows in equal order only; empty where each row says itself which it is."""

    @property
    def content(self) -> bytes:
        """Equal for the same rows in any order only; empty likewise."""

    def messages(self, base: int, low: int) -> list[Message]:
        """Returns the messages, in the order of ``indexes``, with the ids ``(base + index, low)``."""


class WriteCounts(msgspec.Struct, frozen=True):
    """What became of rows.

    Attributes:
        rows: How many there were.
        written: Written by this attempt.
        skipped: Found done when it came to them.
        moved: Written, by any attempt, at other ids than those reserved first: a reader that has read the queue
            meanwhile gets them after rows that came later. If the write at the first ids was acknowledged too late,
            some reader may have them twice.
        kept: Written by an attempt that was killed and found when it was too late to write them again.
        expired: Not written, because their end has passed or comes before the instant of their id.
    """

    rows: int = 0
    written: int = 0
    skipped: int = 0
    moved: int = 0
    kept: int = 0
    expired: int = 0

    def __add__(self, other: WriteCounts) -> WriteCounts:
        return WriteCounts(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class TargetQueue:
    """One queue that is written to, through failures that pass and changes that do not matter.

    Args:
        store: Of the queue.
        queue: Its row.
        sleep: Waits for so many seconds.
    """

    def __init__(self, store: Store, queue: Queue, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.store = store
        self.queue = queue
        self._sleep = sleep

    def use(self, call: Callable[[Queue], T]) -> T:
        """Calls with the queue's present row.

        Raises:
            QueueChanged: The queue was deleted since the write began; one that has its name now is another.
            StoreUnavailable: The store does not serve, and not for a moment only.
        """

        def attempt() -> T:
            for _ in range(TRIES):
                try:
                    return call(self.queue)
                except QueueChanged:
                    self._refresh()
            raise StoreUnavailable(f"queue {self.queue.name!r} keeps changing")

        return self.patiently(attempt)

    def patiently(self, call: Callable[[], T]) -> T:
        """Makes a call that may be repeated, again while the store does not serve.

        Raises:
            StoreUnavailable: It does not for all the tries.
        """
        pause = FIRST_PAUSE
        for _ in range(TRIES - 1):
            try:
                return call()
            except StoreClosed:
                raise
            except StoreUnavailable as error:
                log.info("Retrying in %.1f s: %s", pause, error)
                self._sleep(pause)
                pause *= 2
        return call()

    def settle(self) -> None:
        """Waits until writes that began when it was not too late have ended: at once where writes take no time."""
        delay = min(self.store.read_delay(self.queue), LONGEST_SETTLING)
        if delay:
            self._sleep(delay)

    def _refresh(self) -> None:
        now = self.store.queue(self.queue.application, self.queue.name, fresh=True)
        if now.uid != self.queue.uid:
            raise QueueChanged(f"queue {now.name!r} was deleted, and made again, since this write began")
        self.queue = now


class Reserver:
    """Writes chunks of one piece of work to one queue.

    Args:
        target: The queue.
        work: Names the work in the ledger: the same at each attempt and of nothing else.
        lead: Seconds by which ids are reserved ahead of the clock.
        batch: Of a stream: the micro-batch, which is begun when all before it are done.
    """

    def __init__(self, target: TargetQueue, work: str, *, lead: float, batch: int = 0) -> None:
        self._target = target
        self._store = target.store
        self._work = work
        self._lead = lead
        self._batch = batch
        self._last: tuple[int, int] = (-1, 0)
        """The piece that was entered last, and the lowest base above its ids."""

    def begun(self, piece: int) -> bool:
        """Returns whether an attempt has come to a chunk before."""
        return self._found(piece) is not None

    def left(self, piece: int, indexes: Sequence[int]) -> int:
        """Returns how many of some rows of a chunk are not noted as done."""
        entry = self._found(piece)
        return len(indexes) if entry is None else len(lacking(entry.done, indexes))

    def _found(self, piece: int) -> ChunkEntry | None:
        raw = self._target.patiently(lambda: self._store.entry(self._work, piece))
        entry = None if raw is None else decode(raw)
        return entry if entry is not None and entry.batch >= self._batch else None

    def write(self, piece: int, rows: ReservableRows) -> WriteCounts:
        """Writes rows that are a chunk, or some of one; all of them are done when it returns.

        Args:
            piece: The number of the chunk. Ids ascend from chunk to chunk that are entered one after the other.
            rows: The rows.

        Raises:
            NotRepeatable: An earlier attempt had other rows here, or a later micro-batch has begun.
            QueueChanged, StoreUnavailable: Some may be written; doing it again is safe.
        """
        raw, entry = self._entered(piece, rows)
        skipped = len(members(entry.done, rows.indexes))
        if not (skipped == len(rows.indexes) and entry.content == rows.content and entry.count == rows.count):
            self._compare(piece, entry, rows)
        written = expired = 0
        while left := lacking(entry.done, rows.indexes):
            if entry.moves(left) >= MOST_MOVES:
                raise StoreUnavailable(
                    "rows cannot be written before readers may have passed their ids, however far ahead these are"
                )
            attempt = _ChunkAttempt(self._target, entry, rows)
            attempt.write(left)
            raw, entry = self._set(piece, raw, self._next(entry, attempt))
            written, expired = written + attempt.written, expired + attempt.expired
            if attempt.late and not lacking(entry.done, sorted(attempt.late)):
                log.warning(
                    "%d messages of queue %s were acknowledged late, while another attempt counted them as written: a "
                    "reader may have passed them.", len(attempt.late), self._target.queue.name,
                )  # fmt: skip
        newest = entry.newest(rows.indexes)
        return WriteCounts(
            rows=len(rows.indexes),
            written=written,
            skipped=skipped,
            moved=sum(generation > 0 for generation in newest.values()),
            kept=len(members(entry.kept, rows.indexes)),
            expired=expired,
        )

    def _entered(self, piece: int, rows: ReservableRows) -> tuple[bytes, ChunkEntry]:
        """Reserves ids for a chunk, or finds those that were."""
        raw: bytes | None = None
        lowest_base = self._lowest_base(piece)
        while True:
            first = ReservedIds(self._base(lowest_base, self._lead), ids.random_low(), ((0, rows.count),))
            mine = ChunkEntry(FORMAT, self._batch, rows.count, rows.order, rows.content, (first,))
            raw, entry = self._set(piece, raw, mine)
            if entry.batch == self._batch:
                self._last = piece, entry.end
                return raw, entry
            lowest_base = max(lowest_base, entry.end)

    def _lowest_base(self, piece: int) -> int:
        """Returns the lowest base of a chunk that keeps it above the one before, if that is in the ledger."""
        if self._last[0] in {piece - 1, piece} or not piece:
            return self._last[1]
        before = self._target.patiently(lambda: self._store.entry(self._work, piece - 1))
        return decode(before).end if before is not None else 0

    def _base(self, lowest_base: int, lead: float) -> int:
        return max(lowest_base, self._target.patiently(self._store.now) + round(lead * TICKS_PER_SECOND))

    def _set(self, piece: int, raw: bytes | None, entry: ChunkEntry) -> tuple[bytes, ChunkEntry]:
        """Sets a chunk's entry if ``raw`` stands there; returns what stands there then."""
        value = encode(entry)
        found = self._target.patiently(lambda: self._store.enter(self._work, piece, value, expected=raw))
        standing = entry if found == value else decode(found)
        if standing.batch > self._batch:
            raise NotRepeatable(
                f"Micro-batch {self._batch} is done again, but micro-batch {standing.batch} of the same query has "
                "begun to write: the checkpoint is an old copy, or this attempt is. Nothing more is written."
            )
        return found, standing

    def _compare(self, piece: int, entry: ChunkEntry, rows: ReservableRows) -> None:
        """Makes sure that an attempt brings the rows that the ids were reserved for."""
        if entry.count == rows.count and entry.order == rows.order:
            return
        raise NotRepeatable(
            f"An earlier attempt of this write had other rows, or rows in another order, in chunk {piece} of this task "
            f"({entry.count} then, {rows.count} now), so it is not known which are written: nothing more is. Sort the "
            "rows within their partitions, or give each a number in a column sequence, and write under another name."
        )

    def _next(self, entry: ChunkEntry, attempt: _ChunkAttempt) -> ChunkEntry:
        """Returns the entry after an attempt."""
        generations = entry.generations
        if attempt.moving:
            lead = min(MOST_LEAD, self._lead * 2 ** (entry.moves(attempt.moving) + 1))
            base = self._base(entry.end, lead)
            generations = (*generations, ReservedIds(base, ids.random_low(), ranges(attempt.moving)))
        return msgspec.structs.replace(
            entry,
            generations=generations,
            done=union(entry.done, ranges(attempt.done)),
            kept=union(entry.kept, ranges(attempt.kept)),
        )


class _ChunkAttempt:
    """One attempt at what is left of a chunk, by its present entry.

    Attributes:
        done: Indexes that need nothing more.
        kept: Those among them that were found.
        late: Indexes that were written and acknowledged too late.
        moving: Indexes that need other ids.
    """

    def __init__(self, target: TargetQueue, entry: ChunkEntry, rows: ReservableRows) -> None:
        self._target = target
        self._store = target.store
        self._entry = entry
        self._rows = rows
        self.done: set[int] = set()
        self.kept: set[int] = set()
        self.late: set[int] = set()
        self.moving: set[int] = set()
        self.written = 0
        self.expired = 0

    def write(self, indexes: Sequence[int]) -> None:
        """Writes rows at the ids that count for them."""
        newest = self._entry.newest(indexes)
        for number in sorted(set(newest.values())):
            of_it = {index for index in indexes if newest[index] == number}
            for older in self._entry.generations[:number]:
                places = self._places(self._chosen(older, set(members(older.rows, of_it))))
                self._target.use(lambda queue, places=places: self._store.delete(queue, places))  # type: ignore[misc]
            self._write(self._entry.generations[number], of_it)

    def _write(self, generation: ReservedIds, indexes: set[int]) -> None:
        messages = self._chosen(generation, indexes)
        # A message that expires before the instant of its id would never be visible.
        lasting = [message for message in messages if message.expires > message.ticks]
        try:
            written = self._target.use(lambda queue: self._store.load_unread(queue, lasting))
        except TooLate as error:
            if error.written:
                self.late |= indexes
                self.moving |= indexes
            else:
                self._settle(messages, generation, indexes)
            return
        self.done |= indexes
        self.written += written
        self.expired += len(messages) - written

    def _settle(self, messages: Sequence[Message], generation: ReservedIds, indexes: set[int]) -> None:
        """Finds out which rows another attempt, that was killed perhaps, has written before it was too late.

        What it may still have on its way is waited for, so that it is found or never written.
        """
        self._target.settle()
        found = self._target.use(lambda queue: self._store.fetch(queue, self._places(messages)))
        there = {message.ticks - generation.base for message in found}
        self.kept |= there
        self.done |= there
        self.moving |= indexes - there

    def _chosen(self, generation: ReservedIds, indexes: set[int]) -> list[Message]:
        messages = self._rows.messages(generation.base, generation.low)
        if len(indexes) == len(messages):
            return messages
        return [one for one, index in zip(messages, self._rows.indexes, strict=True) if index in indexes]

    @staticmethod
    def _places(messages: Sequence[Message]) -> list[tuple[int, Position]]:
        return [(message.partition, message.position) for message in messages]
