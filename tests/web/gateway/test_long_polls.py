"""Long polls on the event loop: which are woken, when, in which order, and what a waiting poll costs."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from queuey.service import Limits, Service
from queuey.service.reading import Reader
from queuey.storage import Messages, Store, bridge
from queuey.web import make_app
from queuey.web.admission.long_polls import MAX_ATTEMPTS
from queuey.web.credentials import digest_of
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from tests.contract.samples import new_message
from tests.interposed_store import InterposedStore
from tests.replacing import replace
from tests.web.caller import Caller, Reply
from tests.web.conftest import GUEST_KEY, KEY
from tests.web.gateway_calls import TEST_TIMEOUT, Request, Run, make_runner, skip_short_read, until


@pytest.fixture
def limits() -> Limits:
    """Long polls that outlast a busy machine."""
    return Limits(max_wait=TEST_TIMEOUT)


@pytest.fixture
def run(app: App) -> Run:
    """Runs a coroutine with a gateway before the application, with many places."""
    return make_runner(app, waiters=5000)


def poll(path: str = "/v1/queuey/q", query: str = f"wait={TEST_TIMEOUT}", *, key: str = KEY) -> Request:
    request = Request("GET", path, query=query)
    request.headers = [("authorization", f"Application {key}")]
    return request


def begin(gateway: Gateway, request: Request) -> asyncio.Task[Reply]:
    return asyncio.create_task(request.to(gateway))


async def waiting(gateway: Gateway, count: int) -> None:
    """Waits until this many polls wait and none of them is being retried."""
    polls = gateway._polls
    await until(lambda: polls.places.total - polls.places.free == count and not polls.attempts._turns)
    await until(lambda: polls.attempt_quota.free == polls.attempt_quota.total)


class LeavingClient(Request):
    """A long poll whose client can disconnect."""

    left: asyncio.Event

    async def receive(self) -> dict[str, Any]:
        if self.pieces:
            return await super().receive()
        await asyncio.wait_for(self.left.wait(), 600)
        return {"type": "http.disconnect"}


def test_thousands_wait_without_threads(app: App, run: Run, owner: Caller, between: InterposedStore) -> None:
    """1,000 wait on one partition: no thread, no memory of pages, one watch, no reads; one message answers them all."""
    owner.create("q")
    service: Service = app.service
    calls: list[str] = []

    async def work(gateway: Gateway) -> list[Reply]:
        await Request("GET").to(gateway)  # the credential and the queue are cached
        threads = threading.active_count()
        tasks = [begin(gateway, poll(query=f"wait={TEST_TIMEOUT}&limit={1 + number % 7}")) for number in range(1000)]
        await waiting(gateway, 1000)
        assert len(service.reader.watchers._shared) == 1
        assert threading.active_count() <= threads + 1
        assert gateway._memory.free == gateway._memory.total
        between.before(Messages.read, lambda: calls.append("read"))
        await asyncio.sleep(0.5)
        assert not calls
        await Request(body=b"news").to(gateway)
        return await asyncio.gather(*tasks)

    assert [reply.bodies for reply in run(work)] == [["news"]] * 1000
    assert not len(service.reader.watchers)


def test_a_herd_of_one_application_does_not_keep_another_waiting(prompt: None, run: Run, owner: Caller) -> None:
    """Of 500 polls of one application and one of another, woken by the same message, the one is answered early."""
    owner.create("q", type="public")

    async def work(gateway: Gateway) -> int:
        for key in (KEY, GUEST_KEY):
            await poll(query="", key=key).to(gateway)
        herd = [begin(gateway, poll()) for _ in range(500)]
        await waiting(gateway, 500)
        other = begin(gateway, poll(key=GUEST_KEY))
        await waiting(gateway, 501)
        await Request(body=b"news").to(gateway)
        assert (await other).bodies == ["news"]
        done = sum(task.done() for task in herd)
        await asyncio.gather(*herd)
        return done

    assert run(work) < 100


def test_other_requests_come_between_those_who_were_woken(prompt: None, run: Run, owner: Caller) -> None:
    """While 500 polls are answered, a request of the same application that comes then does not wait for all of them."""
    owner.create("q")

    async def work(gateway: Gateway) -> int:
        await Request("GET").to(gateway)
        herd = [begin(gateway, poll()) for _ in range(500)]
        await waiting(gateway, 500)
        await Request(body=b"news").to(gateway)
        assert (await Request("GET").to(gateway)).bodies == ["news"]
        done = sum(task.done() for task in herd)
        await asyncio.gather(*herd)
        return done

    assert run(work) < 250


@pytest.mark.parametrize("path", ["/v1/queuey/q", "/v1/queuey/_read"])
def test_the_place_of_a_client_that_leaves_is_free(run: Run, owner: Caller, path: str) -> None:
    """When a client closes its connection, its poll ends, whatever it has sent and however long it would wait."""
    owner.create("q")

    async def work(gateway: Gateway) -> None:
        if path.endswith("_read"):
            request = LeavingClient("POST", path, b'{"queues":[{"queue_name":"q"}],"wait":300}')
        else:
            request = LeavingClient("GET", path, query=f"wait={TEST_TIMEOUT}")
        request.left = asyncio.Event()
        task = begin(gateway, request)
        await waiting(gateway, 1)
        request.left.set()
        async with asyncio.timeout(TEST_TIMEOUT / 2):
            await task
        assert gateway._polls.places.free == gateway._polls.places.total

    run(work)


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


@pytest.mark.parametrize("wide", [False, True])
def test_several_partitions_and_queues(run: Run, owner: Caller, wide: bool) -> None:  # noqa: FBT001
    """A message in any partition, of few or many, or in any queue of several, ends the wait."""
    owner.create("q", partitions=100 if wide else 3)
    owner.create("other")
    body = b'{"queues":[{"queue_name":"other"},{"queue_name":"q","partitions":"*"}],"wait":300}'

    async def work(gateway: Gateway) -> list[Reply]:
        tasks = [
            begin(gateway, poll(query=f"wait={TEST_TIMEOUT}&partitions=*")),
            begin(gateway, poll(query=f"wait={TEST_TIMEOUT}&partitions=2,3")),
        ]
        tasks.append(begin(gateway, Request("POST", "/v1/queuey/_read", body)))
        await waiting(gateway, 3)
        news = Request(body=b"news")
        news.headers.append(("x-partition", "3"))
        assert (await news.to(gateway)).status == 201
        return await asyncio.gather(*tasks)

    single, two, many = run(work)
    assert (single.bodies, two.bodies) == (["news"], ["news"])
    assert [[m["body"] for m in queue["messages"]] for queue in many.json["queues"]] == [[], ["news"]]


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


@pytest.mark.parametrize("several", [False, True])
def test_a_key_that_is_revoked(store: Store, owner: Caller, *, several: bool) -> None:
    """A poll with a revoked key gets 401 once the key is read again, and no message stored after that."""
    now = [0.0]
    app = make_app(store, limits=Limits(max_wait=TEST_TIMEOUT), clock=lambda: now[0])
    owner.create("q")
    key = bridge.run(store.applications.add_key("queuey", digest_of("ending")))

    async def work(gateway: Gateway) -> Reply:
        request = poll(key="ending")
        if several:
            body = b'{"queues":[{"queue_name":"q"}],"wait":300}'
            request = Request("POST", "/v1/queuey/_read", body)
            request.headers[0] = ("authorization", "Application ending")
        task = begin(gateway, request)
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


@pytest.mark.parametrize("seed", range(3))
def test_readers_that_wait_miss_nothing(run: Run, owner: Caller, other: Store, seed: int) -> None:
    """In a storm of posts here and elsewhere, readers that go from cursor to cursor by long polls see every message."""
    rng = random.Random(seed)
    owner.create("q")
    queue = bridge.run(other.catalogue.queue("queuey", "q"))
    total = 60

    async def post(gateway: Gateway) -> None:
        for number in range(total):
            if rng.random() < 0.3:
                await other.messages.append(queue, [new_message(str(number))])
            else:
                assert (await Request(body=str(number).encode()).to(gateway)).status == 201
            await asyncio.sleep(rng.choice((0, 0, 0.001, 0.02)))

    async def read(gateway: Gateway, limit: int) -> list[str]:
        received: list[str] = []
        cursor = ""
        while len(received) < total:
            reply = await poll(query=f"wait={TEST_TIMEOUT}&limit={limit}&since={cursor}").to(gateway)
            received += reply.bodies
            cursor = reply.json["cursor"]
        return received

    async def work(gateway: Gateway) -> list[list[str]]:
        readers = [asyncio.create_task(read(gateway, limit)) for limit in (1, 3, 100)]
        await post(gateway)
        return await asyncio.gather(*readers)

    for received in run(work):
        assert sorted(received, key=int) == [str(number) for number in range(total)]


def test_polls_that_all_need_a_thread_are_not_refused(app: App, owner: Caller, between: InterposedStore) -> None:
    """Where reads need threads, polls wait for their turn and not for a thread, which they would be refused for."""
    owner.create("q")
    between.before(Messages.read, lambda: threading.Event().wait(0.002))
    under_way, most = 0, 0

    async def work(gateway: Gateway) -> list[Reply]:
        begun = gateway._threads.run

        async def counting(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as it is called
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await begun(*arguments, **options)
            finally:
                under_way -= 1

        gateway._threads.run = counting  # type: ignore[method-assign]
        tasks = [begin(gateway, poll()) for _ in range(200)]
        await waiting(gateway, 200)
        await until(
            lambda: (
                not len(gateway._polls.attempts._turns)
                and gateway._polls.attempt_quota.free == gateway._polls.attempt_quota.total
            )
        )
        await Request(body=b"news").to(gateway)
        return await asyncio.gather(*tasks)

    with replace(Reader.read_short, skip_short_read):
        replies = make_runner(app, waiters=5000)(work)
    assert [reply.bodies for reply in replies] == [["news"]] * 200
    assert most <= MAX_ATTEMPTS + 1  # and the post


def claiming(query: str = f"wait={TEST_TIMEOUT}&ttl=600") -> Request:
    return Request("POST", "/v1/queuey/q/claims", query=query)


def test_a_message_that_comes_or_comes_back_is_claimed_by_one_who_waits(app: App, run: Run, owner: Caller) -> None:
    """Of 300 claims that wait one gets a message, when it comes and when it is released; few of the others try."""
    owner.create("q")
    service: Service = app.service
    tries = 0

    async def work(gateway: Gateway) -> list[list[str]]:
        nonlocal tries
        begun = gateway._run_view

        async def counting(*arguments: Any) -> Any:  # noqa: ANN401 - as it is called
            nonlocal tries
            tries += 1
            return await begun(*arguments)

        await claiming(query="").to(gateway)
        tasks = [begin(gateway, claiming()) for _ in range(300)]
        await waiting(gateway, 300)
        assert service.statistics()["claims_waiting"] == 300
        gateway._run_view = counting  # type: ignore[method-assign, assignment]
        await Request(body=b"news").to(gateway)
        [first], pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        [message] = (await first).messages
        receipts = b'{"receipts":["%s"]}' % message["receipt"].encode()
        await Request("POST", "/v1/queuey/q/claims/release", receipts).to(gateway)
        [second], pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        assert len(pending) == 298
        service.stopping.set()
        return [(await first).bodies, (await second).bodies, *[(await task).bodies for task in pending]]

    assert run(work) == [["news"], ["news"], *[[]] * 298]
    assert tries < 100
