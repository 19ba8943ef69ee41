"""A model of replicated messages and claim logs: late writes, lost answers, appends in doubt.

A message's write reaches replicas one after another; a read sees what a quorum of them has. A log is a register that
changes by compare-and-set. An append whose answer is lost may have been applied, or may be pending: it is applied or
discarded when the next append arrives, or by itself. Readers without ``newest`` may not see the last entry until a
caller was told of it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from queuey import storage
from queuey.model import ids
from queuey.model.deadletters import HEADER_PREFIX
from queuey.model.errors import InvalidRequest, QueueNotFound, StoreUnavailable
from queuey.model.ids import LOW_MIN, Position
from queuey.model.messages import (
    Location,
    LogEntry,
    LogPage,
    Message,
    Meta,
    NewMessage,
    Page,
    Queue,
    QueueSpec,
    Slice,
    rendered_bytes,
)
from queuey.storage import Store
from queuey.storage.contracts.claim_logs import MAX_PAGE_ENTRIES
from queuey.storage.deadlines import Deadline, Done, in_thread, start_and_wait
from queuey.storage.partition_watches import Wake
from tests.sim.availability import Stored
from tests.sim.world import Process, World

T = TypeVar("T")
_NO_DEADLINE = Deadline(math.inf)
REPLICAS, QUORUM = 3, 2
DELAY = 5.0
"""Seconds by which the horizon stays behind the clock (D)."""
DEADLINE = 3.0
"""Max seconds until a write is acknowledged (W)."""
TIMEOUT = 2.0
"""Max seconds to wait for the answer to an append."""


@dataclass
class Faults:
    """The kinds of faults, and how often each occurs."""

    lost: float = 0.0
    """Fraction of appends without an answer."""
    stuck: float = 0.0
    """Fraction of appends that stay pending for a while."""
    slow: float = 0.003
    """Mean seconds of one trip through the network."""
    late: float = 0.0
    """Fraction of message writes that reach their replicas seconds late."""
    failing: float = 0.0
    """Fraction of deletes and dead-letter writes that fail. They may take effect all the same."""
    unread: float = 0.0
    """Fraction of log reads that fail."""
    torn: float = 0.0
    """Fraction of log reads that see an entry's number at another replica than the one asked for the entry."""


@dataclass
class Log:
    history: list[tuple[float, LogEntry]] = field(default_factory=list)
    """All entries that every reader sees, with the time from which they do."""
    entries: dict[int, LogEntry] = field(default_factory=dict)
    last: int = 0
    shown: int = 0
    """The last entry that every reader sees."""
    snapshot: int = 0
    snapshots: dict[int, bytes] = field(default_factory=dict)
    pending: list[Proposal] = field(default_factory=list)
    """Pending appends: neither applied nor discarded."""

    def show(self, now: float) -> None:
        """Makes all entries visible to every reader from now on."""
        new = [self.entries[number] for number in range(self.shown + 1, self.last + 1) if number in self.entries]
        self.history += [(now, entry) for entry in new]
        self.shown = self.last


@dataclass(frozen=True, eq=False)
class Proposal:
    entry: LogEntry
    snapshot: int | None
    truncate_below: int | None


class Replicas:
    """The stored state, shared by all processes.

    Args:
        world: The source of time and chance.
        faults: The faults. They may be replaced at any time.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.logs: dict[tuple[int, int], Log] = {}
        self.messages: dict[int, dict[Position, tuple[Message, list[float]]]] = {}
        self.queues: dict[str, Queue] = {}
        self.covers: dict[tuple[int, int, bytes], int] = {}
        self.letters: dict[Position, float] = {}
        """When each message became a dead letter."""
        self.letter_places: dict[Position, set[Location]] = {}
        """The locations of the dead letters."""
        self.stored = Stored()
        self.wrong: Sequence[str] = ()
        """Forbidden actions of callers."""
        self._lows = itertools.count(1)
        self._qids = itertools.count(1000)

    def hold(self, queue: Queue) -> None:
        """Called with a queue that exists from the beginning."""

    def log(self, queue: Queue, partition: int) -> Log:
        return self.logs.setdefault((queue.qid, partition), Log())

    def compare(self, log: Log, entry: LogEntry) -> bool:
        return log.last == entry.number - 1

    def propose(self, log: Log, proposal: Proposal) -> bool | None:
        """Handles an append on its arrival, after the pending ones, and makes entries visible, unless it gets stuck.

        Returns whether it was applied, or None if its caller gets no answer.
        """
        rng, faults = self.world.rng, self.faults
        self.finish(log)
        if rng.random() < faults.stuck:
            log.pending.append(proposal)
            if rng.random() < 0.7:
                self.world.after(self.world.random_time(1.0), partial(self._apply_pending, log, proposal))
            return None
        log.show(self.world.now)
        applied = self.apply(log, proposal)
        return None if rng.random() < faults.lost else applied

    def finish(self, log: Log) -> None:
        """Applies each pending append of a log with a probability of a half, and drops the others."""
        lying, log.pending = log.pending, []
        for proposal_ in lying:
            if self.world.rng.random() < 0.5:
                self.apply(log, proposal_)

    def _apply_pending(self, log: Log, proposal: Proposal) -> None:
        if proposal in log.pending:
            log.pending.remove(proposal)
            self.apply(log, proposal)

    def apply(self, log: Log, proposal: Proposal) -> bool:
        """Applies an append unless another entry came first; returns whether it did.

        Drops truncated entries and snapshots.
        """
        entry, snapshot = proposal.entry, proposal.snapshot
        if not self.compare(log, entry):
            return False
        log.entries[entry.number] = entry
        log.last = max(log.last, entry.number)
        if snapshot:
            log.snapshot = snapshot
            log.snapshots = {number: body for number, body in log.snapshots.items() if number >= snapshot}
        below = proposal.truncate_below or 0
        log.entries = {number: kept for number, kept in log.entries.items() if number >= below}
        return True

    def write(
        self,
        process: Process,
        partition: int,
        body: str,
        done: Callable[[Position | None], None],
        delay: float = 0.0,
        meta: Meta | None = None,
    ) -> Position:
        """Writes a message and returns its position, made from the process's clock.

        A write that a quorum does not acknowledge in time is undone.

        Args:
            process: The writer.
            partition: The partition to write to.
            body: The body.
            done: Called at the end with the position, or with None if the write was undone.
            delay: Seconds until the message is due. Its id has that time.
            meta: The message's metadata.
        """
        world, faults = self.world, self.faults
        minted = world.now
        position = (ids.seconds_to_ticks(process.clock() + delay), next(self._lows))
        far = DEADLINE if world.rng.random() < faults.late else faults.slow
        arrivals = [world.now + world.random_time(far) for _ in range(REPLICAS)]
        message = Message(*position, partition, ids.TICKS_MAX, body, meta)
        self.messages.setdefault(partition, {})[position] = (message, arrivals)
        self.stored.write(partition, position, sorted(arrivals)[QUORUM - 1])
        acknowledged = sorted(arrivals)[QUORUM - 1] + world.random_time(faults.slow)
        if acknowledged - minted <= DEADLINE:
            world.after(acknowledged - world.now, lambda: done(position))
        else:
            # It is undone: the undo write wins over the write wherever it arrives.
            world.after(DEADLINE, lambda: self.undo(partition, position))
            world.after(DEADLINE + world.random_time(faults.slow), lambda: done(None))
        return position

    def undo(self, partition: int, position: Position) -> None:
        self.stored.remove(partition, position, self.world.now)
        self.messages[partition].pop(position, None)

    def put(self, locations: Iterable[Location], was: Position) -> None:
        """Adds places of a message's dead letter; the time of the first one stays."""
        for location in locations:
            self.letters.setdefault(was, self.world.now)
            self.letter_places.setdefault(was, set()).add(location)

    def create_queue(self, application: str, name: str, partitions: int) -> tuple[Queue, bool]:
        created = name not in self.queues
        if created:
            number = next(self._qids)
            self.queues[name] = Queue(application=application, name=name, uid=number, qid=number, partitions=partitions)
        return self.queues[name], created

    def read_quorum(self, partition: int) -> list[Message]:
        """Returns the messages that a quorum read sees now, in order. The quorum is random."""
        now, quorum = self.world.now, self.world.rng.sample(range(REPLICAS), QUORUM)
        messages = self.messages.get(partition, {})
        return [
            message
            for _, (message, arrivals) in sorted(messages.items(), key=lambda item: item[0])
            if any(arrivals[replica] <= now for replica in quorum)
        ]


def make_async_store(model: object) -> Store:
    """Returns a store whose contracts are the methods of a model.

    A model method ``begin_append`` takes a callback. A coroutine goes on if its caller leaves. Other methods block:
    they run in a thread of their process.
    """
    parts = {field.name: _AwaitedContract(model, str(field.type)) for field in fields(Store)}
    return cast("Store", _AwaitedStore(model, parts))


class _AwaitedStore:
    """A model as a store. Attributes outside the contracts are the model's."""

    def __init__(self, model: object, parts: dict[str, _AwaitedContract]) -> None:
        self._model = model
        self.__dict__.update(parts)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the model has
        return getattr(self._model, name)


class _AwaitedContract:
    """One contract of a model, with awaitable methods."""

    def __init__(self, model: object, contract: str) -> None:
        self._model = model
        self._contract = getattr(storage, contract)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the model has
        """Returns a method that awaits the model's one, which may be a coroutine, call back, or block."""
        if not inspect.iscoroutinefunction(getattr(self._contract, name)):
            return getattr(self._model, name)
        begin = getattr(self._model, f"begin_{name}", None)

        async def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - as the model has it
            if inspect.iscoroutinefunction(getattr(self._model, name, None)):
                return await asyncio.shield(asyncio.ensure_future(getattr(self._model, name)(*args, **named)))
            if begin is None:
                return await in_thread(partial(getattr(self._model, name), *args, **named))
            if name != "read":
                return await start_and_wait(lambda done: begin(*args, done, **named), _NO_DEADLINE)
            queue, [part] = args
            return [await start_and_wait(lambda done: begin(queue, part, done), _NO_DEADLINE)]

        return call


class ModelStore:
    """The parts of a store that claims need, as seen by one process."""

    def __init__(self, replicas: Replicas, process: Process) -> None:
        self._replicas = replicas
        self._process = process
        self._world = replicas.world

    @property
    def store(self) -> Store:
        return make_async_store(self)

    def adopt(self, _loop: object) -> None:
        """Does nothing: the model calls back from any thread."""

    def claims_refusal(self, queue: Queue) -> str | None:
        return None

    def now_ticks(self) -> int:
        return ids.seconds_to_ticks(self._process.clock())

    def now_ms(self) -> int:
        return (self.now_ticks() - ids.EPOCH_TICKS) // 10_000

    def entry(self, work: str, piece: int) -> bytes | None:
        """Returns None: no simulated worker gives a reason for a release, so no entry has one."""
        return None

    # Covers

    ids_follow_clocks = True
    clock_difference = 1.0

    def write_covers(self, queue: Queue, partition: int, covers: Iterable[tuple[bytes, int]]) -> None:
        """Extends covers of digests; a later end that is stored stays. The call may fail afterwards."""
        covers_ = self._replicas.covers
        for digest, until in self._failing(covers):
            key = (queue.qid, partition, digest)
            covers_[key] = max(until, covers_.get(key, 0))

    def read_covers(self, queue: Queue, partition: int, digests: Iterable[bytes]) -> dict[bytes, int]:
        keys = {digest: (queue.qid, partition, digest) for digest in digests}
        covers = self._replicas.covers
        return {digest: covers[key] for digest, key in keys.items() if key in covers}

    def forget_covers(self, queue: Queue, partition: int, until: int) -> None:
        covers = self._replicas.covers
        for key in [key for key, value in covers.items() if key[:2] == (queue.qid, partition) and value <= until]:
            del covers[key]

    # Messages

    exact_horizon = False

    def watch(
        self, queue: Queue, partition: int, wake: Wake, *, keeps_read_delay: bool = True, early: bool = False
    ) -> Callable[[], None]:
        """Does nothing: waiting claims poll."""
        return lambda: None

    def begin_read(self, queue: Queue, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:
        """Begins a read up to the horizon, or to the clock if the slice reads ahead.

        It takes effect after a random time.
        """
        horizon = ids.seconds_to_ticks(self._process.clock() - DELAY)
        upper = min(part.upper, (ids.seconds_to_ticks(self._process.clock()) if part.ahead else horizon, LOW_MIN))
        slow = self._replicas.faults.slow

        def read() -> None:
            messages = [one for one in self._replicas.read_quorum(part.partition) if part.lower <= one.position < upper]
            if not part.bodies:
                messages = [msgspec.structs.replace(one, body="") for one in messages]
            weights = itertools.accumulate(rendered_bytes(one.body, one.meta) if part.bodies else 0 for one in messages)
            enough = next((n for n, weight in enumerate(weights, 1) if weight >= part.max_bytes), part.limit)
            limit = min(part.limit, enough)
            more = len(messages) >= limit
            messages = messages[:limit]
            if messages:
                self._replicas.stored.show(part.partition, messages[-1].position, self._world.now)
            end = ids.following(messages[-1].position) if more else max(part.lower, upper)
            page = Page(messages, horizon, end, more)
            self._process.soon(self._world.random_time(slow), lambda: done(page, None), life)

        life = self._process.life
        self._process.soon(self._world.random_time(slow), read)
        return True

    def fetch(self, queue: Queue, locations: Sequence[tuple[int, Position]], *, kept: bool = False) -> list[Message]:
        """Fetches messages. Every quorum sees acknowledged messages, without end. Dead letters are not kept."""
        if queue.name.endswith(".dead"):
            return []
        seen = {
            (message.partition, message.position): message
            for partition in {number for number, _ in locations}
            for message in self._replicas.read_quorum(partition)
        }
        return [seen[location] for location in locations if location in seen]

    def delete(self, queue: Queue, locations: Iterable[tuple[int, Position]]) -> int:
        for partition, position in self._failing(locations):
            self._replicas.undo(partition, position)
        return 0

    def put(self, queue: Queue, locations: Sequence[tuple[int, Position]], item: NewMessage) -> None:
        assert queue.name.endswith(".dead")
        assert item.meta is not None
        self._replicas.put(self._failing(locations), ids.parse_position(dict(item.meta.headers)[f"{HEADER_PREFIX}id"]))

    def _failing(self, items: Iterable[T]) -> Iterable[T]:
        """Yields the items to act on, or sometimes none. Afterwards the call may fail."""
        rng, failing = self._world.rng, self._replicas.faults.failing
        fails = rng.random() < failing
        if not fails or rng.random() < 0.5:
            yield from items
        if fails:
            raise StoreUnavailable("no answer", outcome="unknown")

    # Queues

    def queue(self, application: str, name: str, *, fresh: bool = False) -> Queue:
        if name not in self._replicas.queues:
            raise QueueNotFound(f"Queue {name} does not exist.")
        return self._replicas.queues[name]

    def create_queue(self, application: str, name: str, spec: QueueSpec) -> tuple[Queue, bool]:
        return self._replicas.create_queue(application, name, spec.partitions or 1)

    # Logs

    def begin_append_entry(
        self,
        queue: Queue,
        partition: int,
        entry: LogEntry,
        done: Done,
        *,
        snapshot: int | None = None,
        truncate_below: int | None = None,
    ) -> None:
        """Appends an entry to a log. The outcome is unknown if no answer comes within the timeout."""
        if not 1 <= partition <= queue.partitions:
            done(None, InvalidRequest({"partition": f"{partition} is not a partition"}))
            return
        replicas, world, process, slow = self._replicas, self._world, self._process, self._replicas.faults.slow
        proposal = Proposal(entry, snapshot, truncate_below)
        life = process.life
        told: list[bool] = []

        def answer(*end: Any) -> None:  # noqa: ANN401 - as `done` takes it
            if not told:
                told.append(True)
                done(*end)

        def arrive() -> None:
            applied = replicas.propose(replicas.log(queue, partition), proposal)
            if applied is not None:
                process.soon(world.random_time(slow), partial(tell, applied), life)

        def tell(applied: object) -> None:
            replicas.log(queue, partition).show(world.now)
            answer(applied, None)

        world.after(world.random_time(slow), arrive)
        process.soon(TIMEOUT, lambda: answer(None, StoreUnavailable("no answer", outcome="unknown")))

    def read_log(self, queue: Queue, partition: int, first: int, *, newest: bool = False) -> LogPage:
        """Reads visible entries from ``first`` on, up to a page, after the snapshot where entries were dropped.

        Raises StoreUnavailable by chance. ``newest`` makes pending entries visible. A torn read lacks its entries.
        """
        if not 1 <= partition <= queue.partitions:
            raise InvalidRequest({"partition": f"{partition} is not a partition"})
        if self._world.rng.random() < self._replicas.faults.unread:
            raise StoreUnavailable("no answer")
        log = self._replicas.log(queue, partition)
        if newest:
            self._replicas.finish(log)
            log.show(self._world.now)
        last = log.shown
        snapshot = None
        torn = self._replicas.faults.torn
        if torn and first <= last and not newest and self._world.rng.random() < torn:
            return LogPage(last, [])
        if log.snapshot and (first == 1 or (first <= last and first not in log.entries)):
            snapshot = LogEntry(log.snapshot, log.snapshots[log.snapshot])
            first = log.snapshot + 1
        entries = [log.entries[number] for number in range(first, min(last, first + MAX_PAGE_ENTRIES - 1) + 1)]
        return LogPage(last, entries, snapshot)

    def write_snapshot(self, queue: Queue, partition: int, number: int, body: bytes) -> None:
        if not 1 <= partition <= queue.partitions:
            raise InvalidRequest({"partition": f"{partition} is not a partition"})
        self._replicas.log(queue, partition).snapshots[number] = body
