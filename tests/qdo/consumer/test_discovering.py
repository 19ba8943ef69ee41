"""Queues and partitions that appear, grow and go while a consumer runs."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from qdo.group.discovery import discover_queues
from qdo.partitions import Partition, Queue, subscribe
from queuey.client import NotAllowed, QueuePage
from tests.qdo.consumer.conftest import System, body_numbers, collect, until

LOOK_UP_SECONDS = 0.05
"""Seconds between look-ups; the shortest allowed."""


async def create_queues(system: System, *names: str, partitions: int = 1) -> list[Queue]:
    """Creates queues whose names begin with a unique prefix, which comes first in the result."""
    prefix = uuid.uuid4().hex[:8]
    for name in names:
        await system.client.create_queue(prefix + name, partitions=partitions)
    return [system.refer_to(prefix), *(system.refer_to(prefix + name) for name in names)]


async def test_a_listing_is_gone_through_page_by_page(system: System) -> None:
    """Matching queues are found on every page of the listing, wherever a page ends; others are left out."""
    prefix, *_ = await create_queues(system, *(f"-{letter}" for letter in "abcdefg"), partitions=2)
    await system.client.create_queue(prefix.name + "-zz.dead")
    discovered = await discover_queues(system.client, subscribe([], [prefix.name + "-*"]), listed=2)
    assert discovered == {f"{prefix.name}-{letter}": 2 for letter in "abcdefg"}
    names = [f"{prefix.name}-{letter}" for letter in "abcfgx"]
    assert set(await discover_queues(system.client, subscribe(names, []), listed=2)) == set(names[:5])
    both = await discover_queues(system.client, subscribe(names[:1], [prefix.name + "-[fg]"]), listed=2)
    assert set(both) == {names[0], names[3], names[4]}


async def test_names_are_found_without_the_queues_between_them(system: System) -> None:
    """Names are found without paging through queues between them, of which another application may have thousands."""
    names = [f"-{letter}{number:02}" for letter in "abcdef" for number in range(20)]
    prefix, *_ = await create_queues(system, *names)
    matching = [f"{prefix.name}-{letter}07" for letter in "abcdef"]
    client, listed = system.connect(), 0
    read = client.queue_page

    async def counted(**options: Any) -> QueuePage:  # noqa: ANN401 - passed on
        nonlocal listed
        page = await read(**options)
        listed += len(page.queues)
        return page

    client.queue_page = counted  # type: ignore[method-assign]
    assert set(await discover_queues(client, subscribe(matching, []))) == set(matching)
    assert listed <= 4 * len(matching)


async def test_a_queue_that_is_deleted_is_given_up(system: System) -> None:
    """A deleted queue is given up as soon as a read finds it gone; the others go on."""
    queue, other = await system.queue(partitions=2), await system.queue()
    consumer = await system.consumer(queue, other, discover=3600)
    await until(lambda: len(consumer.assignment) == 3)
    await system.client.delete_queue(queue.name)
    await until(lambda: consumer.assignment == {Partition(other, 1)})
    await system.send(other, 1)
    assert body_numbers(await collect(consumer, 1)) == [1]


async def test_whoever_may_read_but_not_list_names_his_queues(system: System) -> None:
    """With a key that may read but not list, names are looked up one by one, and a pattern is refused."""
    public = await system.queue(partitions=2, type="public")
    stranger = system.connect(key="")
    await system.send(public, 2)
    absent = system.refer_to(public.name + "x")
    consumer = await system.consumer(public, absent, client=stranger)
    assert body_numbers(await collect(consumer, 2)) == [1, 2]
    assert consumer.assignment == {Partition(public, 1), Partition(public, 2)}
    with pytest.raises(NotAllowed):
        await system.consumer(client=stranger, patterns=["*"], group="another")
