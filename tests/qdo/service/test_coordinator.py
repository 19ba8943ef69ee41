"""Requests that a group of the service refuses, with errors that name the next step; and valid names of groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from qdo import AsyncConsumer, open_coordinator
from qdo.errors import CoordinationLost, CoordinationRefused, InvalidArgument, StoreChanged
from qdo.group.records import CommittedOffset, Member, TargetAssignment
from qdo.group.service import ServiceCoordinator, find_access_settings
from qdo.partitions import Partition, Queue, subscribe
from queuey.client import AsyncClient, RetryPolicy, TokenError
from tests.qdo.service.scripted import STORE, ScriptedService
from tests.replacing import replace

MEMBER = Member("anna", subscribe(["orders"], [], STORE, "queuey"), static=True)
NO_PAGE = 404, {"status": "error", "error_msg": {"NotFound": "there is no such page"}}
"""The answer of a service at another path."""


def refusal(status: int, code: str) -> tuple[int, dict[str, object]]:
    return status, {"status": status, "code": code, "errors": {code: f"{code} was scripted"}}


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
async def client(service: ScriptedService) -> AsyncIterator[AsyncClient]:
    async with AsyncExitStack() as opened:
        url = "http://127.0.0.1:5000/v1/queuey/"
        yield await opened.enter_async_context(
            AsyncClient(url, key="a-key", transport=service, retry=RetryPolicy(deadline=0))
        )


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (NO_PAGE, CoordinationRefused, "there is no such page"),
        (refusal(409, "GroupElsewhere"), CoordinationRefused, "GroupElsewhere"),
        (refusal(403, "NotAllowed"), CoordinationRefused, "read and claim.*--coordination zookeeper://"),
        (refusal(401, "NotAuthenticated"), CoordinationRefused, "NotAuthenticated"),
        (refusal(404, "InvalidApplicationName"), CoordinationRefused, "InvalidApplicationName"),
        (refusal(400, "group"), InvalidArgument, "group was scripted"),
        (refusal(503, "StoreUnavailable"), CoordinationLost, "StoreUnavailable"),
    ],
    ids=lambda value: str(value[1].get("code", "no page")) if isinstance(value, tuple) else "",
)
async def test_a_join_that_is_refused(
    service: ScriptedService,
    client: AsyncClient,
    answer: tuple[int, dict[str, object]],
    error: type[Exception],
    text: str,
) -> None:
    """The error tells a refusal that may pass from a permanent one."""
    service.joined = answer
    with pytest.raises(error, match=text):
        await ServiceCoordinator(client, "readers").join(MEMBER, lambda _: None)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (NO_PAGE, CoordinationRefused, "there is no such page"),
        (refusal(404, "InvalidApplicationName"), CoordinationRefused, "InvalidApplicationName"),
        (refusal(403, "NotAllowed"), CoordinationRefused, "NotAllowed"),
        (refusal(503, "StoreUnavailable"), CoordinationLost, "StoreUnavailable"),
    ],
    ids=["no page", "InvalidApplicationName", "NotAllowed", "StoreUnavailable"],
)
async def test_a_look_that_is_refused(
    service: ScriptedService,
    client: AsyncClient,
    answer: tuple[int, dict[str, object]],
    error: type[Exception],
    text: str,
) -> None:
    """The error tells a refusal from a failure that may pass."""
    service.group = answer
    coordinator = ServiceCoordinator(client, "readers")
    with pytest.raises(error, match=text):
        await coordinator.snapshot()
    with pytest.raises(error, match=text):
        await coordinator.groups()


@pytest.mark.parametrize("error", [OSError("no process is left"), TokenError("no token")], ids=repr)
async def test_a_member_without_its_heartbeat_process_leaves(
    service: ScriptedService, client: AsyncClient, error: Exception
) -> None:
    """A member whose heartbeat process cannot be started leaves the group, so that no partition is assigned to it."""

    async def fail(_member: object) -> None:
        raise error

    coordinator = ServiceCoordinator(client, "readers")
    coordinator.outlast = 60.0
    with replace(find_access_settings, fail):
        joining = asyncio.create_task(coordinator.join(MEMBER, lambda _: None))
        (await service.wait_for_leave()).answer()
        with pytest.raises(CoordinationLost, match=str(error)):
            await joining


async def test_another_store_is_noticed(service: ScriptedService, client: AsyncClient) -> None:
    """A member never joins a group of another store that has taken over the address."""
    coordinator = ServiceCoordinator(client, "readers")
    await coordinator.open()
    service.store = "f" * 32
    with pytest.raises(StoreChanged, match="f" * 32):
        await coordinator.join(MEMBER, lambda _: None)


@pytest.mark.parametrize("group", ["", ".", "..", "x y", "a/b", "ä", "x" * 101])
async def test_a_name_that_is_not_allowed(client: AsyncClient, group: str) -> None:
    """A name that is not allowed is refused before a request is sent, with what to do."""
    with pytest.raises(InvalidArgument) as caught:
        AsyncConsumer(client, group=group, queues=["orders"])
    assert str(caught.value) == (
        f"Group name {group!r} is not allowed by the service (1 to 100 of A-Z a-z 0-9 . _ : @ -). "
        "Use another name, or --coordination zookeeper://…"
    )


async def test_one_group_at_a_time(client: AsyncClient) -> None:
    """A consumer takes a coordinator or the name of a group of the service, not both."""
    coordinator = open_coordinator("zookeeper://localhost:2181", "readers")
    with pytest.raises(InvalidArgument, match="not both"):
        AsyncConsumer(client, coordinator, group="readers", queues=["orders"])


async def test_a_snapshot_is_one_request(service: ScriptedService, client: AsyncClient) -> None:
    """Members, plan, owners and offsets are of one moment; an offset names an owner only if that owner recorded it.

    Two members with one name are told apart.
    """
    times = {"since": 5.0, "session": 10.0, "seen": 6.0}
    alive = {"number": 1, "name": "anna", "instance": "anna", "state": "present"} | times
    others = [
        alive | {"number": 2, "instance": ""},
        alive | {"number": 3, "name": "cleo", "instance": "cleo", "state": "absent"},
    ]
    row = {"owner": 1, "since": 50.0, "target": 2, "from": "lost", "offset": "1" * 32, "updated": 60.0}
    rows = {"1": row, "2": row | {"updated": 40.0}, "3": row | {"owner": None, "target": 3, "offset": None}}
    group = {"status": "ok", "group": "readers", "centre": "", "epoch": 50, "unassigned": 0}
    service.group = 200, group | {"members": [alive, *others], "queues": {"orders": rows}}
    coordinator = ServiceCoordinator(client, "readers")
    await coordinator.open()
    snapshot = await coordinator.snapshot()
    assert service.group_reads == 1
    first, second, third = (Partition(Queue(STORE, "queuey", "orders"), number) for number in (1, 2, 3))
    assert {name: (member.static, member.since) for name, member in snapshot.members.items()} == {
        "anna": (True, 5.0),
        "anna#2": (False, 5.0),
    }
    assert snapshot.target == TargetAssignment(
        {first: "anna#2", second: "anna#2", third: "cleo"}, {"cleo": 5.0}, frozenset({"anna", "cleo"})
    )
    assert snapshot.owners == {first: "anna", second: "anna"}
    offset = "1" * 32
    assert snapshot.offsets == {first: CommittedOffset(offset, 60.0, "anna"), second: CommittedOffset(offset, 40.0)}
