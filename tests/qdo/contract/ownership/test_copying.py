"""Offsets that were recorded under another name of a service."""

from __future__ import annotations

import asyncio

import pytest

from qdo.coordination import CommittedOffset, Coordinator
from qdo.partitions import Partition, Queue
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.samples import NAMES

FORMER, SERVICE = "queuey.example.org:5000", "0123456789abcdef0123456789abcdef"
OLD, NEW = Queue(FORMER, "acme", "orders"), Queue(SERVICE, "acme", "orders")


async def ids(coordinator: Coordinator, queue: Queue) -> dict[int, str | None]:
    """Returns what is recorded of a queue."""
    found: dict[Partition, CommittedOffset] = await coordinator.offsets()
    return {each.number: offset.id for each, offset in found.items() if each.queue == queue}


async def test_a_group_without_offsets_knows_no_service(coordinator: Coordinator, join: Join) -> None:
    """Nothing is copied, and looking does not make the group known."""
    assert await coordinator.services() == set()
    assert await coordinator.copy_offsets(FORMER, SERVICE) == 0
    assert await coordinator.groups() == []
    await join("a")
    assert await coordinator.services() == set()
    assert await coordinator.copy_offsets(FORMER, SERVICE) == 0


async def test_offsets_are_copied_as_they_are(coordinator: Coordinator, join: Join) -> None:
    """Id, instant and member, of all applications and queues; those under the former name stay, those of others too."""
    session, _ = await join("a")
    held = await session.claim([Partition(OLD, 1)])
    await session.commit([(held[Partition(OLD, 1)], "1")])
    await session.leave()
    bills, other = Partition(Queue(FORMER, "else", "bills"), 7), Partition(Queue(FORMER + "0", "acme", "orders"), 2)
    await coordinator.set_offsets({bills: "2", other: "3"})
    before = await coordinator.offsets()
    assert await coordinator.services() == {FORMER, FORMER + "0"}
    assert await coordinator.copy_offsets(FORMER, SERVICE) == 2
    after = await coordinator.offsets()
    assert after == before | {
        Partition(NEW, 1): before[Partition(OLD, 1)],
        Partition(Queue(SERVICE, "else", "bills"), 7): before[bills],
    }
    assert await coordinator.services() == {FORMER, FORMER + "0", SERVICE}


async def test_what_was_begun_under_the_new_name_stays(coordinator: Coordinator, join: Join) -> None:
    """Whether it has an offset, was only taken, or had an offset that was removed on purpose; so it may be repeated."""
    await coordinator.set_offsets({Partition(OLD, number): "5" for number in (1, 2, 3, 4)})
    await coordinator.set_offsets({Partition(NEW, 1): "3", Partition(NEW, 2): "9"})
    await coordinator.set_offsets({Partition(NEW, 2): None})
    session, _ = await join("a")
    held = await session.claim([Partition(NEW, 3)])
    assert await coordinator.copy_offsets(FORMER, SERVICE) == 1
    assert await ids(coordinator, NEW) == {1: "3", 4: "5"}
    assert (await session.commit([(held[Partition(NEW, 3)], "7")]))[Partition(NEW, 3)]
    assert await coordinator.copy_offsets(FORMER, SERVICE) == 0
    assert await ids(coordinator, NEW) == {1: "3", 3: "7", 4: "5"}


async def test_a_copied_offset_is_taken_up_and_fenced_as_any_other(coordinator: Coordinator, join: Join) -> None:
    """Whoever takes the partition begins there, and records from there on."""
    await coordinator.set_offsets({Partition(OLD, 1): "5"})
    await coordinator.copy_offsets(FORMER, SERVICE)
    session, _ = await join("a")
    one = Partition(NEW, 1)
    first = (await session.claim([one]))[one]
    again = (await session.claim([one]))[one]
    assert first.offset.id == again.offset.id == "5"
    assert await session.commit([(first, "6")]) == {one: None}
    assert (await session.commit([((await session.claim([one]))[one], "7")]))[one]


async def test_several_may_copy_at_once(open_one: Open) -> None:
    """Each offset is copied by one of them."""
    everybody = [await open_one() for _ in range(4)]
    queues = [Queue(FORMER, "acme", f"queue-{number}") for number in range(30)]
    await everybody[0].set_offsets(
        {Partition(queue, number): f"{number}" for queue in queues for number in range(1, 5)}
    )
    copied = await asyncio.gather(*(each.copy_offsets(FORMER, SERVICE) for each in everybody))
    assert sum(copied) == 120
    for queue in queues:
        assert await ids(everybody[1], queue._replace(service=SERVICE)) == {
            number: f"{number}" for number in range(1, 5)
        }


@pytest.mark.parametrize("name", [each for each in NAMES if len(each) < 1000])
async def test_services_may_have_any_name(coordinator: Coordinator, name: str) -> None:
    """Names are told apart, however they are written where they are stored."""
    await coordinator.set_offsets({Partition(Queue(name, "acme", "orders"), 1): "5"})
    assert await coordinator.services() == {name}
    assert await coordinator.copy_offsets(name, SERVICE) == 1
    assert await ids(coordinator, NEW) == {1: "5"}
