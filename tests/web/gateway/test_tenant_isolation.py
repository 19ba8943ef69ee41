"""One caller cannot use up memory, threads and places of the gateway for the others."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Any

import pytest

from queuey.app.asgi import answer
from queuey.app.service import App
from queuey.model.messages import Queue
from queuey.storage import Messages, Names
from queuey.storage.deadlines import in_thread
from queuey.storage.sqlite.catalogue import SqliteCatalogue
from queuey.storage.sqlite.database import threaded
from queuey.web.endpoint import Match
from queuey.web.gateway import Gateway
from queuey.web.requests import Request as Asked
from queuey.web.responses import PIECE_SIZE, Response
from tests.interposed_store import InterposedStore
from tests.replacing import replace
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import TEST_TIMEOUT, Request, Run, Stub, make_runner, serve, until


def test_bodies_of_those_who_are_let_in(app: App, owner: Caller) -> None:
    """A new key and anonymous reads of public queues work at the first request, and with a chunked body."""
    owner.create("q", type="public")
    pieces = [b'{"queues":', b'[{"queue_name":"q"}]}']

    requests = [
        Request("POST", "/v1/queuey/q", b"x"),
        Request("POST", "/v1/queuey/q", [b"y" * 100_000, b"y"]),
        Request("POST", "/v1/queuey/_read", pieces, key=None),
        Request("POST", "/v1/queuey/_read", b"".join(pieces), key=GUEST_KEY),
    ]
    replies = [serve(app).reply_to(request) for request in requests]
    assert [reply.status for reply in replies] == [201, 201, 200, 200]
    assert [len(message["body"]) for message in replies[2].json["queues"][0]["messages"]] == [1, 100_001]


@pytest.mark.parametrize("key", [KEY, None], ids=["application", "nobody"])
def test_bodies_on_their_way_leave_room_for_others(app: App, owner: Caller, key: str | None) -> None:
    """However many bodies one tenant has on their way, each one byte short, others get theirs in; all ends at zero."""
    owner.create("q", type="public")
    path = "/v1/queuey/q" if key else "/v1/queuey/_read"

    async def work(gateway: Gateway) -> tuple[list[int], Reply, int]:
        await Request("GET", "/v1/queuey", key=KEY).to(gateway)
        await Request("GET", "/v1/queuey", key=GUEST_KEY).to(gateway)
        slow = [Request("POST", path, [b"x" * 100_000] * 4, key=key) for _ in range(30)]
        for request in slow:
            request.hold = asyncio.Event()
        tasks = [asyncio.create_task(request.to(gateway)) for request in slow]
        await until(lambda: all(task.done() or not one.pieces for task, one in zip(tasks, slow, strict=True)))
        refused = [task.result().status for task in tasks if task.done()]
        held = gateway.shares.memory.total - gateway.shares.memory.free
        other = Request(
            "POST", "/v1/queuey/_read", b'{"queues":[{"queue_name":"q"}]' + b" " * 100_000 + b"}", key=GUEST_KEY
        )
        reply = await other.to(gateway)
        for request in slow:
            assert request.hold is not None
            request.hold.set()
        await asyncio.gather(*tasks)
        assert gateway.shares.memory.free == gateway.shares.memory.total
        return refused, reply, held

    refused, reply, held = make_runner(app, memory=4_000_000, page_bytes=100_000)(work)
    assert set(refused) == {429}
    assert 0 < len(refused) < 30
    assert held <= 4_000_000 * 2 // 3
    assert reply.status == 200


def test_answers_that_nobody_takes_are_given_up(app: App, owner: Caller) -> None:
    """Unread answers count for their application until they are abandoned; another one is served meanwhile."""
    owner.create("q", type="public")
    for _ in range(4):
        owner.post("q", "x" * 200_000)

    class Deaf(Request):
        async def send(self, message: dict[str, Any]) -> None:
            self.status = message.get("status", self.status)
            self.response += message.get("body", b"")
            if len(self.response) > PIECE_SIZE:
                await asyncio.sleep(600)

    async def work(gateway: Gateway) -> tuple[list[int], Reply]:
        await Request("GET", "/v1/queuey", key=GUEST_KEY).to(gateway)
        deaf = [Deaf("GET") for _ in range(20)]
        tasks = [asyncio.create_task(answer(gateway, one.scope, one.receive, one.send)) for one in deaf]
        await until(lambda: gateway.shares.memory.held("app:queuey") >= 3 * 800_000)
        reply = await Request("GET", "/v1/queuey/q", key=GUEST_KEY).to(gateway)
        await asyncio.gather(*tasks)
        assert gateway.shares.memory.free == gateway.shares.memory.total
        return [one.status for one in deaf], reply

    statuses, reply = make_runner(app, memory=9_000_000, page_bytes=1_000_000, stall=1.0, deadline=2.0)(work)
    assert set(statuses) <= {200, 429}
    assert len(reply.bodies) == 4


def test_slow_work_of_one_leaves_a_thread_for_another() -> None:
    """Any number of hanging requests of one application do not block another's."""
    stuck, holding = threading.Event(), list[int]()

    class Shop(Stub):
        def known_tenant(self, header: str | None) -> str:
            return header or "a"

        def work(self, request: Asked, match: Match) -> Response:
            if request.query == "greedy":
                holding.append(1)
                assert stuck.wait(TEST_TIMEOUT)
            return super().work(request, match)

    async def work(gateway: Gateway) -> list[int]:
        greedy = [
            asyncio.create_task(Request("PUT", "/v1/a", query="greedy", key="greedy").to(gateway)) for _ in range(50)
        ]
        await until(lambda: len(holding) == 2)
        others = [await Request("PUT", "/v1/a", key="other").to(gateway) for _ in range(20)]
        assert not any(task.done() for task in greedy)
        stuck.set()
        return [reply.status for reply in [*others, *await asyncio.gather(*greedy)]]

    assert make_runner(Shop())(work) == [200] * 70


class AtOnce:
    """Counts how many threads do something at once, which takes 2 ms."""

    busy = most = 0

    def count(self) -> None:
        self.busy += 1
        self.most = max(self.most, self.busy)
        time.sleep(0.002)
        self.busy -= 1

    async def count_soon(self) -> None:
        self.count()


async def note_thread(threads: list[str]) -> None:
    await in_thread(lambda: threads.append(threading.current_thread().name))


def test_names_are_changed_in_threads_that_are_shared_out(owner: Caller, between: InterposedStore) -> None:
    """However many names one application changes, it has its share of the threads, the same as for requests."""
    threads: list[str] = []
    for method in (Names.find_named, Names.write_named, Messages.fetch, Messages.delete, Names.settle_named):
        between.before(method, partial(note_thread, threads))
    owner.create("q")
    for body in "ab":
        assert owner("PUT", "q/named/n", body).status == 200
    assert owner.get("q/named/n").bodies == ["b"]
    assert owner("DELETE", "q/named/n").status == 200
    assert threads
    assert all(name.startswith("queuey-request") for name in threads)


def test_requests_without_room_in_time_are_refused() -> None:
    """A read that gets neither thread nor memory in time is told who caused that, and when to retry."""
    stuck = threading.Event()

    class Shop(Stub):
        def work(self, request: Asked, match: Match) -> Response:
            assert stuck.wait(TEST_TIMEOUT)
            return super().work(request, match)

    async def work(gateway: Gateway) -> list[Reply]:
        tasks = [asyncio.create_task(Request("GET", "/v1/a/q").to(gateway)) for _ in range(6)]
        await until(lambda: any(task.done() for task in tasks))
        stuck.set()
        return [await task for task in tasks]

    replies = make_runner(Shop(), memory=1_200_000, page_bytes=400_000, deadline=0.5)(work)
    statuses = [reply.status for reply in replies]
    assert 2 <= statuses.count(200) < 6
    assert set(statuses) == {200, 429}
    assert {reply.headers["Retry-After"] for reply in replies if reply.status == 429} == {"1"}


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_short_requests_of_one_are_not_anothers_wait(
    prompt: None, run: Run, owner: Caller, guest: Caller, method: str
) -> None:
    """Behind hundreds of one application's posts, or short reads, another's are answered before most of them."""
    owner.create("q", type="public")
    Caller(guest.app, guest.authorization, "/v1/guest").create("own")
    for _ in range(100):
        owner.post("q", "x" * 100)
    own, mine = "/v1/guest/own", "/v1/queuey/q"

    async def work(gateway: Gateway) -> int:
        gateway.shares.has_several = True
        for key, path in ((KEY, mine), (GUEST_KEY, own), (KEY, mine)):
            assert (await Request("GET", path, key=key).to(gateway)).status == 200
        body = b"x" * 100 if method == "POST" else b""
        greedy = [asyncio.create_task(Request(method, mine, body).to(gateway)) for _ in range(400)]
        await asyncio.sleep(0)
        # Besides reads, a post would wait for the disk while they run.
        for kind, status in (("POST", 201), ("GET", 200)) if method == "POST" else (("GET", 200),) * 2:
            reply = await Request(kind, own, b"mine" if kind == "POST" else b"", key=GUEST_KEY).to(gateway)
            assert reply.status == status
        done = sum(task.done() for task in greedy)
        assert {reply.status for reply in await asyncio.gather(*greedy)} <= {200, 201}
        return done

    assert run(work) < 250


def test_refusing_strangers_takes_one_thread_while_others_ask(app: App, owner: Caller) -> None:
    """Bodies without a key are refused one after the other while an application asks, too: each costs computing."""
    owner.create("q")
    reads = AtOnce()

    @threaded
    def read_queue(catalogue: SqliteCatalogue, application: str, name: str) -> Queue:
        reads.count()
        queue = catalogue.cached_queue(application, name)
        assert queue is not None
        return queue

    async def work(gateway: Gateway) -> list[int]:
        gateway.shares.has_several = True
        strangers = [Request("POST", "/v1/queuey/q", b"x", key=None) for _ in range(10)]
        return [reply.status for reply in await asyncio.gather(*(one.to(gateway) for one in strangers))]

    with replace(SqliteCatalogue._read_queue, read_queue):
        assert make_runner(app)(work) == [403] * 10
    assert reads.most == 1


def test_explanations_of_one_take_one_thread_while_others_ask(
    run: Run, owner: Caller, between: InterposedStore
) -> None:
    """Explanations of wide queues compute one after the other while another application asks, too."""
    owner.create("q", partitions=3)
    owner.post("q", "x")
    reads = AtOnce()

    async def work(gateway: Gateway) -> list[int]:
        gateway.shares.has_several = True
        between.before(Messages.read, reads.count_soon)
        calls = [Request("GET", "/v1/queuey/q/explain", key=KEY) for _ in range(10)]
        return [reply.status for reply in await asyncio.gather(*(call.to(gateway) for call in calls))]

    assert run(work) == [200] * 10
    assert reads.most == 1


def test_short_reads_take_turns() -> None:
    """Short reads run one after the other: at once they would cost twice the computing."""
    reads = AtOnce()

    class Counting(Stub):
        def work(self, request: Asked, match: Match) -> Response:
            reads.count()
            return super().work(request, match)

    async def work(gateway: Gateway) -> None:
        await asyncio.gather(*(Request("GET", "/v1/a/q").to(gateway) for _ in range(20)))

    make_runner(Counting(), patience=30.0)(work)
    assert reads.most == 1
