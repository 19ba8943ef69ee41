"""What a request that waits for messages, or for work of its own, releases, and what it needs to continue."""

from __future__ import annotations

import asyncio

import pytest

from queuey.app.service import App
from queuey.web.gateway import Gateway
from tests.web.caller import Caller
from tests.web.gateway_calls import Request, Run, make_runner, until

TENANT = "app:queuey"


@pytest.fixture
def run(app: App) -> Run:
    return make_runner(app, waiters=50, beat=0.2)


def make_tenant_compete(gateway: Gateway) -> None:
    """Makes another tenant compete, with many requests of this one running."""
    gateway.shares.present |= {"app:other": 1, TENANT: 1}
    gateway.shares.update_presence()
    gateway.shares.scheduler.under_way.change(TENANT, 32)


@pytest.mark.parametrize("path", ["q", "q/claims"])
def test_a_request_whose_time_is_over_needs_no_turn(owner: Caller, run: Run, path: str) -> None:
    """A request whose time is over answers that nothing came, however many others wait for their turns."""
    owner.create("q")

    async def work(gateway: Gateway) -> int:
        waiting = Request("POST" if "/" in path else "GET", f"/v1/queuey/{path}", query="wait=0.3")
        task = asyncio.create_task(waiting.to(gateway))
        await until(lambda: gateway.polls.places.held(TENANT) == 1)
        make_tenant_compete(gateway)
        reply = await asyncio.wait_for(task, 20)
        assert reply.messages == []
        return reply.status

    assert run(work) == 200
