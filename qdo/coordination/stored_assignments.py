"""The target as it is stored: a node for each member, and one that names the generation that counts.

A member's node holds its present partitions and its next ones. The target's node names the latest generation. The next
partitions count as soon as their generation is named there; until then the present ones do. So the transaction that
sets the target's node, which goes last, is the instant in which all of it counts, however many transactions the
members' nodes take; a leader that dies before has changed nothing. No node grows with the whole group.

Leaders that do not know of each other are kept apart by versions: every transaction demands the version of the target's
node that its leader read, and for each member's node the version that it read. A generation is a number and a unique
mark: what a leader wrote without finishing has a number that is too high, or another mark. The leader that sets the
next generation overwrites these nodes, so what has a lower number than the named one always counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec

from qdo.coordination import tree
from qdo.coordination.changes import attempts, lacks_parent, make
from qdo.coordination.paths import GroupPaths, decode
from qdo.coordination.records import Codec, QueuePartitions, TargetAssignment, Versioned, by_member, shares, unshare
from qdo.coordination.tree import NODE_LIMIT, Applied, Change, Check, Create, Delete, Link, NodeData, SetData, bundle
from qdo.coordination.watched import WatchedNodes
from qdo.errors import InvalidArgument
from qdo.partitions import Partition

MakeMark: TypeAlias = Callable[[], str]
FORMAT = b"2"
"""Format 1 was the whole target in one node."""
UNSET = -1
"""Version of a target that was never set."""


def new_mark() -> str:
    return uuid.uuid4().hex


class TargetGeneration(msgspec.Struct, frozen=True):
    """The value of the target's node.

    Attributes:
        number: Rises with each that is set; 0: there is none yet.
        mark: Like that of no other generation.
        absent, static: See :class:`qdo.coordination.TargetAssignment`.
    """

    number: int = 0
    mark: str = ""
    absent: dict[str, float] = {}
    static: list[str] = []


class MemberAssignment(msgspec.Struct, frozen=True):
    """The value of a member's node.

    Attributes:
        number, mark: Of the generation that ``next`` belongs to.
        now: The member's partitions until that counts.
        next: Its partitions then.
    """

    number: int
    mark: str
    now: list[QueuePartitions]
    next: list[QueuePartitions]

    def pending(self, generation: TargetGeneration) -> bool:
        """Returns whether ``next`` does not count by a generation."""
        return self.number > generation.number or (self.number == generation.number and self.mark != generation.mark)

    def counted(self, generation: TargetGeneration) -> frozenset[Partition]:
        """Returns what the member is to own by a generation."""
        return frozenset(unshare(self.now if self.pending(generation) else self.next))


TARGETS = Codec("target", TargetGeneration, FORMAT)
ASSIGNMENTS = Codec("assignment", MemberAssignment, FORMAT)


class StoredAssignment(NamedTuple):
    assigned: MemberAssignment
    version: int


@dataclass(frozen=True)
class StoredTarget:
    """The target as it was read.

    Attributes:
        version: Of its node; None: there is no node.
        generation: The one that counts.
        nodes: Of the members.
    """

    version: int | None
    generation: TargetGeneration
    nodes: Mapping[str, StoredAssignment]

    @cached_property  # the leader asks for it at every change of the group
    def target(self) -> Versioned:
        if not self.generation.number or self.version is None:
            return Versioned(None, UNSET)
        owners = {
            partition: member
            for member, stored in self.nodes.items()
            for partition in stored.assigned.counted(self.generation)
        }
        generation = self.generation
        return Versioned(TargetAssignment(owners, generation.absent, frozenset(generation.static)), self.version)


def decode_generation(node: NodeData | None) -> TargetGeneration:
    return TargetGeneration() if node is None else TARGETS.decode(node.data)


def decode_assigned(node: NodeData) -> MemberAssignment:
    assigned = ASSIGNMENTS.decode(node.data)
    for each in (assigned.now, assigned.next):
        for _ in unshare(each):
            """What contradicts itself is found here."""
    return assigned


async def read(link: Link, group_paths: GroupPaths, node: NodeData | None) -> StoredTarget:
    """Reads the members' nodes, given the target's node."""
    generation = decode_generation(node)
    (names,) = await link.children([group_paths.assignments])
    members = [decode(name) for name in sorted(names or ())]
    nodes = await link.read(map(group_paths.assignment, members))
    stored = {
        member: StoredAssignment(decode_assigned(each), each.version)
        for member, each in zip(members, nodes, strict=True)
        if each is not None
    }
    return StoredTarget(None if node is None else node.version, generation, stored)


class StoredAssignments:
    """The assignment as one session sees it, and as the leader's session sets it."""

    def __init__(
        self, link: Link, group_paths: GroupPaths, member: str, watching: WatchedNodes, new_mark: MakeMark
    ) -> None:
        self._link = link
        self._paths = group_paths
        self._watching = watching
        self._new_mark = new_mark
        self._path = group_paths.assignment(member)
        self._known = TargetGeneration()
        self._present: StoredTarget | None = None

    async def own(self) -> frozenset[Partition]:
        node = await self._watching.node(self._path)
        if node is None:
            return frozenset()
        assigned = decode_assigned(node)
        if assigned.pending(self._known):
            # Mostly it counts by now: then there is no need to hear of what becomes of others.
            (target,) = await self._link.read([self._paths.target])
            self._known = decode_generation(target)
        if assigned.pending(self._known):
            self._known = decode_generation(await self._watching.node(self._paths.target))
        return assigned.counted(self._known)

    async def target(self) -> Versioned:
        return (await self._read()).target

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """See :meth:`.session.Session.set_target`."""
        present = await self._read()
        if present.target.version != version:
            return False
        if present.version is None:
            await make(self._link, [self._paths.assignments])
            await self._link.apply([(Create(self._paths.target, TARGETS.encode(TargetGeneration())),)])
            self._watching.hear([self._paths.target])
            present = await self._read()
        if present.version is None or present.target.version != version:
            return False
        generation = TargetGeneration(
            present.generation.number + 1, self._new_mark(), dict(sorted(target.absent.items())), sorted(target.static)
        )
        nodes = _planned(present, target, generation)
        *earlier, last = self._transactions(present, nodes, generation)
        # Whatever comes of it, what was read is not what there is.
        self._present = None
        done = await self._apply(earlier) and await self._apply([last])
        self._watching.hear([self._paths.target, self._paths.assignments])
        if not done:
            return False
        written = {
            member: StoredAssignment(assigned, present.nodes[member].version + 1 if member in present.nodes else 0)
            for member, assigned in nodes.items()
            if assigned is not None
        } | {member: stored for member, stored in present.nodes.items() if member not in nodes}
        self._present = StoredTarget(present.version + 1, generation, written)
        return True

    async def _read(self) -> StoredTarget:
        tries = attempts("the target")
        while True:
            next(tries)
            node = await self._watching.node(self._paths.target)
            version = None if node is None else node.version
            if self._present is not None and self._present.version == version:
                names = await self._watching.children(self._paths.assignments)
                # Nodes that somebody else has removed are missing in what is read, and the leader writes them again.
                if set(map(decode, names)) == self._present.nodes.keys():
                    return self._present
            present = await read(self._link, self._paths, node)
            if await self._watching.node(self._paths.target) == node:
                self._present = present

    async def _apply(self, transactions: Iterable[Change]) -> bool:
        wanted = list(transactions)
        outcomes = await self._link.apply(wanted)
        if any(lacks_parent(outcome) for outcome in outcomes):
            await make(self._link, [self._paths.assignments])
        return all(isinstance(outcome, Applied) for outcome in outcomes)

    def _transactions(
        self, present: StoredTarget, nodes: Mapping[str, MemberAssignment | None], generation: TargetGeneration
    ) -> Iterator[Change]:
        """Yields the transactions; only the last makes the target count.

        Raises:
            InvalidArgument: A member's share is too large for one node.
        """
        assert present.version is not None  # noqa: S101 - it was made
        wanted = [self._writing(present, member, assigned) for member, assigned in sorted(nodes.items())]
        check: Change = (Check(self._paths.target, present.version),)
        parts = [wanted[part] for part in bundle(wanted, tree.MOST_OPERATIONS - 1)]
        for part in parts[:-1]:
            yield tree.join([check, *part])
        data = _fitting(TARGETS.encode(generation), "the group has too many static members")
        yield tree.join([*(parts[-1] if parts else ()), (SetData(self._paths.target, data, present.version),)])

    def _writing(self, present: StoredTarget, member: str, assigned: MemberAssignment | None) -> Change:
        path, before = self._paths.assignment(member), present.nodes.get(member)
        if assigned is None:
            assert before is not None  # noqa: S101 - only what is there is removed
            return Check(path, before.version), Delete(path)
        data = _fitting(ASSIGNMENTS.encode(assigned), f"{member} is to own too many partitions")
        return (Create(path, data) if before is None else SetData(path, data, before.version),)


def _fitting(data: bytes, otherwise: str) -> bytes:
    if len(data) > NODE_LIMIT:
        raise InvalidArgument(f"{otherwise}: {len(data)} bytes, and one node holds {NODE_LIMIT}")
    return data


def _planned(
    present: StoredTarget, target: TargetAssignment, generation: TargetGeneration
) -> dict[str, MemberAssignment | None]:
    """Returns the nodes that change, None for those that are to go."""
    wanted = by_member(target.owners)
    nodes: dict[str, MemberAssignment | None] = {}
    for member in present.nodes.keys() | wanted.keys():
        stored = present.nodes.get(member)
        following = wanted.get(member, frozenset())
        now = frozenset[Partition]() if stored is None else stored.assigned.counted(present.generation)
        if not now and not following:
            nodes[member] = None
        elif now != following or (stored is not None and stored.assigned.pending(present.generation)):
            nodes[member] = MemberAssignment(
                generation.number, generation.mark, list(shares(now)), list(shares(following))
            )
    return nodes
