"""The interface of a consumer group, as the suite uses it on each implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from queuey import ids

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


class Member(ABC):
    """A member that records what it owns, under which epoch, and how each partition came.

    Attributes:
        number: The number by which others know the member.
        owned: The epoch of each partition that it owns, as far as it knows.
        taken: What it was told of each partition when it last got it.
    """

    number: int

    def __init__(self) -> None:
        self.owned: dict[Place, int] = {}
        self.taken: dict[Place, TakenPartition] = {}

    @abstractmethod
    def send_heartbeat(self, give_back: Mapping[Place, int] | None = None, *, leaving: bool = False) -> HeartbeatResult:
        """Sends a heartbeat with all of ``owned``, and changes ``owned`` by the answer.

        Args:
            give_back: Partitions that it gives back, with the epochs under which it owned them.
            leaving: Whether it wants no more partitions.
        """

    @abstractmethod
    def commit(
        self,
        offsets: Mapping[Place, str],
        *,
        epochs: Mapping[Place, int] | None = None,
        note: bytes | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
    ) -> None:
        """Commits offsets of one queue, under the epochs of ``owned`` unless others are given."""

    @abstractmethod
    def leave(self, *, returns: bool = False) -> None:
        """Leaves; with ``returns`` as an instance that will come back."""

    @abstractmethod
    def impersonate(self) -> Member:
        """Returns a member that knows all that this one knows, and has another credential."""

    def epochs(self, places: Collection[Place]) -> dict[Place, int]:
        return {place: self.owned[place] for place in places}

    def beat_and_give_back(self) -> HeartbeatResult:
        """Sends a heartbeat, gives back what the answer asks for, and returns the first answer."""
        answer = self.send_heartbeat()
        if answer.give_back:
            self.send_heartbeat(answer.give_back)
        return answer


class Group(ABC):
    """A group without members, and the events around it.

    Attributes:
        slack: Seconds by which clocks may differ: for others a session ends that much later.
    """

    slack: float

    @abstractmethod
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
        """Joins with a credential; sends no heartbeat."""

    @abstractmethod
    def other_group(self) -> Group:
        """Returns another group of the same application."""

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Advances all clocks."""

    @abstractmethod
    def limit_key(self, key: str, *queues: str) -> None:
        """Limits a credential to reading and claiming these queues, from now on."""

    @abstractmethod
    def offset(self, place: Place) -> str | None:
        """Returns the recorded offset of a partition."""

    @abstractmethod
    def commit_plainly(self, place: Place, offset: str) -> None:
        """Commits without being a member."""

    @abstractmethod
    def forget_offsets(self, queue: str) -> None:
        """Deletes the recorded offsets of a queue."""

    @abstractmethod
    def remove(self) -> None:
        """Forgets the group, but not its offsets."""

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


def places_of(queue: str, partitions: int) -> list[Place]:
    return [(queue, number) for number in range(1, partitions + 1)]


def message(number: int) -> str:
    return ids.to_hex((number, 0))
