"""What members of a group do with messages, checked as it happens. The rules are the same for each coordinator."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Iterable

from qdo.partitions import Partition
from queuey.client import Message
from tests.harness.checking.groups import is_before
from tests.sim.groups.service import Log, Service
from tests.sim.world import World


def place_of(partition: Partition) -> str:
    """Returns the name of a partition below owners and offsets."""
    return "/".join(map(str, (*partition.queue, partition.number)))


class History:
    """One history.

    Attributes:
        owners: The session that owns each partition.
        offsets: The recorded offset of each partition.
        loops: The loop of each session.
        names: The machine's name of each session.
        busy: By partition and owner's session, the number of messages that its member is handling.
        patient: A partition is only released after its messages are handled.
        counts: Counts of events.
        attempts: Attempts at messages by kind of member, and those that failed, hung, or ended late.
        wrong: The violated rules.
        deeds: All handlings, for comparison.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.owners: dict[str, int] = {}
        self.offsets: dict[str, str] = {}
        self.loops: dict[int, AbstractEventLoop | None] = {}
        self.names: dict[int, str] = {}
        self.busy: dict[str, Counter[int]] = {}
        self.patient = False
        self.counts: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.deeds: list[tuple[float, str, str]] = []
        self._replaced_sessions: set[tuple[str, int | None]] = set()
        """Places, and sessions that owned them until another member of the same name took them."""

    def forget_world(self) -> None:
        """Keeps only what happened. Crashed members stay suspended until they are collected between two histories."""
        self.loops = dict.fromkeys(self.loops)
        self.service = Service(World(0))

    def lives(self, session: int) -> bool:
        """Returns whether a session goes on, as far as its member knows."""
        raise NotImplementedError

    def excuse(self, place: str, owner: int) -> None:
        """Lets a member whose session was replaced or removed go on until it is notified. Nobody waits for it."""
        self._replaced_sessions.add((place, owner))
        self.busy.pop(place, None)

    def check_offset(self, session: int, place: str, identifier: str | None, owners: Iterable[int | None]) -> None:
        """Records an offset, and violations: not by an owner, moved back, or past an unhandled message."""
        before = self.offsets.get(place)
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

    def begin_handling(self, name: str, stay: Stay, partition: Partition, message: Message, at: float) -> None:
        """Records that a member begins to handle a message. It must own the partition and take messages in order.

        In a patient history no other living member may still be handling. A member replaced by another of its name may
        handle until it is notified, whoever owns the partition then.
        """
        place = place_of(partition)
        is_replaced = (place, stay.session) in self._replaced_sessions
        owner = None if is_replaced else self.owners.get(place)
        if owner is not None and self.names[owner] != name:
            self.wrong.append(f"owner: {place} is handled by another member than its owner at {at}")
        busy = () if is_replaced else self.busy.get(place, ())
        others = [other for other in busy if self.names[other] != name]
        if self.patient and any(map(self.lives, others)):
            self.wrong.append(f"two: {place} is still handled by another member at {at}")
        for other in others:
            del self.busy[place][other]
        if owner is not None:
            self.busy.setdefault(place, Counter())[owner] += 1
        log, index = self.service.places[message.body]
        if stay.log is not log:
            # A replaced member may have read an offset that the new one has moved since.
            is_replaced = is_replaced or (owner is not None and owner != stay.session)
            stay.begin(log, index if is_replaced else log.after(self.offsets.get(place)))
        if index != (due := stay.next_index(message)):
            self.wrong.append(f"order: {place} has {index} in the place of {due} at {at}")
        stay.go_on(message, index + 1)
        self.deeds.append((at, place, message.id))

    def end_handling(
        self, name: str, stay: Stay, partition: Partition, message: Message, *, failed: bool = False
    ) -> None:
        """Records that a message was handled; one that failed is to be handled again."""
        place = place_of(partition)
        log, index = self.service.places[message.body]
        if failed:
            self.attempts["failed"] += 1
            stay.go_on(message, index)
        else:
            log.handle(index)
        self._end_handling(name, place)

    def record_hang(self, name: str, stay: Stay, partition: Partition, message: Message) -> None:
        self.attempts["hung"] += 1
        stay.go_on(message, self.service.places[message.body][1])
        self._end_handling(name, place_of(partition))

    def record_late_success(self, stay: Stay, message: Message) -> None:
        self.attempts["late"] += 1
        log, index = self.service.places[message.body]
        log.handle(index)
        stay.go_on(message, index + 1)

    def _end_handling(self, name: str, place: str) -> None:
        busy = self.busy.get(place, Counter())
        for owner in [owner for owner in busy if self.names[owner] == name]:
            busy[owner] -= 1
            if not busy[owner]:
                del busy[owner]

    def excuse_handling(self, name: str, partition: Partition) -> None:
        """Lets a member go on handling a message of a partition that it gave back meanwhile."""
        busy = self.busy.get(place_of(partition), Counter())
        for owner in [owner for owner in busy if self.names[owner] == name]:
            del busy[owner]

    def record_given_up(self, stay: Stay, message: Message) -> None:
        """Counts a dead-lettered message as handled."""
        log, index = self.service.places[message.body]
        log.handle(index)
        if stay.log is not log:
            stay.begin(log, index)
        stay.go_on(message, index + 1)

    def check_commit(self, partition: Partition, identifier: str) -> None:
        """Records a violation if a partition's recorded offset is before the one that a member was told is recorded."""
        recorded = self.offsets.get(place_of(partition))
        if is_before(recorded, identifier):
            self.wrong.append(f"commit: {partition} has {recorded} after {identifier} was committed")


class Stay:
    """The time for which a member has a partition.

    Args:
        session: The member's session.
        keyed: Only messages with the same key are handled in order.

    Attributes:
        session: As given.
        log: The messages. Replaced when the queue was recreated.
        done: The id of the last handled message.
        recorded: The id of the last committed message.
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
        self.log, self._first, self._following = log, first, {}

    def next_index(self, message: Message) -> int:
        """Returns the index of the next message to handle with this message's key; the log's length if none is left."""
        assert self.log is not None
        key = self._key(message)
        index = self._following.get(key, self._first)
        while index < len(self.log.messages) and self._key(self.log.messages[index]) != key:
            index += 1
        return index

    def go_on(self, message: Message, index: int) -> None:
        self._following[self._key(message)] = index

    def _key(self, message: Message) -> str:
        return message.headers["key"] if self._keyed else ""
