"""Members whose interpreter is blocked: another process sends their heartbeats for a while."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from qdo.group.service import ServiceCoordinator
from qdo.partitions import Partition
from tests.qdo.consumer.conftest import System
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS
from tests.qdo.contract.events import PATIENCE
from tests.qdo.contract.in_service import ServiceGroups
from tests.qdo.contract.membership.test_held_up import BLOCKED_SESSIONS
from tests.qdo.contract.processes import Process, Refused
from tests.servers.plugin import unique_name
from tests.servers.processes import children, is_alive
from tests.servers.served import Served
from tests.waiting import until_async

pytestmark = pytest.mark.needs_programs
LONG = 600.0
Start = Callable[[float, float], Awaitable[tuple[Process, Partition]]]


@pytest.fixture
async def groups(system: System) -> ServiceGroups:
    """A new group."""
    return ServiceGroups(system.client, unique_name("group"))


@pytest.fixture
async def coordinator(groups: ServiceGroups) -> ServiceCoordinator:
    """The group as others see it."""
    coordinator = groups.coordinator()
    await coordinator.open()
    return coordinator


@pytest.fixture
async def start(system: System, running: Served, groups: ServiceGroups) -> AsyncIterator[Start]:
    """Starts a member that owns a partition, in a process of its own; kills it at the test's end."""
    async with AsyncExitStack() as started:

        async def start(session_timeout: float, max_blocked_seconds: float) -> tuple[Process, Partition]:
            queue = await system.queue()
            profile = str(running.profile_path)
            process = await Process.start(profile, groups.group, queue.name, session_timeout, max_blocked_seconds)
            started.push_async_callback(process.end)
            partition = Partition(queue, 1)
            async with asyncio.timeout(PATIENCE):
                while await process.ask("claim", [str(partition)]) != [str(partition)]:  # noqa: ASYNC110 - the service assigns it soon
                    await asyncio.sleep(0.02)
            return process, partition

        yield start


async def until_gone(coordinator: ServiceCoordinator) -> None:
    async def is_gone() -> bool:
        return not await coordinator.members()

    await until_async(is_gone)


async def test_a_member_that_is_held_up_stays(system: System, coordinator: ServiceCoordinator, start: Start) -> None:
    """A member that is blocked for longer than its session stays a member, and commits afterwards."""
    process, partition = await start(RESPONSIVE_SESSION_SECONDS, LONG)
    (sent,) = await system.send(partition.queue, 1)
    await process.ask("hold", BLOCKED_SESSIONS * RESPONSIVE_SESSION_SECONDS)
    assert len(await coordinator.members()) == 1
    assert await process.ask("commit", {str(partition): sent}) == [str(partition)]
    assert (await coordinator.offsets())[partition].id == sent


async def test_a_member_that_hangs_is_not_kept_for_ever(
    groups: ServiceGroups, coordinator: ServiceCoordinator, start: Start
) -> None:
    """Beyond the agreed time nobody sends heartbeats for a member, and it learns of its loss when it goes on."""
    process, partition = await start(groups.short, groups.short)
    process.send_request("hold", 4 * groups.short)
    await until_gone(coordinator)
    await process.answer()
    with pytest.raises(Refused, match="SessionLost"):
        await process.ask("claim", [str(partition)])


async def test_a_member_that_was_killed_is_not_kept(
    groups: ServiceGroups, coordinator: ServiceCoordinator, start: Start
) -> None:
    """The process that sends heartbeats for a member ends with it, so its session ends in time."""
    process, _ = await start(groups.short, LONG)
    speakers = children(process.id)
    assert speakers
    process.signal(signal.SIGKILL)
    await until_gone(coordinator)
    await until_async(lambda: not any(map(is_alive, speakers)))
