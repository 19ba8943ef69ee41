"""A member of a group in a thread with a loop of its own, which lives while a test runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from qdo.coordination import Member
from qdo.coordination.opening import open_coordinator

SESSION_SECONDS = 30.0


@contextmanager
def living(url: str, group: str, member: Member) -> Iterator[None]:
    """Joins a member, and makes it leave at the end."""
    ready, enough = threading.Event(), threading.Event()
    thread = threading.Thread(target=anyio.run, args=(_live, url, group, member, ready, enough))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        enough.set()
        thread.join(60)


async def _live(url: str, group: str, member: Member, ready: threading.Event, enough: threading.Event) -> None:
    """Joins a member, which leaves when `enough` is set."""
    coordinator = open_coordinator(url, group, session_timeout=SESSION_SECONDS)
    await coordinator.open()
    try:
        session = await coordinator.join(member, lambda _: None)
        ready.set()
        await anyio.to_thread.run_sync(enough.wait)
        await session.leave()
    finally:
        ready.set()
        await coordinator.close()
