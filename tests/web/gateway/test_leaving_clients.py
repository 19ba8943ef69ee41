"""Claims whose clients disconnect before the answer: no other caller has to wait until such a claim expires."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuey.service import Limits
from queuey.storage import ClaimLogs, Store
from queuey.web.asgi import answer
from queuey.web.gateway.asgi import Gateway
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller
from tests.web.gateway_calls import TEST_TIMEOUT, Request, Run, until

WAITING = f"wait={TEST_TIMEOUT}&ttl=600"


@pytest.fixture
def limits() -> Limits:
    """Long polls that outlast a busy machine."""
    return Limits(max_wait=TEST_TIMEOUT)


class Claim(Request):
    """A claim whose client can disconnect."""

    def __init__(self, query: str = "ttl=600") -> None:
        super().__init__("POST", "/v1/queuey/q/claims", query=query)
        self._left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Returns the end of the body, and then nothing until the client disconnects."""
        if self.pieces:
            return await super().receive()
        await asyncio.wait_for(self._left.wait(), 600)
        return {"type": "http.disconnect"}

    def begin(self, gateway: Gateway) -> asyncio.Task[None]:
        return asyncio.ensure_future(answer(gateway, self.scope, self.receive, self.send))

    async def leave(self, task: asyncio.Task[None]) -> None:
        """Disconnects, waits for the end, and checks that no message was sent."""
        self._left.set()
        async with asyncio.timeout(TEST_TIMEOUT / 2):
            await task
        assert b'"message_id"' not in self.response


async def deliveries(gateway: Gateway) -> int:
    """Claims a message; returns its number of deliveries. None of them counts as an attempt but this one."""
    [message] = (await Claim(WAITING).to(gateway)).messages
    assert message["deliveries"] == 1
    count: int = message.get("handed_out", 1)
    return count


class HeldAppends:
    """Appends that wait until the test lets them go on."""

    def __init__(self, store: Store, between: InterposedStore) -> None:
        self._store, self._between = store, between
        self._begun, self._go_on = asyncio.Event(), asyncio.Event()
        between.instead(ClaimLogs.append_entry, self._hold)

    async def _hold(self, *args: Any, **named: Any) -> bool:  # noqa: ANN401 - as it is called
        self._begun.set()
        await self._go_on.wait()
        return await self._store.claim_logs.append_entry(*args, **named)

    async def begun(self) -> None:
        await asyncio.wait_for(self._begun.wait(), TEST_TIMEOUT)

    def go_on(self) -> None:
        self._between.restore(ClaimLogs.append_entry)
        self._go_on.set()


def test_before_its_first_turn(run: Run, owner: Caller) -> None:
    """A long poll whose client leaves before its first try is not tried: it takes nothing."""
    owner.create("q")
    owner.post("q", "x")

    async def work(gateway: Gateway) -> int:
        polls = gateway._polls
        polls.attempt_quota.change("other", polls.attempt_quota.total)
        claim = Claim(WAITING)
        task = claim.begin(gateway)
        await until(lambda: bool(polls.attempts._turns))
        await claim.leave(task)
        polls.attempt_quota.change("other", -polls.attempt_quota.total)
        return await deliveries(gateway)

    assert run(work) == 1


@pytest.mark.parametrize("query", [WAITING, "ttl=600"])
def test_while_its_append_is_under_way(
    run: Run, owner: Caller, store: Store, between: InterposedStore, query: str
) -> None:
    """Messages that a claim, waiting or not, gets after its client has left are released with the next entry."""
    owner.create("q")
    owner.post("q", "x")

    async def work(gateway: Gateway) -> int:
        await Claim("ttl=0").to(gateway)  # the credential and the queue are cached
        appends = HeldAppends(store, between)
        claim = Claim(query)
        task = claim.begin(gateway)
        await appends.begun()
        await claim.leave(task)
        appends.go_on()
        return await deliveries(gateway)

    assert run(work) == 2


def test_in_a_later_try(run: Run, owner: Caller, store: Store, between: InterposedStore) -> None:
    """If a client leaves before its woken long poll claims messages, the next entry releases them."""
    owner.create("q")

    async def work(gateway: Gateway) -> int:
        claim = Claim(WAITING)
        task = claim.begin(gateway)
        await until(lambda: len(gateway._polls._waiting) == 1 and not gateway._calls)
        appends = HeldAppends(store, between)
        await Request(body=b"x").to(gateway)
        await appends.begun()
        await claim.leave(task)
        appends.go_on()
        return await deliveries(gateway)

    assert run(work) == 2


@pytest.mark.parametrize("line", ["loop", "threads"])
def test_while_it_waits_in_line(run: Run, owner: Caller, line: str) -> None:
    """A claim whose client leaves while it waits for the loop's time, or for a thread, takes nothing."""
    owner.create("q")
    owner.post("q", "x")

    async def work(gateway: Gateway) -> int:
        await Claim("ttl=0").to(gateway)
        tenant = "app:queuey"
        quota = gateway._scheduler._under_way if line == "loop" else gateway._memory
        weight = 1024 if line == "loop" else quota.total
        quota.change(tenant, weight)
        if line == "loop":
            gateway._contention.has_several = True
        claim = Claim()
        task = claim.begin(gateway)
        await until(lambda: len(gateway._scheduler._turns if line == "loop" else gateway._threads._turns) == 1)
        [client] = gateway._clients._unwatched
        claim._left.set()
        await until(lambda: client.has_left)
        quota.change(tenant, -weight)
        gateway._scheduler.dispatch()
        gateway._threads.dispatch()
        await claim.leave(task)
        return await deliveries(gateway)

    assert run(work) == 1


def test_that_is_cancelled(run: Run, owner: Caller, store: Store, between: InterposedStore) -> None:
    """What a claim gets whose request the server has cancelled is released with the next entry."""
    owner.create("q")
    owner.post("q", "x")

    async def work(gateway: Gateway) -> int:
        await Claim("ttl=0").to(gateway)
        appends = HeldAppends(store, between)
        task = Claim().begin(gateway)
        await appends.begun()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        appends.go_on()
        return await deliveries(gateway)

    assert run(work) == 2
