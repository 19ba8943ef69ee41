"""Which service a group works for: the id of the store decides, not the address."""

from __future__ import annotations

import asyncio

import pytest

from qdo.errors import StoreChanged
from qdo.partitions import Partition, Queue
from queuey.client import NotFound
from tests.qdo.consumer.conftest import System, body_numbers, collect, until
from tests.qdo.consumer.controlled_transport import ControlledTransport

LOOK_UP_SECONDS = 0.05
"""Seconds between look-ups; the shortest allowed."""
OTHER_STORE = "0" * 32


async def test_one_service_under_two_addresses_is_one(system: System) -> None:
    """Members that use two addresses of one service share its partitions, and nothing is handled twice."""
    queue = await system.queue(partitions=2)
    first = await system.consumer(queue)
    address = system.profile.url.replace("127.0.0.1", "localhost")
    assert address != system.profile.url
    second = await system.consumer(queue, client=system.connect(url=address))
    await until(lambda: len(first.assignment) == len(second.assignment) == 1)
    assert first.assignment | second.assignment == {Partition(queue, 1), Partition(queue, 2)}
    assert first.service == second.service == system.store
    for number in (1, 2):
        await system.send(queue, 3, partition=number)
    batches = await asyncio.gather(collect(first, 3), collect(second, 3))
    assert sorted(message.body for messages in batches for message in messages) == [
        f"{partition}:{number}" for partition in (1, 2) for number in (1, 2, 3)
    ]


async def test_a_group_that_knows_only_other_stores_is_told(system: System, caplog: pytest.LogCaptureFixture) -> None:
    """A group that knows only other stores begins anew; the log names the stores and the command that sets offsets."""
    queue = await system.queue()
    await system.send(queue, 1)
    former = Partition(Queue(OTHER_STORE, "queuey", queue.name), 1)
    await (await system.coordinator()).set_offsets({former: "1" * 32})
    consumer = await system.consumer(queue)
    assert body_numbers(await collect(consumer, 1)) == [1]
    assert (
        f"recorded offsets for {OTHER_STORE}, and none for this service, whose store is {system.store}" in caplog.text
    )
    assert "qdo offsets seek --to TIME" in caplog.text


async def test_members_with_another_store_are_told_of(system: System, caplog: pytest.LogCaptureFixture) -> None:
    """Members with another store get no partitions; the leader, here the first by name, logs the reason once."""
    queue = await system.queue(partitions=2)
    first = await system.consumer(queue, discover=LOOK_UP_SECONDS)
    system.transport = ControlledTransport()
    system.transport.store = OTHER_STORE
    other = await system.consumer(queue, owns=(), discover=LOOK_UP_SECONDS, member="z")
    await until(lambda: f"members use {OTHER_STORE}/" in caplog.text)
    assert other.assignment == frozenset()
    assert len(first.assignment) == 2
    await other.close()
    assert caplog.text.count("members use") == 1


async def test_another_store_at_the_same_address_ends_a_member(system: System) -> None:
    """Offsets of the old store mean nothing for the new one, so the member ends with an error that says what to do."""
    queue = await system.queue()
    consumer = await system.consumer(queue, discover=LOOK_UP_SECONDS)
    system.transport.store = OTHER_STORE
    with pytest.raises(
        StoreChanged, match=f"{OTHER_STORE} now, and this member began with {system.store}.*started again"
    ):
        await collect(consumer, 1)


async def test_an_address_without_a_service(system: System) -> None:
    """A member that is given a wrong address ends with the error, because waiting does not help."""
    queue = await system.queue()
    system.transport.store = ""
    with pytest.raises(NotFound):
        await system.consumer(queue)
