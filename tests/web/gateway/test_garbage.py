"""Objects of a request are freed with its answer: nothing is left to the cycle collector, whose pauses are long.

A collection visits everything allocated since the last one, and all other requests wait for it. Until then a cycle
keeps whatever it refers to, such as a page of messages.
"""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

from queuey.web.gateway.asgi import Gateway
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import Request, Run, until

REPETITIONS = 40
MAX_ROUNDS = 60
"""Max rounds until one leaves no garbage."""
CLAIMS = "/v1/queuey/q/claims"


async def send_successfully(gateway: Gateway, method: str, path: str, body: object = None, query: str = "") -> Reply:
    json_type = [] if body is None else [("content-type", "application/json")]
    text = b"" if body is None else json.dumps(body).encode()
    reply = await Request(method, path, text, headers=json_type, query=query).to(gateway)
    assert reply.status < 300, reply.text
    return reply


async def post(gateway: Gateway) -> None:
    await send_successfully(gateway, "POST", "/v1/queuey/q", {"messages": [{"body": "x"}]})


async def read(gateway: Gateway) -> None:
    await send_successfully(gateway, "GET", "/v1/queuey/q")


async def claim(gateway: Gateway, *receipts: str, **asked: object) -> list[str]:
    body = {"acknowledge": list(receipts)} if receipts else None
    query = "&".join(f"{name}={value}" for name, value in {"limit": 1, **asked}.items())
    return [
        each["receipt"] for each in (await send_successfully(gateway, "POST", CLAIMS, body, query)).json["messages"]
    ]


async def claim_and_settle(gateway: Gateway) -> None:
    await post(gateway)
    receipts = await claim(gateway)
    await send_successfully(gateway, "POST", f"{CLAIMS}/renew", {"receipts": receipts, "ttl": 60})
    await send_successfully(gateway, "POST", f"{CLAIMS}/ack", {"receipts": receipts})
    await post(gateway)
    await send_successfully(gateway, "POST", f"{CLAIMS}/release", {"receipts": await claim(gateway)})


async def acknowledge_and_claim(gateway: Gateway) -> None:
    await post(gateway)
    await post(gateway)
    await claim(gateway, *await claim(gateway))


async def wait_for_one(gateway: Gateway) -> None:
    places = gateway.polls.places
    claims = asyncio.create_task(claim(gateway, wait=20))
    await until(lambda: places.free < places.total)
    await post(gateway)
    await send_successfully(gateway, "POST", f"{CLAIMS}/ack", {"receipts": await claims})


async def reuse_a_key(gateway: Gateway) -> None:
    key = [("idempotency-key", "k")]
    await Request(body=b"first", headers=key).to(gateway)
    assert (await Request(body=b"second", headers=key).to(gateway)).status == 422


WORKS = [post, read, claim_and_settle, acknowledge_and_claim, wait_for_one, reuse_a_key]


@pytest.mark.usefixtures("prompt")
@pytest.mark.parametrize("work", WORKS)
def test_nothing_is_left_to_the_collector(run: Run, owner: Caller, work: Any) -> None:  # noqa: ANN401
    """Repeating an action often does not leave as many objects in cycles.

    A collection counts what all threads of the process left, so that it may find what was left by services of earlier
    tests, which end some seconds after these: what requests leave, they leave each time.
    """
    owner.create("q")
    gc.collect()
    gc.freeze()  # objects of earlier tests: visiting all of them takes seconds, each time

    async def garbage(gateway: Gateway) -> int:
        gc.collect()
        gc.disable()
        try:
            for _ in range(REPETITIONS):
                await work(gateway)
            return gc.collect()
        finally:
            gc.enable()

    async def rounds(gateway: Gateway) -> list[int]:
        for _ in range(3):
            await work(gateway)
        objects: list[int] = []
        while len(objects) < MAX_ROUNDS and min(objects, default=REPETITIONS) >= REPETITIONS:
            objects.append(await garbage(gateway))
        return objects

    objects = run(rounds)
    assert min(objects) < REPETITIONS, objects
