"""What a request that waits for messages, or for work of its own, releases, and what it needs to continue."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from queuey.service.core import Call
from queuey.storage import Store, bridge
from queuey.storage.calls import Deadline, Done, start_and_wait
from queuey.web.admission.scheduling import Contention, LoopScheduler, Turn
from queuey.web.endpoint import Match, View
from queuey.web.gateway.asgi import TICK_INTERVAL, Gateway
from queuey.web.parts import App
from queuey.web.requests import Request as Asked
from queuey.web.responses import Response, text_response
from tests.contract.samples import new_message
from tests.replacing import replace
from tests.web.caller import Caller
from tests.web.gateway_calls import TEST_TIMEOUT, Request, Run, Stub, blank_request, make_runner, until
from tests.web.reads.test_streams import Reader, reading

TENANT = "app:queuey"


@pytest.fixture
def run(app: App) -> Run:
    return make_runner(app, waiters=50, beat=0.2)


def make_tenant_compete(gateway: Gateway) -> None:
    """Makes another tenant compete, with many requests of this one running."""
    gateway._contention.enter("app:other")
    gateway._contention.enter(TENANT)
    gateway._scheduler._under_way.change(TENANT, 32)


@pytest.mark.parametrize("path", ["q", "q/claims"])
def test_a_request_whose_time_is_over_needs_no_turn(owner: Caller, run: Run, path: str) -> None:
    """A request whose time is over answers that nothing came, however many others wait for their turns."""
    owner.create("q")

    async def work(gateway: Gateway) -> int:
        waiting = Request("POST" if "/" in path else "GET", f"/v1/queuey/{path}", query="wait=0.3")
        task = asyncio.create_task(waiting.to(gateway))
        await until(lambda: gateway._polls.places.held(TENANT) == 1)
        make_tenant_compete(gateway)
        reply = await asyncio.wait_for(task, 20)
        assert reply.messages == []
        return reply.status

    assert run(work) == 200


def test_an_idle_stream_makes_no_crowd(owner: Caller, run: Run) -> None:
    """Signs of life of an idle stream need no turn, and are not counted as requests of its application."""
    owner.create("q")
    entered: list[str] = []
    enter = Contention.enter

    def noting(contention: Contention, tenant: str) -> None:
        entered.append(tenant)
        enter(contention, tenant)

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader()) as reader:
            await until(lambda: bool(gateway._polls._waiting) and not gateway._polls.attempt_quota.held(TENANT))
            with replace(Contention.enter, noting):
                await until(lambda: reader.response.count(b"\n:\n") > 2)

    run(work)
    assert not entered


def test_a_stream_holds_no_page_while_its_client_takes_an_event(owner: Caller, run: Run, store: Store) -> None:
    """Memory for a page is reserved to read it; afterwards only that of a short event is held."""
    owner.create("q", partitions=2)
    queue = bridge.run(store.catalogue.queue("queuey", "q"))

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader()) as reader:
            reader.takes.clear()
            await store.messages.append(queue, [new_message("a")])
            await until(lambda: bool(gateway._contention._requests))
            await until(
                lambda: not gateway._polls.attempt_quota.held(TENANT) and not gateway._threads._job_quota.held(TENANT)
            )
            assert gateway._memory.free == gateway._memory.total
            reader.takes.set()
            await until(lambda: reader.bodies == ["a"])

    run(work)


def test_time_of_the_loop_is_charged_once(run: Run) -> None:
    """Time used while no other tenant asked is not charged, and that of one turn not again with the next one."""
    charged: list[float] = []
    leave = LoopScheduler.leave

    def noting(scheduler: LoopScheduler, turn: Turn, used: float = 0.0) -> None:
        charged.append(used)
        leave(scheduler, turn, used)

    async def work(gateway: Gateway) -> None:
        async def nothing() -> None:
            await asyncio.sleep(0)

        request, part = blank_request(), nothing()
        request.call = Call(gateway._core, None, part, part.send(None), used=1000.0)
        for _ in range(2):
            await gateway._wait_for_turn(request)
            request.call._used = 10.0
            gateway._leave_turn(request)
        await request.call

    with replace(LoopScheduler.leave, noting):
        run(work)
    assert charged == [10.0, 10.0]


def test_a_request_is_not_given_up_while_a_thread_works_for_its_use_case() -> None:
    """The request would not end sooner, and its caller would not learn what was done."""
    stuck = threading.Event()

    class Stuck(Stub):
        def views(self) -> dict[str, View]:
            return {"POST": View(self.use, asks=True)}

        async def use(self, _request: Asked, _match: Match) -> Response:
            assert await self.core.in_thread(lambda: stuck.wait(TEST_TIMEOUT))
            return text_response("done")

    async def work(gateway: Gateway) -> bytes:
        slow = asyncio.create_task(Request("POST").to(gateway))
        await until(lambda: bool(gateway._calls))
        timer = gateway.timer
        ticks = timer._ticks
        await until(lambda: timer._ticks > ticks + 1 / TICK_INTERVAL)  # The request has read again, for late messages.
        stuck.set()
        return (await slow).body

    assert make_runner(Stuck(), deadline=0.1)(work) == b"done"


def test_the_end_of_one_request_answers_no_other() -> None:
    """Work that ends in the loop's thread, while another request begins, answers the request that it belongs to."""

    class Ending(Stub):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[Done] = []

        def views(self) -> dict[str, View]:
            return {"POST": View(self.end)}

        async def end(self, _request: Asked, _match: Match) -> Response:
            mine = len(self.ends)

            def begin(done: Done) -> None:
                self.ends.append(done)
                if mine:
                    self.ends[0]("first", None)
                    done("second", None)

            return text_response(await start_and_wait(begin, Deadline(TEST_TIMEOUT)))

    async def work(gateway: Gateway) -> list[bytes]:
        first = asyncio.create_task(Request("POST", "/v1/a/q", b"x").to(gateway))
        await until(lambda: bool(gateway._calls))
        second = await Request("POST", "/v1/a/q", b"x").to(gateway)
        return [reply.body for reply in (await first, second)]

    assert make_runner(Ending())(work) == [b"first", b"second"]


def test_making_an_answer_counts_as_use_of_the_loop() -> None:
    """What the answer to a long batch takes, after its commit, is charged to its application."""

    class Slow(Stub):
        def views(self) -> dict[str, View]:
            return {"POST": View(self.finish)}

        async def finish(self, _request: Asked, _match: Match) -> Response:
            await self.core.in_thread(lambda: 1)
            time.sleep(0.05)  # noqa: ASYNC251 - it computes
            return text_response("done")

    async def work(gateway: Gateway) -> float:
        gateway._contention.has_several = True
        reply = await Request("POST", "/v1/a/q", b"x").to(gateway)
        assert reply.status == 200
        return gateway._scheduler._turns._used["a"]

    assert make_runner(Slow())(work) >= 0.05
