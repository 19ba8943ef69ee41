"""Members whose interpreter is held up: a process of its own gives their signs of life, for a while."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from qdo.coordination import Coordinator
from tests.qdo.contract.backends import LONG_ENOUGH, Service, from_outside
from tests.qdo.contract.conftest import Hold, Join, Start
from tests.qdo.contract.events import PATIENCE, eventually
from tests.qdo.contract.ownership.test_fencing import recorded
from tests.qdo.contract.processes import Process, Refused
from tests.qdo.contract.samples import ONE

SESSIONS = 1.5
"""For so many times of its session a member is held up. Where that must not end it, the session is one that outlasts a
pause of the machine, in which nobody gives signs of life."""

pytestmark = pytest.mark.needs_programs
on = partial(pytest.mark.parametrize, "backend", indirect=True)
"""Each case is played on one service; that such a member stays is played on both."""


@from_outside
async def test_a_member_that_is_held_up_stays(hold: Hold, coordinator: Coordinator) -> None:
    """For longer than its session nothing of it runs; it is a member all the same, and records afterwards."""
    process = await hold("held", session_timeout=LONG_ENOUGH, outlast=600.0)
    await process.ask("hold", SESSIONS * LONG_ENOUGH)
    assert set(await coordinator.members()) == {"held"}
    assert await process.ask("commit", {str(ONE): "1"}) == [str(ONE)]
    assert await recorded(coordinator) == "1"


@on(argvalues=["zookeeper"])
@pytest.mark.parametrize("how", ["hold", "stand"])
async def test_a_member_that_hangs_is_not_kept_for_ever(hold: Hold, join: Join, service: Service, how: str) -> None:
    """Beyond the time that was agreed on nobody speaks for it, even if only its event loop hangs."""
    mine, heard = await join("a", session_timeout=LONG_ENOUGH)
    process = await hold("held", session_timeout=service.short, outlast=service.short)
    process.say(how, 600)
    await eventually(heard, mine.members, lambda members: "held" not in members)
    assert await mine.claim([ONE])


@on(argvalues=["zookeeper"])
async def test_a_member_that_was_killed_is_not_kept(start: Start, join: Join, service: Service) -> None:
    """The process that speaks for it ends with it, so its session ends in its time."""
    mine, heard = await join("a", session_timeout=LONG_ENOUGH)
    process = await start("killed", session_timeout=service.short, outlast=600.0)
    speakers = list(speakers_of(process.id))
    assert speakers
    process.signal(signal.SIGKILL)
    await eventually(heard, mine.members, lambda members: "killed" not in members)
    await until_ended(speakers)


@on(argvalues=["zookeeper"])
async def test_whoever_speaks_for_a_member_is_replaced_when_killed(hold: Hold) -> None:
    """The session lives on, and the member may be held up afterwards as before."""
    process = await hold("held", session_timeout=LONG_ENOUGH, outlast=600.0)
    former = set(speakers_of(process.id))
    for each in former:
        os.kill(each, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        while not any(map(_ready, set(speakers_of(process.id)) - former)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    await _until_recorded(process, "1")
    await process.ask("hold", SESSIONS * LONG_ENOUGH)
    assert await process.ask("commit", {str(ONE): "2"}) == [str(ONE)]


@on(argvalues=["zookeeper"])
async def test_a_stopped_speaker_ends_no_session(hold: Hold) -> None:
    """A program that runs gives its signs of life by itself, or has another process do so."""
    process = await hold("a", session_timeout=LONG_ENOUGH, outlast=600.0)
    stopped = list(speakers_of(process.id))
    for each in stopped:
        os.kill(each, signal.SIGSTOP)
    try:
        await asyncio.sleep(SESSIONS * LONG_ENOUGH)
        await _until_recorded(process, "1")
    finally:
        for each in stopped:
            os.kill(each, signal.SIGKILL)


async def _until_recorded(process: Process, offset: str) -> None:
    """Commits, again while the connection is broken."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(Refused):
                assert await process.ask("claim", [str(ONE)]) == [str(ONE)]
                assert await process.ask("commit", {str(ONE): offset}) == [str(ONE)]
                return
            await asyncio.sleep(0.05)


@on(argvalues=["zookeeper"])
async def test_whoever_speaks_for_a_member_ends_when_it_leaves(start: Start) -> None:
    """Nothing of it is left."""
    process = await start("leaving", outlast=600.0)
    speakers = list(speakers_of(process.id))
    assert speakers
    await process.end()
    await until_ended(speakers)


async def until_ended(processes: list[int]) -> None:
    """Waits until none of them is alive."""
    async with asyncio.timeout(PATIENCE):
        while any(map(_alive, processes)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


def speakers_of(parent: int) -> Iterator[int]:
    """Gives the processes that a process has started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(stat.parent.name)


def _ready(speaker: int) -> bool:
    """Tells whether a process that speaks for another has come as far as its own code: it lets SIGTERM pass then."""
    with suppress(OSError):
        ignored = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{speaker}/status").read_text(), re.MULTILINE)
        return ignored is not None and bool(int(ignored[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
