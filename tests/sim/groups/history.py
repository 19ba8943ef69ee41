"""What happened to a group's partitions, and what must hold of it. It is judged as it happens."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Iterable

from qdo.coordination.encoding import decode_offset
from qdo.coordination.stored_assignments import (
    StoredAssignment,
    StoredTarget,
    TargetGeneration,
    decode_assigned,
    decode_generation,
)
from qdo.coordination.tree import Change, Create, Delete, NodeData, SetData
from qdo.partitions import Partition
from queuey.client import Message, order_of
from tests.sim.groups.service import Log, Service
from tests.sim.groups.tree import TreeLink

OWNERS, OFFSETS = "/groups/group/owners/", "/groups/group/offsets/"
ASSIGNMENTS, TARGET = "/groups/group/assignments/", "/groups/group/target"
PARTS = 3
"""Of the slashes in the name of a partition."""


def place_of(partition: Partition) -> str:
    """Returns what a partition is called below owners and offsets."""
    return "/".join(map(str, (*partition.queue, partition.number)))


class History:
    """One history.

    Attributes:
        owners: By partition the session that owns it.
        offsets: By partition what is recorded.
        loops: By session the loop in which it is used.
        names: By session the name of the machine.
        live: The sessions that have not ended.
        busy: By partition the owner's session whose member is handling a message.
        patient: Nothing is released before its message is handled.
        wrong: The guarantees that did not hold.
        deeds: Everything that happened, to be compared.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.owners: dict[str, int] = {}
        self.offsets: dict[str, str] = {}
        self.loops: dict[int, AbstractEventLoop | None] = {}
        self.names: dict[int, str] = {}
        self.live: set[int] = set()
        self.busy: dict[str, int] = {}
        self.patient = False
        self.wrong: list[str] = []
        self.deeds: list[tuple[float, str, str]] = []
        self._target = StoredTarget(0, TargetGeneration(), {})

    def began(self, session: int, link: TreeLink) -> None:
        """See :class:`tests.sim.groups.tree.Observer`."""
        self.loops[session] = link.loop
        self.names[session] = link.name
        self.live.add(session)

    def ended(self, session: int) -> None:
        """See :class:`tests.sim.groups.tree.Observer`."""
        self.live.discard(session)

    def changed(self, session: int, change: Change) -> None:
        """See :class:`tests.sim.groups.tree.Observer`."""
        before = {}
        if any(operation.path.startswith((ASSIGNMENTS, TARGET)) for operation in change):
            self._assigned(change)
        for operation in change:
            if operation.path.startswith(OWNERS):
                place = operation.path.removeprefix(OWNERS)
                before[place] = self.owners.get(place)
                if isinstance(operation, Delete):
                    self._removed(session, place, self.owners.pop(place, None), change)
                elif isinstance(operation, Create) and place.count("/") == PARTS:
                    self.owners[place] = session
            elif operation.path.startswith(OFFSETS) and isinstance(operation, SetData | Create) and operation.data:
                place = operation.path.removeprefix(OFFSETS)
                self._recorded(session, place, operation.data, {before.get(place), self.owners.get(place)})

    def _removed(self, session: int, place: str, owner: int | None, change: Change) -> None:
        """An owner's node is removed by its session, by the servers, or by the member that makes its own."""
        taken = any(isinstance(each, Create) and each.path == OWNERS + place for each in change)
        if taken:
            self.busy.pop(place, None)  # nobody waits for a member that is put out
        elif session not in {0, owner}:
            self.wrong.append(f"owner: session {session} removed the node of session {owner} for {place}")

    def _assigned(self, change: Change) -> None:
        """The target changes at once, by one generation, and gives each partition to one member."""
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
        counts = Counter(each for node in nodes.values() for each in node.assigned.counted(generation))
        if twice := [str(each) for each, members in counts.items() if members > 1]:
            self.wrong.append(f"target: given to several members: {twice}")
        if generation == before.generation and self._target.target != before.target:
            self.wrong.append(f"target: it has changed within {generation}")

    def _recorded(self, session: int, place: str, data: bytes, owners: Iterable[int | None]) -> None:
        identifier, before = decode_offset(data).id, self.offsets.get(place)
        if session not in owners:
            self.wrong.append(f"fence: session {session} recorded {identifier} for {place}, which {owners} own")
        if identifier is None or (before is not None and order_of(identifier) < order_of(before)):
            if before is not None:
                self.wrong.append(f"back: {place} went from {before} to {identifier}")
            return
        self.offsets[place] = identifier

    def handles(self, name: str, stay: Stay, partition: Partition, message: Message, at: float) -> None:
        """A member begins to handle a message.

        One that is put out by another of its name may do so until it hears of that.
        """
        place = place_of(partition)
        owner = self.owners.get(place)
        if owner is not None and self.names[owner] != name:
            self.wrong.append(f"owner: {place} is handled by another member than its owner at {at}")
        other = self.busy.pop(place, None)
        if self.patient and other in self.live and self.names[other] != name:
            self.wrong.append(f"two: {place} is still handled by another member at {at}")
        if owner is not None:
            self.busy[place] = owner
        log, index = self.service.places[message.body]
        if stay.log is not log:
            # One that is put out by another of its name has read an offset that this one may have moved since.
            put_out = owner is not None and owner != stay.session
            stay.log, stay.following = log, index if put_out else log.after(self.offsets.get(place))
        if index != stay.following:
            self.wrong.append(f"order: {place} has {index} in the place of {stay.following} at {at}")
        stay.following = index + 1
        if index > log.handled:
            self.wrong.append(f"skipped: {place} has {index} and not {log.handled} at {at}")
        log.handled = max(log.handled, index + 1)
        self.deeds.append((at, place, message.id))

    def handled(self, name: str, partition: Partition) -> None:
        """A member has handled a message."""
        place = place_of(partition)
        if self.names.get(self.busy.get(place, 0)) == name:
            del self.busy[place]

    def committed(self, partition: Partition, identifier: str) -> None:
        """A member was told that its offset is recorded."""
        recorded = self.offsets.get(place_of(partition))
        if recorded is None or order_of(recorded) < order_of(identifier):
            self.wrong.append(f"commit: {partition} has {recorded} after {identifier} was committed")


def _node(data: bytes) -> NodeData:
    return NodeData(data, 0, 0, 0)


class Stay:
    """One time for which a member has a partition.

    Args:
        session: Of the member.

    Attributes:
        session: As given.
        log: The messages; others when the queue was made anew.
        following: The place of the message that is to be handled next.
        done: The last message that was handled to its end.
        recorded: The last one that is committed.
    """

    def __init__(self, session: int) -> None:
        self.session = session
        self.log: Log | None = None
        self.following = 0
        self.done: str | None = None
        self.recorded: str | None = None
