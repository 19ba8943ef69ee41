"""What happened to a group's partitions, and what must hold of it. It is judged as it happens."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Iterable

from qdo.coordination.records import decode_offset
from qdo.coordination.stored_assignments import (
    StoredAssignment,
    StoredTarget,
    TargetGeneration,
    decode_assigned,
    decode_generation,
)
from qdo.coordination.tree import Change, Create, Delete, NodeData, SetData
from qdo.partitions import Partition
from queuey.client import Message
from tests.harness.checking.groups import is_before
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
        busy: By partition and owner's session how many messages its member is handling.
        patient: Nothing is released before its message is handled.
        attempts: Number of attempts at messages, by who made them, and of those that failed, hung, or ended late.
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
        self.busy: dict[str, Counter[int]] = {}
        self.patient = False
        self.attempts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.deeds: list[tuple[float, str, str]] = []
        self._put_out: set[tuple[str, int | None]] = set()
        """Places and sessions that owned them until another of the member's name took them."""
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
            self._put_out.add((place, owner))
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
        if before is not None and is_before(identifier, before):
            self.wrong.append(f"back: {place} went from {before} to {identifier}")
            return
        if identifier is None:
            return
        self.offsets[place] = identifier
        _, _, name, number = place.split("/")
        log = self.service.queues.get(name, {}).get(int(number))
        if log is not None and log.after(identifier) > log.handled:
            self.wrong.append(f"early: {place} is recorded up to {identifier} and handled up to {log.handled}")

    def handles(self, name: str, stay: Stay, partition: Partition, message: Message, at: float) -> None:
        """A member begins to handle a message.

        One that is put out by another of its name may do so until it hears of that, whoever owns the partition then.
        """
        place = place_of(partition)
        put_out = (place, stay.session) in self._put_out
        owner = None if put_out else self.owners.get(place)
        if owner is not None and self.names[owner] != name:
            self.wrong.append(f"owner: {place} is handled by another member than its owner at {at}")
        busy = () if put_out else self.busy.get(place, ())
        others = [other for other in busy if self.names[other] != name]
        if self.patient and self.live.intersection(others):
            self.wrong.append(f"two: {place} is still handled by another member at {at}")
        for other in others:
            del self.busy[place][other]
        if owner is not None:
            self.busy.setdefault(place, Counter())[owner] += 1
        log, index = self.service.places[message.body]
        if stay.log is not log:
            # One that is put out by another of its name has read an offset that this one may have moved since.
            put_out = put_out or (owner is not None and owner != stay.session)
            stay.begin(log, index if put_out else log.after(self.offsets.get(place)))
        if index != (due := stay.due(message)):
            self.wrong.append(f"order: {place} has {index} in the place of {due} at {at}")
        stay.go_on(message, index + 1)
        self.deeds.append((at, place, message.id))

    def handled(self, name: str, stay: Stay, partition: Partition, message: Message, *, failed: bool = False) -> None:
        """A member has handled a message, or has failed to and handles it again."""
        place = place_of(partition)
        log, index = self.service.places[message.body]
        if failed:
            self.attempts["failed"] += 1
            stay.go_on(message, index)
        else:
            log.handle(index)
        self._idle(name, place)

    def hangs(self, name: str, stay: Stay, partition: Partition, message: Message) -> None:
        """An attempt of a member does not end in time: it fails, and others may handle the message."""
        self.attempts["hung"] += 1
        stay.go_on(message, self.service.places[message.body][1])
        self._idle(name, place_of(partition))

    def handled_late(self, stay: Stay, message: Message) -> None:
        """An attempt that did not end in time has ended well all the same."""
        self.attempts["late"] += 1
        log, index = self.service.places[message.body]
        log.handle(index)
        stay.go_on(message, index + 1)

    def _idle(self, name: str, place: str) -> None:
        busy = self.busy.get(place, Counter())
        for owner in [owner for owner in busy if self.names[owner] == name]:
            busy[owner] -= 1
            if not busy[owner]:
                del busy[owner]

    def given_up(self, stay: Stay, message: Message) -> None:
        """A member goes on behind a message that it has failed to handle."""
        log, index = self.service.places[message.body]
        log.handle(index)
        if stay.log is not log:
            stay.begin(log, index)
        stay.go_on(message, index + 1)

    def committed(self, partition: Partition, identifier: str) -> None:
        """A member was told that its offset is recorded."""
        recorded = self.offsets.get(place_of(partition))
        if is_before(recorded, identifier):
            self.wrong.append(f"commit: {partition} has {recorded} after {identifier} was committed")


def _node(data: bytes) -> NodeData:
    return NodeData(data, 0, 0, 0)


class Stay:
    """One time for which a member has a partition.

    Args:
        session: Of the member.
        keyed: Only messages with the same key are handled in order.

    Attributes:
        session: As given.
        log: The messages; others when the queue was made anew.
        done: The last message that was handled to its end.
        recorded: The last one that is committed.
    """

    def __init__(self, session: int, *, keyed: bool = False) -> None:
        self.session = session
        self.log: Log | None = None
        self.done: str | None = None
        self.recorded: str | None = None
        self._keyed = keyed
        self._first = 0
        self._following: dict[str, int] = {}

    def begin(self, log: Log, first: int) -> None:
        """Begins with the first messages that are to be handled."""
        self.log, self._first, self._following = log, first, {}

    def due(self, message: Message) -> int:
        """Returns the place of the message that is to be handled next, of those with the key of this one."""
        assert self.log is not None
        key = self._key(message)
        at = self._following.get(key, self._first)
        while at < len(self.log.messages) and self._key(self.log.messages[at]) != key:
            at += 1
        return at

    def go_on(self, message: Message, index: int) -> None:
        """Goes on at a place, with the key of this message."""
        self._following[self._key(message)] = index

    def _key(self, message: Message) -> str:
        return message.headers["key"] if self._keyed else ""
