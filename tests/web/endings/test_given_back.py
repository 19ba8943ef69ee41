"""Quotas that requests hold while they run are returned, however the requests end."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from queuey.service import Limits
from queuey.web.admission import long_polls
from queuey.web.admission.scheduling import LoopScheduler
from queuey.web.asgi import answer
from queuey.web.gateway.asgi import MAX_WAIT, Gateway
from queuey.web.parts import App
from queuey.web.requests import MAX_SHORT_BODY
from tests.replacing import replace_in
from tests.web.caller import Caller
from tests.web.conftest import GUEST_KEY, KEY
from tests.web.gateway_calls import MOST, Request, held_quotas, make_runner, until

QUEUES = [f"q{number}" for number in range(40)]
REQUESTS = 60
PLACES = 6
LONG = 200_000
"""Bytes of a body that is sent in pieces."""
TURNS = 32 - MAX_SHORT_BODY // LoopScheduler.WEIGHT_UNIT_BYTES
"""Max running turns of a tenant with which a body that is read in the loop still fits."""
SHORT_WAIT = 0.05
"""Seconds for which a poll of a burst waits."""


class ClientDisconnected(ConnectionError):
    """The client has closed its connection."""


class UnreliableRequest(Request):
    """A request whose client or server may give up at some point.

    Args:
        fails: Number of parts of the answer that are accepted; the next one raises.
        leaves: Turns of the loop after which the client has disconnected.
    """

    def __init__(self, *call: Any, key: str, fails: int, leaves: int, **options: Any) -> None:  # noqa: ANN401 - as there
        super().__init__(*call, **options)
        self.headers[0] = "authorization", f"Application {key}"
        self._fails, self._leaves = fails, leaves

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.pieces or not self._is_read:
            return await super().receive()
        for _ in range(self._leaves):
            await asyncio.sleep(0.0005)
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self._fails -= 1
        if self._fails < 0:
            raise ClientDisconnected
        await asyncio.sleep(0)
        await super().send(message)


def draw_request(rng: random.Random) -> UnreliableRequest:
    queue, waits = rng.choice(QUEUES), f"wait={SHORT_WAIT}"
    names = rng.sample(QUEUES, rng.randrange(1, len(QUEUES)))
    several = json.dumps({"queues": [{"queue_name": name} for name in names], "wait": SHORT_WAIT}).encode()
    whole = rng.randbytes(rng.choice((0, 20, LONG)))
    batch = json.dumps({"messages": [{"body": "x" * 50}] * 20}).encode()
    stream, kind = [("accept", "text/event-stream")], [("content-type", "application/json")]
    kinds: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("GET", "/v1/queuey/full"), {"query": "limit=100"}),
        (("HEAD", "/v1/queuey/full/peek"), {"query": "limit=100"}),
        (("GET", f"/v1/queuey/{queue}"), {"query": waits}),
        (("POST", "/v1/queuey/_read", several), {"headers": kind}),
        (("GET", "/v1/queuey/_stream"), {"query": f"queues={','.join(names)}", "headers": stream}),
        (("GET", "/v1/queuey/_stream"), {"headers": stream}),
        (("GET", f"/v1/queuey/{queue}"), {"query": "since=now", "headers": stream}),
        (("POST", f"/v1/queuey/{queue}", whole), {}),
        (("POST", f"/v1/queuey/{queue}", [whole or b"x", b"y"]), {"broken": rng.random() < 0.5}),
        (("POST", f"/v1/queuey/{queue}", batch), {"headers": kind}),
        (("POST", f"/v1/queuey/{queue}/claims"), {"query": rng.choice((waits, "ttl=2"))}),
        (("GET", f"/v1/queuey/{queue}/info"), {}),
        (("GET", "/v1/queuey/none"), {}),
    ]
    call, options = rng.choice(kinds)
    key = rng.choice((KEY, KEY, GUEST_KEY, "0" * 64))
    return UnreliableRequest(*call, key=key, fails=rng.choice((0, 1, 2, 1000)), leaves=rng.randrange(40), **options)


async def answer_and_abandon(gateway: Gateway, seed: int) -> None:
    rng = random.Random(seed)

    async def send(request: UnreliableRequest) -> None:
        with suppress(ClientDisconnected):
            await answer(gateway, request.scope, request.receive, request.send)

    tasks = []
    for _ in range(REQUESTS):
        tasks.append(asyncio.create_task(send(draw_request(rng))))
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
    await asyncio.sleep(rng.choice((0.0, 0.02)))
    for task in rng.sample(tasks, 20):
        task.cancel()
    async with asyncio.timeout(60):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)]


@pytest.fixture
def limits() -> Limits:
    return Limits(max_wait=SHORT_WAIT)


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    """Small quotas, which get exhausted: few concurrent attempts, and a stream of few queues takes several places."""
    with replace_in(long_polls, long_polls.MAX_ATTEMPTS, 2), replace_in(long_polls, long_polls.QUEUES_PER_PLACE, 8):
        yield


def test_after_any_storm_every_quota_stands_at_its_beginning(app: App, owner: Caller) -> None:
    """Streams, polls, claims, posts: answered, refused, left by their clients, cancelled, or cut off while sending."""
    for queue in QUEUES:
        owner.create(queue)
    owner.create("full")
    for _ in range(10):
        owner.post("full", "x" * 20_000)
    seeds = secrets.randbits(32)

    async def work(gateway: Gateway) -> None:
        for number in range(20):
            await answer_and_abandon(gateway, seeds + number)
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await until(lambda: not held_quotas(gateway))
            assert not held_quotas(gateway), (seeds + number, held_quotas(gateway))

    # Requests that need memory, and other requests of their tenant behind them, may wait for each other until refused.
    make_runner(app, waiters=PLACES, memory=MOST, max_body=MOST // 4, page_bytes=MOST // 4, max_wait=MAX_WAIT)(work)


def test_a_body_that_does_not_come_does_not_keep_a_cancelled_request(app: App) -> None:
    """When a server cancels a request whose body is still on its way, the request ends without an answer."""

    async def work(gateway: Gateway) -> None:
        request = Request("POST", body=b"x" * LONG)
        request.hold = asyncio.Event()
        task = asyncio.create_task(answer(gateway, request.scope, request.receive, request.send))
        await until(lambda: bool(gateway._bodies._arriving))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
        assert not held_quotas(gateway)

    make_runner(app)(work)


@pytest.mark.parametrize("query", ["", "wait=20"])
def test_no_memory_is_held_while_a_thread_looks_a_queue_up(app: App, owner: Caller, query: str) -> None:
    """Requests that held memory then could keep all threads from each other until one was refused."""

    async def work(gateway: Gateway) -> int:
        gateway._memory.change("app:other", gateway._memory.total)
        reply = await asyncio.wait_for(Request("POST", "/v1/queuey/none/claims", query=query).to(gateway), 20)
        gateway._memory.change("app:other", -gateway._memory.total)
        return reply.status

    assert make_runner(app)(work) == 404


def test_requests_that_wait_for_memory_keep_no_turns(app: App, owner: Caller) -> None:
    """Others of their application may have the memory, and wait for their turn."""
    owner.create("q")

    async def work(gateway: Gateway) -> None:
        others = gateway._memory.total - 2 * MAX_SHORT_BODY  # Too little is left for a claim.
        gateway._memory.change("app:other", others)
        for tenant in ("one", "two"):
            gateway._contention.enter(tenant)
        claims = [asyncio.create_task(Request("POST", "/v1/queuey/q/claims").to(gateway)) for _ in range(TURNS)]
        await until(lambda: len(gateway._threads._turns) == TURNS)
        posted = await asyncio.wait_for(Request(path="/v1/queuey/q", body=b"x" * MAX_SHORT_BODY).to(gateway), 20)
        gateway._memory.change("app:other", -others)
        gateway._threads.dispatch()
        assert [posted.status, *(reply.status for reply in await asyncio.gather(*claims))] == [201] + [200] * TURNS

    make_runner(app)(work)
