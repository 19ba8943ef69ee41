"""Another ASGI server may fail, or cancel a request, at each call that the service makes to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from queuey.access.credentials.readers import Identity, digest_of
from queuey.app.application import make_app
from queuey.app.asgi import answer
from queuey.app.service import App
from queuey.model.rights import USERS_TENANT_PREFIX, Grant
from queuey.runtime.limits import Limits
from queuey.storage import Store, bridge
from queuey.web.gateway import Gateway
from tests.web.caller import Caller, Tokens
from tests.web.gateway_calls import KEY, MOST, TEST_TIMEOUT, Request, held_quotas, make_runner, until

MESSAGES, SIZE = 20, 20_000
"""Number of messages of the long queue, and bytes of each."""
SHORT_WAIT = 0.05
"""Seconds for which a request waits for messages."""
MAX_CALLS = 100
TURNS = 25
"""Turns of the loop within which a request is cancelled."""
BUSY = {"present": {"one": 1, "two": 1}}


class ServerFailed(ConnectionError):
    """The error that the server raises."""


class FailingRequest(Request):
    """A request of a server that fails at one of its calls, of ``receive`` and ``send`` together.

    Args:
        fails_at: The number of that call, from 1.
    """

    def __init__(self, *call: Any, fails_at: int, **options: Any) -> None:  # noqa: ANN401 - as there
        super().__init__(*call, **options)
        self.task: asyncio.Task[None]
        self.calls = 0
        self._fails_at = fails_at

    async def receive(self) -> dict[str, Any]:
        """Returns the body, then the disconnect once a stream has sent all its messages; other requests get no more."""
        await self._fail_when_due()
        if self.pieces or not self._is_read:
            return await super().receive()
        await until(lambda: self.is_stream and self.response.count(b"data:") == MESSAGES)
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await self._fail_when_due()
        await super().send(message)

    async def _fail_when_due(self) -> None:
        """Counts a call; the one of the chosen number raises."""
        self.calls += 1
        if self.calls == self._fails_at:
            raise ServerFailed

    async def end(self, gateway: Gateway, turns: int | None = None) -> None:
        """Has the gateway answer, and the server cancel it after some turns of the loop."""
        self.task = asyncio.create_task(answer(gateway, self.scope, self.receive, self.send))
        if turns is not None:
            for _ in range(turns):
                await asyncio.sleep(0)
            self.task.cancel()
        with suppress(ServerFailed, asyncio.CancelledError):
            await asyncio.wait_for(self.task, TEST_TIMEOUT)


EVENTS, JSON = [("accept", "text/event-stream")], [("content-type", "application/json")]
SEVERAL = b'{"queues": [{"queue_name": "empty"}, {"queue_name": "posted"}], "wait": %.2f}' % SHORT_WAIT
KINDS: dict[str, tuple[int, tuple[Any, ...], dict[str, Any]]] = {
    "short answer": (2, ("GET", "/v1/queuey/long/info"), {}),
    "short page": (2, ("GET", "/v1/queuey/long"), {"query": "limit=1"}),
    "long answer in pieces": (7, ("GET", "/v1/queuey/long"), {"query": "limit=100"}),
    "head of a long answer": (2, ("HEAD", "/v1/queuey/long/peek"), {"query": "limit=100"}),
    "stream of events": (4, ("GET", "/v1/queuey/long"), {"headers": EVENTS}),
    "stream of many queues": (4, ("GET", "/v1/queuey/_stream"), {}),
    "waiting read": (3, ("GET", "/v1/queuey/empty"), {"query": f"wait={SHORT_WAIT}"}),
    "waiting read of several queues": (3, ("POST", "/v1/queuey/_read", SEVERAL), {"headers": JSON}),
    "claim": (2, ("POST", "/v1/queuey/long/claims"), {"query": "limit=10"}),
    "waiting claim": (3, ("POST", "/v1/queuey/empty/claims"), {"query": f"wait={SHORT_WAIT}"}),
    "body in pieces": (4, ("POST", "/v1/queuey/posted", [b"x" * SIZE, b"y" * SIZE]), {}),
    "long body": (3, ("POST", "/v1/queuey/posted", b"x" * SIZE), {}),
}
"""Number of calls to the server that each request makes at least, and the request."""


@pytest.fixture
def limits() -> Limits:
    return Limits(max_wait=SHORT_WAIT, page_bytes=MOST // 2)


@pytest.fixture
def app(store: Store, limits: Limits, tokens: Tokens) -> App:
    """The application, with a user and the queues ``long``, which has long messages, ``empty`` and ``posted``."""
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
    grants = tuple(Grant("queuey", frozenset({"read"}), queue) for queue in ("long", "empty"))
    tokens.known["ann"] = Identity(frozenset({"queuey ann"}), grants, f"{USERS_TENANT_PREFIX}queuey")
    app = make_app(store, limits=limits, readers=[tokens], clock=lambda: 0.0)
    owner = Caller(app, f"Application {KEY}")
    for queue in ("long", "empty", "posted"):
        owner.create(queue)
    for _ in range(MESSAGES):
        owner.post("long", "x" * SIZE)
    return app


async def check_quotas_freed(gateway: Gateway, request: FailingRequest, turns: int | None = None) -> None:
    await request.end(gateway, turns)
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            await until(lambda: held_quotas(gateway) == BUSY)
    assert held_quotas(gateway) == BUSY, (request.path, request.calls, turns)


def busy(app: App, work: Callable[[Gateway], Any]) -> None:
    """Runs a coroutine with a gateway that serves other tenants too, so that each request has its turn."""

    async def with_others(gateway: Gateway) -> None:
        gateway.shares.present |= {"one": 1, "two": 1}
        gateway.shares.update_presence()
        assert held_quotas(gateway) == BUSY
        await work(gateway)

    make_runner(app, waiters=6, memory=4 * MOST, max_body=MOST // 4, page_bytes=MOST // 2)(with_others)


def make_request(kind: str, key: str, fails_at: int) -> FailingRequest:
    _, call, options = KINDS[kind]
    call = (*call[:2], *(list(part) if isinstance(part, list) else part for part in call[2:]))
    request = FailingRequest(*call, fails_at=fails_at, **options)
    request.headers[0] = "authorization", key
    return request


CALLERS = [(kind, f"Application {KEY}") for kind in KINDS] + [(kind, "Token ann") for kind in KINDS if "stream" in kind]


def test_a_server_that_fails_at_any_call(app: App) -> None:
    """Whichever of the server's calls fails, memory, places, turns, tries, streams and clients are released."""

    async def count_calls(gateway: Gateway, kind: str, key: str) -> int:
        """Has each call fail, then none; returns the number of calls."""
        for fails_at in range(1, MAX_CALLS):
            request = make_request(kind, key, fails_at)
            await check_quotas_freed(gateway, request)
            if request.calls < fails_at:
                assert request.status in {200, 201}, (kind, request.response)
                return request.calls
        raise AssertionError(f"{kind} never ended")

    async def work(gateway: Gateway) -> None:
        for kind, key in CALLERS:
            assert await count_calls(gateway, kind, key) >= KINDS[kind][0]

    busy(app, work)


def test_a_request_that_is_cancelled_in_any_turn(app: App) -> None:
    """Wherever a request is when its server cancels it, its quotas are released."""

    async def work(gateway: Gateway) -> None:
        for kind, key in CALLERS:
            for turns in range(TURNS):
                await check_quotas_freed(gateway, make_request(kind, key, MAX_CALLS), turns)

    busy(app, work)


class Http2Request(Request):
    """A request by HTTP/2. Its empty body ends ``after`` seconds."""

    after = 0.0
    answered_before_end = False

    @property
    def scope(self) -> dict[str, Any]:
        scope = super().scope
        headers = [each for each in scope["headers"] if each[0] != b"transfer-encoding"]
        return {**scope, "http_version": "2", "headers": headers}

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(self.after)
        self.answered_before_end = self.answered_before_end or self.answered
        return await super().receive()


def test_a_body_of_http_2_needs_no_length(app: App) -> None:
    request = Http2Request("POST", "/v1/queuey/posted", [b"a", b"", b"b"])
    make_runner(app)(lambda gateway: answer(gateway, request.scope, request.receive, request.send))
    assert request.status == 201, request.response
    assert Caller(app, f"Application {KEY}").get("posted").messages[0]["body"] == "ab"


@pytest.mark.parametrize("after", [0.01, TEST_TIMEOUT])
def test_an_answer_waits_for_the_end_of_an_empty_body(app: App, after: float) -> None:
    """Hypercorn would end the connection; but no answer waits long."""
    request = Http2Request("POST", "/v1/queuey/long/claims", headers=[("content-length", "0")])
    request.after = after
    make_runner(app)(lambda gateway: answer(gateway, request.scope, request.receive, request.send))
    assert (request.status, request.answered_before_end) == (200, False), request.response
