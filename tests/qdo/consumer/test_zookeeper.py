"""A consumer with a real ZooKeeper; the other tests run on the simulated tree."""

from __future__ import annotations

from qdo.partitions import Partition
from tests.qdo.consumer.conftest import System, collect, until
from tests.qdo.contract.zookeeper import ZooKeeperService
from tests.servers.plugin import ZooKeeper


async def test_a_group_shares_and_commits(system: System, zookeeper: ZooKeeper) -> None:
    """Members join, partitions move, and committed messages are handled once."""
    system.use(ZooKeeperService(zookeeper.connect_string))
    queue = await system.queue(partitions=2)
    both = {Partition(queue, 1), Partition(queue, 2)}
    first = await system.consumer(queue, owns=both)
    sent = {number: (await system.send(queue, 3, number))[-1] for number in (1, 2)}
    assert len(await collect(first, 6)) == 6
    await first.commit()
    second = await system.consumer(queue)
    await until(lambda: first.assignment | second.assignment == both and len(first.assignment) == 1)
    (moved,) = second.assignment
    await system.send(queue, 1, moved.number, first=4)
    assert [message.body for message in await collect(second, 1)] == [f"{moved.number}:4"]
    await second.close()
    await until(lambda: first.assignment == both)
    assert [message.body for message in await collect(first, 1)] == [f"{moved.number}:4"]
    assert await system.offsets() == {each: sent[each.number] for each in both}
