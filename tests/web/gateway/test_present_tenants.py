"""A tenant with a single connection keeps its share beside one whose requests take long."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from queuey.ids import Position
from queuey.messages import NewMessage, Queue
from queuey.storage import Messages, Store
from queuey.web.admission.scheduling import Contention
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in
from tests.web.caller import Caller
from tests.web.conftest import GUEST_KEY, KEY
from tests.web.gateway_calls import TEST_TIMEOUT, Request, make_runner, until

INFO = "/v1/queuey/q/info"
MISSING = "/v1/queuey/q/" + "0" * 12 + "10008" + "0" * 15
"""Id of a message that does not exist."""


def make_request(key: str | None, method: str = "GET", path: str = INFO, body: bytes = b"", query: str = "") -> Request:
    request = Request(method, path, body, query=query)
    request.headers[0] = ("authorization", f"Application {key}") if key else ("accept", "*/*")
    return request


class Held:
    """Calls of a store's method, which the test lets go on one by one."""

    def __init__(self, between: InterposedStore, method: Any) -> None:  # noqa: ANN401 - any method
        self.begun = 0
        self._let = threading.Semaphore(0)
        between.before(method, self._wait)

    def _wait(self) -> None:
        self.begun += 1
        assert self._let.acquire(timeout=TEST_TIMEOUT)

    def let(self, count: int) -> None:
        self._let.release(count)


class HeldPosts:
    """Posts whose ends the test lets be reported one by one."""

    def __init__(self, store: Store, between: InterposedStore) -> None:
        self.begun = 0
        self._store = store
        self._let = asyncio.Semaphore(0)
        between.instead(Messages.append, self._append)

    async def _append(self, queue: Queue, items: Sequence[NewMessage], **options: Any) -> list[Position]:  # noqa: ANN401
        self.begun += 1
        positions = await self._store.messages.append(queue, items, **options)
        await asyncio.wait_for(self._let.acquire(), TEST_TIMEOUT)
        return positions

    def let(self, count: int) -> None:
        for _ in range(count):
            self._let.release()


@pytest.fixture(autouse=True)
def _left_at_once() -> Iterator[None]:
    """Makes a tenant absent as soon as its last request ends, so that only running requests count."""
    with replace_in(Contention, Contention.PRESENCE_SECONDS, 0.001):
        yield


@pytest.fixture
def queue(owner: Caller) -> None:
    owner.create("q", type="public")


async def read_successfully(gateway: Gateway, count: int, limit: int = 1) -> None:
    for _ in range(count):
        reply = await make_request(GUEST_KEY, path="/v1/queuey/q", query=f"limit={limit}").to(gateway)
        assert reply.status == 200


@pytest.mark.usefixtures("queue")
def test_a_reading_connection_is_left_for_the_next_tenant(app: App, store: Store, between: InterposedStore) -> None:
    """A single tenant, however many long reads it begins, leaves a connection of the store for another one's read."""
    held = Held(between, Messages.inspect)

    async def work(gateway: Gateway) -> None:
        greedy = [asyncio.create_task(make_request(KEY).to(gateway)) for _ in range(20)]
        await until(lambda: held.begun == store.readers - 1)
        await read_successfully(gateway, 5)
        await read_successfully(gateway, 5, limit=1000)
        assert held.begun == store.readers - 1
        held.let(20)
        assert {reply.status for reply in await asyncio.gather(*greedy)} == {200}

    make_runner(app, threads=8, patience=0.001)(work)


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("key", [KEY, None], ids=["application", "nobody"])
def test_long_reads_of_one_run_one_by_one_while_another_waits(
    app: App,
    between: InterposedStore,
    key: str | None,
) -> None:
    """While a single request of another tenant is not answered yet, however long it takes, one long read begins."""
    held = Held(between, Messages.inspect)
    slow = Held(between, Messages.fetch)

    async def work(gateway: Gateway) -> None:
        greedy = [asyncio.create_task(make_request(key).to(gateway)) for _ in range(20)]
        await until(lambda: held.begun == 3)
        mine = asyncio.create_task(make_request(GUEST_KEY, path=MISSING).to(gateway))
        await until(lambda: slow.begun == 1)
        await asyncio.sleep(0.05)
        held.let(3)
        await until(lambda: sum(task.done() for task in greedy) == 3)
        await until(lambda: held.begun == 4)
        await read_successfully(gateway, 5)
        assert held.begun == 4
        held.let(17)
        slow.let(1)
        assert (await mine).status == 200
        assert {reply.status for reply in await asyncio.gather(*greedy)} == {200}

    make_runner(app, threads=8, patience=0.001)(work)


@pytest.mark.usefixtures("queue")
def test_long_batches_of_one_are_stored_one_by_one_while_another_waits(
    app: App,
    store: Store,
    between: InterposedStore,
) -> None:
    """While another tenant has a request under way, one long body of a tenant is on its way into the store."""
    slow = Held(between, Messages.fetch)
    held = HeldPosts(store, between)

    async def work(gateway: Gateway) -> None:
        mine = asyncio.create_task(make_request(GUEST_KEY, path=MISSING).to(gateway))
        await until(lambda: slow.begun == 1)
        batch = json.dumps({"messages": [{"body": "x" * 200_000}] * 4}).encode()
        greedy = [make_request(KEY, "POST", "/v1/queuey/q", batch) for _ in range(5)]
        for request in greedy:
            request.headers.append(("content-type", "application/json"))
        tasks = [asyncio.create_task(request.to(gateway)) for request in greedy]
        for number in range(1, 6):
            await until(lambda number=number: held.begun == number)  # type: ignore[misc]
            await read_successfully(gateway, 3)
            assert held.begun == number
            held.let(1)
        assert {reply.status for reply in await asyncio.gather(*tasks)} == {201}
        slow.let(1)
        assert (await mine).status == 200

    make_runner(app, threads=8, patience=0.001)(work)


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("waits", ["for messages", "for its body"])
def test_requests_that_use_nothing_do_not_count(app: App, between: InterposedStore, waits: str) -> None:
    """Beside a long poll that sleeps, or a body that is on its way, another tenant has all that one alone has."""
    held = Held(between, Messages.inspect)

    async def work(gateway: Gateway) -> None:
        if waits == "for messages":
            idle = make_request(GUEST_KEY, path="/v1/queuey/q", query="wait=20")
        else:
            idle = make_request(GUEST_KEY, "POST", "/v1/queuey/_read", b'{"queues": [{"queue_name": "q"}]}')
            idle.hold = asyncio.Event()
        task = asyncio.create_task(idle.to(gateway))
        await until(lambda: bool(gateway._polls.places.held("app:guest") or gateway._bodies._arriving))
        greedy = [asyncio.create_task(make_request(KEY).to(gateway)) for _ in range(20)]
        await until(lambda: held.begun == 3)
        held.let(20)
        await asyncio.gather(*greedy)
        if idle.hold is not None:
            idle.hold.set()
        assert (await make_request(KEY, "POST", "/v1/queuey/q", b"news").to(gateway)).status == 201
        assert (await task).status == 200

    make_runner(app, threads=8, patience=0.001)(work)
