"""Histories of a queue whose expired messages become dead letters, while busy processes stop and crash.

:class:`~queuey.messages.posts.MessageUseCases` posts messages, some are claimed and acknowledged, and each
process carries out the steps of due records. In the end all TTLs have been over for more than a day.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from queuey.claims.expiry_records import ExpiryRecords
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome, ReceiptStatus
from queuey.messages.posts import Draft, MessageUseCases
from queuey.model import ids
from queuey.model.errors import RecordChanged, StoreUnavailable
from queuey.model.ids import LOW_MIN, TICKS_PER_SECOND, Position
from queuey.model.messages import KEPT_SECONDS, Message, NewMessage, Page, PostResult, Queue, Record, RecordDue, Slice
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from tests.harness.checking.claims import MAX_CLOCK_DIFFERENCE
from tests.sim.playing import Play
from tests.sim.replicas import DEADLINE, Faults, ModelStore, Replicas
from tests.sim.web import Setup, Web
from tests.sim.world import SimulatedCore, World, begin

QUEUE = Queue(application="acme", name="q", uid=1, qid=1, on_ack="delete", on_expiry="dead-letter", ttl=60)
ACTIVE = 60.0
"""Seconds in which messages are posted and claimed, and processes stop."""
HALF = KEPT_SECONDS // 2


class KeptReplicas(Replicas):
    """Messages with TTLs, whose rows are removed a day after the end, and records."""

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
        self.queues[QUEUE.name] = QUEUE
        self.records: dict[str, Record] = {}
        self.ends: dict[Position, float] = {}
        """When the TTL of each message ends (true time)."""
        self.dropped: set[Position] = set()
        """Messages whose rows are not kept after their end."""
        self.versions = itertools.count(1)

    def keep(self, position: Position, partition: int, ttl: int, offset: float, *, kept: bool) -> None:
        """Sets the end of a message's TTL. Without ``kept`` its row is removed then."""
        if not kept:
            self.dropped.add(position)
        message, arrivals = self.messages[partition][position]
        message = replace(message, expires=position[0] + ttl * TICKS_PER_SECOND)
        self.messages[partition][position] = message, arrivals
        self.ends[position] = ids.ticks_to_seconds(message.expires) - offset

    def read_quorum(self, partition: int) -> list[Message]:
        now = self.world.now
        return [
            one for one in super().read_quorum(partition) if self.ends[one.position] + self._rest(one.position) > now
        ]

    def _rest(self, position: Position) -> int:
        return 2 if position in self.dropped else KEPT_SECONDS


class KeptStore(ModelStore):
    """The parts of a store that claims, posts and records need."""

    _replicas: KeptReplicas

    def begin_append(
        self,
        queue: Queue,
        items: Sequence[NewMessage],
        done: Callable[[list[Position] | None, Exception | None], None],
        *,
        after: Position | None = None,
    ) -> None:
        [item] = items
        process, life = self._process, self._process.life

        def ended(position: Position | None) -> None:
            error = None if position is not None else StoreUnavailable("undone")
            process.soon(0.0, lambda: done(None if position is None else [position], error), life)

        offset = process.offset
        position = self._replicas.write(process, item.partition, str(item.body), ended, item.delay, item.meta)
        self._replicas.keep(position, item.partition, item.ttl, offset, kept=item.kept)

    def write_within(self, queue: Queue) -> float:
        return DEADLINE

    def begin_read(self, queue: Queue, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:
        """Begins a read of live messages, and of ended ones if ``kept``; without ``due`` of all stored ones."""
        if not part.due:
            return self._begin_read_delayed(part, done)

        def live(page: Page | None, error: Exception | None) -> None:
            if page is not None and not part.kept:
                page.messages = [one for one in page.messages if one.expires > self.now_ticks()]
            done(page, error)

        return super().begin_read(queue, part, live)

    def _begin_read_delayed(self, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:
        """Begins a read of all stored messages from a position on, also of ones that are not due yet."""
        life = self._process.life

        def read() -> None:
            messages = [one for one in self._replicas.read_quorum(part.partition) if part.lower <= one.position]
            page = Page(messages[: part.limit], self.now_ticks(), (self.now_ticks(), LOW_MIN), more=False)
            self._process.soon(self._world.random_time(self._replicas.faults.slow), lambda: done(page, None), life)

        self._process.soon(self._world.random_time(self._replicas.faults.slow), read)
        return True

    def fetch(self, queue: Queue, locations: Sequence[tuple[int, Position]], *, kept: bool = False) -> list[Message]:
        return [one for one in super().fetch(queue, locations) if kept or one.expires > self.now_ticks()]

    # Records

    def ids_ahead(self) -> float:
        return 0.0

    def record(self, kind: str, application: str, name: str) -> Record | None:
        return self._replicas.records.get(name)

    def set_record(self, record: Record) -> Record:
        [stored_record] = self._failing([self._replicas.records.get(record.name)]) or [None]
        if (0 if stored_record is None else stored_record.version) != record.version:
            raise RecordChanged(record.name)
        self._replicas.records[record.name] = replace(record, version=next(self._replicas.versions))
        return self._replicas.records[record.name]

    def remove_record(self, record: Record) -> None:
        stored_record = self._replicas.records.get(record.name)
        if stored_record is None or stored_record.version != record.version:
            raise RecordChanged(record.name)
        del self._replicas.records[record.name]

    def due_records(
        self, kind: str, until: int, *, application: str | None = None, limit: int = 1000
    ) -> list[RecordDue]:
        records = self._replicas.records.values()
        return [RecordDue(one.application, one.name, one.due, one.version) for one in records if one.due <= until]


class HesitantRecords(ExpiryRecords):
    """Sometimes posts while a record is removed, and sometimes stops the process before it posts."""

    post: Callable[[], None]

    async def ensure_expiry(self, queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False) -> None:
        """Relies on messages as the base class does, sometimes after a long pause of the process."""
        rng = self._core.rng
        if not is_stored:
            await super().ensure_expiry(queue, items)
        if rng.random() < 0.1:
            cast("SimulatedCore", self._core)._process.pause(rng.choice((40.0, 5000.0)))
            await asyncio.sleep(0)
        if is_stored:
            await super().ensure_expiry(queue, items, is_stored=True)

    async def _remove(self, record: Record) -> None:
        if self._core.rng.random() < 0.3:
            self.post()
            await asyncio.sleep(self._core.rng.random() * 0.3)
        await super()._remove(record)


class KeptWeb(Web):
    """A process that posts, claims and carries out the steps of records."""

    def _start(self) -> Any:  # noqa: ANN401 - as the base class
        claims = super()._start()
        store = claims._store
        self.records = HesitantRecords(store, claims, self.core, threading.Event())
        effects: Any = SimpleNamespace(ensure_expiry=self.records.ensure_expiry)
        self.messages = MessageUseCases(store, Limits(), Metrics(), self.core, effects=effects)
        with self.core.loop.running():
            self.records.runner._begin()
        return claims


class History:
    """One history.

    Args:
        seed: Seeds all random choices.
        kind: The kind of the queue.
    """

    def __init__(self, seed: int, kind: str = "plain") -> None:
        self.queue = replace(QUEUE, kind=kind)
        self.world = world = World(seed)
        self.rng = rng = world.rng
        faults = Faults(
            lost=rng.choice((0, 0.1)),
            stuck=rng.choice((0, 0.1)),
            slow=rng.choice((0.003, 0.02)),
            late=rng.choice((0, 0.3)),
            failing=rng.choice((0, 0.3)),
        )
        self.replicas = KeptReplicas(world, faults)
        self.replicas.queues[QUEUE.name] = self.queue
        setup = Setup(store=KeptStore)
        self.webs = [
            KeptWeb(world, self.replicas, rng.choice((-MAX_CLOCK_DIFFERENCE, 0, MAX_CLOCK_DIFFERENCE)) / 2, setup)
            for _ in range(rng.randint(1, 2))
        ]
        self.ttls = rng.choice(((5,), (20,), (300, 10), (3600, 5)))
        self.posted: set[Position] = set()
        self.done: set[Position] = set()
        self.in_doubt: Counter[Position] = Counter()
        """Attempts to acknowledge whose result is unknown, by message."""
        self.held: list[tuple[Position, float, float]] = []
        self.wrong: list[str] = []

    def run(self) -> list[str]:
        world, rng = self.world, self.rng
        HesitantRecords.post = staticmethod(self._post)
        for _ in range(rng.choice((1, 3, 6, 12))):
            world.after(rng.random() * ACTIVE, self._post)
        for _ in range(rng.choice((0, 0, 3, 10))):
            world.after(rng.random() * ACTIVE, self._claim)
        for _ in range(rng.choice((0, 1, 3))):
            world.after(rng.random() * ACTIVE, lambda: rng.choice(self.webs).crash())
            world.after(rng.random() * ACTIVE, self._pause)
        for _ in range(rng.choice((0, 2))):
            world.after(rng.random() * 4000, self._post)
            world.after(rng.random() * 4000, self._claim)
            world.after(rng.random() * 4000, lambda: rng.choice(self.webs).crash())
        world.run(world.now + ACTIVE + 10)
        self.replicas.faults = Faults(failing=self.replicas.faults.failing)
        world.run(world.now + 100_000)
        HesitantRecords.post = staticmethod(lambda: None)
        world.run(max([world.now, *self.replicas.ends.values()]) + KEPT_SECONDS + 1000)
        self._check()
        world.end()
        return self.wrong

    def _post(self) -> None:
        web, rng = self.rng.choice(self.webs), self.rng

        def done(result: PostResult | None, error: Exception | None) -> None:
            if result is not None and kept:
                self.posted.update(position for _, position in result.locations)

        queue = replace(self.queue, ttl=rng.choice(self.ttls))
        kept = rng.random() < 0.8
        draft = Draft("x", None if kept else 300, delay=rng.choice((0.0, 0.0, 0.0, 15.0)))
        draft.key = rng.choice("ab") if queue.kind == "ordered" else None
        draft.body = f"{rng.random()}" if queue.kind == "dedup" else "x"
        begin(web.core, web.messages.post(queue, [draft]), done)

    def _claim(self) -> None:
        web, asked, ttl = self.rng.choice(self.webs), self.world.now, self.rng.choice((5.0, 30.0, 30.0, 40_000.0))

        def done(found: list[ClaimDelivery] | None, _error: Exception | None) -> None:
            for one in found or []:
                position = one.receipt.position
                if asked > self.replicas.ends[position] + MAX_CLOCK_DIFFERENCE:
                    self.wrong.append(f"E2: {position} was given after its end")
                until = one.expires - web.process.offset
                acknowledges = self.rng.random() < 0.5
                at = self.world.now + self.rng.random() * min(ttl, 200.0)
                self.held.append((position, self.world.now, min(until, at) if acknowledges else until))
                if acknowledges:
                    self.world.after(at - self.world.now, partial(self._acknowledge, one.receipt))

        begin(web.core, web.claims.claim(self.queue, limit=2, ttl=ttl), done)

    def _acknowledge(self, receipt: ClaimReceipt) -> None:
        """Acknowledges a message. Without an answer, or with one that leaves it open, it may be done."""
        web, position = self.rng.choice(self.webs), receipt.position

        def done(settled: Iterable[ReceiptOutcome] | None, error: Exception | None) -> None:
            for one in settled or ():
                if one.status in {ReceiptStatus.ACCEPTED, ReceiptStatus.FINAL}:
                    self.done.add(position)
            if settled is not None or (isinstance(error, StoreUnavailable) and error.outcome == "none"):
                self.in_doubt[position] -= 1

        self.in_doubt[position] += 1  # A crashed process gives no answer.
        begin(web.core, web.claims.acknowledge(self.queue, [receipt]), done)

    def _pause(self) -> None:
        self.rng.choice(self.webs).process.pause(self.rng.choice((2.0, 40.0, 5000.0)))

    def _check(self) -> None:
        letters, ends = self.replicas.letters, self.replicas.ends
        lost = self.posted - letters.keys() - self.done - (+self.in_doubt).keys()
        self.wrong += [f"E1: {position} vanished" for position in sorted(lost)]
        self.wrong += [f"E3: {position} was done and is a letter" for position in sorted(self.done & letters.keys())]
        self.wrong += [f"E3: {position} is a letter" for position in letters.keys() & self.replicas.dropped]
        early = [position for position, at in letters.items() if at < ends[position]]
        self.wrong += [f"E3: {position} became a letter before its end" for position in early]
        self.wrong += [
            f"E3: {position} became a letter while it was claimed"
            for position, start, end in self.held
            if position in letters and start < letters[position] < min(end, ends[position] + HALF - 100)
        ]
        self.wrong += [f"E4: {name} is still searched" for name in self.replicas.records]


def play(kind: str) -> Play:
    return lambda seed: History(seed, kind).run()
