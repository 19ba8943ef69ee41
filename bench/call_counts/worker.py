"""A Qdo worker that fetches, handles and commits one message: the calls of its process.

``python -m bench.call_counts.worker PORT QUEUE`` prints the calls by file. The service at the port is a real one.
The group uses a simulated tree, so of the modules for ZooKeeper only the lease is crossed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

from bench.call_counts.callers import RUNS, SECONDS, WARM_RUNS, Caller, post
from bench.call_counts.profiler import Profiler, fewest
from bench.handlers import awaited
from bench.harness import Void
from bench.load.traffic import KEY
from bench.started import service
from qdo import AsyncConsumer, Worker, WorkerSettings
from qdo.coordination import Coordinator
from qdo.coordination.paths import GroupPaths
from queuey.client import AsyncClient
from tests.sim.groups.tree import LoopHost, Tree, TreeLink, loop_tree

GROUP = "group"
OFFSETS = GroupPaths("", GROUP).offsets
SESSION_TIMEOUT = 600.0
"""Seconds; so long that no sign of life is due while calls are counted."""


async def count_commit(profiler: Profiler, port: int, queue: str) -> Counter[str]:
    """Returns the calls from the fetch of a message to its commit, of the run with the fewest files."""
    tree, caller = loop_tree(), Caller(port)
    coordinator = Coordinator(GROUP, lambda _: TreeLink(tree, LoopHost(), SESSION_TIMEOUT), SESSION_TIMEOUT)
    await coordinator.open()
    async with AsyncClient(f"http://127.0.0.1:{port}", key=KEY, application=service.APPLICATION) as client:
        consumer = AsyncConsumer(client, coordinator, queues=[queue])
        worker = Worker(awaited, consumer, settings=WorkerSettings(commit_messages=1))
        serving = asyncio.create_task(worker.serve())
        runs = [await _run(profiler, tree, caller, queue) for _ in range(WARM_RUNS + RUNS)]
        worker.stop()
        await asyncio.wait_for(serving, SECONDS)
    await coordinator.close()
    caller.close()
    return fewest(runs[WARM_RUNS:])


async def _run(profiler: Profiler, tree: Tree, caller: Caller, queue: str) -> Counter[str]:
    """Posts a message and waits until it is committed and nothing goes on; returns the calls."""
    await asyncio.to_thread(profiler.settle)
    commits, deadline = _commits(tree), time.monotonic() + SECONDS
    profiler.begin()
    await asyncio.to_thread(caller.ask, post(queue), 201)
    while _commits(tree) == commits:
        if time.monotonic() > deadline:
            raise Void("the worker does not commit")
        await asyncio.sleep(0.005)
    await asyncio.to_thread(profiler.settle)
    return profiler.end()


def _commits(tree: Tree) -> int:
    """Returns how often offsets were written."""
    return sum(1 + node.version for path, node in tree.nodes.items() if path.startswith(f"{OFFSETS}/"))


if __name__ == "__main__":
    counting = Profiler()
    counting.install()
    print(json.dumps(asyncio.run(count_commit(counting, int(sys.argv[1]), sys.argv[2]))))
