"""Which service a group works for: what its store is called counts, and not the address."""

from __future__ import annotations

import asyncio
import logging

import pytest

from qdo.errors import QdoError, StoreChanged
from qdo.partitions import Partition, Queue
from tests.qdo.consumer.conftest import Site, bodies, collect, until
from tests.qdo.consumer.gate import Gate

SOON = 0.05
"""Seconds between looks; the shortest there can be."""
OTHER_STORE = "0" * 32


async def test_one_service_under_two_addresses_is_one(site: Site) -> None:
    """Members share its partitions, and nothing is handled twice."""
    queue = await site.queue(partitions=2)
    first = await site.consumer(queue)
    address = site.profile.url.replace("127.0.0.1", "localhost")
    assert address != site.profile.url
    second = await site.consumer(queue, client=site.connect(url=address))
    await until(lambda: len(first.assignment) == len(second.assignment) == 1)
    assert first.assignment | second.assignment == {Partition(queue, 1), Partition(queue, 2)}
    assert first.service == second.service == site.store
    for number in (1, 2):
        await site.send(queue, 3, partition=number)
    found = await asyncio.gather(collect(first, 3), collect(second, 3))
    assert sorted(message.body for messages in found for message in messages) == [
        f"{partition}:{number}" for partition in (1, 2) for number in (1, 2, 3)
    ]


async def test_what_was_recorded_under_an_address_is_taken_up(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Copied before anything is handed out, which is said once; later starts leave alone what was recorded since."""
    caplog.set_level(logging.INFO, "qdo.consumer")
    queue = await site.queue(partitions=2)
    sent = await site.send(queue, 4)
    address = site.profile.url.split("/")[2]
    coordinator = await site.coordinator()
    await coordinator.set_offsets({Partition(queue._replace(service=address), 1): sent[1]})
    both = await asyncio.gather(site.consumer(queue, owns=()), site.consumer(queue, owns=()))
    await until(lambda: sum(len(consumer.assignment) for consumer in both) == 2)
    (owner,) = (consumer for consumer in both if Partition(queue, 1) in consumer.assignment)
    assert bodies(await collect(owner, 2)) == [3, 4]
    assert caplog.text.count("1 offsets that group group had recorded under") == 1
    assert (await coordinator.offsets())[Partition(queue._replace(service=address), 1)].id == sent[1]
    await owner.commit()
    for consumer in both:
        await consumer.close()
    later = await site.consumer(queue)
    await site.send(queue, 1, first=5)
    assert bodies(await collect(later, 1)) == [5]
    assert caplog.text.count("offsets that group group had recorded") == 1


async def test_what_was_recorded_under_a_chosen_name_is_taken_up(site: Site) -> None:
    """The name is given as before."""
    queue = await site.queue()
    sent = await site.send(queue, 3)
    former = Partition(queue._replace(service="queues"), 1)
    await (await site.coordinator()).set_offsets({former: sent[1]})
    assert bodies(await collect(await site.consumer(queue, host="queues"), 1)) == [3]


async def test_a_group_that_knows_only_other_stores_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """It begins anew, and the log names the stores and the command that takes over what was recorded for one."""
    queue = await site.queue()
    await site.send(queue, 1)
    former = Partition(Queue(OTHER_STORE, "queuey", queue.name), 1)
    await (await site.coordinator()).set_offsets({former: "1" * 32})
    consumer = await site.consumer(queue)
    assert bodies(await collect(consumer, 1)) == [1]
    assert f"recorded offsets for {OTHER_STORE}, and none for this service, whose store is {site.store}" in caplog.text
    assert "qdo offsets migrate --from" in caplog.text


async def test_members_with_another_store_are_told_of(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """They get nothing, and the leader, here the first by name, says why, once."""
    queue = await site.queue(partitions=2)
    first = await site.consumer(queue, discover=SOON)
    site.gate = Gate()
    site.gate.store = OTHER_STORE
    other = await site.consumer(queue, owns=(), discover=SOON, member="z")
    await until(lambda: f"members use {OTHER_STORE}/" in caplog.text)
    assert other.assignment == frozenset()
    assert len(first.assignment) == 2
    await other.close()
    assert caplog.text.count("members use") == 1


async def test_another_store_at_the_same_address_ends_a_member(site: Site) -> None:
    """What was recorded for the old one says nothing about the new one; the error says what to do."""
    queue = await site.queue()
    consumer = await site.consumer(queue, discover=SOON)
    site.gate.store = OTHER_STORE
    with pytest.raises(
        StoreChanged, match=f"{OTHER_STORE} now, and this member began with {site.store}.*started again"
    ):
        await collect(consumer, 1)


async def test_a_service_that_has_no_name_is_named(site: Site) -> None:
    """One that is older does not say which store it has; the error says so."""
    queue = await site.queue()
    site.gate.store = ""
    with pytest.raises(QdoError, match="older than this program"):
        await site.consumer(queue)
