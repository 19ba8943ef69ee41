"""Long polls on the event loop: which are woken, when, in which order, and what a waiting poll costs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App, Service
from queuey.runtime.limits import Limits
from queuey.storage import Messages, Store, bridge
from queuey.web.gateway import Gateway
from tests.interposed_store import InterposedStore
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import TEST_TIMEOUT, Request, Run, make_runner, until


@pytest.fixture
def limits() -> Limits:
    """Long polls that outlast a busy machine."""
    return Limits(max_wait=TEST_TIMEOUT)


@pytest.fixture
def run(app: App) -> Run:
    """Runs a coroutine with a gateway before the application, with many places."""
    return make_runner(app, waiters=5000)


def poll(path: str = "/v1/queuey/q", query: str = f"wait={TEST_TIMEOUT}", *, key: str = KEY) -> Request:
    return Request("GET", path, query=query, key=key)


def begin(gateway: Gateway, request: Request) -> asyncio.Task[Reply]:
    return asyncio.create_task(request.to(gateway))


async def waiting(gateway: Gateway, count: int) -> None:
    """Waits until this many polls wait and none of them is being retried."""
    polls = gateway.polls
    await until(lambda: polls.places.total - polls.places.free == count and not polls.attempts.turns)
    await until(lambda: polls.attempt_quota.free == polls.attempt_quota.total)


class LeavingClient(Request):
    """A long poll whose client can disconnect."""

    left: asyncio.Event

    async def receive(self) -> dict[str, Any]:
        if self.pieces:
            return await super().receive()
        await asyncio.wait_for(self.left.wait(), 600)
        return {"type": "http.disconnect"}


def test_hundreds_wait_without_threads(app: App, run: Run, owner: Caller, between: InterposedStore) -> None:
    """Hundreds wait on a partition: no thread, no memory of pages, one watch, no reads; a message answers them all."""
    owner.create("q")
    service: Service = app.service
    calls: list[str] = []

    async def work(gateway: Gateway) -> list[Reply]:
        await Request("GET").to(gateway)  # the credential and the queue are cached
        threads = threading.active_count()
        tasks = [begin(gateway, poll(query=f"wait={TEST_TIMEOUT}&limit={1 + number % 7}")) for number in range(300)]
        await waiting(gateway, 300)
        assert len(service.reader.watchers._shared) == 1
        assert threading.active_count() <= threads + 1
        assert gateway.shares.memory.free == gateway.shares.memory.total
        between.before(Messages.read, lambda: calls.append("read"))
        await asyncio.sleep(0.5)
        assert not calls
        await Request(body=b"news").to(gateway)
        return await asyncio.gather(*tasks)

    assert [reply.bodies for reply in run(work)] == [["news"]] * 300
    assert not len(service.reader.watchers)


LEAVING = {
    "a read": ("GET", "/v1/queuey/q", b"", f"wait={TEST_TIMEOUT}"),
    "a read of several queues": ("POST", "/v1/queuey/_read", b'{"queues":[{"queue_name":"q"}],"wait":300}', ""),
    "a claim": ("POST", "/v1/queuey/q/claims", b"", f"wait={TEST_TIMEOUT}&ttl=600"),
}


@pytest.mark.parametrize(("method", "path", "body", "query"), LEAVING.values(), ids=LEAVING)
def test_the_place_of_a_client_that_leaves_is_free(
    run: Run, owner: Caller, method: str, path: str, body: bytes, query: str
) -> None:
    """When a client closes its connection its poll ends, however long it would wait, and takes no message."""
    owner.create("q")

    async def work(gateway: Gateway) -> Reply:
        request = LeavingClient(method, path, body, query=query)
        request.left = asyncio.Event()
        task = begin(gateway, request)
        await waiting(gateway, 1)
        request.left.set()
        async with asyncio.timeout(TEST_TIMEOUT / 2):
            await task
        assert gateway.polls.places.free == gateway.polls.places.total
        await Request(body=b"news").to(gateway)
        return await Request("POST", "/v1/queuey/q/claims").to(gateway)

    [message] = run(work).messages
    assert (message["body"], message["deliveries"]) == ("news", 1)


def test_the_end_of_the_service_answers_all(run: Run, owner: Caller, stopping: threading.Event) -> None:
    """When the service stops, all waiting polls are answered, and new ones do not wait."""
    owner.create("q")

    async def work(gateway: Gateway) -> list[Reply]:
        tasks = [begin(gateway, poll()) for _ in range(20)]
        await waiting(gateway, 20)
        stopping.set()
        return [*await asyncio.gather(*tasks), await poll().to(gateway)]

    replies = run(work)
    assert [(reply.status, reply.messages) for reply in replies] == [(200, [])] * 21


def test_without_messages_the_wait_ends_in_time(run: Run, owner: Caller) -> None:
    """Without messages the wait ends with an ordinary empty answer, and the poll counts as an ordinary request."""
    owner.create("q")

    async def work(gateway: Gateway) -> Reply:
        return await poll(query="wait=0.05").to(gateway)

    reply = run(work)
    assert (reply.status, reply.messages) == (200, [])
    assert 'queuey_requests_total{route="v1.queue",status="200"} 1.0' in owner("GET", "/metrics").text


def test_a_purge_and_a_deletion(run: Run, owner: Caller, other: Store) -> None:
    """After a purge by another process the poll sees later messages; a deletion ends it with 404."""
    owner.create("q")

    async def work(gateway: Gateway) -> tuple[Reply, Reply]:
        first = begin(gateway, poll())
        await waiting(gateway, 1)
        await other.catalogue.purge_queue(await other.catalogue.queue("queuey", "q", fresh=True))
        await Request(body=b"new").to(gateway)
        purged = await first
        second = begin(gateway, poll(query=f"wait={TEST_TIMEOUT}&after=" + purged.messages[0]["message_id"]))
        await waiting(gateway, 1)
        await Request("DELETE").to(gateway)
        return purged, await second

    purged, deleted = run(work)
    assert purged.bodies == ["new"]
    assert deleted.status == 404


def test_a_key_that_is_revoked(store: Store, owner: Caller) -> None:
    """A poll with a revoked key gets 401 once the key is read again, and no message stored after that."""
    now = [0.0]
    app = make_app(store, limits=Limits(max_wait=TEST_TIMEOUT), clock=lambda: now[0])
    owner.create("q")
    key = bridge.run(store.applications.add_key("queuey", digest_of("ending")))

    async def work(gateway: Gateway) -> Reply:
        task = begin(gateway, poll(key="ending"))
        await waiting(gateway, 1)
        await store.applications.revoke_key("queuey", key.id)
        now[0] = 5.1
        return await task

    assert make_runner(app)(work).status == 401


def test_a_queue_that_is_no_longer_the_callers(run: Run, owner: Caller) -> None:
    """A poll ends with an error when its caller loses the right to read, without any message stored after that."""
    owner.create("q", principals="app:guest")

    async def work(gateway: Gateway) -> Reply:
        task = begin(gateway, poll(key=GUEST_KEY))
        await waiting(gateway, 1)
        change = Request("PUT", body=b'{"principals":"app:somebody"}')
        change.headers.append(("content-type", "application/json"))
        assert (await change.to(gateway)).status == 200
        return await task

    assert run(work).status == 403
