"""Groups of the service as the suite uses them; each request of a member goes to the next process."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import UNSET, UnsetType

from queuey.access.queue_access import QueueAccess
from queuey.api.groups import Heartbeat
from queuey.app.service import Service
from queuey.groups.rules.group_state import JoinRequest
from queuey.model import ids
from queuey.model.errors import GroupNotFound
from queuey.model.messages import OffsetChange
from queuey.model.rights import Caller, Grant, MemberCredential
from queuey.runtime.event_loop import Core
from queuey.storage import Store
from tests.backends import APP

Place = tuple[str, int]
"""A queue's name and a partition."""
SESSION = 10.0
"""Default session, in seconds."""
BEAT_INTERVAL = 1.0
"""Seconds between two heartbeats of a member."""
MAX_ROUNDS = 400
"""Max rounds of heartbeats in which a group must settle."""


class TakenPartition(NamedTuple):
    """What a member is told of a partition that it owns now.

    Attributes:
        offset: The id of the last message handled, or None if no offset is recorded.
        came: ``new``, ``given back`` or ``lost``.
    """

    offset: str | None
    came: str
    note: bytes | None = None


class HeartbeatResult(NamedTuple):
    """The answer to a heartbeat.

    Attributes:
        give_back: Partitions to give back, with the epochs under which they are owned.
    """

    take: dict[Place, TakenPartition]
    give_back: dict[Place, int]
    lost: frozenset[Place]


class HandClock(Protocol):
    """A clock that the test moves."""

    def __call__(self) -> int:
        """Returns the time in ticks."""

    def advance(self, seconds: float) -> None:
        """Moves the time forward."""


class HandCore(Core):
    """A core whose clocks the test moves, like those of its store."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self._clock = clock

    def boottime(self) -> float:
        return ids.ticks_to_seconds(self._clock())


class GroupService(Service):
    """A process of the service whose credentials have the rights that the test gives them.

    Args:
        store: The store.
        clock: The clock of the process.
        callers: Callers by the id of their credential; all processes share them.
    """

    def __init__(self, store: Store, clock: HandClock, callers: dict[bytes, Caller]) -> None:
        super().__init__(store, core=HandCore(clock), rights=self._read_rights)
        self.callers = callers

    async def _read_rights(self, credential: MemberCredential) -> MemberCredential | None:
        caller = self.callers.get(credential.id)
        return None if caller is None else MemberCredential(credential.id, caller)


class Group:
    """A group of the service. Its processes take turns at calls, and all of them work when time passes.

    Args:
        services: The processes that serve it.
        clock: The clock of the processes.
        name: The name of the group.
        application: The application of the group.

    Attributes:
        slack: Seconds by which clocks may differ: for others a session ends that much later.
    """

    def __init__(self, services: Sequence[GroupService], clock: HandClock, name: str, application: str = APP) -> None:
        self.clock = clock
        self.application = application
        self.name = name
        self.slack = services[0].store.clock_difference
        self.callers = services[0].callers
        self.services = services
        self._turns = itertools.cycle(services)

    def ask(self, call: Callable[[Service], Any]) -> Any:  # noqa: ANN401 - what the use case returns
        service = next(self._turns)
        return service.core.run(call(service))

    def access(self, service: Service, queue: str) -> QueueAccess:
        return service.queues.access_unchecked(service.core.run(service.find(self.application, queue)))

    def credential(self, key: str) -> MemberCredential:
        """Returns the credential of a key, which gets all rights at its first use."""
        self.callers.setdefault(key.encode(), Caller(names=frozenset({f"app:{self.application}"})))
        return MemberCredential(key.encode(), self.callers[key.encode()])

    def join(
        self,
        *queues: str,
        patterns: Sequence[str] = (),
        instance: str = "",
        session: float = SESSION,
        revoke: float = 30.0,
        grace: float = 0.0,
        key: str = "key",
    ) -> Member:
        wants, credential = (tuple(sorted(queues)), tuple(sorted(patterns))), self.credential(key)
        times = (round(1000 * session), round(1000 * revoke), round(1000 * grace))
        request = JoinRequest(*wants, credential, instance, *times)
        joined = self.ask(lambda service: service.groups.join(self.application, self.name, request))
        assert joined.wait <= session / 3 < joined.session <= session
        return Member(self, joined.member, joined.number, key)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for service in self.services:
            for served in list(service.groups.served.values()):
                service.core.run(served.do_due_work())

    def limit_key(self, key: str, *queues: str) -> None:
        self.callers[key.encode()] = Caller(grants=(Grant(self.application, frozenset({"read", "claim"}), queues),))

    def offset(self, place: Place) -> str | None:
        service, (queue, partition) = next(self._turns), place
        try:
            recorded = service.core.run(
                service.offsets.read_progress(self.access(service, queue), self.name)
            ).partitions
        except GroupNotFound:
            return None
        return recorded[partition].offset

    def commit_plainly(self, place: Place, offset: str) -> None:
        queue, partition = place
        change = OffsetChange(partition, ids.parse_position(offset))
        service = next(self._turns)
        service.core.run(service.offsets.record(self.access(service, queue), self.name, [change]))

    def forget_offsets(self, queue: str) -> None:
        service = next(self._turns)
        service.core.run(service.offsets.forget(self.access(service, queue), self.name))

    def remove(self) -> None:
        self.ask(lambda service: service.groups.forget(self.application, self.name))

    def pass_time_with_heartbeats(self, seconds: float, *members: Member) -> None:
        """Advances time while these members send heartbeats, and give back the partitions they are asked for."""
        while seconds > 0:
            step = min(BEAT_INTERVAL, seconds)
            seconds -= step
            self.pass_time(step)
            for member in members:
                member.beat_and_give_back()

    def beat_until(self, holds: Callable[[], object], *members: Member, step: float = 0.2) -> None:
        """Lets members send heartbeats, and give back partitions, until a condition holds.

        Fails after MAX_ROUNDS rounds.
        """
        for _ in range(MAX_ROUNDS):
            for member in members:
                member.beat_and_give_back()
            if holds():
                return
            self.pass_time(step)
        raise AssertionError([member.owned for member in members])

    def settle(self, places: Collection[Place], *members: Member) -> None:
        """Beats until the members own all places, with numbers that differ by at most one."""

        def settled() -> bool:
            shares = [len(member.owned) for member in members]
            owned = [place for member in members for place in member.owned]
            return sorted(owned) == sorted(places) and max(shares) - min(shares) <= 1

        self.beat_until(settled, *members)

    def end_session(self, member: Member, *others: Member, session: float = SESSION) -> None:
        """Lets a whole session pass in which only the other members send heartbeats."""
        self.pass_time_with_heartbeats(session + self.slack + BEAT_INTERVAL, *others)


class Member:
    """A member, by its id. It records what it owns, under which epoch, and how each partition came.

    It forgets partitions that it gives back or was told to have lost.

    Attributes:
        id: The secret id that its requests name.
        number: The number by which others know the member.
        owned: The epoch of each partition that it owns, as far as it knows.
        taken: What it was told of each partition when it last got it.
    """

    def __init__(self, group: Group, member: str, number: int, key: str) -> None:
        self.owned: dict[Place, int] = {}
        self.taken: dict[Place, TakenPartition] = {}
        self.number = number
        self._group = group
        self.id = member
        self._key = key

    def send_heartbeat(self, give_back: Mapping[Place, int] | None = None, *, leaving: bool = False) -> HeartbeatResult:
        """Sends a heartbeat with all of ``owned``, and changes ``owned`` by the answer.

        Args:
            give_back: Partitions that it gives back, with the epochs under which it owned them.
            leaving: Whether it wants no more partitions.
        """
        for place in give_back or ():
            self.owned.pop(place, None)
        beat = Heartbeat(_by_queue(self.owned), _by_queue(give_back or {}), leaving)
        who = self._group.name, self.id, self._group.credential(self._key)
        answer = self._group.ask(lambda service: service.groups.heartbeat(self._group.application, *who, beat))
        take = {
            (queue, number): TakenPartition(each.offset, each.came, None if each.note is None else _bytes(each.note))
            for queue, some in answer.take.items()
            for number, each in some.items()
        }
        self.owned |= {(q, number): each.epoch for q, some in answer.take.items() for number, each in some.items()}
        self.taken |= take
        lost = frozenset((queue, number) for queue, some in answer.lost.items() for number in some)
        for place in lost:
            self.owned.pop(place, None)
        to_give_back = {
            (queue, number): each.epoch for queue, some in answer.give_back.items() for number, each in some.items()
        }
        return HeartbeatResult(take, to_give_back, lost)

    def commit(
        self,
        offsets: Mapping[Place, str],
        *,
        epochs: Mapping[Place, int] | None = None,
        note: bytes | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
    ) -> None:
        """Commits offsets of one queue, under the epochs of ``owned`` unless others are given."""
        [queue] = {queue for queue, _ in offsets}
        under = self.epochs(offsets) if epochs is None else epochs
        before = None if expected is UNSET or expected is None else ids.parse_position(expected)
        changes = [
            OffsetChange(
                number, ids.parse_position(offset), before, compare=expected is not UNSET, forward=expected is UNSET
            )
            for (_, number), offset in offsets.items()
        ]
        notes = {} if note is UNSET else {number: note for _, number in offsets}
        who = self._group.name, self.id, self._group.credential(self._key)
        numbers = {number: under[queue, number] for _, number in offsets}
        self._group.ask(
            lambda service: service.groups.commit(self._group.access(service, queue), *who, changes, numbers, notes)
        )

    def leave(self, *, returns: bool = False) -> None:
        who = self._group.name, self.id, self._group.credential(self._key)
        self._group.ask(lambda service: service.groups.leave(self._group.application, *who, returns=returns))

    def epochs(self, places: Collection[Place]) -> dict[Place, int]:
        return {place: self.owned[place] for place in places}

    def beat_and_give_back(self) -> HeartbeatResult:
        """Sends a heartbeat, gives back what the answer asks for, and returns the first answer."""
        answer = self.send_heartbeat()
        if answer.give_back:
            self.send_heartbeat(answer.give_back)
        return answer


def places_of(queue: str, partitions: int) -> list[Place]:
    return [(queue, number) for number in range(1, partitions + 1)]


def message(number: int) -> str:
    return ids.to_hex((number, 0))


def _by_queue(places: Mapping[Place, int]) -> dict[str, dict[int, int]]:
    by_queue: dict[str, dict[int, int]] = {}
    for (queue, number), epoch in places.items():
        by_queue.setdefault(queue, {})[number] = epoch
    return by_queue


def _bytes(note: str) -> bytes:
    return base64.b64decode(note, validate=True)
