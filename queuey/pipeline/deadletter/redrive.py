"""Sending dead letters back, exactly once: what a task does with one unit. No Spark.

A run has a name. For each unit the ledger has one entry for each **chunk** of dead letters under that name::

    (nothing) ──► planned: these dead letters ──► sent: those that could be, so many; these are to go ──► finished

* The plan is entered before anything is sent, so every attempt sends the same dead letters under the same numbers.
* Sending is a write at reserved ids (:mod:`queuey.spark.sink.exactly_once`): a dead letter that an attempt has sent is
found done,
  or written again at the same id.
* A dead letter is removed after the ledger says that its chunk is sent, and only if it is the one that was planned: one
  that was published anew under its id meanwhile has another end, and stays.

So an attempt may be killed between any two steps, and the next one by the same name goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from queuey import deadletters
from queuey.deadletters import SAMPLES, DeadLetter, DeadLetterFilter, Redriven, UnsentDeadLetter, by_origin
from queuey.errors import StoreIncompatible
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Message, Meta, Queue
from queuey.pipeline.deadletter import selection
from queuey.pipeline.deadletter.selection import DeadLetterUnit, FoundDeadLetter, MessageLocation
from queuey.spark.errors import OptionError
from queuey.spark.options import DEFAULT_LEAD
from queuey.spark.sink.exactly_once import Reserver, TargetQueue
from queuey.storage import Store, bridge
from queuey.storage.columns import Integers, MessageColumns, columns_of

CHUNK_SIZE = 500
"""Max dead letters in a chunk."""
CHUNK_BYTES = 8 << 20


class RedriveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order for a redrive.

    Attributes:
        run: Its name; doing it again under this name goes on with it.
        wanted: Which dead letters.
        ttl: Seconds that they are to live; None: the default of their queue.
        lead: Seconds by which ids are reserved ahead of the clock.
        dry_run: Change nothing.
    """

    run: str
    wanted: DeadLetterFilter
    ttl: int | None = None
    lead: float = DEFAULT_LEAD
    dry_run: bool = False

    def about(self) -> bytes:
        """Digest of the order; a run continues only under the order that it began with."""
        return _digest(msgspec.msgpack.encode(self.wanted))


class PlannedDeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter of a chunk. Its expiry tells it from one that was published again at the same place."""

    partition: int
    ticks: int
    low: int
    expires: int

    @property
    def location(self) -> MessageLocation:
        return self.partition, (self.ticks, self.low)


class RedriveChunk(msgspec.Struct, frozen=True, array_like=True):
    """Entry of the ledger for a chunk.

    Attributes:
        about: Of the order.
        dead_letters: Those of a planned chunk; of one that is sent those that are to be removed; of a finished one
            none.
        after: Where the next chunk begins; None: there is none.
        count: How many dead letters were planned.
        outcome: Of a chunk that is sent.
    """

    about: bytes
    dead_letters: tuple[PlannedDeadLetter, ...]
    after: MessageLocation | None
    count: int
    outcome: Redriven | None = None


class Returning(msgspec.Struct):
    """Dead letters of a chunk on their way to one queue; see :class:`queuey.spark.sink.exactly_once.ReservableRows`."""

    indexes: Integers
    span: int
    dead_letters: Sequence[DeadLetter]
    ttl: int
    order: bytes = b""
    content: bytes = b""

    def messages(self, base: int, low: int) -> MessageColumns:
        lives = self.ttl * TICKS_PER_SECOND
        return columns_of(
            Message(base + index, low, one.partition, base + index + lives, one.body, _meta(one))
            for index, one in zip(self.indexes.tolist(), self.dead_letters, strict=True)
        )


class Redrive:
    """Does an order on one unit after the other.

    Args:
        store: The store.
        queue: Looks up a queue by name, fresh; None: there is none.
        order: What to do.
        usual_ttl: Of queues that have none.
        chunk: Dead letters that are sent together, about.
        page: Dead letters that are read at a time.
    """

    def __init__(
        self,
        store: Store,
        queue: Callable[[str], Queue | None],
        order: RedriveOrder,
        usual_ttl: int,
        *,
        chunk: int = CHUNK_SIZE,
        page: int = selection.PAGE_SIZE,
    ) -> None:
        self._store = store
        self._queue = queue
        self._order = order
        self._usual_ttl = usual_ttl
        self._chunk = chunk
        self._page = page
        self._about = order.about()

    def count(self, dead: Queue, unit: DeadLetterUnit) -> Redriven:
        """Counts a unit's dead letters by outcome, for a dry run."""
        outcome = Redriven()
        for found, _ in selection.pages(self._store, dead, unit, self._order.wanted, page=self._page):
            _, going, left = self._targets([one.dead_letter for one in found])
            outcome += Redriven({name: len(locations) for name, locations in going.items()}) + left
        return outcome

    def send(self, dead: Queue, unit: DeadLetterUnit) -> Redriven:
        """Sends a unit's dead letters and removes them.

        Raises:
            OptionError: The run was begun with another order.
            QueueChanged: A queue was deleted or purged meanwhile; doing it again is safe.
        """
        target, work = TargetQueue(self._store, dead), self._work(dead, unit)
        sending = _UnitRedrive(self._store, target, self._order, work, chunk=self._chunk, page=self._page)
        outcome, number, planned, start = Redriven(), 0, 0, None
        while True:
            raw, chunk = sending.entered(number) or sending.planned(number, unit, self._about, start, planned)
            if chunk.about != self._about:
                raise OptionError(f"run {self._order.run!r} was begun with other queues or filters; name another one")
            if chunk.outcome is None:
                raw, chunk = self._send(sending, number, raw, chunk)
            if chunk.dead_letters:
                sending.remove(chunk)
                raw, chunk = sending.set(number, raw, msgspec.structs.replace(chunk, dead_letters=()))
            outcome += chunk.outcome or Redriven()
            planned, start, number = planned + chunk.count, chunk.after, number + 1
            if start is None:
                return outcome

    def _send(self, sending: _UnitRedrive, number: int, raw: bytes, chunk: RedriveChunk) -> tuple[bytes, RedriveChunk]:
        there = sending.there(chunk)
        targets, going, outcome = self._targets([one.dead_letter for _, one in there])
        gone: list[PlannedDeadLetter] = []
        for name, locations in going.items():
            mine = [there[location] for location in locations]
            queue = targets[name]
            rows = Returning(
                np.array([index for index, _ in mine], np.int64),
                chunk.count,
                [one.dead_letter for _, one in mine],
                self._order.ttl or queue.ttl or self._usual_ttl,
            )
            counts = sending.reserver(queue).write(number, rows)
            outcome += Redriven({name: counts.rows}, counts.moved, counts.kept)
            gone += [_planned(one.message) for _, one in mine]
        done = msgspec.structs.replace(chunk, dead_letters=tuple(gone), outcome=outcome)
        return sending.set(number, raw, done)

    def _targets(self, found: Sequence[DeadLetter]) -> tuple[dict[str, Queue], dict[str, list[int]], Redriven]:
        """Divides dead letters by the queue that they go back to.

        Returns:
            The queues; which of the dead letters go to each; and those that stay.
        """
        queues = {name: self._queue(name) for name in {dead_letter.queue for dead_letter in found}}
        shapes = {name: (row.partitions, row.dead_letter) if row else None for name, row in queues.items()}
        going, staying = by_origin(found, shapes, self._order.wanted.dead_queue)
        for name in [name for name in going if (row := queues[name]) is not None and row.keeps_keys]:
            staying += _with_keys(name, [found[index] for index in going.pop(name)])
        return {name: queue for name, queue in queues.items() if queue is not None}, going, staying

    def _work(self, dead: Queue, unit: DeadLetterUnit) -> str:
        return (
            f"redrive/{_digest(msgspec.msgpack.encode((self._order.run, dead.uid, dead.qid, unit.partitions))).hex()}"
        )


class _UnitRedrive:
    """One unit through the ledger and the stores."""

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

    def entered(self, number: int) -> tuple[bytes, RedriveChunk] | None:
        raw = self._dead.patiently(lambda: bridge.run(self._store.ledger.entry(self._work, number)))
        return None if raw is None else (raw, _decode(raw))

    def planned(
        self, number: int, unit: DeadLetterUnit, about: bytes, start: MessageLocation | None, before: int
    ) -> tuple[bytes, RedriveChunk]:
        """Decides on the dead letters of a chunk, unless another attempt has."""
        wanted = self._order.wanted
        if wanted.limit is not None:
            wanted = msgspec.structs.replace(wanted, limit=wanted.limit - before)
        chosen: list[PlannedDeadLetter] = []
        size, after = 0, None
        for found, location in selection.pages(
            self._store, self._dead.queue, unit, wanted, start=start, page=self._page
        ):
            chosen += [_planned(one.message) for one in found]
            size += sum(len(one.message.body) for one in found)
            if len(chosen) >= self._chunk or size >= CHUNK_BYTES:
                after = None if len(chosen) == wanted.limit else location
                break
        return self.set(number, None, RedriveChunk(about, tuple(chosen), after, len(chosen)))

    def set(self, number: int, raw: bytes | None, chunk: RedriveChunk) -> tuple[bytes, RedriveChunk]:
        """Replaces the entry of a chunk if it is still ``raw``; returns the entry that stands then."""
        value = msgspec.msgpack.encode(chunk)
        found = self._dead.patiently(
            lambda: bridge.run(self._store.ledger.enter(self._work, number, value, expected=raw))
        )
        return found, _decode(found)

    def there(self, chunk: RedriveChunk) -> list[tuple[int, FoundDeadLetter]]:
        """Returns the dead letters of a chunk that are still there, each with its number in it."""
        locations = [one.location for one in chunk.dead_letters]
        stored = (
            self._dead.use(lambda queue: bridge.run(self._store.messages.fetch(queue, locations))) if locations else []
        )
        known = {(one.partition, one.position): one for one in stored}
        found = []
        for index, one in enumerate(chunk.dead_letters):
            message = known.get(one.location)
            if message is None or message.expires != one.expires:
                continue
            dead_letter = deadletters.stored_dead_letter(message, self._dead.queue.name)
            if dead_letter is not None:
                found.append((index, FoundDeadLetter(message, dead_letter)))
        return found

    def reserver(self, queue: Queue) -> Reserver:
        if queue.uid not in self._reservers:
            target = TargetQueue(self._store, queue)
            self._reservers[queue.uid] = Reserver(target, f"{self._work}/{queue.uid:x}", lead=self._order.lead)
        return self._reservers[queue.uid]

    def remove(self, chunk: RedriveChunk) -> None:
        """Deletes the dead letters that were sent and still exist."""
        gone = [(one.message.partition, one.message.position) for _, one in self.there(chunk)]
        if gone:
            self._dead.use(lambda queue: bridge.run(self._store.messages.delete(queue, gone)))


def _planned(message: Message) -> PlannedDeadLetter:
    return PlannedDeadLetter(message.partition, message.ticks, message.low, message.expires)


def _with_keys(name: str, found: Sequence[DeadLetter]) -> Redriven:
    """Returns dead letters of a queue that keeps keys, to which Spark cannot write, as those that stay."""
    reason = f"queue {name} keeps keys, which Spark does not write: send them back with qdo deadletter redrive"
    staying = [UnsentDeadLetter(one.lies_in, one.stored_partition, one.stored_id, reason) for one in found]
    return Redriven(left={reason: len(staying)}, samples=tuple(sorted(staying)[:SAMPLES]))


def _meta(dead_letter: DeadLetter) -> Meta | None:
    meta = Meta(dead_letter.content_type, tuple(dead_letter.headers.items()), dead_letter.json)
    return None if meta == Meta() else meta


def _decode(raw: bytes) -> RedriveChunk:
    try:
        return msgspec.msgpack.decode(raw, type=RedriveChunk)
    except msgspec.MsgspecError as error:
        raise StoreIncompatible(f"the ledger has an entry that this version cannot read: {error}") from error


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
