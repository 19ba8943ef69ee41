"""The history of a group in a tree: owners, offsets and the target, as its nodes have them."""

from __future__ import annotations

from collections import Counter

from qdo.group.records import decode_offset
from qdo.group.zookeeper.stored_assignments import (
    StoredAssignment,
    StoredTarget,
    TargetGeneration,
    decode_assigned,
    decode_generation,
)
from qdo.group.zookeeper.tree import Change, Create, Delete, NodeData, SetData
from tests.sim.groups.history import History
from tests.sim.groups.service import Service
from tests.sim.groups.tree import TreeLink

OWNERS, OFFSETS = "/groups/group/owners/", "/groups/group/offsets/"
ASSIGNMENTS, TARGET = "/groups/group/assignments/", "/groups/group/target"
PARTS = 3
"""Number of slashes in the name of a partition."""


class TreeHistory(History):
    """One history."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._live: set[int] = set()
        self._target = StoredTarget(0, TargetGeneration(), {})

    def began(self, session: int, link: TreeLink) -> None:
        self.loops[session] = link.loop
        self.names[session] = link.name
        self._live.add(session)

    def ended(self, session: int) -> None:
        self._live.discard(session)

    def lives(self, session: int) -> bool:
        return session in self._live

    def changed(self, session: int, change: Change) -> None:
        """Tracks owners, and checks changes of owners' nodes, of the target, and of offsets.

        Violations go to ``wrong``.
        """
        before = {}
        if any(operation.path.startswith((ASSIGNMENTS, TARGET)) for operation in change):
            self._check_target(change)
        for operation in change:
            if operation.path.startswith(OWNERS):
                place = operation.path.removeprefix(OWNERS)
                before[place] = self.owners.get(place)
                if isinstance(operation, Delete):
                    self._check_removal(session, place, self.owners.pop(place, None), change)
                elif isinstance(operation, Create) and place.count("/") == PARTS:
                    self.owners[place] = session
            elif operation.path.startswith(OFFSETS) and isinstance(operation, SetData | Create) and operation.data:
                place = operation.path.removeprefix(OFFSETS)
                owners = {before.get(place), self.owners.get(place)}
                self.check_offset(session, place, decode_offset(operation.data).id, owners)

    def _check_removal(self, session: int, place: str, owner: int | None, change: Change) -> None:
        """Records a violation unless an owner's node is removed by its session, the servers, or its replacement.

        A replacement claims the partition in the same change, and has the member's name.
        """
        is_claim = any(isinstance(operation, Create) and operation.path == OWNERS + place for operation in change)
        if is_claim and owner is not None and self.names[session] == self.names[owner]:
            self.excuse(place, owner)
        elif session not in {0, owner}:
            self.wrong.append(f"owner: session {session} removed the node of session {owner} for {place}")

    def _check_target(self, change: Change) -> None:
        """Tracks the target.

        Records a violation unless it changes by one generation and gives a partition to one member.
        """
        generation, nodes = self._target.generation, dict(self._target.nodes)
        for operation in change:
            if operation.path == TARGET and isinstance(operation, SetData):
                generation = decode_generation(_node(operation.data))
                if generation.number != self._target.generation.number + 1:
                    self.wrong.append(f"target: {generation} follows {self._target.generation}")
            elif operation.path.startswith(ASSIGNMENTS):
                member = operation.path.removeprefix(ASSIGNMENTS)
                if isinstance(operation, Delete):
                    nodes.pop(member, None)
                elif isinstance(operation, SetData | Create):
                    nodes[member] = StoredAssignment(decode_assigned(_node(operation.data)), 0)
        before, self._target = self._target, StoredTarget(0, generation, nodes)
        counts = Counter(
            partition for node in nodes.values() for partition in node.assigned.find_partitions_in_effect(generation)
        )
        if twice := [str(partition) for partition, members in counts.items() if members > 1]:
            self.wrong.append(f"target: given to several members: {twice}")
        if generation == before.generation and self._target.target != before.target:
            self.wrong.append(f"target: it has changed within {generation}")


def _node(data: bytes) -> NodeData:
    return NodeData(data, 0, 0, 0)
