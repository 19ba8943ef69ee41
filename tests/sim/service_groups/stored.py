"""What two stores keep of groups: registers that change by transactions, and sessions that are written plainly.

SQLite's transactions are linear, and its processes share a clock. Cassandra's are linear, too; but whose answer is lost
may have been applied, may be later, or never, and reads may not show the last change until somebody was told of it.
Plain writes reach replicas one after another, the highest timestamp stays, and reads see what a quorum has; what a read
has shown, later ones show, too (`read_repair`, BLOCKING as it is by default).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from queuey.groups.ownership import OwnedOffset
from queuey.groups.state import GroupRow, Head
from queuey.messages import Queue
from tests.sim.world import World

REPLICAS, QUORUM = 3, 2
APPLICATION, GROUP = "acme", "billing"


@dataclass
class Faults:
    """What goes wrong, and how often.

    Attributes:
        lost: Answers to transactions that do not come.
        stuck: Transactions that lie about for a while.
        failing: Calls that fail without effect.
        late: Plain writes that reach their replicas seconds late.
        lacking: Lists that lack a queue.
        hesitant: Calls of a process that stands still behind its clock, or before it writes.
        reading: Reads of sessions after which a process stands still.
        slow: Seconds that one way takes.
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
class Deed:
    """Who changes offsets.

    Attributes:
        kind: What it is.
        member, epochs: Of a commit.
        back: Partitions whose offset may go back.
    """

    kind: str
    member: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    back: frozenset[int] = frozenset()


class Observer(Protocol):
    """Who judges what happens."""

    def offsets_changed(self, uid: int, before: Rows, after: Rows, deed: Deed) -> None:
        """The rows of a queue have changed."""

    def group_changed(self, before: Contents | None, after: Contents | None) -> None:
        """The state of the group has changed."""


@dataclass(frozen=True)
class Contents:
    """Head and rows of a group."""

    head: Head
    rows: dict[tuple[int, int], GroupRow]


@dataclass(frozen=True, eq=False)
class Proposal:
    """A transaction on its way: from one version to another."""

    version: int
    token: int
    change: Callable[[Any], Any]
    after: Callable[[Any, Any], None]


class Register:
    """Something that changes by transactions.

    Args:
        stored: Where it is.
        value: What it is.
    """

    def __init__(self, stored: Stored, value: Any) -> None:  # noqa: ANN401 - of either kind
        self.version = 0
        self.value = value
        self._stored = stored
        self._hidden: tuple[int, Any] | None = None
        """What those may still read whom nobody has told of the last change."""
        self._lying: list[Proposal] = []

    def read(self, *, serial: bool = False) -> tuple[int, Any]:
        """Reads at a quorum."""
        if serial:
            self._finish()
        if self._hidden is not None:
            if not serial and self._stored.world.rng.random() < 0.5:
                return self._hidden
            self._hidden = None
        return self.version, self.value

    def propose(self, proposal: Proposal) -> bool | None:
        """Does what a transaction asks for when it arrives; None: nobody is told what became of it."""
        stored = self._stored
        rng, faults = stored.world.rng, stored.faults
        self._finish()
        self._hidden = None
        if faults.stuck and rng.random() < faults.stuck:
            self._lying.append(proposal)
            if rng.random() < 0.7:
                stored.world.at(stored.world.some(1.5), lambda: self._wake(proposal))
            return None
        applied = self._apply(proposal)
        if faults.lost and rng.random() < faults.lost:
            return None
        self._hidden = None
        return applied or self.version == proposal.token

    def _finish(self) -> None:
        for one in list(self._lying):
            if self._stored.world.rng.random() < 0.6:
                self._wake(one)

    def _wake(self, proposal: Proposal) -> None:
        if proposal in self._lying:
            self._lying.remove(proposal)
            if self._stored.world.rng.random() < 0.7:
                self._apply(proposal)

    def _apply(self, proposal: Proposal) -> bool:
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
    """What is stored, for all processes.

    Args:
        world: Its time.
        faults: What goes wrong; may be changed at any time.
        linear: SQLite's semantics.
        slack: S, in seconds.

    Attributes:
        counts: Reads, plain writes, transactions by what they are, and their bytes, if ``counting``.
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
        """By member and queue when it ends."""
        self.searched = 0
        self.names: set[str] = set()
        self.names_of: dict[int, str] = {}
        """Of queues, by uid."""
        self.counts: Counter[str] = Counter()
        self.counting = False
        self.largest: Counter[str] = Counter()
        self.tokens = itertools.count(1)
        self._uids = itertools.count(1)

    def rows(self, uid: int) -> Register:
        """Offsets of a queue."""
        if uid not in self.offsets:
            self.offsets[uid] = Register(self, {})
        return self.offsets[uid]

    def create(self, name: str, partitions: int) -> Queue:
        """Makes a queue."""
        uid = next(self._uids)
        self.names_of[uid] = name
        self.queues[name] = queue = Queue(
            application=APPLICATION, name=name, uid=uid, qid=uid, partitions=partitions, version=next(self.tokens)
        )
        return queue

    def stamp(self, member: int, seen: int) -> float:
        """Writes when a member was seen; returns the true time at which a quorum has it."""
        world, faults = self.world, self.faults
        if self.linear:
            arrivals = [world.now] * REPLICAS
        else:
            far = 2.0 if faults.late and world.rng.random() < faults.late else faults.slow
            arrivals = [world.now + world.some(far) for _ in range(REPLICAS)]
        writes = self.seen.setdefault(member, [])
        writes.append((seen, arrivals))
        if len(writes) > 8:
            everywhere = [one for one in writes if max(one[1]) <= world.now]
            if everywhere:
                last = max(everywhere, key=lambda one: one[0])
                self.seen[member] = [last, *(one for one in writes if max(one[1]) > world.now)]
        return sorted(arrivals)[QUORUM - 1]

    def last_seen(self) -> dict[int, int]:
        """Returns what a quorum has, by member.

        What one of its replicas lacks is written there before the answer (read repair): no later read misses it.
        """
        now = self.world.now
        asked = (0, 1, 2) if self.linear else self.world.rng.sample(range(REPLICAS), QUORUM)
        found = {}
        for member, writes in self.seen.items():
            there = [write for write in writes if any(write[1][one] <= now for one in asked)]
            if there:
                found[member], arrivals = max(there, key=lambda write: write[0])
                for one in asked:
                    arrivals[one] = min(arrivals[one], now)
        return found
