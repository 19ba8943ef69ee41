"""Fixtures of the coordination suite."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from qdo.group.records import Member
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.session import ZooKeeperSession
from tests.qdo.contract.backends import BACKENDS, LONG_SESSION_SECONDS, Service
from tests.qdo.contract.events import RecordedEvents
from tests.qdo.contract.processes import Process, Refused
from tests.qdo.contract.samples import PARTITION

Open = Callable[..., Awaitable[ZooKeeperCoordinator]]
Start = Callable[..., Awaitable[Process]]
Hold = Callable[..., Awaitable[Process]]
Join = Callable[..., Awaitable[tuple[ZooKeeperSession, RecordedEvents]]]


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def service(backend: str, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """An empty service."""
    coordination = BACKENDS[backend](request)
    try:
        yield coordination
    finally:
        await coordination.close()


@pytest.fixture
async def open_one(service: Service) -> AsyncIterator[Open]:
    """Opens coordinators and closes them at the test's end."""
    async with contextlib.AsyncExitStack() as opened:

        async def open_one(
            group: str = "group", *, session_timeout: float = LONG_SESSION_SECONDS
        ) -> ZooKeeperCoordinator:
            coordinator = service.coordinator(group, session_timeout=session_timeout)
            opened.push_async_callback(coordinator.close)
            await coordinator.open()
            return coordinator

        yield open_one


@pytest.fixture
async def coordinator(open_one: Open) -> ZooKeeperCoordinator:
    """An open coordinator of a new group."""
    return await open_one()


@pytest.fixture
def join(open_one: Open) -> Join:
    """Joins members, each through a coordinator of its own, as other processes would."""

    async def join(
        name: str, group: str = "group", *, session_timeout: float = LONG_SESSION_SECONDS, **fields: object
    ) -> tuple[ZooKeeperSession, RecordedEvents]:
        coordinator = await open_one(group, session_timeout=session_timeout)
        heard = RecordedEvents()
        return await coordinator.join(Member(name, **fields), heard), heard  # type: ignore[arg-type] # of Member

    return join


@pytest.fixture
async def start(service: Service) -> AsyncIterator[Start]:
    """Starts members in processes of their own and kills them at the test's end."""
    async with contextlib.AsyncExitStack() as started:

        async def start(
            name: str,
            group: str = "group",
            *,
            session_timeout: float = LONG_SESSION_SECONDS,
            max_blocked_seconds: float = 0.0,
        ) -> Process:
            process = await Process.start(service.url, group, name, session_timeout, max_blocked_seconds)
            started.push_async_callback(process.end)
            return process

        yield start


@pytest.fixture
def hold(start: Start) -> Hold:
    """Starts members that own a partition; tries again if a short session ended before they had claimed it."""

    async def hold(name: str, **options: float) -> Process:
        while True:
            process = await start(name, **options)
            with contextlib.suppress(Refused):
                await process.ask("claim", [str(PARTITION)])
                return process
            await process.end()

    return hold
