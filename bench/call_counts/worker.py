"""Counts the calls of a Qdo worker process that fetches, handles and commits one message.

``python -m bench.call_counts.worker PORT QUEUE GROUPS`` prints the calls by file. The service at the port is a real
one. If GROUPS is ``service``, the service also coordinates the group. If it is ``zookeeper``, the group uses a
simulated tree, so of the modules for ZooKeeper only the lease is crossed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable

from bench.call_counts.callers import RUNS, TIMEOUT_SECONDS, WARM_RUNS, Caller, make_post
from bench.call_counts.profiler import Profiler, find_fewest
from bench.handlers import awaited
from bench.harness import Void
from bench.load import traffic
from bench.started import service
from qdo import AsyncConsumer, Worker, WorkerSettings
from qdo.group.protocol import Coordinator
from qdo.group.service import ServiceCoordinator
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.paths import GroupPaths
from queuey.client import AsyncClient
from tests.sim.groups.tree import LoopHost, Tree, TreeLink, make_loop_tree

GROUP = "group"
OFFSETS = GroupPaths("", GROUP).offsets
SESSION_TIMEOUT = 300.0
"""Seconds; long enough that no heartbeat is due while calls are counted."""

State = Callable[[], object]
"""Returns a value that changes with each commit, without calling the product."""


async def count_commit(profiler: Profiler, port: int, queue: str, groups: str) -> Counter[str]:
    """Returns the calls that a worker makes for one message until it is committed: the fewest of several runs."""
    caller = Caller(port)
    async with AsyncClient(f"http://127.0.0.1:{port}", key=traffic.KEY, application=service.APPLICATION) as client:
        coordinator: Coordinator
        if groups == "service":
            coordinator = ServiceCoordinator(client, GROUP, session_timeout=SESSION_TIMEOUT)
            offsets = traffic.request("GET", f"{service.BASE}/{queue}/offsets/{GROUP}")
            state: State = lambda: caller.ask(offsets, 200)[0]  # noqa: E731 - as the other one
        else:
            tree = make_loop_tree()
            coordinator = ZooKeeperCoordinator(
                GROUP, lambda _: TreeLink(tree, LoopHost(), SESSION_TIMEOUT), SESSION_TIMEOUT
            )
            state = lambda: _count_commits(tree)  # noqa: E731 - as above
        await coordinator.open()
        consumer = AsyncConsumer(client, coordinator, queues=[queue])
        worker = Worker(awaited, consumer, settings=WorkerSettings(commit_messages=1))
        serving = asyncio.create_task(worker.serve())
        await _wait_until_owned(consumer)
        runs = [await _count_one(profiler, state, caller, queue) for _ in range(WARM_RUNS + RUNS)]
        worker.stop()
        await asyncio.wait_for(serving, TIMEOUT_SECONDS)
        await coordinator.close()
    caller.close()
    return find_fewest(runs[WARM_RUNS:])


async def _wait_until_owned(consumer: AsyncConsumer) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not consumer.assignment:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def _count_one(profiler: Profiler, state: State, caller: Caller, queue: str) -> Counter[str]:
    """Posts a message and waits until it is committed and the worker is idle; returns the calls."""
    await asyncio.to_thread(profiler.settle)
    before, deadline = await asyncio.to_thread(state), time.monotonic() + TIMEOUT_SECONDS
    profiler.begin()
    await asyncio.to_thread(caller.ask, make_post(queue), 201)
    while await asyncio.to_thread(state) == before:
        if time.monotonic() > deadline:
            raise Void("the worker did not commit in time")
        await asyncio.sleep(0.005)
    await asyncio.to_thread(profiler.settle)
    return profiler.end()


def _count_commits(tree: Tree) -> int:
    return sum(1 + node.version for path, node in tree.nodes.items() if path.startswith(f"{OFFSETS}/"))


if __name__ == "__main__":
    counting = Profiler()
    counting.install()
    print(json.dumps(asyncio.run(count_commit(counting, int(sys.argv[1]), *sys.argv[2:]))))
