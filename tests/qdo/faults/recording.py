"""Records the calls of a coordinator and its sessions, and the notifications of members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from typing import TypeVar

from qdo.errors import QdoError
from qdo.group.protocol import Coordinator, Session
from qdo.group.records import Event, Listen, Member, SessionOffset
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.partitions import Partition
from tests.harness.checking.records import Answered, Asked, Heard, Joined, What, place_of
from tests.harness.history import Journal, now

T = TypeVar("T")


def record(coordinator: Coordinator, journal: Journal, worker: str) -> None:
    """Records the joins of a coordinator, the notifications of its sessions, and their calls.

    Args:
        coordinator: The coordinator of one worker.
        journal: Keeps the records.
        worker: The name of the worker.
    """
    join, lives, calls = coordinator.join, count(1), Calls(journal, worker)

    async def recorded(member: Member, listen: Listen, *, replace: bool = False) -> Session:
        life = next(lives)

        def hear(event: Event) -> None:
            if event != "changed":
                journal.add(Heard(now(), worker, life, event))
            listen(event)

        session = await join(member, hear, replace=replace)
        journal.add(Joined(now(), worker, life, member.id, name_of(session)))
        record_session(session, calls, life)
        return session

    coordinator.join = recorded  # type: ignore[method-assign]


def record_session(session: Session, calls: Calls, life: int) -> None:
    """Replaces methods of the session in place, so that claims, releases and commits are recorded under this life."""
    inner_claim, inner_release, inner_commit = session.claim, session.release, session.commit

    async def claim(partitions: Iterable[Partition]) -> Mapping[Partition, SessionOffset]:
        requested = list(partitions)
        arguments = dict.fromkeys(requested, (0, ""))
        return await calls.record(life, "take", arguments, lambda: inner_claim(requested), lambda held: held)

    async def release(partitions: Iterable[Partition]) -> None:
        requested = list(partitions)
        arguments = dict.fromkeys(requested, (0, ""))
        await calls.record(life, "release", arguments, lambda: inner_release(requested), lambda _: {})

    async def commit(offsets: Iterable[tuple[SessionOffset, str | None]]) -> Mapping[Partition, SessionOffset | None]:
        requested = list(offsets)
        # A commit of the offset that is recorded already moves nothing.
        moved = {held.partition: identifier for held, identifier in requested if identifier != held.offset.id}
        arguments = {held.partition: (held.version, moved.get(held.partition) or "") for held, _ in requested}
        return await calls.record(life, "commit", arguments, lambda: inner_commit(requested), lambda held: held)

    session.claim, session.release, session.commit = claim, release, commit  # type: ignore[method-assign]


class Calls:
    """Records the calls of one worker's sessions, and their results."""

    def __init__(self, journal: Journal, worker: str) -> None:
        self._journal = journal
        self._worker = worker
        self._calls = count(1)

    async def record(
        self,
        life: int,
        what: What,
        given: Mapping[Partition, tuple[int, str]],
        work: Callable[[], Awaitable[T]],
        held: Callable[[T], Mapping[Partition, SessionOffset | None]],
    ) -> T:
        """Makes a call; records the arguments before, and the result or the error afterwards."""
        call = next(self._calls)
        versions = {place_of(each): version for each, (version, _) in given.items()}
        ids = {place_of(each): identifier for each, (_, identifier) in given.items() if identifier}
        self._journal.add(Asked(now(), self._worker, life, call, what, versions, ids))
        try:
            answer = await work()
        except (QdoError, asyncio.CancelledError) as error:
            self._journal.add(Answered(now(), self._worker, call, getattr(error, "code", "Cancelled")))
            raise
        results = {place_of(partition): each for partition, each in held(answer).items()}
        now_held = {place: None if each is None else each.version for place, each in results.items()}
        offsets = {place: each.offset.id for place, each in results.items() if each is not None}
        self._journal.add(Answered(now(), self._worker, call, "", now_held, offsets if what == "take" else {}))
        return answer


def name_of(session: Session) -> str:
    """Returns the name of a session by which another process can end it; empty if none can."""
    if not isinstance(session, ZooKeeperSession):
        return ""
    from tests.qdo.contract.zookeeper import client_of  # noqa: PLC0415 - needs kazoo

    number, password = client_of(session).client_id or (0, b"")
    return f"{number}:{password.hex()}"
