"""A group as its members see it: what the suite asks of whatever divides partitions among them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from queuey import ids

Place = tuple[str, int]
"""A queue's name and a partition."""
SESSION = 10.0
"""Seconds of a session, unless a test says otherwise."""
STEP = 1.0
"""Seconds between two heartbeats of a member that is asked for them."""
ROUNDS = 400
"""Rounds of heartbeats in which a group is to settle; only a failure needs so many."""


class Taken(NamedTuple):
    """What a member is told of a partition that it owns now.

    Attributes:
        offset: The id of the last message handled; None: none is recorded.
        came: ``new``, ``given back`` or ``lost``.
    """

    offset: str | None
    came: str
    note: bytes | None = None


class Answer(NamedTuple):
    """What a heartbeat was answered.

    Attributes:
        give_back: With the epochs under which they are owned.
    """

    take: dict[Place, Taken]
    give_back: dict[Place, int]
    lost: frozenset[Place]


class Member(ABC):
    """A member, which remembers what it owns, under which epoch, and how each partition came.

    Attributes:
        number: By which others know it.
        owned: The epoch of each partition that it owns, as far as it knows.
        taken: What it was told of each partition when it got it last.
    """

    number: int

    def __init__(self) -> None:
        self.owned: dict[Place, int] = {}
        self.taken: dict[Place, Taken] = {}

    @abstractmethod
    def beat(self, give_back: Mapping[Place, int] | None = None, *, leaving: bool = False) -> Answer:
        """Sends a heartbeat with all of ``owned``, and changes ``owned`` by the answer.

        Args:
            give_back: Partitions, with the epochs under which they were owned; they are not owned any more.
            leaving: It wants no partitions any more.
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
        """Commits, for partitions of one queue, under the epochs of ``owned`` unless others are given."""

    @abstractmethod
    def leave(self, *, returns: bool = False) -> None:
        """Leaves; with ``returns`` as an instance that comes back."""

    @abstractmethod
    def impersonated(self) -> Member:
        """Returns somebody who knows all that this member knows, and has another credential."""

    def epochs(self, places: Collection[Place]) -> dict[Place, int]:
        """The epochs of some partitions that it owns."""
        return {place: self.owned[place] for place in places}

    def obey(self) -> Answer:
        """Sends a heartbeat and then gives back at once what it is asked for."""
        answer = self.beat()
        if answer.give_back:
            self.beat(answer.give_back)
        return answer


class Group(ABC):
    """A group with nobody in it, and what happens around it.

    Attributes:
        slack: Seconds by which clocks may differ: a session is over that much later for others.
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
    def beside(self) -> Group:
        """Returns another group of the same application."""

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Lets time go by for all clocks."""

    @abstractmethod
    def narrow(self, key: str, *queues: str) -> None:
        """Lets a credential read and claim these queues alone, from now on."""

    @abstractmethod
    def offset(self, place: Place) -> str | None:
        """The recorded offset of a partition, as anybody may read it."""

    @abstractmethod
    def commit_plainly(self, place: Place, offset: str) -> None:
        """Commits as nobody who is a member."""

    @abstractmethod
    def forget_offsets(self, queue: str) -> None:
        """Forgets what is recorded for a queue."""

    @abstractmethod
    def remove(self) -> None:
        """Forgets the group, and not its offsets."""

    def pass_beating(self, seconds: float, *members: Member) -> None:
        """Lets time go by in which these members send heartbeats, and give back what they are asked for."""
        while seconds > 0:
            step = min(STEP, seconds)
            seconds -= step
            self.pass_time(step)
            for member in members:
                member.obey()

    def until(self, holds: Callable[[], object], *members: Member, step: float = 0.2) -> None:
        """Has members send heartbeats, and give back what they are asked for, until something holds."""
        for _ in range(ROUNDS):
            for member in members:
                member.obey()
            if holds():
                return
            self.pass_time(step)
        raise AssertionError([member.owned for member in members])

    def settle(self, places: Collection[Place], *members: Member) -> None:
        """Has members send heartbeats until they have shared out exactly these partitions, evenly."""

        def settled() -> bool:
            shares = [len(member.owned) for member in members]
            owned = [place for member in members for place in member.owned]
            return sorted(owned) == sorted(places) and max(shares) - min(shares) <= 1

        self.until(settled, *members)

    def end_session(self, member: Member, *others: Member, session: float = SESSION) -> None:
        """Lets a member be silent until its session is over for everybody; others go on."""
        self.pass_beating(session + self.slack + STEP, *others)


def places_of(queue: str, partitions: int) -> list[Place]:
    """All partitions of a queue."""
    return [(queue, number) for number in range(1, partitions + 1)]


def message(number: int) -> str:
    """The id of a message; a higher number is a later one."""
    return ids.to_hex((number, 0))
