"""The thread of a coordinator and its sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qdo.coordination import Member
from qdo.coordination.local import LocalCoordinator, LocalOptions
from qdo.coordination.local.database import CoordinationFile
from qdo.coordination.local.session_thread import LocalSession
from qdo.coordination.local.transactions import GroupCounters
from qdo.keepalive.vitals import now
from tests.qdo.contract.events import Heard
from tests.qdo.local.conftest import Join


@pytest.mark.parametrize("during", [False, True])
async def test_a_join_that_nobody_waits_for_leaves_no_member(path: Path, *, during: bool) -> None:
    """Cancelled before the thread came to it or while it was joining: nobody is kept alive for it."""
    coordinator = LocalCoordinator("group", LocalOptions(path, session_timeout=600))
    await coordinator.open()
    blocking = CoordinationFile(path, patience=10)
    with blocking.transaction():
        other = asyncio.create_task(coordinator.join(Member("first"), Heard()))
        joining = asyncio.create_task(coordinator.join(Member("a"), Heard()))
        await asyncio.sleep(0.05 if during else 0)
        (other if during else joining).cancel()
        await asyncio.sleep(0)
    blocking.close()
    left = await asyncio.gather(other, joining, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in left] == [during, not during]
    assert list(await coordinator.members()) == ["a" if during else "first"]
    await coordinator.close()


async def test_a_session_past_its_time_is_in_doubt(join: Join) -> None:
    """A process that was stopped shows it at once, before its thread has found out."""
    mine, _ = await join("a")
    assert isinstance(mine, LocalSession)
    before, mine.until = mine.state, now()
    assert (before, mine.state) == ("connected", "suspended")


async def test_the_end_of_a_doubt_is_told(join: Join) -> None:
    """Another process gave the signs of life while this one was held up, so nothing else would tell of it."""
    mine, heard = await join("a")
    assert isinstance(mine, LocalSession)
    mine.until = now()
    mine._thread.submit(mine._thread._beat)
    await heard.next("connected")
    assert mine.state == "connected"
    assert heard.events == ["suspended", "connected"]


def _session(loop: asyncio.AbstractEventLoop) -> LocalSession:
    """A session that no thread keeps."""
    thread: Any = None
    return LocalSession(thread, 1, 1, Member("a"), loop, Heard(), 0.0)


def test_a_loop_that_has_ended_is_not_told() -> None:
    """Events for nobody are dropped, and keep no thread from going on."""
    loop = asyncio.new_event_loop()
    loop.close()
    _session(loop).report("changed")


def test_a_change_is_told_once_for_what_was_asked() -> None:
    """Only counters that the member relies on count, an unheard change is not forgotten by asking again."""
    loop = asyncio.new_event_loop()
    session = _session(loop)
    assert not session.outdated(GroupCounters(5, 5, 5))
    session.saw(GroupCounters(5, 5, 5), "freed")
    assert not session.outdated(GroupCounters(6, 5, 6))
    session.saw(GroupCounters(6, 6, 6), "freed")
    session.saw(GroupCounters(6, 6, 6), "members")
    assert session.outdated(GroupCounters(6, 6, 6))
    assert not session.outdated(GroupCounters(6, 7, 6))
    assert session.outdated(GroupCounters(7, 7, 6))
    loop.close()
