"""A coordinator that writes down everything that goes through it, and otherwise leaves it alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Literal, TypeVar

from qdo.coordination import (
    CommittedOffset,
    Coordinator,
    Event,
    Listen,
    Member,
    OwnedOffset,
    Session,
    Sight,
    TargetAssignment,
    Versioned,
)
from qdo.errors import QdoError
from qdo.partitions import Partition, Queue
from tests.faults.checking.history import now
from tests.qdo.faults.checking.records import Answered, Asked, Heard, Joined, Journal, What, place_of

T = TypeVar("T")
Name = Callable[[Session], str]
"""Says how the service knows a session."""


class Recording(Coordinator):
    """Another coordinator, and what is asked of the sessions that it gives.

    Args:
        inner: Does everything.
        journal: Where it is written down.
        worker: By whom.
        name: How sessions are called there.
        stop_at: The process stops itself (SIGSTOP) before this commit, counted from 1; 0: never.
    """

    def __init__(self, inner: Coordinator, journal: Journal, worker: str, name: Name, stop_at: int = 0) -> None:
        self.group = inner.group
        self._inner = inner
        self._scribe = Scribe(journal, worker, stop_at)
        self._name = name
        self._lives = 0

    @property
    def session_timeout(self) -> float:  # type: ignore[override] # the inner one's may change
        """See the contract."""
        return self._inner.session_timeout

    async def open(self) -> None:
        """See the contract."""
        await self._inner.open()

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> Session:
        """See the contract."""
        self._lives += 1
        life = self._lives

        def hear(event: Event) -> None:
            if event != "changed":
                self._scribe.heard(life, event)
            listen(event)

        session = await self._inner.join(member, hear, replace=replace)
        self._scribe.joined(life, member.id, self._name(session))
        return RecordingSession(session, self._scribe, life)

    async def members(self) -> dict[str, Member]:
        """See the contract."""
        return await self._inner.members()

    async def target(self) -> TargetAssignment | None:
        """See the contract."""
        return await self._inner.target()

    async def owners(self) -> dict[Partition, str]:
        """See the contract."""
        return await self._inner.owners()

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        """See the contract."""
        return await self._inner.offsets(partitions)

    async def set_offsets(
        self,
        offsets: Mapping[Partition, str | None],
        *,
        expected: Mapping[Partition, str | None] | None = None,
    ) -> None:
        """See the contract."""
        await self._inner.set_offsets(offsets, expected=expected)

    async def groups(self) -> list[str]:
        """See the contract."""
        return await self._inner.groups()

    async def services(self) -> set[str]:
        """See the contract."""
        return await self._inner.services()

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        """See the contract."""
        await self._inner.forget(queues)

    async def close(self) -> None:
        """See the contract."""
        await self._inner.close()


class Scribe:
    """Writes down what one worker's sessions are asked and told."""

    def __init__(self, journal: Journal, worker: str, stop_at: int) -> None:
        self._journal = journal
        self._worker = worker
        self._calls = 0
        self._commits = 0
        self._stop_at = stop_at

    def joined(self, life: int, member: str, session: str) -> None:
        """A session has begun."""
        self._journal.add(Joined(now(), self._worker, life, member, session))

    def heard(self, life: int, event: Event) -> None:
        """A session told of something."""
        self._journal.add(Heard(now(), self._worker, life, event))

    async def call(
        self,
        life: int,
        what: What,
        given: Mapping[Partition, tuple[int, str]],
        work: Callable[[], Awaitable[T]],
        held: Callable[[T], Mapping[Partition, OwnedOffset | None]],
    ) -> T:
        """Makes a call; what it is to do is written down before, and what came of it afterwards."""
        self._calls += 1
        call = self._calls
        versions = {place_of(each): version for each, (version, _) in given.items()}
        ids = {place_of(each): identifier for each, (_, identifier) in given.items() if identifier}
        self._journal.add(Asked(now(), self._worker, life, call, what, versions, ids))
        if what == "commit":
            self._commits += 1
            if self._commits == self._stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)
        try:
            answer = await work()
        except (QdoError, asyncio.CancelledError) as error:
            self._journal.add(Answered(now(), self._worker, call, getattr(error, "code", "Cancelled")))
            raise
        found = {place_of(partition): each for partition, each in held(answer).items()}
        now_held = {place: None if each is None else each.version for place, each in found.items()}
        offsets = {place: each.offset.id for place, each in found.items() if each is not None}
        self._journal.add(Answered(now(), self._worker, call, "", now_held, offsets if what == "take" else {}))
        return answer


class RecordingSession(Session):
    """Another session, of which takings, releases and commits are written down."""

    def __init__(self, inner: Session, scribe: Scribe, life: int) -> None:
        self._inner = inner
        self._scribe = scribe
        self._life = life

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See the contract."""
        return self._inner.state

    async def members(self) -> dict[str, Member]:
        """See the contract."""
        return await self._inner.members()

    async def assignment(self) -> frozenset[Partition]:
        """See the contract."""
        return await self._inner.assignment()

    async def lead(self) -> bool:
        """See the contract."""
        return await self._inner.lead()

    async def leader(self) -> Member | None:
        """See the contract."""
        return await self._inner.leader()

    async def set_sight(self, sight: Sight) -> None:
        """See the contract."""
        await self._inner.set_sight(sight)

    async def retire(self) -> None:
        """See the contract."""
        await self._inner.retire()

    async def target(self) -> Versioned:
        """See the contract."""
        return await self._inner.target()

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """See the contract."""
        return await self._inner.set_target(target, version)

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """See the contract."""
        wanted = list(partitions)
        given = dict.fromkeys(wanted, (0, ""))
        return await self._scribe.call(self._life, "take", given, lambda: self._inner.claim(wanted), lambda held: held)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """See the contract."""
        wanted = list(partitions)
        given = dict.fromkeys(wanted, (0, ""))
        await self._scribe.call(self._life, "release", given, lambda: self._inner.release(wanted), lambda _: {})

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """See the contract."""
        wanted = list(offsets)
        # What is only noted moves no offset.
        moved = {held.partition: identifier for held, identifier in wanted if identifier != held.offset.id}
        given = {held.partition: (held.version, moved.get(held.partition) or "") for held, _ in wanted}
        return await self._scribe.call(
            self._life, "commit", given, lambda: self._inner.commit(wanted), lambda held: held
        )

    async def leave(self) -> None:
        """See the contract."""
        await self._inner.leave()
