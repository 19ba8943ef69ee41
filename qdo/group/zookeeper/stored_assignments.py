"""The stored target: a node for each member, and a node that names the current generation.

A member's node holds its present partitions and its next ones. The target's node names the current generation. The next
partitions take effect once the target's node names their generation; until then the present ones are in effect. So the
last transaction, which sets the target's node, switches all members at once, however many transactions the members'
nodes need. A leader that dies before has changed nothing. No node grows with the whole group.

Versions keep concurrent leaders apart: every transaction requires the version of the target's node and of each member's
node that its leader read. A generation is a number and a unique mark. Nodes that a leader wrote without finishing have
a higher number than the current generation, or another mark. The leader that sets the next generation overwrites them,
so a node with a lower number than the current generation is always in effect.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec

from qdo.errors import InvalidArgument
from qdo.group.records import (
    Codec,
    QueuePartitions,
    TargetAssignment,
    Versioned,
    group_by_member,
    pack_partitions,
    unpack_partitions,
)
from qdo.group.zookeeper import tree
from qdo.group.zookeeper.paths import GroupPaths, decode
from qdo.group.zookeeper.tree import (
    MAX_NODE_BYTES,
    Applied,
    Change,
    Check,
    Create,
    Delete,
    Link,
    NodeData,
    SetData,
    lacks_parent,
    make_nodes,
    split_into_bundles,
    yield_attempts,
)
from qdo.group.zookeeper.watched import WatchedNodes
from qdo.partitions import Partition

MakeMark: TypeAlias = Callable[[], str]
FORMAT = b"2"
"""Format 1 had the whole target in one node."""
UNSET_VERSION = -1
"""Version of a target that was never set."""


def new_mark() -> str:
    return uuid.uuid4().hex


class TargetGeneration(msgspec.Struct, frozen=True):
    """The value of the target's node.

    Attributes:
        number: Rises with each generation; 0 means that no target was set yet.
        mark: A text that no other generation has.
        absent, static: See :class:`qdo.group.records.TargetAssignment`.
    """

    number: int = 0
    mark: str = ""
    absent: dict[str, float] = {}
    static: list[str] = []


class MemberAssignment(msgspec.Struct, frozen=True):
    """The value of a member's node.

    It is pending while its generation is later than the current one, or has the same number and another mark.

    Attributes:
        number, mark: The generation that ``next`` belongs to.
        now: The member's partitions until that generation is current.
        next: The member's partitions from then on.
    """

    number: int
    mark: str
    now: list[QueuePartitions]
    next: list[QueuePartitions]

    def is_pending(self, generation: TargetGeneration) -> bool:
        return self.number > generation.number or (self.number == generation.number and self.mark != generation.mark)

    def find_partitions_in_effect(self, generation: TargetGeneration) -> frozenset[Partition]:
        return frozenset(unpack_partitions(self.now if self.is_pending(generation) else self.next))


TARGETS = Codec("target", TargetGeneration, FORMAT)
ASSIGNMENTS = Codec("assignment", MemberAssignment, FORMAT)


class StoredAssignment(NamedTuple):
    assigned: MemberAssignment
    version: int


@dataclass(frozen=True)
class StoredTarget:
    """The target as read.

    Attributes:
        version: The version of the target's node, or None if the node does not exist.
        generation: The current generation.
        nodes: The members' nodes.
    """

    version: int | None
    generation: TargetGeneration
    nodes: Mapping[str, StoredAssignment]

    @cached_property  # the leader reads it at every change of the group
    def target(self) -> Versioned:
        if not self.generation.number or self.version is None:
            return Versioned(None, UNSET_VERSION)
        owners = {
            partition: member
            for member, stored in self.nodes.items()
            for partition in stored.assigned.find_partitions_in_effect(self.generation)
        }
        generation = self.generation
        return Versioned(TargetAssignment(owners, generation.absent, frozenset(generation.static)), self.version)


def decode_generation(node: NodeData | None) -> TargetGeneration:
    return TargetGeneration() if node is None else TARGETS.decode(node.data)


def decode_assigned(node: NodeData) -> MemberAssignment:
    return ASSIGNMENTS.decode(node.data)


async def read_stored_target(link: Link, group_paths: GroupPaths, node: NodeData | None) -> StoredTarget:
    """Reads the assignments of all members for a target's node, which was read before; it is None if none exists."""
    generation = decode_generation(node)
    (names,) = await link.children([group_paths.assignments])
    members = [decode(name) for name in sorted(names or ())]
    nodes = await link.read(map(group_paths.assignment, members))
    stored = {
        member: StoredAssignment(decode_assigned(assignment), assignment.version)
        for member, assignment in zip(members, nodes, strict=True)
        if assignment is not None
    }
    return StoredTarget(None if node is None else node.version, generation, stored)


class StoredAssignments:
    """The stored assignment, as a session reads it and as the leader's session writes it."""

    def __init__(
        self, link: Link, group_paths: GroupPaths, member: str, watching: WatchedNodes, new_mark: MakeMark
    ) -> None:
        self._link = link
        self._paths = group_paths
        self._watching = watching
        self._new_mark = new_mark
        self._path = group_paths.assignment(member)
        self._generation = TargetGeneration()
        self._present: StoredTarget | None = None

    async def read_own_partitions(self) -> frozenset[Partition]:
        node = await self._watching.read_node(self._path)
        if node is None:
            return frozenset()
        assigned = decode_assigned(node)
        if assigned.is_pending(self._generation):
            # Usually the generation is current by now, so the target's node need not be watched.
            (target,) = await self._link.read([self._paths.target])
            self._generation = decode_generation(target)
        if assigned.is_pending(self._generation):
            self._generation = decode_generation(await self._watching.read_node(self._paths.target))
        return assigned.find_partitions_in_effect(self._generation)

    async def target(self) -> Versioned:
        return (await self._read_consistently()).target

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """Replaces the target if it still has the version; returns whether it did.

        Raises:
            InvalidArgument: A member's partitions or the static members do not fit in one node.
        """
        stored = await self._read_consistently()
        if stored.target.version != version:
            return False
        if stored.version is None:
            await make_nodes(self._link, [self._paths.assignments])
            await self._link.apply([(Create(self._paths.target, TARGETS.encode(TargetGeneration())),)])
            self._watching.invalidate([self._paths.target])
            stored = await self._read_consistently()
        if stored.version is None or stored.target.version != version:
            return False
        generation = TargetGeneration(
            stored.generation.number + 1, self._new_mark(), dict(sorted(target.absent.items())), sorted(target.static)
        )
        nodes = _plan_nodes(stored, target, generation)
        *earlier, last = self._make_transactions(stored, nodes, generation)
        # Whatever the outcome, the cached target is out of date.
        self._present = None
        applied = await self._apply(earlier) and await self._apply([last])
        self._watching.invalidate([self._paths.target, self._paths.assignments])
        if not applied:
            return False
        written = {
            member: StoredAssignment(assigned, stored.nodes[member].version + 1 if member in stored.nodes else 0)
            for member, assigned in nodes.items()
            if assigned is not None
        } | {member: assignment for member, assignment in stored.nodes.items() if member not in nodes}
        self._present = StoredTarget(stored.version + 1, generation, written)
        return True

    async def _read_consistently(self) -> StoredTarget:
        tries = yield_attempts("the target")
        while True:
            next(tries)
            node = await self._watching.read_node(self._paths.target)
            version = None if node is None else node.version
            if self._present is not None and self._present.version == version:
                names = await self._watching.read_children(self._paths.assignments)
                # If another program has deleted nodes, read again: the leader then restores them.
                if set(map(decode, names)) == self._present.nodes.keys():
                    return self._present
            stored = await read_stored_target(self._link, self._paths, node)
            if await self._watching.read_node(self._paths.target) == node:
                self._present = stored

    async def _apply(self, transactions: Iterable[Change]) -> bool:
        """Applies transactions independently of each other; returns whether all were applied.

        Creates a missing parent of the members' nodes, so that another attempt can succeed.
        """
        changes = list(transactions)
        outcomes = await self._link.apply(changes)
        if any(lacks_parent(outcome) for outcome in outcomes):
            await make_nodes(self._link, [self._paths.assignments])
        return all(isinstance(outcome, Applied) for outcome in outcomes)

    def _make_transactions(
        self, present: StoredTarget, nodes: Mapping[str, MemberAssignment | None], generation: TargetGeneration
    ) -> Iterator[Change]:
        assert present.version is not None  # noqa: S101 - the node was created
        writes = [self._make_change(present, member, assigned) for member, assigned in sorted(nodes.items())]
        check: Change = (Check(self._paths.target, present.version),)
        batches = [writes[s] for s in split_into_bundles(writes, tree.MAX_OPERATIONS - 1)]
        for batch in batches[:-1]:
            yield tree.join_changes([check, *batch])
        data = _check_size(TARGETS.encode(generation), "the group has too many static members")
        yield tree.join_changes(
            [*(batches[-1] if batches else ()), (SetData(self._paths.target, data, present.version),)]
        )

    def _make_change(self, present: StoredTarget, member: str, assigned: MemberAssignment | None) -> Change:
        path, before = self._paths.assignment(member), present.nodes.get(member)
        if assigned is None:
            assert before is not None  # noqa: S101 - only existing nodes are deleted
            return Check(path, before.version), Delete(path)
        data = _check_size(ASSIGNMENTS.encode(assigned), f"{member} has too many partitions")
        return (Create(path, data) if before is None else SetData(path, data, before.version),)


def _check_size(data: bytes, reason: str) -> bytes:
    if len(data) > MAX_NODE_BYTES:
        raise InvalidArgument(f"{reason}: {len(data)} bytes, but a node holds at most {MAX_NODE_BYTES}")
    return data


def _plan_nodes(
    present: StoredTarget, target: TargetAssignment, generation: TargetGeneration
) -> dict[str, MemberAssignment | None]:
    partitions_by_member = group_by_member(target.owners)
    nodes: dict[str, MemberAssignment | None] = {}
    for member in present.nodes.keys() | partitions_by_member.keys():
        stored = present.nodes.get(member)
        next_ = partitions_by_member.get(member, frozenset())
        now = (
            frozenset[Partition]() if stored is None else stored.assigned.find_partitions_in_effect(present.generation)
        )
        if not now and not next_:
            nodes[member] = None
        elif now != next_ or (stored is not None and stored.assigned.is_pending(present.generation)):
            nodes[member] = MemberAssignment(
                generation.number, generation.mark, list(pack_partitions(now)), list(pack_partitions(next_))
            )
    return nodes
