"""Claims in each other's way: services that claim from one partition simultaneously, and callers that leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from queuey.app.service import Service
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.log.partition_log import PartitionLog
from queuey.model.errors import StoreUnavailable
from queuey.storage import ClaimLogs, Store, bridge
from tests.blocking import blocking
from tests.contract.claims.test_claims import claimed_bodies, enter
from tests.contract.samples import append_bodies, make_queue, new_message
from tests.interposed_store import InterposedStore
from tests.replacing import replace
from tests.waiting import PATIENCE_SECONDS, until


def test_a_mistake_in_one_round_does_not_leave_others_waiting(store: Store) -> None:
    """Requests that arrive while a round fails with a program error are answered without waiting for others."""
    queue = make_queue(store)
    bridge.run(store.messages.append(queue, [new_message("a")]))
    service = Service(store)
    access = service.queues.access_unchecked(queue)
    rounds, failing = PartitionLog._round, threading.Event()

    async def fail(log: PartitionLog, taken: list[Any]) -> None:
        if failing.is_set():
            await rounds(log, taken)
            return
        failing.set()
        await asyncio.to_thread(until, lambda: bool(log._waiting))
        raise ValueError("a mistake")

    claim = partial(blocking(service.claims).claim, access, limit=1, ttl=60)
    with replace(rounds, fail), ThreadPoolExecutor(2) as pool:
        first = pool.submit(claim)
        assert failing.wait(PATIENCE_SECONDS)
        second = pool.submit(claim)
        with pytest.raises(StoreUnavailable, match="a mistake"):
            first.result(PATIENCE_SECONDS)
        assert [one.message.body for one in second.result(PATIENCE_SECONDS)] == ["a"]


@pytest.mark.parametrize("since", ["start", "entry"])
def test_given_up(store: Store, since: str) -> None:
    """A claim is undone whenever its caller leaves, in any turn of the loop: others get its messages soon."""
    queue = make_queue(store)
    watched = InterposedStore(store)
    service, access = enter(watched.store, queue)
    loop = service.claims.core.loop
    on_entry: list[Callable[[], object]] = []

    async def append(*given: Any, **more: Any) -> bool:  # noqa: ANN401
        applied = await store.claim_logs.append_entry(*given, **more)
        while on_entry:
            on_entry.pop()()
        return applied

    watched.instead(ClaimLogs.append_entry, append)

    async def leave(turns: int) -> bool:
        """Claims, and leaves after some turns of the loop; returns whether the claim had not ended by then."""
        claim = asyncio.ensure_future(service.claims.claim(queue, limit=1, ttl=1000))
        left: asyncio.Future[bool] = loop.create_future()

        def count_down(turns: int) -> None:
            if turns:
                loop.call_soon(count_down, turns - 1)
            else:
                left.set_result(claim.cancel())

        if since == "start":
            count_down(turns)
        else:
            on_entry.append(lambda: count_down(turns))
        await asyncio.gather(claim, return_exceptions=True)
        return await left

    delivered: list[ClaimDelivery] = []

    def is_delivered() -> bool:
        delivered[:] = blocking(service.claims).claim(access, limit=1, ttl=1000)
        return bool(delivered)

    for turns in range(50):
        append_bodies(store, queue, str(turns))
        if not service.claims.core.run(leave(turns)):
            break
        until(is_delivered)
        assert claimed_bodies(delivered) == [str(turns)]
        blocking(service.claims).acknowledge(access, [delivered[0].receipt])
    assert turns
    assert since == "start" or turns < 10
