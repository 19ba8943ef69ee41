"""An append and a read of the Cassandra store on the simulated driver.

``python -m bench.call_counts.simulated_cassandra`` prints the calls of each operation by file. Both are coroutines in
simulated time, and answers take no real time, so the counts are always the same. The package of the driver is not
counted, because the simulation replaces parts of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from bench.call_counts.callers import RUNS, WARM_RUNS
from bench.call_counts.profiler import Profiler, find_fewest
from bench.harness import Void
from queuey.model.messages import NewMessage, QueueSpec, Slice
from tests.sim.cassandra.cluster import Cluster, NetworkFaults
from tests.sim.cassandra.messages import Site
from tests.sim.world import World

TTL = 3600
DRIVER = ("queuey/storage/cassandra/cluster/", "queuey/storage/cassandra/protocol/")
OPENING_SECONDS, PAUSE_SECONDS, OPERATION_SECONDS = 5.0, 2.0, 0.3
"""Simulated time until the store is warm, before an operation, and for an operation."""


def count_append_and_read(profiler: Profiler) -> dict[str, Counter[str]]:
    world = World(1)
    site = Site(world, Cluster(world, NetworkFaults()))
    results: list[Any] = []

    async def collect(operation: Callable[[], Coroutine[Any, Any, object]]) -> None:
        results.append(await operation())

    def run(operation: Callable[[], Coroutine[Any, Any, object]]) -> Counter[str]:
        world.run(world.now + PAUSE_SECONDS)
        profiler.begin()
        site.begin(collect(operation))
        world.run(world.now + OPERATION_SECONDS)
        calls = Counter({name: count for name, count in profiler.end().items() if not name.startswith(DRIVER)})
        if len(results) != 1 or not results.pop():
            raise Void("an operation on the simulated Cassandra did not end")
        return calls

    async def create() -> None:
        await site.store.applications.create_application("bench")
        results.append(await site.store.catalogue.create_queue("bench", "bench", QueueSpec(ttl=TTL)))

    site.begin(create())
    world.run(world.now + OPENING_SECONDS)
    queue, _ = results.pop()
    operations: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "append": partial(site.store.messages.append, queue, [NewMessage("x" * 200, 1, TTL)]),
        "read": partial(site.store.messages.read, queue, [Slice(1, limit=1)]),
    }
    return {
        name: find_fewest([run(operation) for _ in range(WARM_RUNS + RUNS)][WARM_RUNS:])
        for name, operation in operations.items()
    }


if __name__ == "__main__":
    counting = Profiler()
    counting.install()
    print(json.dumps(count_append_and_read(counting)))
