"""Exactly-once writes: ids are reserved in the store's ledger before rows are written with them.

A task writes its rows in chunks. The first attempt at a chunk records in the ledger which ids its rows get. Every other
attempt, a retry or one that was assumed dead, finds them there and writes with the same ids. The ids are ``lead``
seconds ahead of the clock, so no reader has passed them, and ``load_unread`` verifies this when the rows are
acknowledged. States of a row::

    reserved ──(written in time)──► done
       │  └──(too late to write, but stored: a killed attempt has written it)──► done, kept
       └──(too late and not stored, or acknowledged too late)──► moved: reserved again, with ids of a new generation

Every step is a compare-and-set of the chunk's entry. A moved row is fenced: each attempt deletes its older ids before
it writes with newer ones. No attempt can write with the older ids any more, because they are too late and stay too
late. The ledger records moves before anything is deleted, and done rows never change, so an attempt may end between any
two steps. A stream's next micro-batch, which Spark begins when all earlier ones are done, takes over the entries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from queuey.model import ids
from queuey.model.errors import QueueChanged, QueueyError, StoreClosed, StoreUnavailable, TooLate
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Location, Queue
from queuey.spark.sink.ledger_entry import (
    FORMAT,
    ChunkEntry,
    ReservedIds,
    decode,
    encode,
    find_members,
    make_index_set,
    union,
)
from queuey.storage import Store, bridge
from queuey.storage.arrow_format import Integers, Mask, MessageColumns

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_TRIES = 7
FIRST_RETRY_PAUSE = 0.1
"""Interval before the second attempt, in seconds; doubles with each attempt."""
MAX_MOVES = 10
"""Max moves of one row. Each move doubles the lead, so that even a slow store does not reach this limit."""
MAX_LEAD = 3600.0
"""Max lead, in seconds."""
MIN_SETTLE_WAIT, MAX_SETTLE_WAIT = 5.0, 10.0
"""Min and max wait for earlier writes, in seconds. A request to Cassandra takes less than the minimum; the maximum caps
read delays of hours."""


class NotRepeatable(QueueyError):
    """An attempt has other rows than an earlier one, so it is unknown which of them are written already."""


class ReservableRows(Protocol):
    """Rows of one chunk: messages without ids. ``MessageBuilder`` implements it."""

    @property
    def indexes(self) -> Integers:
        """The unique number of each row in its chunk."""

    @property
    def span(self) -> int:
        """Number of ticks for the ids of the chunk, including rows that are not here; see ``ChunkEntry``."""

    @property
    def order(self) -> bytes:
        """Digest of the rows in their order; empty if each row has its own index."""

    @property
    def content(self) -> bytes:
        """Digest of the rows in any order; empty if each row has its own index."""

    def make_messages(self, base: int, low: int) -> MessageColumns:
        """Returns the messages in the order of ``indexes``, with the ids ``(base + index % span, low)``."""


class WriteCounts(msgspec.Struct, frozen=True):
    """Rows by outcome.

    Attributes:
        rows: All rows.
        written: Rows that this attempt wrote.
        skipped: Rows that were already done.
        moved: Rows written, by any attempt, with other ids than the first reserved ones. A reader that has read the
            queue meanwhile gets them after later rows. If the write with the first ids was acknowledged too late,
            a reader may get them twice.
        kept: Rows that a killed attempt wrote, and that were found when it was too late to write them again.
        expired: Rows that were not written, because they have expired or expire before the time of their id.
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
    """A target queue; repeats calls after temporary failures and harmless changes of the queue.

    Args:
        store: The store of the queue.
        queue: The queue.
        sleep: Sleeps for the given seconds.
    """

    def __init__(self, store: Store, queue: Queue, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.store = store
        self.queue = queue
        self._sleep = sleep

    def call_with_queue(self, call: Callable[[Queue], T]) -> T:
        """Calls a function with the queue's present row.

        Raises:
            QueueChanged: The queue was deleted since the write began, and a new one may have its name.
            StoreUnavailable: The store stayed unavailable.
        """

        def attempt() -> T:
            for _ in range(MAX_TRIES):
                try:
                    return call(self.queue)
                except QueueChanged:
                    self._refresh_queue()
            raise StoreUnavailable(f"queue {self.queue.name!r} keeps changing")

        return self.retry_call(attempt)

    def retry_call(self, call: Callable[[], T]) -> T:
        """Makes an idempotent call; repeats it, after doubling pauses, while the store is unavailable.

        Makes up to ``MAX_TRIES`` attempts.

        Raises:
            StoreUnavailable: All attempts failed, or this process has closed the store.
        """
        pause = FIRST_RETRY_PAUSE
        for _ in range(MAX_TRIES - 1):
            try:
                return call()
            except StoreClosed:
                raise
            except StoreUnavailable as error:
                log.info("Retrying in %.1f s: %s", pause, error)
                self._sleep(pause)
                pause *= 2
        return call()

    def await_earlier_writes(self) -> None:
        """Waits until all writes that began in time have ended. Returns at once if the queue has no read delay."""
        delay = self.store.read_delay(self.queue)
        if delay:
            self._sleep(min(max(delay, MIN_SETTLE_WAIT), MAX_SETTLE_WAIT))

    def _refresh_queue(self) -> None:
        present = bridge.run(self.store.catalogue.queue(self.queue.application, self.queue.name, fresh=True))
        if present.uid != self.queue.uid:
            raise QueueChanged(f"queue {present.name!r} was deleted and created again since this write began")
        self.queue = present


class Reserver:
    """Writes the chunks of one task, or the pieces of numbered rows that all tasks share, to one queue.

    A chunk's ids are above those of the chunk before it, if that has been reserved.

    Args:
        target: The queue.
        work: The name of these chunks in the ledger, unique and the same for all attempts.
        lead: Seconds by which ids are reserved ahead of the clock.
        batch: The micro-batch of a stream, which begins when all earlier ones are done.
    """

    def __init__(self, target: TargetQueue, work: str, *, lead: float, batch: int = 0) -> None:
        self._target = target
        self._store = target.store
        self._work = work
        self._lead = lead
        self._batch = batch
        self._last: tuple[int, int] = (-1, 0)
        """The last chunk that was written, and the lowest base above its ids."""

    def has_begun(self, chunk: int) -> bool:
        return self._read_current_entry(chunk) is not None

    def count_undone(self, chunk: int, indexes: Integers) -> int:
        entry = self._read_current_entry(chunk)
        return len(indexes) if entry is None else int((~find_members(entry.done, indexes)).sum())

    def _read_current_entry(self, chunk: int) -> ChunkEntry | None:
        raw = self._target.retry_call(lambda: bridge.run(self._store.ledger.entry(self._work, chunk)))
        entry = None if raw is None else decode(raw)
        return entry if entry is not None and entry.batch >= self._batch else None

    def write(self, chunk: int, rows: ReservableRows) -> WriteCounts:
        """Writes all or some rows of a chunk. All of them are done when it returns.

        Args:
            chunk: Its number. Ids ascend from chunk to chunk if chunks are written in order.
            rows: The rows.

        Raises:
            NotRepeatable: An earlier attempt had other rows here, or a later micro-batch has begun.
            QueueChanged, StoreUnavailable: Some rows may be written. It is safe to try again.
        """
        raw, entry = self._enter_chunk(chunk, rows)
        done = find_members(entry.done, rows.indexes)
        skipped = int(done.sum())
        if not (done.all() and entry.content == rows.content and entry.span == rows.span):
            self._require_same_rows(chunk, entry, rows)
        written = expired = 0
        while not (done := find_members(entry.done, rows.indexes)).all():
            if entry.max_moves(rows.indexes[~done]) >= MAX_MOVES:
                raise StoreUnavailable(
                    "the store is too slow: rows cannot be written before readers may pass their ids, with any lead"
                )
            attempt = _ChunkAttempt(self._target, entry, rows)
            attempt.write(~done)
            raw, entry = self._set_entry(chunk, raw, self._next_entry(entry, attempt))
            written, expired = written + attempt.written, expired + attempt.expired
            if attempt.late.any() and find_members(entry.done, rows.indexes[attempt.late]).all():
                log.warning(
                    "%d messages of queue %s were acknowledged late, while another attempt counted them as written: a "
                    "reader may have passed them.", attempt.late.sum(), self._target.queue.name,
                )  # fmt: skip
        self._last = chunk, entry.end
        return WriteCounts(
            rows=len(rows.indexes),
            written=written,
            skipped=skipped,
            moved=int((entry.find_newest_generations(rows.indexes) > 0).sum()),
            kept=int(find_members(entry.kept, rows.indexes).sum()),
            expired=expired,
        )

    def _enter_chunk(self, chunk: int, rows: ReservableRows) -> tuple[bytes, ChunkEntry]:
        """Returns the chunk's ledger entry, encoded and decoded; the first attempt reserves ids in it.

        It replaces the entry of an earlier micro-batch. Rows are not compared.
        """
        raw, lowest_base = None, self._find_lowest_base(chunk)
        while True:
            first = ReservedIds(self._choose_base(lowest_base, self._lead), ids.random_low())
            mine = ChunkEntry(FORMAT, self._batch, rows.span, rows.order, rows.content, (first,))
            raw, entry = self._set_entry(chunk, raw, mine)
            if entry.batch == self._batch:
                return raw, entry
            lowest_base = max(lowest_base, entry.end)

    def _find_lowest_base(self, chunk: int) -> int:
        if not chunk:
            return 0
        if self._last[0] == chunk - 1:
            return self._last[1]
        before = self._target.retry_call(lambda: bridge.run(self._store.ledger.entry(self._work, chunk - 1)))
        return decode(before).end if before is not None else 0

    def _choose_base(self, lowest_base: int, lead: float) -> int:
        return max(
            lowest_base,
            self._target.retry_call(lambda: bridge.run(self._store.ledger.now())) + round(lead * TICKS_PER_SECOND),
        )

    def _set_entry(self, chunk: int, raw: bytes | None, entry: ChunkEntry) -> tuple[bytes, ChunkEntry]:
        value = encode(entry)
        stored = self._target.retry_call(
            lambda: bridge.run(self._store.ledger.enter(self._work, chunk, value, expected=raw))
        )
        result = entry if stored == value else decode(stored)
        if result.batch > self._batch:
            raise self._make_overtaken_error(result.batch)
        return stored, result

    def _make_overtaken_error(self, batch: int) -> NotRepeatable:
        return NotRepeatable(
            f"Micro-batch {self._batch} is repeated, but micro-batch {batch} of the same query has "
            "begun to write: the checkpoint is an old copy, or this attempt is outdated. Nothing more is written."
        )

    def _require_same_rows(self, chunk: int, entry: ChunkEntry, rows: ReservableRows) -> None:
        if entry.span == rows.span and entry.order == rows.order:
            return
        raise NotRepeatable(
            f"An earlier attempt of this write had other rows, or rows in another order, in chunk {chunk} of this task "
            f"({entry.span} then, {rows.span} now), so it is unknown which are written. Nothing more is written. Sort "
            "rows within their partitions, or number them in a column sequence, and write under another name."
        )

    def _next_entry(self, entry: ChunkEntry, attempt: _ChunkAttempt) -> ChunkEntry:
        generations, indexes = entry.generations, attempt.rows.indexes
        if attempt.moving.any():
            moving = indexes[attempt.moving]
            lead = min(MAX_LEAD, self._lead * 2 ** (entry.max_moves(moving) + 1))
            base = self._choose_base(entry.end, lead)
            generations = (*generations, ReservedIds(base, ids.random_low(), make_index_set(moving)))
        return msgspec.structs.replace(
            entry,
            generations=generations,
            done=union(entry.done, indexes[attempt.done]),
            kept=union(entry.kept, indexes[attempt.kept]),
        )


class _ChunkAttempt:
    """One attempt at the remaining rows of a chunk, with the ids in its present entry.

    Attributes:
        rows: All rows of the attempt.
        done: Mask of rows that are done.
        kept: Mask of done rows that were found stored.
        late: Mask of rows that were written and acknowledged too late.
        moving: Mask of rows that need other ids.
    """

    def __init__(self, target: TargetQueue, entry: ChunkEntry, rows: ReservableRows) -> None:
        self._target = target
        self._store = target.store
        self._entry = entry
        self.rows = rows
        self.done, self.kept, self.late, self.moving = np.zeros((4, len(rows.indexes)), bool)
        self.written = 0
        self.expired = 0

    def write(self, remaining: Mask) -> None:
        """Writes rows with their newest ids, after deleting the messages with their older ids."""
        newest = self._entry.find_newest_generations(self.rows.indexes)
        for number in np.unique(newest[remaining]).tolist():
            chosen = remaining & (newest == number)
            for place, older in enumerate(self._entry.generations[:number]):
                moved_there = find_members(older.rows, self.rows.indexes) if place else True
                places = self._make_messages(older, chosen & moved_there).places
                self._target.call_with_queue(
                    lambda queue, places=places: bridge.run(self._store.messages.delete(queue, places))  # type: ignore[misc]
                )
            self._write_generation(self._entry.generations[number], chosen)

    def _write_generation(self, generation: ReservedIds, chosen: Mask) -> None:
        """Writes rows with ids of one generation; if that is too late, marks rows that have to move.

        Rows that expire before their id's instant are left out, and count as done and expired.
        """
        messages = self._make_messages(generation, chosen)
        # A message that expires before the instant of its id would never be visible.
        lasting = messages.where(messages.expires > messages.ticks)
        try:
            written = self._target.call_with_queue(
                lambda queue: bridge.run(self._store.bulk.load_unread(queue, lasting))
            )
        except TooLate as error:
            if error.written:
                self.late |= chosen
                self.moving |= chosen
            else:
                self._find_written(messages.places, chosen)
            return
        self.done |= chosen
        self.written += written
        self.expired += len(messages) - written

    def _find_written(self, places: list[Location], chosen: Mask) -> None:
        """Finds rows that another attempt, perhaps a killed one, has written before it was too late.

        Waits for pending writes of that attempt first, so that each row is found or will never be written.
        """
        self._target.await_earlier_writes()
        stored = {
            (message.partition, message.position)
            for message in self._target.call_with_queue(
                lambda queue: bridge.run(self._store.messages.fetch(queue, places))
            )
        }
        stored_mask = chosen.copy()
        stored_mask[chosen] = [place in stored for place in places]
        self.kept |= stored_mask
        self.done |= stored_mask
        self.moving |= chosen & ~stored_mask

    def _make_messages(self, generation: ReservedIds, chosen: Mask) -> MessageColumns:
        return self.rows.make_messages(generation.base, generation.low).where(chosen)
