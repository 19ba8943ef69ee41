"""A group member whose calls fail or wait, and when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from qdo.errors import CoordinationIncompatible, CoordinationLost, CoordinationRefused, MemberExists, SessionLost
from qdo.group.assignment import plan_assignment
from qdo.group.member import GroupMembership
from qdo.group.records import Member, SessionOffset
from qdo.group.session_events import SessionOptions
from qdo.partitions import Partition, Queue, Subscription
from tests.qdo.unit.group.owners import Catalogue, RecordingListener
from tests.qdo.unit.group.toy import ToyCoordinator, ToySession
from tests.replacing import replace
from tests.waiting import until_async

QUEUES = {Queue("host", "app", "orders"): 4}
PARTITIONS = {Partition(queue, number) for queue in QUEUES for number in range(1, 5)}
WANTS = Subscription(frozenset({"orders"}), (), "host", "app")
CALLS: list[Callable[..., Any]] = [
    *(ToySession.assignment, ToySession.lead, ToySession.target, ToySession.members, ToySession.set_target),
    *(ToySession.claim, ToySession.release),
]
ERRORS: dict[str, Exception] = {
    "lost": CoordinationLost("not reached"),
    "unexpected": RuntimeError("nobody expects this"),
    "not allowed": CoordinationRefused("with these credentials"),
    "newer": CoordinationIncompatible("a newer program was here"),
}


class Setup:
    """A group with a member under test, without delays, and others that do nothing.

    Attributes:
        coordinator: The coordinator of all members.
        owner: The listener of its partitions.
    """

    def __init__(self) -> None:
        self.coordinator = ToyCoordinator()
        self.owner = RecordingListener()
        self.made: list[GroupMembership] = []

    def make(self, **changes: Any) -> GroupMembership:  # noqa: ANN401 - any of its settings
        options = SessionOptions(settle=0.0, revoke_timeout=20.0, patience=20.0, recheck=0.01, draw=lambda: 0.0)
        queues = Catalogue(WANTS, QUEUES)
        member = GroupMembership(self.coordinator, "a", self.owner, queues=queues, options=options._replace(**changes))
        self.made.append(member)
        return member

    async def join(self, name: str) -> None:
        await self.coordinator.join(Member(name, WANTS), lambda _: None)

    async def members(self) -> set[str]:
        return set(await self.coordinator.members())

    async def wait_until_at_rest(self, member: GroupMembership) -> None:
        """Waits until the target is the planned one, and the member and its owner have exactly its share."""

        async def is_at_rest() -> bool:
            found = await self.coordinator.snapshot()
            share = {each for each, name in found.owners.items() if name == "a"}
            planned = plan_assignment(found.members, QUEUES, found.target, 0.0, 0.0).target
            mine = {each for each, name in planned.owners.items() if name == "a"}
            return found.target == planned and mine == share == set(member.table.held) == self.owner.have

        await until_async(is_at_rest, every=0.0)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    """A group without members, with a queue; its members are stopped at the end."""
    setup = Setup()
    yield setup
    setup.owner.gives_up.set()
    for member in setup.made:
        await member.stop()


def failing_once(call: Callable[..., Any], error: Exception) -> AbstractContextManager[None]:
    """Lets a call fail the first time that it is made in the block."""
    errors = [error]

    async def fail(*given: Any) -> Any:  # noqa: ANN401 - passed on
        if errors:
            raise errors.pop()
        return await call(*given)

    return replace(call, fail)


def held_up(call: Callable[..., Any], begun: asyncio.Event, go_on: asyncio.Event) -> AbstractContextManager[None]:
    """Lets calls wait for an event before they do anything."""

    async def wait(*given: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
        begun.set()
        await go_on.wait()
        return await call(*given, **options)

    return replace(call, wait)


@pytest.mark.parametrize(("call", "error"), [("join", MemberExists), ("open", CoordinationLost)])
async def test_a_start_that_fails_is_an_error(setup: Setup, call: str, error: type[Exception]) -> None:
    """A start fails if its name is taken for two session timeouts, or if the service cannot be reached."""
    setup.coordinator.session_timeout = 0.3
    if call == "open":
        setup.coordinator.is_reachable = False
    else:
        await setup.join("a")
    group = setup.make(draw=lambda: 0.05)
    with pytest.raises(error):
        await group.start()
    assert group.state == "left"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_a_call_that_fails_once(setup: Setup, call: Callable[..., Any], error: str) -> None:
    """After any call with any error the group becomes stable again; a refusal is reported to the owner, who may end."""
    group = setup.make()
    with failing_once(call, ERRORS[error]):
        await group.start()
        await setup.wait_until_at_rest(group)
        await setup.join("b")
        await setup.wait_until_at_rest(group)
    assert len(setup.owner.refusals) == (error == "not allowed")
    await group.stop()
    assert (setup.owner.have, await setup.members()) == (set(), {"b"})


async def test_a_commit_that_is_refused(setup: Setup) -> None:
    """A partition whose commit is refused is lost and released, so that the group becomes stable again."""

    async def refuse(_session: ToySession, offsets: Iterable[tuple[SessionOffset, str]]) -> dict[Partition, None]:
        return {held.partition: None for held, _ in offsets}

    group, refused = setup.make(), min(PARTITIONS)
    await group.start()
    await setup.wait_until_at_rest(group)
    with replace(ToySession.commit, refuse):
        assert await group.table.record({refused: "1" * 32}) == {refused}
    await setup.wait_until_at_rest(group)
    assert setup.owner.lost_partitions == {refused}


@pytest.mark.parametrize(
    ("call", "ends"), [(ToyCoordinator.open, "stop"), (ToyCoordinator.join, "stop"), (ToyCoordinator.join, "cancel")]
)
async def test_stopping_during_the_start(setup: Setup, call: Callable[..., Any], ends: str) -> None:
    """A stop during the start fails the start; a session that comes too late is ended."""
    begun, go_on, group = asyncio.Event(), asyncio.Event(), setup.make()
    with held_up(call, begun, go_on):
        starting = asyncio.create_task(group.start())
        await begun.wait()
        stopping = asyncio.create_task(group.stop() if ends == "stop" else asyncio.sleep(0))
        if ends == "cancel":
            starting.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises((SessionLost, asyncio.CancelledError)):
            await starting
        await stopping
    assert group.state == "left"
    assert await setup.members() == set()


async def test_stopping_takes_no_longer_than_allowed(setup: Setup) -> None:
    """An owner that never gives up loses its partitions, and the member leaves in time."""
    group = setup.make(revoke_timeout=0.01, patience=0.01)
    await group.start()
    await setup.wait_until_at_rest(group)
    setup.owner.gives_up.clear()
    with held_up(ToySession.release, asyncio.Event(), asyncio.Event()):
        await group.stop()
    assert (group.state, setup.owner.lost_partitions) == ("left", PARTITIONS)
    assert await setup.members() == set()


async def test_a_cancelled_stop_goes_on(setup: Setup) -> None:
    """A stop that was cancelled goes on; a second one waits for its end."""
    group = setup.make()
    await group.start()
    await setup.wait_until_at_rest(group)
    setup.owner.gives_up.clear()
    stopping = asyncio.create_task(group.stop())
    await until_async(lambda: setup.owner.revoking == 4, every=0.0)
    stopping.cancel()
    setup.owner.gives_up.set()
    await group.stop()
    assert (await setup.members(), setup.owner.lost_partitions) == (set(), set())
