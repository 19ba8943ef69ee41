"""Groups exist from the first join or offset on, until they are forgotten."""

from __future__ import annotations

import pytest

from qdo.errors import GroupActive
from qdo.group.records import TargetAssignment
from qdo.partitions import Queue
from tests.qdo.contract.backends import Service, once
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.samples import OTHER_QUEUE, PARTITION, QUEUE, first_partitions

pytestmark = once


async def test_looking_makes_no_group(open_one: Open) -> None:
    """Reading about a group does not create it."""
    looking = await open_one("looked-at")
    assert await looking.members() == {}
    assert await looking.owners() == {}
    assert await looking.offsets() == {}
    assert await looking.target() is None
    assert await looking.groups() == []


async def test_groups_are_known_by_members_and_by_offsets(join: Join, open_one: Open) -> None:
    """A member or an offset creates a group, which outlives its members; names come sorted, from any group."""
    await (await open_one("b")).set_offsets({PARTITION: "1"})
    session, _ = await join("m", "a")
    await join("m", "c")
    await session.leave()
    assert await (await open_one("other")).groups() == ["a", "b", "c"]


async def test_a_group_with_members_is_not_forgotten(join: Join, open_one: Open) -> None:
    """Forgetting a group with members is refused and changes nothing."""
    session, _ = await join("a")
    held = await session.claim([PARTITION])
    await session.commit([(held[PARTITION], "1")])
    looking = await open_one()
    with pytest.raises(GroupActive):
        await looking.forget()
    assert (await looking.offsets())[PARTITION].id == "1"
    assert await looking.owners() == {PARTITION: "a"}


async def test_a_forgotten_group_is_gone(join: Join, open_one: Open, service: Service) -> None:
    """A forgotten group loses offsets, target and name, also for later members; other groups keep theirs."""
    await (await open_one("other")).set_offsets({PARTITION: "9"})
    session, _ = await join("a")
    held = await session.claim([PARTITION])
    await session.commit([(held[PARTITION], "1")])
    await session.set_target(TargetAssignment({PARTITION: "a"}), -1)
    await service.expire(session)
    looking = await open_one()
    await looking.forget()
    await looking.forget()
    assert await looking.groups() == ["other"]
    assert await looking.offsets() == {}
    assert await looking.target() is None
    assert (await (await open_one("other")).offsets())[PARTITION].id == "9"
    again, _ = await join("a")
    assert await again.target() == (None, -1)
    assert (await again.claim([PARTITION]))[PARTITION].offset.id is None


async def test_what_is_kept_of_some_queues_is_forgotten(join: Join, open_one: Open) -> None:
    """Forgetting some queues leaves the rest of the group, and removes stores without offsets."""
    elsewhere = Queue("elsewhere", "acme", "orders")
    looking = await open_one()
    await looking.set_offsets(
        dict.fromkeys([*first_partitions(3), *first_partitions(2, OTHER_QUEUE), *first_partitions(2, elsewhere)], "1")
    )
    await looking.forget([QUEUE, elsewhere, Queue("nowhere", "acme", "orders")])
    assert await looking.offsets() == await looking.offsets(first_partitions(2, OTHER_QUEUE))
    assert await looking.services() == {OTHER_QUEUE.service}
    session, _ = await join("a")
    assert (await session.claim([PARTITION]))[PARTITION].offset.id is None
    with pytest.raises(GroupActive):
        await looking.forget([OTHER_QUEUE])
    assert set(await looking.offsets()) == set(first_partitions(2, OTHER_QUEUE))
    await session.leave()
    await looking.forget([OTHER_QUEUE])
    assert await looking.offsets() == {}
    assert await looking.groups() == ["group"]
