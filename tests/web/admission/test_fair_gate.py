"""The gate: all quota that work has taken is returned, however the work ends, and no work waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuey.model.errors import StoreUnavailable, TooManyRequests
from queuey.storage.deadlines import LoopCalls
from queuey.web.admission.scheduling import FairGate, FairPool, ScheduledWork, SharedQuota, TenantQuota
from tests.waiting import PATIENCE_SECONDS, until_async

TENANTS = "ab"
PLACES, BYTES, OWN = 4, 60, 1
"""Totals of the three quotas, so small that most work has to wait."""
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "enter", "leave", "cancel", "cancel", "give up late", "turn"]),
        st.sampled_from(TENANTS),
        st.integers(0, 40),
    ),
    min_size=8,
    max_size=40,
)


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await scenario()

    asyncio.run(main())


class Scene:
    """Work that passes a gate, with the shares of three quotas that it takes."""

    def __init__(self, *, most: int | None) -> None:
        self.quotas = SharedQuota(PLACES, alpha=1), SharedQuota(BYTES, alpha=2), TenantQuota(lambda: OWN)
        self.gate: FairGate[ScheduledWork] = FairGate(most, bound=self.quotas[0])
        self.under_way: dict[ScheduledWork, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.taken: list[Counter[str]] = [Counter(), Counter(), Counter()]

    def enter(self, tenant: str, size: int) -> None:
        weights = (1, size, size % 2)
        needs = [(quota, weight) for quota, weight in zip(self.quotas, weights, strict=True) if weight]
        self.tasks.append(asyncio.create_task(self._work(ScheduledWork(tenant, *needs), weights)))

    async def _work(self, turn: ScheduledWork, weights: tuple[int, ...]) -> None:
        """Takes its shares once it has a turn, and returns them when the test ends it, even if it is cancelled."""
        await self.gate.wait(turn)
        for taken, weight in zip(self.taken, weights, strict=True):
            taken[turn.tenant] += weight
        ended = self.under_way[turn] = asyncio.Event()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await ended.wait()
        finally:
            del self.under_way[turn]
            for taken, weight in zip(self.taken, weights, strict=True):
                taken[turn.tenant] -= weight
            self.gate.leave(turn, sum(weights))
            self.gate.leave(turn)  # The work has already ended.

    def leave(self, number: int) -> None:
        ends = list(self.under_way.values())
        if ends:
            ends[number % len(ends)].set()

    def cancel(self, number: int) -> None:
        open_tasks = [task for task in self.tasks if not task.done()]
        if open_tasks:
            open_tasks[number % len(open_tasks)].cancel()

    async def end(self) -> None:
        """Ends all work; waiting work gets its turn by that."""
        for _ in range(10 + 10 * len(self.tasks)):
            for ended in self.under_way.values():
                ended.set()
            await asyncio.sleep(0)
        assert all(task.done() for task in self.tasks)

    def check(self) -> None:
        """Checks that running work holds what it took. Work that begins in this turn of the loop has just taken it."""
        for quota, taken in zip(self.quotas, self.taken, strict=True):
            assert quota.free >= 0
            assert quota.total - quota.free == sum(quota.held(tenant) for tenant in TENANTS)
            assert all(quota.held(tenant) >= taken[tenant] for tenant in TENANTS)


@given(st.sampled_from([None, 1, 3]), STEPS)
@settings(deadline=None, max_examples=100)
def test_everything_is_given_back(most: int | None, steps: list[tuple[str, str, int]]) -> None:
    """In any order of entering, leaving, cancelling and giving up; all that still waits then gets its turn."""

    async def scenario() -> None:
        scene = Scene(most=most)
        for step, tenant, number in steps:
            if step == "enter":
                scene.enter(tenant, number)
                await asyncio.sleep(0)
            elif step == "leave":
                scene.leave(number)
            elif step == "cancel":
                scene.cancel(number)
            elif step == "give up late":
                scene.gate.refuse_overdue(-1 if number % 2 else 60)
            else:
                await asyncio.sleep(0)
            scene.check()
        await scene.end()
        ends = await asyncio.gather(*scene.tasks, return_exceptions=True)
        refusals = (asyncio.CancelledError, TooManyRequests, StoreUnavailable)
        assert all(end is None or isinstance(end, refusals) for end in ends)
        assert [quota.total - quota.free for quota in scene.quotas] == [0, 0, 0]
        scene.gate.refuse_overdue(-1)
        assert not scene.gate.turns

    play(scenario)


def test_who_is_to_blame_for_a_wait() -> None:
    """The error is that of what was lacking: of memory, else of a thread."""

    async def scenario() -> None:
        memory, places = SharedQuota(100, alpha=8), SharedQuota(8, alpha=8)
        gate: FairGate[ScheduledWork] = FairGate(bound=places)
        memory.change("large", 60)
        memory.change("other", 30)
        turns = {
            "many": ScheduledWork("many", (memory, 1), (places, 1)),
            "large": ScheduledWork("large", (memory, 40), (places, 1)),
            "small": ScheduledWork("small", (memory, 40), (places, 1)),
        }
        places.change("many", 7)
        places.change("few", 1)
        waiting = {name: asyncio.create_task(gate.wait(turn)) for name, turn in turns.items()}
        await asyncio.sleep(0)
        gate.refuse_overdue(-1)
        errors = dict(zip(waiting, await asyncio.gather(*waiting.values(), return_exceptions=True), strict=True))
        assert {name: type(error) for name, error in errors.items()} == {
            "many": TooManyRequests,  # It holds most of the places.
            "large": TooManyRequests,  # It holds most of the memory.
            "small": StoreUnavailable,
        }

    play(scenario)


@pytest.mark.parametrize("end", ["result", "error", "cancelled", "cancelled with its result"])
async def test_threads_and_memory_are_given_back(end: str) -> None:
    """The receiver of a result holds its memory; nothing else is held after a job has ended, in whatever way."""
    memory = SharedQuota(100, alpha=2)
    pool = FairPool("test", 2, memory, lambda: 1)
    may_go_on = threading.Semaphore(0)

    def finish(call: Callable[..., object], *details: object) -> None:
        call(*details)
        if end == "cancelled with its result":
            job.cancel()

    def work() -> None:
        assert may_go_on.acquire(timeout=PATIENCE_SECONDS)
        if end == "error":
            raise StoreUnavailable("a reason")

    pool.start(partial(LoopCalls(asyncio.get_running_loop()), finish))
    job = asyncio.create_task(pool.run("a", work, 45, computes=True))
    await asyncio.sleep(0)
    assert memory.held("a") == 45
    if end == "cancelled":
        job.cancel()
    may_go_on.release()
    await asyncio.wait([job], timeout=PATIENCE_SECONDS)
    await until_async(lambda: pool.job_quota.free == pool.job_quota.total)
    assert memory.held("a") == (45 if end == "result" else 0)
    assert end == "result" or job.cancelled() or isinstance(job.exception(), StoreUnavailable)
    pool.stop()
