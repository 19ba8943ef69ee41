"""The stored state of groups in two kinds of store: registers changed by transactions, and sessions written plainly.

SQLite's transactions are linear, and its processes share a clock. Cassandra's are linear as well, but one without an
answer may have been applied, may be applied later, or never, and reads may miss the last change until a caller was told
of it. Plain writes reach replicas one after another, the highest timestamp wins, and reads see what a quorum has. What
one read has shown, later ones show too (`read_repair`, BLOCKING by default).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from queuey.model.groups import GroupHead, GroupRow, OwnedOffset
from queuey.model.messages import Queue
from tests.sim.world import World

REPLICAS, QUORUM = 3, 2
APPLICATION, GROUP = "acme", "billing"


@dataclass
class Faults:
    """The kinds of faults, and how often each occurs.

    Attributes:
        lost: Fraction of transactions without an answer.
        stuck: Fraction of transactions that stay pending for a while.
        failing: Fraction of calls that fail without effect.
        late: Fraction of plain writes that reach their replicas seconds late.
        lacking: Fraction of queues missing from a list.
        hesitant: Fraction of calls before which a process stops.
        reading: Fraction of reads of sessions after which a process stops.
        slow: Mean seconds of one trip.
    """

    lost: float = 0.0
    stuck: float = 0.0
    failing: float = 0.0
    late: float = 0.0
    lacking: float = 0.0
    hesitant: float = 0.0
    reading: float = 0.0
    slow: float = 0.003


Rows = dict[int, OwnedOffset]


@dataclass(frozen=True)
class OffsetsChange:
    """A change of offsets.

    Attributes:
        kind: The kind of change.
        member, epochs: The member and epochs of a commit.
        back: Partitions whose offset may go back.
    """

    kind: str
    member: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    back: frozenset[int] = frozenset()


class Observer(Protocol):
    """Checks events."""

    def offsets_changed(self, uid: int, before: Rows, after: Rows, deed: OffsetsChange) -> None:
        """The rows of a queue have changed."""

    def group_changed(self, before: Contents | None, after: Contents | None) -> None:
        """The state of the group has changed."""


@dataclass(frozen=True)
class Contents:
    """Head and rows of a group."""

    head: GroupHead
    rows: dict[tuple[int, int], GroupRow]


@dataclass(frozen=True, eq=False)
class Proposal:
    """A transaction under way: from one version to another."""

    version: int
    token: int
    change: Callable[[Any], Any]
    after: Callable[[Any, Any], None]


class Register:
    """A value that changes by transactions.

    Args:
        stored: The stored state that it is part of.
        value: The initial value.
    """

    def __init__(self, stored: Stored, value: Any) -> None:  # noqa: ANN401 - of either kind
        self.version = 0
        self.value = value
        self._stored = stored
        self._hidden: tuple[int, Any] | None = None
        """The former version and value, which may be read until a caller was told of the last change."""
        self._pending: list[Proposal] = []

    def read(self, *, serial: bool = False) -> tuple[int, Any]:
        """Returns version and value.

        A read that is not serial may return the former ones until one has seen the last.
        """
        if serial:
            self._resolve_pending()
        if self._hidden is not None:
            if not serial and self._stored.world.rng.random() < 0.5:
                return self._hidden
            self._hidden = None
        return self.version, self.value

    def propose(self, proposal: Proposal) -> bool | None:
        """Handles a transaction on its arrival, after pending ones.

        Returns whether it was applied, also as a pending one, or None if its caller gets no answer.
        """
        stored = self._stored
        rng, faults = stored.world.rng, stored.faults
        self._resolve_pending()
        self._hidden = None
        if faults.stuck and rng.random() < faults.stuck:
            self._pending.append(proposal)
            if rng.random() < 0.7:
                stored.world.after(stored.world.random_time(1.5), lambda: self._apply_pending(proposal))
            return None
        applied = self._apply(proposal)
        if faults.lost and rng.random() < faults.lost:
            return None
        self._hidden = None
        return applied or self.version == proposal.token

    def _resolve_pending(self) -> None:
        for proposal in list(self._pending):
            if self._stored.world.rng.random() < 0.6:
                self._apply_pending(proposal)

    def _apply_pending(self, proposal: Proposal) -> None:
        """Applies a pending transaction, or discards it at random. Does nothing if it is pending no more."""
        if proposal in self._pending:
            self._pending.remove(proposal)
            if self._stored.world.rng.random() < 0.7:
                self._apply(proposal)

    def _apply(self, proposal: Proposal) -> bool:
        """Applies a transaction if its version is current, and tells its observer. Returns whether it did."""
        if self.version != proposal.version:
            return False
        before = self.value
        if not self._stored.linear:
            self._hidden = (self.version, before)
        self.value = proposal.change(before)
        self.version = 0 if self.value is None else proposal.token
        proposal.after(before, self.value)
        return True


class Stored:
    """The stored state, shared by all processes.

    Args:
        world: The source of time and chance.
        faults: The faults. They may be replaced at any time.
        linear: Whether it has SQLite's semantics.
        slack: S, in seconds.

    Attributes:
        counts: Reads, plain writes and transactions by kind, and their bytes, if ``counting``.
    """

    def __init__(self, world: World, faults: Faults, *, linear: bool, slack: float) -> None:
        self.world = world
        self.faults = faults
        self.linear = linear
        self.slack = slack
        self.observer: Observer | None = None
        self.queues: dict[str, Queue] = {}
        self.group = Register(self, None)
        self.offsets: dict[int, Register] = {}
        self.seen: dict[int, list[tuple[int, list[float]]]] = {}
        self.asked: dict[int, dict[int, float]] = {}
        """End of each request to a member, by member and queue."""
        self.searched = 0
        self.names: set[str] = set()
        self.names_of: dict[int, str] = {}
        """Names of queues by uid."""
        self.counts: Counter[str] = Counter()
        self.counting = False
        self.largest: Counter[str] = Counter()
        self.tokens = itertools.count(1)
        self._uids = itertools.count(1)

    def rows(self, uid: int) -> Register:
        if uid not in self.offsets:
            self.offsets[uid] = Register(self, {})
        return self.offsets[uid]

    def create(self, name: str, partitions: int) -> Queue:
        uid = next(self._uids)
        self.names_of[uid] = name
        self.queues[name] = queue = Queue(
            application=APPLICATION, name=name, uid=uid, qid=uid, partitions=partitions, version=next(self.tokens)
        )
        return queue

    def stamp(self, member: int, seen: int) -> float:
        """Writes when a member was seen. Returns the true time at which a quorum has it."""
        world, faults = self.world, self.faults
        if self.linear:
            arrivals = [world.now] * REPLICAS
        else:
            far = 2.0 if faults.late and world.rng.random() < faults.late else faults.slow
            arrivals = [world.now + world.random_time(far) for _ in range(REPLICAS)]
        writes = self.seen.setdefault(member, [])
        writes.append((seen, arrivals))
        if len(writes) > 8:
            everywhere = [one for one in writes if max(one[1]) <= world.now]
            if everywhere:
                last = max(everywhere, key=lambda one: one[0])
                self.seen[member] = [last, *(one for one in writes if max(one[1]) > world.now)]
        return sorted(arrivals)[QUORUM - 1]

    def last_seen(self) -> dict[int, int]:
        """Returns when each member was last seen, as a quorum has it.

        What one of its replicas lacks is written there before the answer (read repair), so no later read misses it.
        """
        now = self.world.now
        asked = (0, 1, 2) if self.linear else self.world.rng.sample(range(REPLICAS), QUORUM)
        last = {}
        for member, writes in self.seen.items():
            arrived = [write for write in writes if any(write[1][one] <= now for one in asked)]
            if arrived:
                last[member], arrivals = max(arrived, key=lambda write: write[0])
                for one in asked:
                    arrivals[one] = min(arrivals[one], now)
        return last
