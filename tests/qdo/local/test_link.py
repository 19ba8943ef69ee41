"""A link to the file, and its thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qdo.coordination import Member
from qdo.coordination.local import LocalLink, LocalOptions
from qdo.coordination.local.database import CoordinationFile
from qdo.coordination.local.link import LOG_EVERY
from qdo.coordination.local.nodes import NodeChanges
from qdo.coordination.opening import open_coordinator
from qdo.coordination.tree import ANY, Applied, Check, Create, Rejection, RejectionReason, SetData
from qdo.keepalive.vitals import now
from tests.contract.samples import eventually
from tests.qdo.contract.events import Heard
from tests.qdo.contract.local import writing
from tests.qdo.local.conftest import Join
from tests.replacing import replace


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
    link = LocalLink(LocalOptions(path), "scope", lambda _, above: above != "/unwatched")
    await link.open()
    heard: list[list[str]] = []
    link.on_watch = heard.append
    await link.apply([(Create(each),) for each in ("/a", "/unwatched", "/unwatched/b", "/c")])
    await link.look(["/a", "/unwatched/b", "/c"], watch=True)
    await link.apply([(SetData("/unwatched/b", b"1", ANY),)])
    await link.read(["/a"])
    assert heard == []
    await link.apply([(SetData("/a", b"1", ANY), SetData("/c", b"1", ANY))])
    assert heard == [["/a", "/unwatched/b", "/c"]]
    await link.close()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_write_comes_after_those_that_wait_for_the_file(path: Path, *, cancelled: bool) -> None:
    """Although the file is free again: whoever waited for it has not had it yet, and may have stopped waiting."""
    link = LocalLink(LocalOptions(path, session_timeout=60), "scope")
    await link.open()
    await link.apply([(Create("/mine", ephemeral=True),)])
    with writing(path):
        waiting = asyncio.create_task(link.apply([(Create("/a"),)]))
        await asyncio.sleep(0)
        assert eventually(link._thread.jobs.empty)
        if cancelled:
            waiting.cancel()
            await asyncio.sleep(0)
    assert await link.apply([(SetData("/a", b"1", 0),)]) == [Applied((1,))]
    with contextlib.suppress(asyncio.CancelledError):
        assert await waiting == [Applied((0,))]
    await link.close()


async def test_one_write_of_many_copies_the_log(path: Path) -> None:
    """The thread makes it, because it waits for the disk."""
    link = LocalLink(LocalOptions(path, session_timeout=60), "scope")
    await link.open()
    await link.apply([(Create("/mine", ephemeral=True),)])
    threads: list[bool] = []
    with replace(NodeChanges.run, observed(threads)):
        for _ in range(2 * LOG_EVERY):
            await link.apply([(SetData("/mine", b"", ANY),)])
    assert sum(threads) == 2
    await link.close()


async def test_a_refused_change_leaves_no_parent_behind(path: Path) -> None:
    """Otherwise later nodes would lie in a parent that no other session finds; an ephemeral node never is one."""
    link, other = (LocalLink(LocalOptions(path, session_timeout=60), "scope") for _ in range(2))
    await link.open()
    await other.open()
    await link.apply([(Create("/a"),), (Create("/mine", ephemeral=True),)])
    refused = await link.apply([(Create("/a/b"), Check("/none")), (Create("/mine/a"),)])
    assert refused == [Rejection(RejectionReason.NO_NODE, 1), Rejection(RejectionReason.NO_NODE, 0)]
    await link.apply([(Create("/a/c"),)])
    assert await other.children(["/a", "/mine"]) == [["c"], []]
    await link.close()
    await other.close()


def observed(threads: list[bool]) -> Callable[[NodeChanges, Any], Any]:
    """Records whether transactions run in another thread than the loop's."""
    run, loop = NodeChanges.run, threading.get_ident()

    def noting(made: NodeChanges, work: Any) -> Any:  # noqa: ANN401 - as the original
        threads.append(threading.get_ident() != loop)
        return run(made, work)

    return noting


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
