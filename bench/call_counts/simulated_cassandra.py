"""An append and a read of the Cassandra store on the simulated driver.

``python -m bench.call_counts.simulated_cassandra`` prints the calls of each by file. Answers take no time of the
machine, and threads are greenlets in simulated time, so the counts are the same each time. The driver's package is not
counted: how much of it runs depends on what is simulated below it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench.call_counts.callers import RUNS, WARM_RUNS
from bench.call_counts.profiler import Profiler, fewest
from bench.harness import Void
from queuey.messages import NewMessage, QueueSpec, Slice
from tests.sim.cassandra.cluster import Cluster, Weather
from tests.sim.cassandra.messages import Site
from tests.sim.cassandra.threads import simulated_threads
from tests.sim.world import World

TTL = 3600
DRIVER = "queuey/storage/cassandra/driver/"
OPENING_SECONDS, PAUSE_SECONDS, OPERATION_SECONDS = 5.0, 2.0, 0.3
"""Simulated time until the store is warm, before an operation, and for an operation."""


def count_append_and_read(profiler: Profiler) -> dict[str, Counter[str]]:
    """Returns the calls of an append and a read of one message, of the run with the fewest files."""
    random.seed(1)  # The store draws its pauses from there.
    world = World(1)
    site = Site(world, Cluster(world, Weather()))
    done: list[Any] = []

    def run(operation: Callable[[], object]) -> Counter[str]:
        world.run(world.now + PAUSE_SECONDS)
        profiler.begin()
        site.begin(lambda: done.append(operation()))
        world.run(world.now + OPERATION_SECONDS)
        calls = Counter({name: count for name, count in profiler.end().items() if not name.startswith(DRIVER)})
        if len(done) != 1 or not done.pop():
            raise Void("an operation on the simulated Cassandra did not end")
        return calls

    def create() -> object:
        site.store.create_application("bench")
        return site.store.create_queue("bench", "bench", QueueSpec(ttl=TTL))

    site.begin(lambda: done.append(create()))
    world.run(world.now + OPENING_SECONDS)
    queue, _ = done.pop()
    operations = {
        "append": lambda: site.store.append(queue, [NewMessage("x" * 200, 1, TTL)]),
        "read": lambda: site.store.read(queue, [Slice(1, limit=1)])[0].messages,
    }
    return {
        name: fewest([run(operation) for _ in range(WARM_RUNS + RUNS)][WARM_RUNS:])
        for name, operation in operations.items()
    }


if __name__ == "__main__":
    counting = Profiler()
    counting.install()
    with simulated_threads():
        print(json.dumps(count_append_and_read(counting)))
