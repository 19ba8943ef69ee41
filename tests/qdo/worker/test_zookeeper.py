"""A worker with a real ZooKeeper; the other tests run on the simulated tree."""

from __future__ import annotations

from tests.qdo.contract.zookeeper import ZooKeeperService
from tests.qdo.worker.conftest import Workers, until
from tests.servers.plugin import ZooKeeper


async def test_workers_share_and_record(workers: Workers, zookeeper: ZooKeeper) -> None:
    """Workers join, partitions move, and each message is handled once; the service does not see the group."""
    workers.system.use(ZooKeeperService(zookeeper.connect_string))
    queue = await workers.system.queue(partitions=2)
    for number in (1, 2):
        await workers.system.send(queue, 5, number)
    first, second = [await workers.make(workers.note_async, queue) for _ in range(2)]
    async with workers.serving(first):
        await until(lambda: len(workers.seen) == 10)
        workers.start(second)
        await until(lambda: len(first.consumer.assignment) == len(second.consumer.assignment) == 1)
    last = {number: (await workers.system.send(queue, 1, number, first=6))[-1] for number in (1, 2)}
    for number in (1, 2):
        await workers.wait_until_recorded(last[number], number)
    assert sorted(workers.seen) == sorted(f"{number}:{at}" for number in (1, 2) for at in range(1, 7))
    paths = workers.system.transport.paths
    assert paths
    assert not [path for path in paths if "_groups" in path or "/offsets/" in path]
