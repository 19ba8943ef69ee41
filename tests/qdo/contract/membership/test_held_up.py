"""Members whose interpreter is blocked: another process sends their heartbeats for a while."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS, from_outside
from tests.qdo.contract.conftest import Hold, Start
from tests.qdo.contract.events import PATIENCE
from tests.qdo.contract.ownership.test_fencing import read_recorded
from tests.qdo.contract.processes import Process, Refused
from tests.qdo.contract.samples import PARTITION
from tests.servers.processes import children, is_alive
from tests.waiting import until_async

BLOCKED_SESSIONS = 1.5
"""Session timeouts for which a member is blocked. Where its session must survive, the timeout outlasts a pause of the
machine, in which no heartbeats are sent."""

pytestmark = pytest.mark.needs_programs
on = partial(pytest.mark.parametrize, "backend", indirect=True)
"""Each case runs on one service; that a blocked member stays is tested on both."""


@from_outside
async def test_a_member_that_is_held_up_stays(hold: Hold, coordinator: ZooKeeperCoordinator) -> None:
    """A member that is blocked for longer than its session stays a member, and commits afterwards."""
    process = await hold("held", session_timeout=RESPONSIVE_SESSION_SECONDS, max_blocked_seconds=600.0)
    await process.ask("hold", BLOCKED_SESSIONS * RESPONSIVE_SESSION_SECONDS)
    assert set(await coordinator.members()) == {"held"}
    assert await process.ask("commit", {str(PARTITION): "1"}) == [str(PARTITION)]
    assert await read_recorded(coordinator) == "1"


@on(argvalues=["zookeeper"])
async def test_whoever_speaks_for_a_member_is_replaced_when_killed(hold: Hold) -> None:
    """If the helper process is killed it is replaced: the session lives on, and the member may be blocked again."""
    process = await hold("held", session_timeout=RESPONSIVE_SESSION_SECONDS, max_blocked_seconds=600.0)
    former = set(children(process.id))
    for speaker in former:
        os.kill(speaker, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        while not any(map(_ready, set(children(process.id)) - former)):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
    await _claim_and_commit_until_accepted(process, "1")
    await process.ask("hold", BLOCKED_SESSIONS * RESPONSIVE_SESSION_SECONDS)
    assert await process.ask("commit", {str(PARTITION): "2"}) == [str(PARTITION)]


@on(argvalues=["zookeeper"])
async def test_a_stopped_speaker_ends_no_session(hold: Hold) -> None:
    """With a stopped helper process no session ends: the member sends heartbeats itself, or starts another helper."""
    process = await hold("a", session_timeout=RESPONSIVE_SESSION_SECONDS, max_blocked_seconds=600.0)
    stopped = children(process.id)
    for speaker in stopped:
        os.kill(speaker, signal.SIGSTOP)
    try:
        await asyncio.sleep(BLOCKED_SESSIONS * RESPONSIVE_SESSION_SECONDS)
        await _claim_and_commit_until_accepted(process, "1")
    finally:
        for speaker in stopped:
            os.kill(speaker, signal.SIGKILL)


async def _claim_and_commit_until_accepted(process: Process, offset: str) -> None:
    """Claims and commits, again while the process is refused."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(Refused):
                assert await process.ask("claim", [str(PARTITION)]) == [str(PARTITION)]
                assert await process.ask("commit", {str(PARTITION): offset}) == [str(PARTITION)]
                return
            await asyncio.sleep(0.05)


@on(argvalues=["zookeeper"])
async def test_whoever_speaks_for_a_member_ends_when_it_leaves(start: Start) -> None:
    """When a member leaves, nothing is left of its helper process."""
    process = await start("leaving", max_blocked_seconds=600.0)
    speakers = children(process.id)
    assert speakers
    await process.end()
    await until_async(lambda: not any(map(is_alive, speakers)))


def _ready(speaker: int) -> bool:
    """Returns whether a helper process runs its own code yet: it ignores SIGTERM from then on."""
    with suppress(OSError):
        ignored = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{speaker}/status").read_text(), re.MULTILINE)
        return ignored is not None and bool(int(ignored[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False
