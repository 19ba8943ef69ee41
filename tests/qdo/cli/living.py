"""Members of a group in a thread with a loop of its own, which live while a test runs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import anyio

from qdo.coordination import Member, Session, TargetAssignment
from qdo.coordination.opening import open_coordinator
from qdo.partitions import Partition

SESSION_SECONDS = 30.0


@contextmanager
def living(
    url: str,
    group: str,
    *members: Member,
    owns: Mapping[str, Iterable[Partition]] | None = None,
    target: TargetAssignment | None = None,
) -> Iterator[None]:
    """Joins members, lets each claim its share, perhaps sets the target, and makes them leave at the end."""
    ready, enough = threading.Event(), threading.Event()
    thread = threading.Thread(target=anyio.run, args=(_live, url, group, members, owns or {}, target, ready, enough))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        enough.set()
        thread.join(60)


async def _live(
    url: str,
    group: str,
    members: tuple[Member, ...],
    owns: Mapping[str, Iterable[Partition]],
    target: TargetAssignment | None,
    ready: threading.Event,
    enough: threading.Event,
) -> None:
    """Joins the members, each with its partitions; the first sets the target. They leave when `enough` is set."""
    coordinator = open_coordinator(url, group, session_timeout=SESSION_SECONDS)
    await coordinator.open()
    sessions: list[Session] = []
    try:
        for member in members:
            session = await coordinator.join(member, lambda _: None)
            sessions.append(session)
            await session.claim(owns.get(member.id, ()))
        if target is not None:
            assert await sessions[0].set_target(target, -1)
        ready.set()
        await anyio.to_thread.run_sync(enough.wait)
        for session in sessions:
            await session.leave()
    finally:
        ready.set()
        await coordinator.close()
