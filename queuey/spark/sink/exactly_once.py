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
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from queuey import ids
from queuey.errors import QueueChanged, QueueyError, StoreClosed, StoreUnavailable, TooLate
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Location, Queue
from queuey.spark.sink import piece_order
from queuey.spark.sink.ledger_entry import FORMAT, ChunkEntry, ReservedIds, decode, encode, index_set, members, union
from queuey.spark.sink.piece_order import PieceOrder, Timing
from queuey.storage import Store, bridge
from queuey.storage.columns import Integers, Mask, MessageColumns

log = logging.getLogger(__name__)

T = TypeVar("T")
_decode_order = msgspec.msgpack.Decoder(PieceOrder).decode

TRIES = 7
"""Max attempts of a call while the store is unavailable."""
FIRST_RETRY = 0.1
"""Interval before the second attempt, in seconds; it doubles each time."""
MAX_MOVES = 10
"""Max moves of one row. Each doubles the lead, so that a slow store does not reach it."""
MAX_LEAD = 3600.0
"""Max lead, in seconds."""
PIECES_PER_LEAD = 10
"""Min pieces of numbered rows that a task writes within one lead."""
MAX_LEADS = 12
"""Max room for numbered rows that no task has reached yet, in leads ahead of the clock."""
SETTLING, LONGEST_SETTLING = 5.0, 10.0
"""Seconds. A request to Cassandra ends before them; a queue may have a read delay of hours."""


class NotRepeatable(QueueyError):
    """An attempt brings other rows than the one before it, so it is unknown which of them are written already."""

    code = "NotRepeatable"


class ReservableRows(Protocol):
    """Rows of one chunk: messages that lack their ids; ``MessageBuilder`` makes them."""

    @property
    def indexes(self) -> Integers:
        """Which row of its chunk each row is: no two have the same."""

    @property
    def span(self) -> int:
        """Ticks that the ids of the chunk take, those of rows that are not here included: see ``ChunkEntry``."""

    @property
    def order(self) -> bytes:
        """Equal for equal rows in equal order only; empty where each row says itself which it is."""

    @property
    def content(self) -> bytes:
        """Equal for the same rows in any order only; empty likewise."""

    def messages(self, base: int, low: int) -> MessageColumns:
        """Returns the messages in the order of ``indexes``, with the ids ``(base + index % span, low)``."""


class WriteCounts(msgspec.Struct, frozen=True):
    """Rows by outcome.

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
        pause = FIRST_RETRY
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
        delay = self.store.read_delay(self.queue)
        if delay:
            self._sleep(min(max(delay, SETTLING), LONGEST_SETTLING))

    def _refresh(self) -> None:
        now = bridge.run(self.store.catalogue.queue(self.queue.application, self.queue.name, fresh=True))
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
        numbered: Chunks are pieces of the numbers of rows, which several tasks come to, each at its time: ids are in
            the order of pieces nevertheless. All have one span.
    """

    def __init__(self, target: TargetQueue, work: str, *, lead: float, batch: int = 0, numbered: bool = False) -> None:
        self._target = target
        self._store = target.store
        self._work = work
        self._lead = lead
        self._batch = batch
        self._numbered = numbered
        self._last: tuple[int, int] = (-1, 0)
        """The piece that was entered last, and the lowest base above its ids."""

    def begun(self, piece: int) -> bool:
        """Returns whether an attempt has come to a chunk before."""
        return self._found(piece) is not None

    def left(self, piece: int, indexes: Integers) -> int:
        """Returns how many of some rows of a chunk are not noted as done."""
        entry = self._found(piece)
        return len(indexes) if entry is None else int((~members(entry.done, indexes)).sum())

    def _found(self, piece: int) -> ChunkEntry | None:
        raw = self._target.patiently(lambda: bridge.run(self._store.ledger.entry(self._work, piece)))
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
        done = members(entry.done, rows.indexes)
        skipped = int(done.sum())
        if not (done.all() and entry.content == rows.content and entry.span == rows.span):
            self._compare(piece, entry, rows)
        written = expired = 0
        while not (done := members(entry.done, rows.indexes)).all():
            if entry.moves(rows.indexes[~done]) >= MAX_MOVES:
                raise StoreUnavailable(
                    "rows cannot be written before readers may have passed their ids, however far ahead these are"
                )
            attempt = _ChunkAttempt(self._target, entry, rows)
            attempt.write(~done)
            raw, entry = self._set(piece, raw, self._next(entry, attempt))
            written, expired = written + attempt.written, expired + attempt.expired
            if attempt.late.any() and members(entry.done, rows.indexes[attempt.late]).all():
                log.warning(
                    "%d messages of queue %s were acknowledged late, while another attempt counted them as written: a "
                    "reader may have passed them.", attempt.late.sum(), self._target.queue.name,
                )  # fmt: skip
        return WriteCounts(
            rows=len(rows.indexes),
            written=written,
            skipped=skipped,
            moved=int((entry.newest(rows.indexes) > 0).sum()),
            kept=int(members(entry.kept, rows.indexes).sum()),
            expired=expired,
        )

    def _entered(self, piece: int, rows: ReservableRows) -> tuple[bytes, ChunkEntry]:
        """Reserves ids for a chunk, or finds those that were."""
        raw: bytes | None = None
        lowest_base, lead = 0, self._lead
        if self._numbered:
            raw = self._target.patiently(lambda: bridge.run(self._store.ledger.entry(self._work, piece)))
            if raw is not None:
                entry = decode(raw)
                if entry.batch == self._batch:
                    return raw, entry
                lowest_base = entry.end
            lowest_base, lead = max(lowest_base, self._in_order(piece, rows.span)), 0.0
        else:
            lowest_base = self._lowest_base(piece)
        while True:
            first = ReservedIds(self._base(lowest_base, lead), ids.random_low())
            mine = ChunkEntry(FORMAT, self._batch, rows.span, rows.order, rows.content, (first,))
            raw, entry = self._set(piece, raw, mine)
            if entry.batch == self._batch:
                self._last = piece, entry.end
                return raw, entry
            lowest_base = max(lowest_base, entry.end)

    def _in_order(self, piece: int, span: int) -> int:
        """Reserves ids for rows that say themselves which they are, in the order of pieces; returns their base."""
        work = f"{self._work}/order"
        raw = self._target.patiently(lambda: bridge.run(self._store.ledger.entry(work, 0)))
        lead = round(self._lead * TICKS_PER_SECOND)
        while True:
            order = PieceOrder(self._batch) if raw is None else _decode_order(raw)
            if order.batch > self._batch:
                raise self._overtaken(order.batch)
            if order.batch < self._batch:
                order = order.following(self._batch, span)
            now = self._target.patiently(lambda: bridge.run(self._store.ledger.now()))
            timing = Timing(now + lead, now + lead // 2, span, lead // PIECES_PER_LEAD, lead * MAX_LEADS)
            changed, base = piece_order.reserved(order, piece, timing)
            if changed == order:
                return base
            value = msgspec.msgpack.encode(changed)
            raw = self._target.patiently(partial(self._enter, work, value, raw))
            if raw == value:
                return base

    def _enter(self, work: str, value: bytes, expected: bytes | None) -> bytes:
        return bridge.run(self._store.ledger.enter(work, 0, value, expected=expected))

    def _lowest_base(self, piece: int) -> int:
        """Returns the lowest base of a chunk that keeps it above the one before, if that is in the ledger."""
        if self._last[0] in {piece - 1, piece} or not piece:
            return self._last[1]
        before = self._target.patiently(lambda: bridge.run(self._store.ledger.entry(self._work, piece - 1)))
        return decode(before).end if before is not None else 0

    def _base(self, lowest_base: int, lead: float) -> int:
        return max(
            lowest_base,
            self._target.patiently(lambda: bridge.run(self._store.ledger.now())) + round(lead * TICKS_PER_SECOND),
        )

    def _set(self, piece: int, raw: bytes | None, entry: ChunkEntry) -> tuple[bytes, ChunkEntry]:
        """Sets a chunk's entry if ``raw`` stands there; returns what stands there then."""
        value = encode(entry)
        found = self._target.patiently(
            lambda: bridge.run(self._store.ledger.enter(self._work, piece, value, expected=raw))
        )
        standing = entry if found == value else decode(found)
        if standing.batch > self._batch:
            raise self._overtaken(standing.batch)
        return found, standing

    def _overtaken(self, batch: int) -> NotRepeatable:
        return NotRepeatable(
            f"Micro-batch {self._batch} is done again, but micro-batch {batch} of the same query has "
            "begun to write: the checkpoint is an old copy, or this attempt is. Nothing more is written."
        )

    def _compare(self, piece: int, entry: ChunkEntry, rows: ReservableRows) -> None:
        """Makes sure that an attempt brings the rows that the ids were reserved for."""
        if entry.span == rows.span and entry.order == rows.order:
            return
        raise NotRepeatable(
            f"An earlier attempt of this write had other rows, or rows in another order, in chunk {piece} of this task "
            f"({entry.span} then, {rows.span} now), so it is not known which are written: nothing more is. Sort the "
            "rows within their partitions, or give each a number in a column sequence, and write under another name."
        )

    def _next(self, entry: ChunkEntry, attempt: _ChunkAttempt) -> ChunkEntry:
        """Returns the entry after an attempt."""
        generations, indexes = entry.generations, attempt.rows.indexes
        if attempt.moving.any():
            moving = indexes[attempt.moving]
            lead = min(MAX_LEAD, self._lead * 2 ** (entry.moves(moving) + 1))
            base = self._base(entry.end, lead)
            generations = (*generations, ReservedIds(base, ids.random_low(), index_set(moving)))
        return msgspec.structs.replace(
            entry,
            generations=generations,
            done=union(entry.done, indexes[attempt.done]),
            kept=union(entry.kept, indexes[attempt.kept]),
        )


class _ChunkAttempt:
    """One attempt at what is left of a chunk, by its present entry. What it keeps of rows are masks of ``rows``.

    Attributes:
        rows: All rows that it was given.
        done: Those that need nothing more.
        kept: Those among them that were found.
        late: Those that were written and acknowledged too late.
        moving: Those that need other ids.
    """

    def __init__(self, target: TargetQueue, entry: ChunkEntry, rows: ReservableRows) -> None:
        self._target = target
        self._store = target.store
        self._entry = entry
        self.rows = rows
        self.done, self.kept, self.late, self.moving = np.zeros((4, len(rows.indexes)), bool)
        self.written = 0
        self.expired = 0

    def write(self, wanted: Mask) -> None:
        """Writes rows under their reserved ids."""
        newest = self._entry.newest(self.rows.indexes)
        for number in np.unique(newest[wanted]).tolist():
            of_it = wanted & (newest == number)
            for place, older in enumerate(self._entry.generations[:number]):
                was_there = members(older.rows, self.rows.indexes) if place else True
                places = self._messages(older, of_it & was_there).places
                self._target.use(lambda queue, places=places: bridge.run(self._store.messages.delete(queue, places)))  # type: ignore[misc]
            self._write(self._entry.generations[number], of_it)

    def _write(self, generation: ReservedIds, chosen: Mask) -> None:
        messages = self._messages(generation, chosen)
        # A message that expires before the instant of its id would never be visible.
        lasting = messages.where(messages.expires > messages.ticks)
        try:
            written = self._target.use(lambda queue: bridge.run(self._store.bulk.load_unread(queue, lasting)))
        except TooLate as error:
            if error.written:
                self.late |= chosen
                self.moving |= chosen
            else:
                self._settle(messages.places, chosen)
            return
        self.done |= chosen
        self.written += written
        self.expired += len(messages) - written

    def _settle(self, places: list[Location], chosen: Mask) -> None:
        """Finds out which rows another attempt, that was killed perhaps, has written before it was too late.

        What it may still have on its way is waited for, so that it is found or never written.
        """
        self._target.settle()
        there = {
            (one.partition, one.position)
            for one in self._target.use(lambda queue: bridge.run(self._store.messages.fetch(queue, places)))
        }
        found = chosen.copy()
        found[chosen] = [place in there for place in places]
        self.kept |= found
        self.done |= found
        self.moving |= chosen & ~found

    def _messages(self, generation: ReservedIds, chosen: Mask) -> MessageColumns:
        return self.rows.messages(generation.base, generation.low).where(chosen)
