"""One caller cannot use up memory, threads and places of the gateway for the others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from functools import partial
from typing import Any

import pytest

from queuey.errors import InvalidToken
from queuey.storage import Ledger, Messages, Names, Store, bridge
from queuey.storage.calls import in_thread
from queuey.web import make_app
from queuey.web.asgi import answer
from queuey.web.authorization import Authorization
from queuey.web.credentials import Identity, digest_of
from queuey.web.endpoint import Endpoint, Match, ResourceMatch, View
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from queuey.web.requests import Request as Asked
from queuey.web.responses import PIECE_SIZE, Response, text_response
from tests.interposed_store import InterposedStore
from tests.replacing import replace
from tests.web.caller import Caller, Reply
from tests.web.conftest import GUEST_KEY, KEY
from tests.web.gateway_calls import TEST_TIMEOUT, Request, Run, Stub, make_runner, until


def make_request(
    method: str, path: str, body: bytes | list[bytes] = b"", *, key: str | None = KEY, query: str = ""
) -> Request:
    request = Request(method, path, body, query=query)
    request.headers = [header for header in request.headers if header[0] != "authorization"]
    if key is not None:
        request.headers.append(("authorization", f"Application {key}"))
    return request


class UnreadableRequest(Request):
    """A request whose body must not be read."""

    async def receive(self) -> dict[str, Any]:
        raise AssertionError("the body is taken in")


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("POST", "/v1/queuey/q", None, 403),
        ("POST", "/v1/queuey/q", "nonsense", 401),
        ("POST", "/v1/queuey/missing", None, 404),
        ("POST", "/v1/queuey", None, 403),
        ("PUT", "/v1/queuey/q", "nonsense", 401),
        ("PUT", "/v1/queuey/q/" + "0" * 12 + "10008" + "0" * 15, None, 403),
        ("PUT", "/v1/queuey/q/offsets/g", "nonsense", 401),
        ("POST", "/v1/queuey/_read", "nonsense", 401),
        ("POST", "/v1/nobody/_read", None, 404),
        ("POST", "/nowhere", None, 404),
        ("PATCH", "/v1/queuey/q", None, 404),
        ("GET", "/v1/queuey/q", "nonsense", 401),
        ("DELETE", "/v1/queuey/q", "nonsense", 401),
    ],
)
@pytest.mark.parametrize("length", ["100", "1000000"])
def test_bodies_of_strangers_are_not_taken_in(
    run: Run, owner: Caller, method: str, path: str, key: str | None, status: int, length: str
) -> None:
    """A caller without a valid key gets the usual refusal without its body being read."""
    owner.create("q")
    request = UnreadableRequest(method, path)
    request.headers = [("content-length", length)]
    if key is not None:
        request.headers.append(("authorization", f"Application {key}"))
    assert run(request.to).status == status


def test_bodies_of_those_who_are_let_in(run: Run, owner: Caller) -> None:
    """A new key and anonymous reads of public queues work at the first request, and with a chunked body."""
    owner.create("q", type="public")
    pieces = [b'{"queues":', b'[{"queue_name":"q"}]}']

    async def work(gateway: Gateway) -> list[Reply]:
        requests = [
            make_request("POST", "/v1/queuey/q", b"x"),
            make_request("POST", "/v1/queuey/q", [b"y" * 100_000, b"y"]),
            make_request("POST", "/v1/queuey/_read", pieces, key=None),
            make_request("POST", "/v1/queuey/_read", b"".join(pieces), key=GUEST_KEY),
        ]
        return [await request.to(gateway) for request in requests]

    replies = run(work)
    assert [reply.status for reply in replies] == [201, 201, 200, 200]
    assert [len(message["body"]) for message in replies[2].json["queues"][0]["messages"]] == [1, 100_001]


@pytest.mark.parametrize("key", [KEY, None], ids=["application", "nobody"])
def test_bodies_on_their_way_leave_room_for_others(app: App, owner: Caller, key: str | None) -> None:
    """However many bodies one tenant has on their way, each one byte short, others get theirs in; all ends at zero."""
    owner.create("q", type="public")
    path = "/v1/queuey/q" if key else "/v1/queuey/_read"

    async def work(gateway: Gateway) -> tuple[list[int], Reply, int]:
        await make_request("GET", "/v1/queuey", key=KEY).to(gateway)
        await make_request("GET", "/v1/queuey", key=GUEST_KEY).to(gateway)
        slow = [make_request("POST", path, [b"x" * 100_000] * 4, key=key) for _ in range(30)]
        for request in slow:
            request.hold = asyncio.Event()
        tasks = [asyncio.create_task(request.to(gateway)) for request in slow]
        await until(lambda: all(task.done() or not one.pieces for task, one in zip(tasks, slow, strict=True)))
        refused = [task.result().status for task in tasks if task.done()]
        held = gateway._memory.total - gateway._memory.free
        other = make_request(
            "POST", "/v1/queuey/_read", b'{"queues":[{"queue_name":"q"}]' + b" " * 100_000 + b"}", key=GUEST_KEY
        )
        reply = await other.to(gateway)
        for request in slow:
            assert request.hold is not None
            request.hold.set()
        await asyncio.gather(*tasks)
        assert gateway._memory.free == gateway._memory.total
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
        await make_request("GET", "/v1/queuey", key=GUEST_KEY).to(gateway)
        deaf = [Deaf("GET") for _ in range(20)]
        tasks = [asyncio.create_task(answer(gateway, one.scope, one.receive, one.send)) for one in deaf]
        await until(lambda: gateway._memory.held("app:queuey") >= 3 * 800_000)
        reply = await make_request("GET", "/v1/queuey/q", key=GUEST_KEY).to(gateway)
        await asyncio.gather(*tasks)
        assert gateway._memory.free == gateway._memory.total
        return [one.status for one in deaf], reply

    statuses, reply = make_runner(app, memory=9_000_000, page_bytes=1_000_000, stall=1.0, deadline=2.0)(work)
    assert set(statuses) <= {200, 429}
    assert len(reply.bodies) == 4


def test_slow_work_of_one_leaves_a_thread_for_another() -> None:
    """Any number of hanging requests of one application do not block another's."""
    stuck, holding = threading.Event(), list[int]()

    class Shop(Stub):
        def find_tenant(self, request: Asked) -> str:
            return request.query.partition("=")[0] or "a"

        def answer(self, request: Asked, match: Match) -> Response:
            if request.query == "greedy":
                holding.append(1)
                assert stuck.wait(TEST_TIMEOUT)
            return super().answer(request, match)

    async def work(gateway: Gateway) -> list[int]:
        greedy = [asyncio.create_task(Request("PUT", "/v1/a", query="greedy").to(gateway)) for _ in range(50)]
        await until(lambda: len(holding) == 2)
        others = [await Request("PUT", "/v1/a", query="other").to(gateway) for _ in range(20)]
        assert not any(task.done() for task in greedy)
        stuck.set()
        return [reply.status for reply in [*others, *await asyncio.gather(*greedy)]]

    assert make_runner(Shop())(work) == [200] * 70


def test_strangers_hold_up_no_monitor() -> None:
    """While requests of strangers hang, also on a monitor's path, the monitor gets a thread."""
    stuck, holding = threading.Event(), list[int]()

    class Shop(Stub):
        def __init__(self) -> None:
            super().__init__()
            self.monitor = Endpoint("monitor", self.metrics, self.views(), original=True, operation=True)

        def find(self, path: bytes) -> ResourceMatch:
            return ResourceMatch(path.decode(), self.monitor, {}) if path == b"/__heartbeat__" else super().find(path)

        def find_tenant(self, _request: Asked) -> str:
            return ""

        def answer(self, request: Asked, match: Match) -> Response:
            if request.query == "slow" or request.method != "GET" or "content-length" in request.headers:
                holding.append(1)
                assert stuck.wait(TEST_TIMEOUT)
            return super().answer(request, match)

    async def work(gateway: Gateway) -> list[int]:
        requests = [
            *[Request("GET", path, query="slow") for path in ("/v1/a/q/info", "/metrics", "/__heartbeat__")],
            Request("POST", "/__heartbeat__"),
            Request("GET", "/__heartbeat__", b"x"),
        ]
        slow = [asyncio.create_task(request.to(gateway)) for request in requests]
        await until(lambda: len(holding) == 2)
        others = [await Request("GET", "/__heartbeat__").to(gateway) for _ in range(5)]
        assert not any(task.done() for task in slow)
        stuck.set()
        return [reply.status for reply in [*others, *await asyncio.gather(*slow)]]

    assert make_runner(Shop(), patience=0.01)(work) == [200] * 10


def test_a_credential_is_read_while_answers_to_strangers_wait() -> None:
    """A credential that was not seen yet is read though strangers have all threads, and more of them wait."""
    stuck, holding, known = threading.Event(), list[int](), list[str]()

    class Shop(Stub):
        def find_tenant(self, request: Asked) -> str | None:  # type: ignore[override]
            return "" if request.query else known[0] if known else None

        def preload_caller(self, _request: Asked) -> None:
            known.append("a")

        def answer(self, request: Asked, match: Match) -> Response:
            if request.query:
                holding.append(1)
                assert stuck.wait(TEST_TIMEOUT)
            return super().answer(request, match)

    async def work(gateway: Gateway) -> list[int]:
        strangers = [asyncio.create_task(Request("PUT", "/v1/a", query="x").to(gateway)) for _ in range(20)]
        await until(lambda: len(holding) == 2)
        reply = await Request("PUT", "/v1/a").to(gateway)
        assert not any(task.done() for task in strangers)
        stuck.set()
        return [reply.status for reply in [reply, *await asyncio.gather(*strangers)]]

    assert make_runner(Shop())(work) == [200] * 21


def test_refusing_strangers_takes_one_thread_while_others_ask(app: App, owner: Caller) -> None:
    """Bodies without a key are refused one after the other while an application asks, too: each costs computing."""
    owner.create("q")
    at_once: list[int] = []
    under_way: list[int] = []
    enter = Authorization.enter

    def watched(*of: Any, **named: Any) -> Any:  # noqa: ANN401 - as `enter` has them
        under_way.append(1)
        at_once.append(len(under_way))
        time.sleep(0.002)
        under_way.pop()
        return enter(*of, **named)

    async def work(gateway: Gateway) -> list[int]:
        gateway._contention.has_several = True
        strangers = [make_request("POST", "/v1/queuey/q", b"x", key=None) for _ in range(10)]
        return [reply.status for reply in await asyncio.gather(*(one.to(gateway) for one in strangers))]

    with replace(Authorization.enter, watched):
        assert make_runner(app)(work) == [403] * 10
    assert max(at_once) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_credential_that_takes_long_holds_up_no_stranger(store: Store, method: str) -> None:
    """While an issuer is awaited, other unknown callers are answered; the credential is read once."""
    stuck, reading = threading.Event(), list[str]()

    class Slow:
        scheme, max_cache_seconds = "Slow", 60.0

        def read(self, credential: str, _now: float) -> Identity:
            reading.append(credential)
            assert stuck.wait(TEST_TIMEOUT)
            raise InvalidToken("It is not valid.")

    application = make_app(store, readers=[Slow()])
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
    Caller(application, f"Application {KEY}").create("q", type="public")
    bridge.run(store.applications.add_key("queuey", digest_of("new")))

    async def work(gateway: Gateway) -> list[int]:
        gateway._contention.has_several = True
        request = Request(method, body=b"x" if method == "POST" else b"")
        request.headers[0] = ("authorization", "Slow x")
        slow = asyncio.create_task(request.to(gateway))
        await until(lambda: bool(reading))
        others = [await make_request("GET", "/v1/queuey/q/info", key=key).to(gateway) for key in (None, "new")]
        assert not slow.done()
        stuck.set()
        return [reply.status for reply in [*others, await slow]]

    assert make_runner(application)(work) == [200, 200, 401]
    assert reading == ["x"]


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


def test_reasons_are_written_in_threads_that_are_shared_out(owner: Caller, between: InterposedStore) -> None:
    """However many reasons one application gives, each of which is a write, the service's own threads stay free."""
    owner.create("q")
    owner.post("q", "a")
    [claim] = owner.send_json("POST", "q/claims", {"ttl": 60}).messages
    threads: list[str] = []
    between.before(Ledger.enter, partial(note_thread, threads))
    body = {"receipts": [claim["receipt"]], "reason": {"error": "ValueError"}}
    assert owner.send_json("POST", "q/claims/release", body).status == 200
    assert [name.startswith("queuey-request") for name in threads] == [True]


class ThreadedApplication(Stub):
    """An application whose use case works in threads, itself and in a task that outlives the request.

    Attributes:
        gateway: The gateway that answers its requests.
        seen: For each work: where it was called, its thread's name, and the tenants' numbers of threads at that time.
        go: Lets the tasks continue.
        tasks: Tasks that outlive the request.
    """

    gateway: Gateway

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, dict[str, int]]] = []
        self.go = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def find_tenant(self, request: Asked) -> str:
        return request.query

    def views(self) -> dict[str, View]:
        return {"POST": View(self.use, asks=True)}

    async def use(self, request: Asked, _match: Match) -> Response:
        await self.work(f"{request.query} at once")
        self.tasks.append(self.core.spawn(self.read_more(request)))
        await asyncio.sleep(0.01)
        await self.work(f"{request.query} later")
        return text_response("done")

    async def read_more(self, request: Asked) -> None:
        """Works in threads, waits for the test, and works again. The request must not be blocked."""
        await self.work("task")
        assert not request.has_thread
        await asyncio.wait_for(self.go.wait(), TEST_TIMEOUT)
        await self.work("task")
        assert not request.has_thread

    async def work(self, name: str) -> None:
        def work() -> None:
            self.seen.append((name, threading.current_thread().name, dict(self.gateway._threads._job_quota._held)))

        await self.core.in_thread(work)


def test_work_of_use_cases_in_threads_counts_for_the_tenant_of_their_request() -> None:
    """Whatever other requests run meanwhile. What a request leaves in the background is the service's own work."""
    app = ThreadedApplication()

    async def work(gateway: Gateway) -> None:
        app.gateway = gateway
        requests = [Request("POST", "/v1/a/q", query=tenant) for tenant in "ab"]
        replies = await asyncio.gather(*(request.to(gateway) for request in requests))
        assert [reply.body for reply in replies] == [b"done"] * 2
        app.go.set()
        await asyncio.gather(*app.tasks)

    make_runner(app)(work)
    for name, thread, held in app.seen:
        if name == "task":
            assert thread.startswith("queuey-block")
        else:
            assert thread.startswith("queuey-request")
            assert held[name[0]] == 1
    assert sorted(name for name, _, _ in app.seen) == ["a at once", "a later", "b at once", "b later", *["task"] * 4]


def test_reads_run_in_parallel_when_one_tenant_is_left() -> None:
    """A read starts while another read of the only active tenant hangs."""
    stuck = threading.Event()

    class Shop(Stub):
        def find_tenant(self, request: Asked) -> str:
            return request.query.partition("=")[0]

        def answer(self, request: Asked, match: Match) -> Response:
            if request.query == "a=slow":
                assert stuck.wait(TEST_TIMEOUT)
            return super().answer(request, match)

    async def work(gateway: Gateway) -> None:
        await Request("PUT", "/v1/a", query="b").to(gateway)
        slow = asyncio.create_task(Request("GET", "/v1/a/q/info", query="a=slow").to(gateway))
        await asyncio.sleep(0)
        reply = await Request("GET", "/v1/a/q/info", query="a").to(gateway)
        assert (reply.status, slow.done()) == (200, False)
        stuck.set()
        await slow

    make_runner(Shop(), patience=0.01)(work)


@pytest.mark.parametrize("network", [True, False])
def test_reads_take_turns_only_where_nobody_waits_for_a_network(network: bool) -> None:  # noqa: FBT001 - a parameter
    """Threads that wait for a network read in parallel; those that compute, one after the other."""
    both = threading.Barrier(2)

    class Shop(Stub):
        def __init__(self) -> None:
            super().__init__()
            self.waits_for_network = network

        def answer(self, request: Asked, match: Match) -> Response:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(TEST_TIMEOUT if network else 0.2)
            return super().answer(request, match)

    async def work(gateway: Gateway) -> None:
        await asyncio.gather(*(Request("GET", "/v1/a/q/info").to(gateway) for _ in range(2)))

    make_runner(Shop(), patience=30.0)(work)
    assert both.broken != network


def test_backlog_of_one_application_does_not_delay_another() -> None:
    """Requests of an application that has used little do not wait behind a hundred of one that has used much."""
    order: list[str] = []
    begin = threading.Event()

    class Shop(Stub):
        def find_tenant(self, request: Asked) -> str:
            return request.query

        def answer(self, request: Asked, match: Match) -> Response:
            order.append(request.query)
            assert begin.wait(TEST_TIMEOUT)
            return super().answer(request, match)

    async def work(gateway: Gateway) -> None:
        greedy = [asyncio.create_task(Request("PUT", "/v1/a", query="greedy").to(gateway)) for _ in range(100)]
        pool = gateway._threads
        await until(lambda: len(pool._turns) + pool._job_quota.total - pool._job_quota.free == 100)
        # Its usage so far: a pause of a busy machine does not make the other's short requests count for more.
        pool._turns.charge("greedy", TEST_TIMEOUT)
        others = [asyncio.create_task(Request("PUT", "/v1/a", query="other").to(gateway)) for _ in range(5)]
        await until(lambda: len(pool._turns) + pool._job_quota.total - pool._job_quota.free == 105)
        # The first of them has a thread of its own, which a busy machine may wake late.
        await until(lambda: "other" in order)
        begin.set()
        await asyncio.gather(*greedy, *others)

    make_runner(Shop())(work)
    last = max(at for at, who in enumerate(order) if who == "other")
    assert last < 20


def test_requests_without_room_in_time_are_refused() -> None:
    """A read that gets neither thread nor memory in time is told who caused that, and when to retry."""
    stuck = threading.Event()

    class Shop(Stub):
        def answer(self, request: Asked, match: Match) -> Response:
            assert stuck.wait(TEST_TIMEOUT)
            return super().answer(request, match)

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
        gateway._contention.has_several = True
        for key, path in ((KEY, mine), (GUEST_KEY, own), (KEY, mine)):
            assert (await make_request("GET", path, key=key).to(gateway)).status == 200
        body = b"x" * 100 if method == "POST" else b""
        greedy = [asyncio.create_task(make_request(method, mine, body).to(gateway)) for _ in range(400)]
        await asyncio.sleep(0)
        # Besides reads, a post would wait for the disk while they run.
        for kind, status in (("POST", 201), ("GET", 200)) if method == "POST" else (("GET", 200),) * 2:
            reply = await make_request(kind, own, b"mine" if kind == "POST" else b"", key=GUEST_KEY).to(gateway)
            assert reply.status == status
        done = sum(task.done() for task in greedy)
        assert {reply.status for reply in await asyncio.gather(*greedy)} <= {200, 201}
        return done

    assert run(work) < 250


def test_long_polls_of_one_leave_places_for_others(run: Run, owner: Caller, guest: Caller) -> None:
    """One application has a limited number of waiting places; another one still waits and gets the news."""
    owner.create("q", type="public")

    async def work(gateway: Gateway) -> tuple[list[Reply], list[Reply]]:
        for key in (KEY, GUEST_KEY):
            await make_request("GET", "/v1/queuey/q", key=key).to(gateway)
        greedy = [
            asyncio.create_task(make_request("GET", "/v1/queuey/q", query="wait=20").to(gateway)) for _ in range(10)
        ]
        await until(lambda: sum(task.done() for task in greedy) >= 8)
        other = asyncio.create_task(make_request("GET", "/v1/queuey/q", key=GUEST_KEY, query="wait=20").to(gateway))
        await asyncio.sleep(0.1)
        assert not other.done()
        await make_request("POST", "/v1/queuey/q", b"news").to(gateway)
        return [await task for task in greedy], [await other]

    greedy, other = run(work)
    refused = [reply for reply in greedy if reply.status == 503]
    assert [list(reply.errors) for reply in refused] == [["TooManyWaiters"]] * 8
    assert [reply.bodies for reply in greedy if reply.status == 200] == [["news"]] * 2
    assert other[0].bodies == ["news"]


def test_polls_with_something_to_read_need_no_place(run: Run, owner: Caller) -> None:
    """A read that may wait but need not is answered, however many wait already."""
    owner.create("q")
    owner.create("full")
    owner.post("full", "x")

    async def work(gateway: Gateway) -> list[Reply]:
        tasks = [asyncio.create_task(Request("GET", query="wait=20").to(gateway)) for _ in range(2)]
        await until(lambda: gateway._polls.places.held("app:queuey") == 2)
        replies = [await Request("GET", "/v1/queuey/full", query="wait=20").to(gateway) for _ in range(5)]
        await Request(body=b"end").to(gateway)
        await asyncio.gather(*tasks)
        return replies

    assert [reply.bodies for reply in run(work)] == [["x"]] * 5
