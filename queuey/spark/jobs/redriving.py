"""Sending dead letters back, exactly once: what a task does with one unit. No Spark.

A run has a name. For each unit the ledger has one entry for each **chunk** of letters under that name::

    (nothing) ──► planned: these letters ──► sent: those that could be, so many; these are to go ──► finished

* The plan is entered before anything is sent, so every attempt sends the same letters under the same numbers.
* Sending is a write at reserved ids (:mod:`queuey.spark.reserved`): a letter that an attempt has sent is found done,
  or written again at the same id.
* A letter is removed after the ledger says that its chunk is sent, and only if it is the one that was planned: one
  that was published anew under its id meanwhile has another end, and stays.

So an attempt may be killed between any two steps, and the next one by the same name goes on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from queuey.deadletters import DeadLetter
from queuey.errors import QueueNotFound, StoreIncompatible
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Message, Meta, Queue
from queuey.spark.errors import OptionError
from queuey.spark.jobs import letters
from queuey.spark.jobs.letters import Found, Place, Unit, Wanted
from queuey.spark.options import LEAD
from queuey.spark.reserved import Reserver, Target
from queuey.storage import Store

CHUNK = 500
"""Letters."""
CHUNK_BYTES = 8 << 20
SAMPLES = 20
"""Letters that are named among those that stay."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do.

    Attributes:
        run: Its name; doing it again under this name goes on with it.
        wanted: Which letters.
        ttl: Seconds that they are to live; None: the default of their queue.
        lead: Seconds by which ids are reserved ahead of the clock.
        dry_run: Change nothing.
    """

    run: str
    wanted: Wanted
    ttl: int | None = None
    lead: float = LEAD
    dry_run: bool = False

    def about(self) -> bytes:
        """Tells orders apart that a run may not be begun with one of and continued with the other."""
        return _digest(msgspec.msgpack.encode(self.wanted))


class Staying(msgspec.Struct, frozen=True, order=True):
    """A letter that cannot be sent back."""

    lies_in: str
    partition: int
    id: str
    reason: str


class Outcome(msgspec.Struct, frozen=True):
    """What a run has done, all its attempts together; with ``dry_run`` would do.

    Attributes:
        sent: Letters that went back, by queue.
        moved: Those among them that got other ids than those reserved first, as a retry came too late for these.
        kept: Those that were found sent by an attempt that was killed, too late to tell whether in time.
        left: Letters that cannot go back, by reason.
        samples: Some of these.
    """

    sent: dict[str, int] = {}
    moved: int = 0
    kept: int = 0
    left: dict[str, int] = {}
    samples: tuple[Staying, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            dict(Counter(self.sent) + Counter(other.sent)),
            self.moved + other.moved,
            self.kept + other.kept,
            dict(Counter(self.left) + Counter(other.left)),
            tuple(sorted((*self.samples, *other.samples))[:SAMPLES]),
        )


class Planned(msgspec.Struct, frozen=True, array_like=True):
    """A letter of a chunk: where it lies, and which one it is: one published anew there has another end."""

    partition: int
    ticks: int
    low: int
    expires: int

    @property
    def place(self) -> Place:
        """Where it lies."""
        return self.partition, (self.ticks, self.low)


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """What the ledger knows of a chunk.

    Attributes:
        about: Of the order.
        letters: Those of a planned chunk; of one that is sent those that are to be removed; of a finished one none.
        after: Where the next chunk begins; None: there is none.
        count: How many letters were planned.
        outcome: Of a chunk that is sent.
    """

    about: bytes
    letters: tuple[Planned, ...]
    after: Place | None
    count: int
    outcome: Outcome | None = None


class Returning(msgspec.Struct):
    """Letters of a chunk on their way to one queue; see :class:`queuey.spark.reserved.Rows`."""

    indexes: Sequence[int]
    count: int
    letters: Sequence[DeadLetter]
    ttl: int
    order: bytes = b""
    content: bytes = b""

    def messages(self, base: int, low: int) -> list[Message]:
        """Returns them as the messages that they were, with new ids."""
        lives = self.ttl * TICKS_PER_SECOND
        return [
            Message(base + index, low, one.partition, base + index + lives, one.body, _meta(one))
            for index, one in zip(self.indexes, self.letters, strict=True)
        ]


class Redrive:
    """Does an order on one unit after the other.

    Args:
        store: The store.
        queue: Looks a queue up by name, fresh.
        order: What to do.
        usual_ttl: Of queues that have none.
        chunk: Letters that are sent together, about.
        page: Letters that are read at a time.
    """

    def __init__(
        self,
        store: Store,
        queue: Callable[[str], Queue],
        order: Order,
        usual_ttl: int,
        *,
        chunk: int = CHUNK,
        page: int = letters.PAGE,
    ) -> None:
        self._store = store
        self._queue = queue
        self._order = order
        self._usual_ttl = usual_ttl
        self._chunk = chunk
        self._page = page
        self._about = order.about()

    def count(self, dead: Queue, unit: Unit) -> Outcome:
        """Tells what would become of a unit's letters."""
        outcome = Outcome()
        for found, _ in letters.pages(self._store, dead, unit, self._order.wanted, page=self._page):
            _, by_origin, left = self._targets([one.letter for one in found])
            outcome += Outcome({name: len(places) for name, places in by_origin.items()}) + left
        return outcome

    def send(self, dead: Queue, unit: Unit) -> Outcome:
        """Sends a unit's letters and removes them.

        Raises:
            OptionError: The run was begun with another order.
            QueueChanged: A queue was deleted or purged meanwhile; doing it again is safe.
        """
        target, work = Target(self._store, dead), self._work(dead, unit)
        sending = _Sending(self._store, target, self._order, work, chunk=self._chunk, page=self._page)
        outcome, number, planned, start = Outcome(), 0, 0, None
        while True:
            raw, chunk = sending.entered(number) or sending.planned(number, unit, self._about, start, planned)
            if chunk.about != self._about:
                raise OptionError(f"run {self._order.run!r} was begun with other queues or filters; name another one")
            if chunk.outcome is None:
                raw, chunk = self._send(sending, number, raw, chunk)
            if chunk.letters:
                sending.remove(chunk)
                raw, chunk = sending.set(number, raw, msgspec.structs.replace(chunk, letters=()))
            outcome += chunk.outcome or Outcome()
            planned, start, number = planned + chunk.count, chunk.after, number + 1
            if start is None:
                return outcome

    def _send(self, sending: _Sending, number: int, raw: bytes, chunk: Chunk) -> tuple[bytes, Chunk]:
        there = sending.there(chunk)
        targets, by_origin, outcome = self._targets([one.letter for _, one in there])
        gone: list[Planned] = []
        for name, places in by_origin.items():
            mine = [there[place] for place in places]
            queue = targets[name]
            rows = Returning(
                [index for index, _ in mine],
                chunk.count,
                [one.letter for _, one in mine],
                self._order.ttl or queue.ttl or self._usual_ttl,
            )
            counts = sending.reserver(queue).write(number, rows)
            outcome += Outcome({name: counts.rows}, counts.moved, counts.kept)
            gone += [_planned(one.message) for _, one in mine]
        done = msgspec.structs.replace(chunk, letters=tuple(gone), outcome=outcome)
        return sending.set(number, raw, done)

    def _targets(self, found: Sequence[DeadLetter]) -> tuple[dict[str, Queue], dict[str, list[int]], Outcome]:
        """Divides letters by the queue that they go back to.

        Returns:
            The queues; which of the letters go to each; and those that stay.
        """
        queues = {name: self._looked_up(name) for name in {letter.queue for letter in found}}
        by_origin: dict[str, list[int]] = defaultdict(list)
        staying: list[Staying] = []
        for place, letter in enumerate(found):
            origin = queues[letter.queue]
            if origin is not None and 0 < letter.partition <= origin.partitions:
                by_origin[letter.queue].append(place)
                continue
            reason = "is gone" if origin is None else f"has only {origin.partitions} partitions"
            staying.append(Staying(letter.lies_in, letter.partition, letter.id, f"queue {letter.queue} {reason}"))
        left = dict(Counter(one.reason for one in staying))
        known = {name: queue for name, queue in queues.items() if queue is not None}
        return known, by_origin, Outcome(left=left, samples=tuple(sorted(staying)[:SAMPLES]))

    def _looked_up(self, name: str) -> Queue | None:
        try:
            return self._queue(name)
        except QueueNotFound:
            return None

    def _work(self, dead: Queue, unit: Unit) -> str:
        """Names a unit's work in the ledger."""
        return (
            f"redrive/{_digest(msgspec.msgpack.encode((self._order.run, dead.uid, dead.qid, unit.partitions))).hex()}"
        )


class _Sending:
    """One unit's way through the ledger and the stores."""

    def __init__(self, store: Store, dead: Target, order: Order, work: str, *, chunk: int, page: int) -> None:
        self._store = store
        self._dead = dead
        self._order = order
        self._work = work
        self._chunk = chunk
        self._page = page
        self._reservers: dict[int, Reserver] = {}

    def entered(self, number: int) -> tuple[bytes, Chunk] | None:
        """Returns what the ledger knows of a chunk."""
        raw = self._dead.patiently(lambda: self._store.entry(self._work, number))
        return None if raw is None else (raw, _decode(raw))

    def planned(self, number: int, unit: Unit, about: bytes, start: Place | None, before: int) -> tuple[bytes, Chunk]:
        """Decides on the letters of a chunk, unless another attempt has."""
        wanted = self._order.wanted
        if wanted.limit is not None:
            wanted = msgspec.structs.replace(wanted, limit=wanted.limit - before)
        chosen: list[Planned] = []
        size, after = 0, None
        for found, place in letters.pages(self._store, self._dead.queue, unit, wanted, start=start, page=self._page):
            chosen += [_planned(one.message) for one in found]
            size += sum(len(one.message.body) for one in found)
            if len(chosen) >= self._chunk or size >= CHUNK_BYTES:
                after = None if len(chosen) == wanted.limit else place
                break
        return self.set(number, None, Chunk(about, tuple(chosen), after, len(chosen)))

    def set(self, number: int, raw: bytes | None, chunk: Chunk) -> tuple[bytes, Chunk]:
        """Enters a chunk if ``raw`` stands there; returns what stands there then."""
        value = msgspec.msgpack.encode(chunk)
        found = self._dead.patiently(lambda: self._store.enter(self._work, number, value, expected=raw))
        return found, _decode(found)

    def there(self, chunk: Chunk) -> list[tuple[int, Found]]:
        """Returns the letters of a chunk that are still there, each with its number in it."""
        places = [one.place for one in chunk.letters]
        stored = self._dead.use(lambda queue: self._store.fetch(queue, places)) if places else []
        known = {(one.partition, one.position): one for one in stored}
        found = []
        for index, one in enumerate(chunk.letters):
            message = known.get(one.place)
            if message is None or message.expires != one.expires:
                continue
            letter = letters.read_letter(message, self._dead.queue.name)
            if letter is not None:
                found.append((index, Found(message, letter)))
        return found

    def reserver(self, queue: Queue) -> Reserver:
        """Returns what writes to a queue."""
        if queue.uid not in self._reservers:
            target = Target(self._store, queue)
            self._reservers[queue.uid] = Reserver(target, f"{self._work}/{queue.uid:x}", lead=self._order.lead)
        return self._reservers[queue.uid]

    def remove(self, chunk: Chunk) -> None:
        """Removes the letters that were sent, as far as they are still there."""
        gone = [(one.message.partition, one.message.position) for _, one in self.there(chunk)]
        if gone:
            self._dead.use(lambda queue: self._store.delete(queue, gone))


def _planned(message: Message) -> Planned:
    return Planned(message.partition, message.ticks, message.low, message.expires)


def _meta(letter: DeadLetter) -> Meta | None:
    meta = Meta(letter.content_type, tuple(letter.headers.items()), letter.json)
    return None if meta == Meta() else meta


def _decode(raw: bytes) -> Chunk:
    try:
        return msgspec.msgpack.decode(raw, type=Chunk)
    except msgspec.MsgspecError as error:
        raise StoreIncompatible(f"the ledger has an entry that this version cannot read: {error}") from error


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
