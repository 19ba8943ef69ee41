"""An append and a read of the Cassandra store on the simulated driver.

``python -m bench.call_counts.simulated_cassandra`` prints the calls of each by file. Answers take no time of the
machine, and both are coroutines in simulated time, so the counts are the same each time. The driver's package is not
counted: how much of it runs depends on what is simulated below it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from bench.call_counts.callers import RUNS, WARM_RUNS
from bench.call_counts.profiler import Profiler, fewest
from bench.harness import Void
from queuey.messages import NewMessage, QueueSpec, Slice
from tests.sim.cassandra.cluster import Cluster, Weather
from tests.sim.cassandra.messages import Site
from tests.sim.world import World

TTL = 3600
DRIVER = "queuey/storage/cassandra/driver/"
OPENING_SECONDS, PAUSE_SECONDS, OPERATION_SECONDS = 5.0, 2.0, 0.3
"""Simulated time until the store is warm, before an operation, and for an operation."""


def count_append_and_read(profiler: Profiler) -> dict[str, Counter[str]]:
    """Returns the calls of an append and a read of one message, of the run with the fewest files."""
    world = World(1)
    site = Site(world, Cluster(world, Weather()))
    done: list[Any] = []

    async def note(operation: Callable[[], Coroutine[Any, Any, object]]) -> None:
        done.append(await operation())

    def run(operation: Callable[[], Coroutine[Any, Any, object]]) -> Counter[str]:
        world.run(world.now + PAUSE_SECONDS)
        profiler.begin()
        site.begin(note(operation))
        world.run(world.now + OPERATION_SECONDS)
        calls = Counter({name: count for name, count in profiler.end().items() if not name.startswith(DRIVER)})
        if len(done) != 1 or not done.pop():
            raise Void("an operation on the simulated Cassandra did not end")
        return calls

    async def create() -> None:
        await site.store.applications.create_application("bench")
        done.append(await site.store.catalogue.create_queue("bench", "bench", QueueSpec(ttl=TTL)))

    site.begin(create())
    world.run(world.now + OPENING_SECONDS)
    queue, _ = done.pop()
    operations: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "append": partial(site.store.messages.append, queue, [NewMessage("x" * 200, 1, TTL)]),
        "read": partial(site.store.messages.read, queue, [Slice(1, limit=1)]),
    }
    return {
        name: fewest([run(operation) for _ in range(WARM_RUNS + RUNS)][WARM_RUNS:])
        for name, operation in operations.items()
    }


if __name__ == "__main__":
    counting = Profiler()
    counting.install()
    print(json.dumps(count_append_and_read(counting)))
