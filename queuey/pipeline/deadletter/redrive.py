"""Redrives the dead letters of one unit, exactly once. Needs no Spark.

A run has a name. Under that name, the ledger has one entry for each **chunk** of a unit's dead letters::

    (nothing) ──► planned: dead letters to send ──► sent: outcome, and dead letters to remove ──► finished

* The plan is recorded before anything is sent, so every attempt sends the same dead letters under the same numbers.
* Sending is a write at reserved ids (:mod:`queuey.spark.sink.exactly_once`): a dead letter that an attempt has sent is
  skipped, or written again at the same id.
* A dead letter is removed after the ledger has its chunk as sent, and only if its expiry is as planned: a message that
  was published again under the same id has another expiry, and stays.

So an attempt may be killed between any two steps, and the next one with the same name continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from queuey.model import deadletters
from queuey.model.deadletters import (
    MAX_SAMPLES,
    DeadLetter,
    DeadLetterFilter,
    Redriven,
    UnsentDeadLetter,
    group_by_origin,
)
from queuey.model.errors import StoreIncompatible
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Message, Meta, Queue
from queuey.pipeline.deadletter import selection
from queuey.pipeline.deadletter.selection import DeadLetterUnit, FoundDeadLetter, MessageLocation
from queuey.spark.errors import OptionError
from queuey.spark.options import DEFAULT_LEAD
from queuey.spark.sink.exactly_once import Reserver, TargetQueue
from queuey.storage import Store, bridge
from queuey.storage.arrow_format import Integers, MessageColumns, columns_of

MAX_CHUNK_SIZE = 500
"""Max dead letters in a chunk."""
MAX_CHUNK_BYTES = 8 << 20


class RedriveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a redrive.

    Attributes:
        run: Name of the run; another attempt with this name continues it.
        wanted: The dead letters. All attempts of a run need the same ones; the other options may change.
        ttl: TTL of the sent messages in seconds; the default of their queue if None.
        lead: Seconds by which ids are reserved ahead of the clock.
        dry_run: Change nothing.
    """

    run: str
    wanted: DeadLetterFilter
    ttl: int | None = None
    lead: float = DEFAULT_LEAD
    dry_run: bool = False

    def digest_order(self) -> bytes:
        return _digest(msgspec.msgpack.encode(self.wanted))


class PlannedDeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter of a chunk. Its expiry distinguishes it from a message published again with the same id."""

    partition: int
    ticks: int
    low: int
    expires: int

    @property
    def location(self) -> MessageLocation:
        return self.partition, (self.ticks, self.low)


class RedriveChunk(msgspec.Struct, frozen=True, array_like=True):
    """Ledger entry of a chunk.

    Attributes:
        about: Digest of the order.
        dead_letters: The dead letters to send if the chunk is planned, to remove if it is sent; empty if it is
            finished.
        after: Where the next chunk begins; None if this is the last one.
        count: Number of planned dead letters.
        outcome: Outcome of a sent chunk, else None.
    """

    about: bytes
    dead_letters: tuple[PlannedDeadLetter, ...]
    after: MessageLocation | None
    count: int
    outcome: Redriven | None = None


class RedriveRows(msgspec.Struct):
    """Dead letters of a chunk on their way to one queue; see :class:`queuey.spark.sink.exactly_once.ReservableRows`."""

    indexes: Integers
    span: int
    dead_letters: Sequence[DeadLetter]
    ttl: int
    order: bytes = b""
    content: bytes = b""

    def make_messages(self, base: int, low: int) -> MessageColumns:
        lives = self.ttl * TICKS_PER_SECOND
        return columns_of(
            Message(base + index, low, letter.partition, base + index + lives, letter.body, _make_meta(letter))
            for index, letter in zip(self.indexes.tolist(), self.dead_letters, strict=True)
        )


class RedriveRun:
    """Carries out an order on units.

    Args:
        store: The store.
        queue: Looks up the present state of a queue by name; returns None if it does not exist.
        order: The order.
        usual_ttl: TTL of queues without their own, in seconds.
        chunk: Approximate number of dead letters that are sent together.
        page: Number of dead letters that are read at a time.
    """

    def __init__(
        self,
        store: Store,
        queue: Callable[[str], Queue | None],
        order: RedriveOrder,
        usual_ttl: int,
        *,
        chunk: int = MAX_CHUNK_SIZE,
        page: int = selection.PAGE_SIZE,
    ) -> None:
        self._store = store
        self._look_up_queue = queue
        self._order = order
        self._usual_ttl = usual_ttl
        self._chunk = chunk
        self._page = page
        self._about = order.digest_order()

    def count_unit(self, dead: Queue, unit: DeadLetterUnit) -> Redriven:
        outcome = Redriven()
        for page, _ in selection.read_pages(self._store, dead, unit, self._order.wanted, page=self._page):
            _, going, staying = self._group_by_target([found.dead_letter for found in page])
            outcome += Redriven({name: len(locations) for name, locations in going.items()}) + staying
        return outcome

    def send_unit(self, dead: Queue, unit: DeadLetterUnit) -> Redriven:
        """Sends a unit's dead letters and removes them.

        Raises:
            OptionError: The run began with another order.
            QueueChanged: A queue was deleted or purged meanwhile. It is safe to try again.
        """
        target, work = TargetQueue(self._store, dead), self._ledger_name(dead, unit)
        sending = _UnitRedrive(self._store, target, self._order, work, chunk=self._chunk, page=self._page)
        outcome, number, planned, start = Redriven(), 0, 0, None
        while True:
            raw, chunk = sending.read_chunk(number) or sending.plan_chunk(number, unit, self._about, start, planned)
            if chunk.about != self._about:
                raise OptionError(f"run {self._order.run!r} began with other queues or filters; use another name")
            if chunk.outcome is None:
                raw, chunk = self._send_chunk(sending, number, raw, chunk)
            if chunk.dead_letters:
                sending.remove_dead_letters(chunk)
                raw, chunk = sending.set_chunk(number, raw, msgspec.structs.replace(chunk, dead_letters=()))
            outcome += chunk.outcome or Redriven()
            planned, start, number = planned + chunk.count, chunk.after, number + 1
            if start is None:
                return outcome

    def _send_chunk(
        self, sending: _UnitRedrive, number: int, raw: bytes, chunk: RedriveChunk
    ) -> tuple[bytes, RedriveChunk]:
        """Sends those of a chunk's dead letters that still exist, and records the chunk as sent."""
        stored = sending.find_existing(chunk)
        targets, going, outcome = self._group_by_target([found.dead_letter for _, found in stored])
        gone: list[PlannedDeadLetter] = []
        for name, locations in going.items():
            mine = [stored[location] for location in locations]
            queue = targets[name]
            rows = RedriveRows(
                np.array([index for index, _ in mine], np.int64),
                chunk.count,
                [found.dead_letter for _, found in mine],
                self._order.ttl or queue.ttl or self._usual_ttl,
            )
            counts = sending.get_reserver(queue).write(number, rows)
            outcome += Redriven({name: counts.rows}, counts.moved, counts.kept)
            gone += [_to_planned(found.message) for _, found in mine]
        done = msgspec.structs.replace(chunk, dead_letters=tuple(gone), outcome=outcome)
        return sending.set_chunk(number, raw, done)

    def _group_by_target(
        self, dead_letters: Sequence[DeadLetter]
    ) -> tuple[dict[str, Queue], dict[str, list[int]], Redriven]:
        """Groups dead letters by their target queue; those for queues that keep keys stay.

        Returns:
            The queues, the indexes of the dead letters for each, and the dead letters that stay.
        """
        queues = {name: self._look_up_queue(name) for name in {dead_letter.queue for dead_letter in dead_letters}}
        shapes = {name: (row.partitions, row.dead_letter) if row else None for name, row in queues.items()}
        going, staying = group_by_origin(dead_letters, shapes, self._order.wanted.dead_queue)
        for name in [name for name in going if (row := queues[name]) is not None and row.traits.stores_keys]:
            staying += _refuse_keyed(name, [dead_letters[index] for index in going.pop(name)])
        return {name: queue for name, queue in queues.items() if queue is not None}, going, staying

    def _ledger_name(self, dead: Queue, unit: DeadLetterUnit) -> str:
        return (
            f"redrive/{_digest(msgspec.msgpack.encode((self._order.run, dead.uid, dead.qid, unit.partitions))).hex()}"
        )


class _UnitRedrive:
    """The steps of one unit's redrive in the ledger and the store."""

    def __init__(
        self, store: Store, dead: TargetQueue, order: RedriveOrder, work: str, *, chunk: int, page: int
    ) -> None:
        self._store = store
        self._dead = dead
        self._order = order
        self._work = work
        self._chunk = chunk
        self._page = page
        self._reservers: dict[int, Reserver] = {}

    def read_chunk(self, number: int) -> tuple[bytes, RedriveChunk] | None:
        raw = self._dead.retry_call(lambda: bridge.run(self._store.ledger.entry(self._work, number)))
        return None if raw is None else (raw, _decode(raw))

    def plan_chunk(
        self, number: int, unit: DeadLetterUnit, about: bytes, start: MessageLocation | None, earlier_count: int
    ) -> tuple[bytes, RedriveChunk]:
        """Reads the next chunk of selected dead letters, from ``start`` on, and records it as planned.

        Returns the recorded entry, perhaps of another attempt. ``earlier_count`` dead letters of the unit are planned
        already and count for the limit.
        """
        selected = self._order.wanted
        if selected.limit is not None:
            selected = msgspec.structs.replace(selected, limit=selected.limit - earlier_count)
        chosen: list[PlannedDeadLetter] = []
        size, after = 0, None
        for dead_letters, location in selection.read_pages(
            self._store, self._dead.queue, unit, selected, start=start, page=self._page
        ):
            chosen += [_to_planned(found.message) for found in dead_letters]
            size += sum(len(found.message.body) for found in dead_letters)
            if len(chosen) >= self._chunk or size >= MAX_CHUNK_BYTES:
                after = None if len(chosen) == selected.limit else location
                break
        return self.set_chunk(number, None, RedriveChunk(about, tuple(chosen), after, len(chosen)))

    def set_chunk(self, number: int, raw: bytes | None, chunk: RedriveChunk) -> tuple[bytes, RedriveChunk]:
        """Replaces a chunk's entry ``raw``; returns the entry that is then recorded, perhaps of another attempt."""
        value = msgspec.msgpack.encode(chunk)
        stored = self._dead.retry_call(
            lambda: bridge.run(self._store.ledger.enter(self._work, number, value, expected=raw))
        )
        return stored, _decode(stored)

    def find_existing(self, chunk: RedriveChunk) -> list[tuple[int, FoundDeadLetter]]:
        """Returns the dead letters of a chunk that still exist, each with its number in the chunk."""
        locations = [planned.location for planned in chunk.dead_letters]
        stored = (
            self._dead.call_with_queue(lambda queue: bridge.run(self._store.messages.fetch(queue, locations)))
            if locations
            else []
        )
        by_location = {(planned.partition, planned.position): planned for planned in stored}
        present = []
        for index, planned in enumerate(chunk.dead_letters):
            message = by_location.get(planned.location)
            if message is None or message.expires != planned.expires:
                continue
            dead_letter = deadletters.decode_stored_dead_letter(message, self._dead.queue.name)
            if dead_letter is not None:
                present.append((index, FoundDeadLetter(message, dead_letter)))
        return present

    def get_reserver(self, queue: Queue) -> Reserver:
        if queue.uid not in self._reservers:
            target = TargetQueue(self._store, queue)
            self._reservers[queue.uid] = Reserver(target, f"{self._work}/{queue.uid:x}", lead=self._order.lead)
        return self._reservers[queue.uid]

    def remove_dead_letters(self, chunk: RedriveChunk) -> None:
        gone = [(found.message.partition, found.message.position) for _, found in self.find_existing(chunk)]
        if gone:
            self._dead.call_with_queue(lambda queue: bridge.run(self._store.messages.delete(queue, gone)))


def _to_planned(message: Message) -> PlannedDeadLetter:
    return PlannedDeadLetter(message.partition, message.ticks, message.low, message.expires)


def _refuse_keyed(name: str, dead_letters: Sequence[DeadLetter]) -> Redriven:
    """Counts dead letters as staying, because Spark cannot write to a queue that keeps keys."""
    reason = f"queue {name} keeps keys, which Spark cannot write: redrive them with qdo deadletter redrive"
    staying = [
        UnsentDeadLetter(letter.lies_in, letter.stored_partition, letter.stored_id, reason) for letter in dead_letters
    ]
    return Redriven(left={reason: len(staying)}, samples=tuple(sorted(staying)[:MAX_SAMPLES]))


def _make_meta(dead_letter: DeadLetter) -> Meta | None:
    meta = Meta(dead_letter.content_type, tuple(dead_letter.headers.items()), dead_letter.json)
    return None if meta == Meta() else meta


def _decode(raw: bytes) -> RedriveChunk:
    try:
        return msgspec.msgpack.decode(raw, type=RedriveChunk)
    except msgspec.MsgspecError as error:
        raise StoreIncompatible(f"the ledger has an entry that this version cannot read: {error}") from error


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
