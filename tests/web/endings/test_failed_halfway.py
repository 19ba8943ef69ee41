"""A request that fails half done, or gets no thread in time, says so: no caller takes it for not done."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from queuey.app.service import App
from queuey.model.errors import QueueyError, StoreUnavailable, TooManyRequests
from queuey.web.admission.scheduling import FairPool
from queuey.web.gateway import Gateway
from tests.replacing import replace
from tests.web.caller import Caller
from tests.web.gateway_calls import TEST_TIMEOUT, Reply, Request, make_runner

T = TypeVar("T")
MAX_JOBS = 15


def make_name_path(number: int) -> str:
    return f"/v1/queuey/q{number}/named/n"


def schedule_path(number: int) -> str:
    return f"/v1/queuey/_schedules/s{number}"


async def prepare(gateway: Gateway, number: int) -> None:
    assert (await Request("PUT", make_name_path(number), b"old").to(gateway)).status == 200
    plan = {"queue": f"q{number}", "every": 86400, "message": {"body": "new"}}
    made = Request(
        "PUT", schedule_path(number), json.dumps(plan).encode(), headers=[("content-type", "application/json")]
    )
    assert (await made.to(gateway)).status == 201


async def read_outcome(gateway: Gateway, number: int) -> tuple[bytes, int, object]:
    value = (await Request("GET", make_name_path(number), query="raw=1").to(gateway)).body
    messages = json.loads((await Request("GET", f"/v1/queuey/q{number}").to(gateway)).body)["messages"]
    return value, len(messages), json.loads((await Request("GET", schedule_path(number)).to(gateway)).body)["firing"]


@pytest.mark.parametrize("error", [TooManyRequests, StoreUnavailable])
@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", make_name_path), ("DELETE", make_name_path), ("POST", lambda number: f"{schedule_path(number)}/run")],
)
def test_failed_halfway(
    app: App, owner: Caller, method: str, path: Callable[[int], str], error: type[QueueyError]
) -> None:
    """Whichever job of a request fails: after an error with the outcome ``none`` everything is as before."""
    for number in range(1, MAX_JOBS):
        owner.create(f"q{number}")
    go_on = FairPool.run

    async def failed_at(gateway: Gateway, number: int) -> tuple[Reply, int]:
        jobs = 0

        async def fail_one(pool: FairPool, tenant: str, work: Callable[[], T], *rest: Any, **options: Any) -> T:  # noqa: ANN401
            nonlocal jobs
            jobs += 1
            if jobs == number:
                raise error("This job is not done.")
            return await go_on(pool, tenant, work, *rest, **options)

        with replace(FairPool.run, fail_one):
            reply = await Request(method, path(number), b"new" if method == "PUT" else b"").to(gateway)
        return reply, jobs

    async def work(gateway: Gateway) -> list[str]:
        outcomes: list[str] = []
        for number in range(1, MAX_JOBS):
            await prepare(gateway, number)
            before = await read_outcome(gateway, number)
            reply, jobs = await failed_at(gateway, number)
            if jobs < number:
                assert reply.status == 200
                return outcomes
            outcome = "all" if reply.status == 200 else str(json.loads(reply.body)["outcome"])
            outcomes.append(outcome)
            if outcome == "none":
                assert await read_outcome(gateway, number) == before, (number, reply)
        raise AssertionError("it never ended")

    async def work_and_end(gateway: Gateway) -> list[str]:
        try:
            return await work(gateway)
        finally:
            await app.service.end(TEST_TIMEOUT)

    assert "none" in make_runner(app)(work_and_end)
