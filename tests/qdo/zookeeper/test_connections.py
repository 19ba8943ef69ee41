"""Connections that break, fall silent or reach a stopped server: session states, and requests that must not repeat."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from qdo.errors import CoordinationError, CoordinationLost, SessionLost
from qdo.group.opening import open_coordinator
from qdo.group.records import Member
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.link import ZooKeeperLink
from qdo.group.zookeeper.paths import GroupPaths
from qdo.group.zookeeper.session import ZooKeeperSession
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.events import PATIENCE, RecordedEvents
from tests.qdo.contract.processes import ROOT
from tests.qdo.contract.samples import PARTITION, first_partitions
from tests.qdo.contract.zookeeper import ZooKeeperService, kazoo_client
from tests.waiting import until_async as until

SHORT = 3.0


def link_of(session: ZooKeeperSession) -> ZooKeeperLink:
    assert isinstance(session.link, ZooKeeperLink)
    return session.link


async def send_steadily(session: ZooKeeperSession) -> None:
    """Keeps requests under way, as commits that nobody waits for would be, and ignores their results."""
    while session.state == "connected":  # bounded: the test ends the connection
        asking = asyncio.ensure_future(session.target())
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0.1)  # more often than kazoo requires heartbeats


async def test_a_silent_server_is_noticed_although_requests_go_out(join: Join, service: ZooKeeperService) -> None:
    """A silent server suspends the session in time; kazoo alone would count each request as a sign of life."""
    session, heard = await join("a", session_timeout=SHORT)
    service.proxy.silence()
    sending = asyncio.create_task(send_steadily(session))
    await heard.next("suspended")
    await heard.next("lost")
    await sending
    service.proxy.resume()


async def retry_while_lost(heard: RecordedEvents, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what is called
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except CoordinationLost:
                await asyncio.sleep(0.05)


async def test_leaving_while_suspended_closes_the_session_later(
    join: Join, coordinator: ZooKeeperCoordinator, service: ZooKeeperService
) -> None:
    """Leaving does not wait for a broken network; the member is removed when it is back, before its timeout."""
    session, heard = await join("a")
    await session.claim([PARTITION])
    await service.cut()
    await heard.next("suspended")
    await session.leave()
    assert session.state == "lost"
    assert not link_of(session).finished
    await service.heal()
    await until(lambda: link_of(session).finished)
    assert await retry_while_lost(heard, coordinator.members) == {}
    assert await coordinator.owners() == {}


async def test_a_member_that_was_removed_is_lost(join: Join, service: ZooKeeperService) -> None:
    """A member whose node was removed is lost, although its session is alive."""
    mine, heard = await join("a")
    other, _ = await join("b")
    await mine.claim([PARTITION])
    await mine.assignment()
    with kazoo_client(service.proxy.address) as client:
        client.delete(GroupPaths(service.root, "group").member("a"))
    await heard.next("changed")
    with pytest.raises(SessionLost):
        await mine.assignment()
    await heard.next("lost")
    assert set(await other.members()) == {"b"}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_nothing_is_left_behind(service: ZooKeeperService, open_one: Open) -> None:
    """After closing neither threads nor open files are left."""
    before, files = set(threading.enumerate()), open_files()
    coordinator = await open_one()
    for name in "abc":
        await coordinator.join(Member(name), RecordedEvents())
    assert len(set(threading.enumerate()) - before) == 3
    await coordinator.close()
    await until(lambda: set(threading.enumerate()) <= before)
    await until(lambda: service.proxy.connections == 0)
    await until(lambda: open_files() <= files)  # fewer if files of an earlier test were being closed


async def test_a_forked_process_uses_nothing_of_it(join: Join) -> None:
    """A forked child is refused: the thread that reads the connection is not in it, so a call would wait forever."""
    session, _ = await join("a")
    with mock.patch("os.getpid", return_value=-1), pytest.raises(CoordinationError, match="forked"):
        await session.members()


async def test_connecting_gives_up_in_time(service: ZooKeeperService) -> None:
    """Connecting gives up in time, with the reason."""
    await service.cut()
    coordinator = open_coordinator(service.url, "group", connect_timeout=5.0)
    with pytest.raises(CoordinationLost, match="refused"):
        await coordinator.open()
    await coordinator.close()
    await service.heal()


async def test_a_commit_does_not_wait_for_a_thousand_takings(join: Join) -> None:
    """Requests of one member take turns: a commit is done while a thousand claims are still under way."""
    session, _ = await join("a")
    held = (await session.claim([PARTITION]))[PARTITION]
    taking = asyncio.ensure_future(session.claim(first_partitions(2000)))
    await asyncio.sleep(0.01)  # The claims begin, many at a time.
    assert (await session.commit([(held, "1")]))[PARTITION]
    assert not taking.done()
    assert len(await taking) == 2000


FORGETFUL = """
import asyncio, atexit, os, sys
from qdo.group.records import Member
from qdo.group.opening import open_coordinator
from qdo.group.zookeeper.paths import GroupPaths

async def main():
    coordinator = open_coordinator(sys.argv[1], "group")
    await coordinator.open()
    await coordinator.join(Member("a"), lambda _: None)
    child = os.fork()
    if not child:
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(child, 0)
    print(sorted(await coordinator.members()))

asyncio.run(main())
"""


async def test_a_program_that_ends_leaves(service: ZooKeeperService, coordinator: ZooKeeperCoordinator) -> None:
    """A member is removed when its process ends, not only after its timeout; a child of the process ends nothing."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORGETFUL, service.url, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert said == b"['a']\n"
    assert await coordinator.members() == {}
