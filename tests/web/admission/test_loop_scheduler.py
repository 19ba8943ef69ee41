"""The event loop's time: a single tenant has all of it; of several, none waits behind another's backlog."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator

import pytest

from queuey.model.errors import TooManyRequests
from queuey.storage.deadlines import LoopCalls
from queuey.web.admission.scheduling import LoopScheduler, Share, Shares
from tests.waiting import PATIENCE_SECONDS
from tests.web.gateway_calls import until


async def run_loop_turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_tenant_is_present_for_a_moment_after_its_requests() -> None:
    """One tenant, however often it asks, is alone; two whose requests follow each other are several for a moment.

    Meanwhile a thread that computes hands the interpreter over sooner.
    """
    sys.setswitchinterval(0.005)
    loop = asyncio.get_running_loop()
    shares = Shares(1, 100, page_bytes=10, patience=1.0, readers=1, reads_wait=False)
    shares.start(loop, LoopCalls(loop))
    for number, tenant in enumerate("aaabbab"):
        share = Share(shares, tenant)
        await share.enter(0)
        share.release()
        assert shares.has_several == (number > 2)
    assert sys.getswitchinterval() == pytest.approx(Shares.SWITCH_SECONDS, rel=0.01)
    await until(lambda: not shares.has_several)
    assert sys.getswitchinterval() == pytest.approx(0.005, rel=0.01)
    await Share(shares, "b").enter(0)
    assert not shares.has_several
    shares.threads.stop()


@pytest.fixture(autouse=True)
def _same_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


async def test_a_backlog_of_one_is_not_anothers() -> None:
    """Behind hundreds of one tenant's requests, another's begins in the next turn but one."""
    time = LoopScheduler()
    order: list[str] = []

    async def request(tenant: str) -> None:
        turn = await time.wait_for_turn(tenant, 100)
        order.append(tenant)
        time.leave(turn, 0.001)

    greedy = [asyncio.create_task(request("greedy")) for _ in range(500)]
    await run_loop_turns()
    for _ in range(10):
        before = len(order)
        await request("other")
        assert order[before:].count("greedy") <= 2 * LoopScheduler.MAX_STARTED
    assert order.count("greedy") < 250
    await asyncio.gather(*greedy)


@pytest.mark.parametrize(("seconds", "most"), [(0.00001, LoopScheduler.MAX_STARTED), (0.0003, 2), (0.1, 1)])
async def test_a_turn_is_short(seconds: float, most: int) -> None:
    """A turn of the loop begins fewer requests the longer each takes, but always one."""
    time = LoopScheduler()
    begun = 0

    async def request() -> None:
        nonlocal begun
        turn = await time.wait_for_turn("a", 0)
        begun += 1
        time.leave(turn, seconds)

    await request()
    requests = [asyncio.create_task(request()) for _ in range(100)]
    turns_seen = {0}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not all(task.done() for task in requests):
            before = begun
            await asyncio.sleep(0)
            turns_seen.add(begun - before)
    assert max(turns_seen) == most


@pytest.mark.parametrize(("size", "most"), [(0, 32), (60_000, 4), (1 << 20, 1)])
async def test_no_more_of_one_are_under_way_than_its_part(size: int, most: int) -> None:
    """A tenant among several has as many running as its part allows, and fewer long ones; each end begins another."""
    time = LoopScheduler()
    entering = [asyncio.create_task(time.wait_for_turn("a", size)) for _ in range(100)]
    await run_loop_turns(100)
    assert sum(task.done() for task in entering) == most
    for begun in range(most, 100):
        done = [task.result() for task in entering if task.done()]
        assert len(done) == begun
        time.leave(done[begun - most], 0.001)
        await run_loop_turns()
    assert all(task.done() for task in entering)


async def test_requests_whose_turn_does_not_come_are_refused() -> None:
    """What waits for too long is refused, and leaves the tenant's part as it was."""
    time = LoopScheduler()
    first = await time.wait_for_turn("a", 1 << 20)
    waiting = asyncio.create_task(time.wait_for_turn("a", 0))
    await run_loop_turns()
    time.refuse_overdue(60)
    await run_loop_turns()
    assert not waiting.done()
    time.refuse_overdue(-1)
    with pytest.raises(TooManyRequests):
        await waiting
    time.leave(first)
    await time.wait_for_turn("a", 1 << 20)


@pytest.mark.parametrize("begun", [False, True])
async def test_requests_called_off_give_their_part_back(begun: bool) -> None:  # noqa: FBT001 - a parameter
    """A request that is called off while it waits, or in the very turn that begins it, is not under way."""
    time = LoopScheduler()
    waiting = asyncio.create_task(time.wait_for_turn("a", 1 << 20))
    await run_loop_turns(2 if begun else 1)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(time.wait_for_turn("a", 1 << 20), 60)
