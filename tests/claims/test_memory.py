"""The memory of a process for claims is bounded, however many queues have some."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import queuey
from queuey.claims.log.claim_search import LogCache
from queuey.claims.log.log_requests import ClaimDelivery, ClaimTotals, Key
from queuey.model.messages import Queue
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.workers import Workers
from tests.sim.replicas import Faults, Replicas
from tests.sim.web import Setup, Web
from tests.sim.world import World, begin

OURS = tracemalloc.Filter(inclusive=True, filename_pattern=str(Path(queuey.__file__).parent / "*"))
SOME, MANY = 1000, 100_000
"""Numbers of queues with claims."""
TOGETHER = 200
"""Claims that are under way at once."""
BOUND = 1 << 20


def measure_allocated() -> int:
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([OURS])
    return sum(statistic.size for statistic in snapshot.statistics("filename"))


@pytest.mark.needs_histories
@pytest.mark.parametrize(
    "count", [SOME, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(7200)], id="many")]
)
def test_many_queues_with_claims(count: int) -> None:
    """After claims in many queues the process is within its bound, and forgotten claims still hold."""
    world = World(1)
    replicas = Replicas(world, Faults())
    web = Web(world, replicas, 0.0, Setup(limits=Limits(claims_memory=BOUND)))
    given = 0

    def done(claimed: list[ClaimDelivery] | None, error: Exception | None) -> None:
        nonlocal given
        assert error is None
        given += len(claimed or ())

    def claim(first: int, last: int) -> None:
        for number in range(first, last):
            queue = Queue(application="acme", name="q", uid=number, qid=number)
            begin(web.core, web.claims.claim(queue, limit=1, ttl=4e4), done)
        world.run(world.now + 1.0)

    # The model has the same messages in all queues, and a log for each, of which the first are needed again.
    replicas.write(web.process, 1, "x", lambda _place: None)
    world.run(world.now + 1.0)
    claim(1, TOGETHER)
    tracemalloc.start()
    try:
        before = measure_allocated()
        highest = 0
        for first in range(TOGETHER, count, TOGETHER):
            claim(first, first + TOGETHER)
            replicas.logs = {key: log for key, log in replicas.logs.items() if key[0] < TOGETHER}
            if first % (count // 10) < TOGETHER:
                highest = max(highest, measure_allocated() - before)
    finally:
        tracemalloc.stop()
    assert given == count - 1
    assert 0.5 * BOUND < highest < 1.2 * BOUND
    claim(1, TOGETHER)
    assert given == count - 1


@pytest.fixture
def forgetting() -> tuple[World, Replicas, Web]:
    """A process that forgets a log as soon as another one is used."""
    world = World(1)
    replicas = Replicas(world, Faults())
    return world, replicas, Web(world, replicas, 0.0, Setup(limits=Limits(claims_memory=1)))


def test_logs_that_are_forgotten_between_requests_stay_short(forgetting: tuple[World, Replicas, Web]) -> None:
    """A process that reads a log again for each request also truncates it."""
    world, replicas, web = forgetting
    queues = [Queue(application="acme", name="q", uid=number, qid=number) for number in (1, 2)]
    given: list[ClaimDelivery] = []
    for _ in range(60):
        replicas.write(web.process, 1, "x", lambda _place: None)
        for queue in queues:
            world.run(world.now + 0.5)
            begin(
                web.core, web.claims.claim(queue, limit=1, ttl=4e4), lambda claimed, _error: given.extend(claimed or ())
            )
    world.run(world.now + 1.0)
    assert len(given) == 120
    for queue in queues:
        log = replicas.logs[queue.qid, 1]
        assert (log.last, log.snapshot > 40, len(log.entries) < 20) == (60, True, True)


def test_logs_in_use_stay() -> None:
    """Beyond the bound the log that was used longest ago is dropped, but none with waiting requests."""
    made: dict[Key, SimpleNamespace] = {}

    def make(key: Key, after: Callable[[Any], None]) -> Any:  # noqa: ANN401
        made[key] = SimpleNamespace(key=key, weight=100, idle=True, last_conflict=0.0, add=lambda: None, after=after)
        return made[key]

    cache = LogCache(make, 300, Workers(), Core(), ClaimTotals())

    def use(*numbers: int) -> list[int]:
        for number in numbers:
            cache.add((number, 1), here=True)
            made[number, 1].after(made[number, 1])
        return [number for number, _ in made if cache.find_last_conflict((number, 1)) == 0.0]

    assert use(1, 2, 3, 1, 4) == [1, 3, 4]
    made[1, 1].idle = False
    assert use(5, 6, 7) == [1, 6, 7]
