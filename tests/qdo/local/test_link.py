"""A link to the file, and its thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qdo.coordination import Member
from qdo.coordination.local import LocalLink, LocalOptions
from qdo.coordination.local.database import CoordinationFile
from qdo.coordination.opening import open_coordinator
from qdo.coordination.tree import ANY, Create, SetData
from qdo.keepalive.vitals import now
from tests.qdo.contract.events import Heard
from tests.qdo.contract.local import writing
from tests.qdo.local.conftest import Join


@pytest.mark.parametrize("during", [False, True])
async def test_a_join_that_nobody_waits_for_leaves_no_member(path: Path, *, during: bool) -> None:
    """Cancelled before the thread came to it or while it was joining: nobody is kept alive for it."""
    coordinator = open_coordinator(f"local://{path}", "group", session_timeout=600)
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
    assert isinstance(mine.link, LocalLink)
    before, mine.link._thread.until = mine.state, now()
    assert (before, mine.state) == ("connected", "suspended")


async def test_the_end_of_a_doubt_is_told(join: Join) -> None:
    """Another process gave the signs of life while this one was held up, so nothing else would tell of it."""
    mine, heard = await join("a")
    assert isinstance(mine.link, LocalLink)
    mine.link._thread.until = now()
    mine.link._thread.jobs.put(mine.link._thread.beat)
    await heard.next("connected")
    assert mine.state == "connected"
    assert heard.events == ["suspended", "connected", "changed"]


async def test_what_was_asked_in_one_read_is_heard_of_once(path: Path) -> None:
    """However many of the nodes changed, and what nobody may be watching wakes nobody."""
    link = LocalLink(LocalOptions(path), "scope", lambda operation: operation.path != "/b")
    await link.open()
    heard: list[list[str]] = []
    link.on_watch = heard.append
    await link.apply([(Create(each),) for each in ("/a", "/b", "/c")])
    await link.look(["/a", "/b", "/c"], watch=True)
    await link.apply([(SetData("/b", b"1", ANY),)])
    await link.read(["/a"])
    assert heard == []
    await link.apply([(SetData("/a", b"1", ANY), SetData("/c", b"1", ANY))])
    assert heard == [["/a", "/b", "/c"]]
    await link.close()


async def test_a_link_without_a_member_is_no_session(path: Path) -> None:
    """Looking, and moving offsets from outside, leaves no sign of life to give."""
    link = LocalLink(LocalOptions(path), "scope")
    await link.open()
    await link.apply([(Create("/a"),)])
    await link.children(["/"])
    await link.sync("/")
    with writing(path) as tx:
        assert tx.rows("SELECT id FROM sessions") == []
    await link.close()
