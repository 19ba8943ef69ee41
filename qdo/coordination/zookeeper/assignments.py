"""The target as it lies in ZooKeeper: a node for each member, and one that says which generation of it counts.

A member's node holds what it is to own by now, and what it is to own next. The target's node names the generation that
was set last. What is next counts as soon as its generation is named there; until then what is now does. So however
many transactions the members' nodes take, the one that sets the target's node, which goes last, is the instant in which
all of it counts; a leader that dies before has changed nothing. No node grows with the whole group.

What keeps leaders apart that do not know of each other: every transaction demands the version of the target's node that
its leader read, and for each member's node the version that it read. A generation is a number and a mark that no other
has: what a leader wrote that came to no end has a number that is too high, or another mark. Whoever sets the next one
writes these nodes over, so what has a lower number than the one that is named always counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from qdo.coordination import Target, Versioned
from qdo.coordination.encoding import Shares, by_member, pack, shares, unpack, unshare
from qdo.coordination.zookeeper.changes import (
    MOST_OPERATIONS,
    NODE_LIMIT,
    Change,
    Check,
    Create,
    Delete,
    Done,
    Node,
    Rounds,
    Set,
    bundle,
    join,
)
from qdo.coordination.zookeeper.driver import Link
from qdo.coordination.zookeeper.tree import Tree, decode
from qdo.coordination.zookeeper.watching import Watching
from qdo.coordination.zookeeper.writing import lacks_parent, make
from qdo.errors import InvalidArgument
from qdo.partitions import Partition

FORMAT = b"2"
"""1 was the whole target in one node."""
UNSET = -1
"""The version of a target that nobody has set."""


class Generation(msgspec.Struct, frozen=True):
    """What the target's node holds.

    Attributes:
        number: Rises with each that is set; 0: there is none yet.
        mark: Like that of no other generation.
        absent: See :class:`qdo.coordination.Target`.
        static: See there.
    """

    number: int = 0
    mark: str = ""
    absent: dict[str, float] = {}
    static: list[str] = []


class Assigned(msgspec.Struct, frozen=True):
    """What a member's node holds.

    Attributes:
        number: Of the generation that ``next`` belongs to.
        mark: The same.
        now: What the member is to own until that counts.
        next: What it is to own then.
    """

    number: int
    mark: str
    now: list[Shares]
    next: list[Shares]

    def pending(self, generation: Generation) -> bool:
        """Tells whether what is next does not count by a generation."""
        return self.number > generation.number or (self.number == generation.number and self.mark != generation.mark)

    def counted(self, generation: Generation) -> frozenset[Partition]:
        """Returns what the member is to own by a generation."""
        return frozenset(unshare(self.now if self.pending(generation) else self.next))


class Stored(NamedTuple):
    """A member's node."""

    assigned: Assigned
    version: int


class Present(NamedTuple):
    """The target as it was read.

    Attributes:
        version: Of its node; None: there is no node.
        generation: Which counts.
        nodes: Of the members.
    """

    version: int | None
    generation: Generation
    nodes: Mapping[str, Stored]

    @property
    def target(self) -> Versioned:
        """As the contract has it."""
        if not self.generation.number or self.version is None:
            return Versioned(None, UNSET)
        owners = {
            partition: member
            for member, stored in self.nodes.items()
            for partition in stored.assigned.counted(self.generation)
        }
        generation = self.generation
        return Versioned(Target(owners, generation.absent, frozenset(generation.static)), self.version)


def decode_generation(node: Node | None) -> Generation:
    """Returns what the target's node holds.

    Raises:
        CoordinationIncompatible
    """
    return Generation() if node is None else unpack("target", node.data, Generation, FORMAT)


def decode_assigned(node: Node) -> Assigned:
    """Returns what a member's node holds.

    Raises:
        CoordinationIncompatible
    """
    assigned = unpack("assignment", node.data, Assigned, FORMAT)
    for each in (assigned.now, assigned.next):
        for _ in unshare(each):
            """What contradicts itself is found here."""
    return assigned


async def read(link: Link, tree: Tree, node: Node | None) -> Present:
    """Reads the members' nodes.

    Args:
        link: To read with.
        tree: The group's paths.
        node: The target's.

    Raises:
        CoordinationLost, SessionLost, CoordinationRefused, CoordinationIncompatible
    """
    generation = decode_generation(node)
    (names,) = await link.children([tree.assignments])
    members = [decode(name) for name in sorted(names or ())]
    nodes = await link.read(map(tree.assignment, members))
    stored = {
        member: Stored(decode_assigned(each), each.version)
        for member, each in zip(members, nodes, strict=True)
        if each is not None
    }
    return Present(None if node is None else node.version, generation, stored)


class Own:
    """What one member is to own, as its session sees it.

    Args:
        link: The session.
        tree: The group's paths.
        member: Its id.
        watching: What the session hears of.
    """

    def __init__(self, link: Link, tree: Tree, member: str, watching: Watching) -> None:
        self._link = link
        self._tree = tree
        self._watching = watching
        self._path = tree.assignment(member)
        self._known = Generation()

    async def read(self) -> frozenset[Partition]:
        """Returns what the member is to own.

        Raises:
            CoordinationLost, SessionLost, CoordinationRefused, CoordinationIncompatible
        """
        node = await self._watching.node(self._path)
        if node is None:
            return frozenset()
        assigned = decode_assigned(node)
        if assigned.pending(self._known):
            # Mostly it counts by now: then there is no need to hear of what becomes of others.
            (target,) = await self._link.read([self._tree.target])
            self._known = decode_generation(target)
        if assigned.pending(self._known):
            self._known = decode_generation(await self._watching.node(self._tree.target))
        return assigned.counted(self._known)


class Setting:
    """The target, as the session of who leads sees and sets it.

    Args:
        link: The session.
        tree: The group's paths.
        watching: What the session hears of.
    """

    def __init__(self, link: Link, tree: Tree, watching: Watching) -> None:
        self._link = link
        self._tree = tree
        self._watching = watching
        self._present: Present | None = None

    async def read(self) -> Versioned:
        """Returns the target, and has the next change told.

        Raises:
            CoordinationLost, SessionLost, CoordinationRefused, CoordinationIncompatible
        """
        return (await self._read()).target

    async def set(self, target: Target, version: int) -> bool:
        """Sets the target if it has a version; returns whether it did.

        Raises:
            CoordinationLost: It did or not, the whole of it.
            SessionLost, CoordinationRefused, CoordinationIncompatible
        """
        present = await self._read()
        if present.target.version != version:
            return False
        if present.version is None:
            await make(self._link, [self._tree.assignments])
            await self._link.apply([(Create(self._tree.target, pack(Generation(), FORMAT)),)])
            self._watching.hear([self._tree.target])
            present = await self._read()
        if present.version is None or present.target.version != version:
            return False
        generation = Generation(
            present.generation.number + 1, uuid.uuid4().hex, dict(sorted(target.absent.items())), sorted(target.static)
        )
        nodes = _planned(present, target, generation)
        *earlier, last = self._transactions(present, nodes, generation)
        # Whatever comes of it, what was read is not what there is.
        self._present = None
        done = await self._apply(earlier) and await self._apply([last])
        self._watching.hear([self._tree.target])
        if not done:
            return False
        written = {
            member: Stored(assigned, present.nodes[member].version + 1 if member in present.nodes else 0)
            for member, assigned in nodes.items()
            if assigned is not None
        } | {member: stored for member, stored in present.nodes.items() if member not in nodes}
        self._present = Present(present.version + 1, generation, written)
        return True

    async def _read(self) -> Present:
        rounds = Rounds("the target")
        while rounds:
            node = await self._watching.node(self._tree.target)
            version = None if node is None else node.version
            if self._present is not None and self._present.version == version:
                return self._present
            present = await read(self._link, self._tree, node)
            if await self._watching.node(self._tree.target) == node:
                self._present = present
        raise AssertionError  # rounds end by an error

    async def _apply(self, transactions: Iterable[Change]) -> bool:
        wanted = list(transactions)
        outcomes = await self._link.apply(wanted)
        if any(lacks_parent(outcome) for outcome in outcomes):
            await make(self._link, [self._tree.assignments])
        return all(isinstance(outcome, Done) for outcome in outcomes)

    def _transactions(
        self, present: Present, nodes: Mapping[str, Assigned | None], generation: Generation
    ) -> Iterator[Change]:
        """Yields what is to be done; only the last makes it count.

        Raises:
            InvalidArgument: A member's share is too large for one node.
        """
        assert present.version is not None  # noqa: S101 - it was made
        wanted = [self._writing(present, member, assigned) for member, assigned in sorted(nodes.items())]
        check: Change = (Check(self._tree.target, present.version),)
        parts = [wanted[part] for part in bundle(wanted, MOST_OPERATIONS - 1)]
        for part in parts[:-1]:
            yield join([check, *part])
        data = _fitting(pack(generation, FORMAT), "the group has too many static members")
        yield join([*(parts[-1] if parts else ()), (Set(self._tree.target, data, present.version),)])

    def _writing(self, present: Present, member: str, assigned: Assigned | None) -> Change:
        path, before = self._tree.assignment(member), present.nodes.get(member)
        if assigned is None:
            assert before is not None  # noqa: S101 - only what is there is removed
            return Check(path, before.version), Delete(path)
        data = _fitting(pack(assigned, FORMAT), f"{member} is to own too many partitions")
        return (Create(path, data) if before is None else Set(path, data, before.version),)


def _fitting(data: bytes, otherwise: str) -> bytes:
    if len(data) > NODE_LIMIT:
        raise InvalidArgument(f"{otherwise}: {len(data)} bytes do not fit into one node")
    return data


def _planned(present: Present, target: Target, generation: Generation) -> dict[str, Assigned | None]:
    """Returns the nodes that are another, None for those that are to go."""
    wanted = by_member(target.owners)
    nodes: dict[str, Assigned | None] = {}
    for member in present.nodes.keys() | wanted.keys():
        stored = present.nodes.get(member)
        following = wanted.get(member, frozenset())
        now = frozenset[Partition]() if stored is None else stored.assigned.counted(present.generation)
        if not now and not following:
            nodes[member] = None
        elif now != following or (stored is not None and stored.assigned.pending(present.generation)):
            nodes[member] = Assigned(generation.number, generation.mark, list(shares(now)), list(shares(following)))
    return nodes
