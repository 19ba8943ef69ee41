"""Groups of the service; each request of a member goes to the next process."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from queuey import ids
from queuey.access import Caller, Grant
from queuey.api.groups import Heartbeat
from queuey.errors import GroupNotFound
from queuey.groups.state import Credential, JoinRequest
from queuey.messages import OffsetChange
from queuey.service import QueueAccess, Service
from queuey.service.core import Core
from tests.backends import APP
from tests.contract.groups.group import SESSION, Group, HeartbeatResult, Member, Place, TakenPartition


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


class ServiceGroup(Group):
    """A group of the service. Its processes take turns at calls, and all of them work when time passes.

    Args:
        services: The processes that serve it.
        clock: The clock of the processes.
        name: The name of the group.
        application: The application of the group.
    """

    def __init__(self, services: Sequence[Service], clock: HandClock, name: str, application: str = APP) -> None:
        self.clock = clock
        self.application = application
        self.name = name
        self.slack = services[0].store.clock_difference
        self.callers: dict[bytes, Caller] = {}
        self.services = services
        for service in services:
            service.groups.rights = self._rights
        self._turns = itertools.cycle(services)

    def other_group(self) -> ServiceGroup:
        other = ServiceGroup(self.services, self.clock, f"{self.name}:beside", self.application)
        other.callers |= self.callers
        self.callers = other.callers  # Both groups look up all rights.
        return other

    def _rights(self, credential: Credential) -> Credential | None:
        caller = self.callers.get(credential.id)
        return None if caller is None else Credential(credential.id, caller)

    def ask(self, call: Callable[[Service], Any]) -> Any:  # noqa: ANN401 - what the use case returns
        service = next(self._turns)
        return service.core.run(call(service))

    def access(self, service: Service, queue: str) -> QueueAccess:
        return service.enter(service.find(self.application, queue), lambda _queue: None)

    def credential(self, key: str) -> Credential:
        """Returns the credential of a key, which gets all rights at its first use."""
        self.callers.setdefault(key.encode(), Caller(names=frozenset({f"app:{self.application}"})))
        return Credential(key.encode(), self.callers[key.encode()])

    def join(
        self,
        *queues: str,
        patterns: Sequence[str] = (),
        instance: str = "",
        session: float = SESSION,
        revoke: float = 30.0,
        grace: float = 0.0,
        key: str = "key",
    ) -> ServiceMember:
        request = JoinRequest(
            tuple(sorted(queues)),
            tuple(sorted(patterns)),
            self.credential(key),
            instance,
            *(round(1000 * seconds) for seconds in (session, revoke, grace)),
        )
        joined = self.ask(lambda service: service.groups.join(self.application, self.name, request))
        assert joined.wait <= session / 3 < joined.session <= session
        return ServiceMember(self, joined.member, joined.number, key)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for service in self.services:
            for served in list(service.groups.served.values()):
                service.core.run(served.turn())

    def limit_key(self, key: str, *queues: str) -> None:
        self.callers[key.encode()] = Caller(grants=(Grant(self.application, frozenset({"read", "claim"}), queues),))

    def offset(self, place: Place) -> str | None:
        service, (queue, partition) = next(self._turns), place
        try:
            recorded = service.offsets.read_progress(self.access(service, queue), self.name).partitions
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


class ServiceMember(Member):
    """A member of a service's group, by its id. It forgets partitions that it gives back or was told to have lost."""

    def __init__(self, group: ServiceGroup, member: str, number: int, key: str) -> None:
        super().__init__()
        self.number = number
        self._group = group
        self._id = member
        self._key = key

    def send_heartbeat(self, give_back: Mapping[Place, int] | None = None, *, leaving: bool = False) -> HeartbeatResult:
        for place in give_back or ():
            self.owned.pop(place, None)
        beat = Heartbeat(_by_queue(self.owned), _by_queue(give_back or {}), leaving)
        who = self._group.name, self._id, self._group.credential(self._key)
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
        who = self._group.name, self._id, self._group.credential(self._key)
        numbers = {number: under[queue, number] for _, number in offsets}
        self._group.ask(
            lambda service: service.groups.commit(self._group.access(service, queue), *who, changes, numbers, notes)
        )

    def leave(self, *, returns: bool = False) -> None:
        who = self._group.name, self._id, self._group.credential(self._key)
        self._group.ask(lambda service: service.groups.leave(self._group.application, *who, returns=returns))

    def impersonate(self) -> ServiceMember:
        other = ServiceMember(self._group, self._id, self.number, "another key")
        other.owned = dict(self.owned)
        return other


def _by_queue(places: Mapping[Place, int]) -> dict[str, dict[int, int]]:
    by_queue: dict[str, dict[int, int]] = {}
    for (queue, number), epoch in places.items():
        by_queue.setdefault(queue, {})[number] = epoch
    return by_queue


def _bytes(note: str) -> bytes:
    return base64.b64decode(note, validate=True)
