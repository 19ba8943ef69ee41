"""The gateway between the event loop and the application, called as the server calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.app.service import App
from queuey.model import ids
from queuey.model.errors import Outcome, StoreClosed
from queuey.storage import Messages, bridge
from queuey.storage.deadlines import Deadline, Done, start_and_wait
from queuey.web.endpoint import Match
from queuey.web.gateway import Gateway
from queuey.web.requests import Request as Asked
from queuey.web.requests import read_body
from queuey.web.responses import Response
from tests.interposed_store import InterposedStore
from tests.replacing import replace
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import KEY, MOST, TEST_TIMEOUT, Request, Run, Stub, make_runner, serve


class Held:
    """Writes that begin and do not end."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.done: list[Done] = []
        self.begun = asyncio.Event()

    async def append(self, *_: object, **_options: object) -> None:
        await start_and_wait(self._begin, Deadline(TEST_TIMEOUT), raise_given_up=True)

    def _begin(self, done: Done) -> Callable[[], Outcome]:
        self.done.append(done)
        self.begun.set()
        return lambda: self.outcome


def test_no_cache_keeps_an_answer(app: App, owner: Caller) -> None:
    """No cache may keep an answer: at once or from a thread, short or long, to HEAD, raw, or of an error."""
    owner.create("q", type="public")
    owner.post("q", "x" * 200_000)
    [message] = owner.get("q").messages
    path = "/v1/queuey/q"
    requests = [
        Request("GET", path, key=None),
        Request("GET", path),
        Request("HEAD", path),
        Request("GET", f"{path}/{message['message_id']}", query="raw=1"),
        Request("GET", f"{path}/info"),
        Request("GET", f"{path}/peek"),
        Request("GET", path, query="strict=1&unknown=1"),
        Request("GET", "/v1/queuey/none"),
        Request("GET", "/nowhere"),
        Request("GET", "/metrics"),
        Request("POST", path, b"y"),
        Request("POST", f"{path}/claims"),
    ]

    replies = [serve(app).reply_to(request) for request in requests]
    assert {reply.status for reply in replies} >= {200, 201, 400, 404}
    for request, reply in zip(requests, replies, strict=True):
        kept = [value for name, value in request.answer_headers if name.lower() == "cache-control"]
        assert kept == ["no-store"], (request.method, request.path, reply.status)


# Bodies


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20))
def test_chunks_make_up_the_body(pieces: list[bytes]) -> None:
    """However a chunked body is cut up, the application reads exactly it."""

    class Echo(Stub):
        def work(self, request: Asked, match: Match) -> Response:
            return Response(200, read_body(request, MOST))

    reply = make_runner(Echo())(Request(body=pieces).to)
    assert reply.body == b"".join(pieces)


@pytest.mark.parametrize("body", [b"hel", b"x" * 100_000, [b"hel"], [b"x" * 70_000, b"y"]], ids=len)
def test_half_a_body_is_never_stored(run: Run, owner: Caller, body: bytes | list[bytes]) -> None:
    """A body that breaks off, of known length or chunked, is refused; no part of it becomes a message."""
    owner.create("q")
    reply = run(Request(body=body, broken=True).to)
    assert (reply.status, list(reply.errors)) == (400, ["body"])
    assert owner.get("q").messages == []


def test_only_chunked_is_understood(run: Run, owner: Caller) -> None:
    """A body in an unknown transfer coding is refused instead of stored encoded."""
    owner.create("q")
    request = Request(headers=[("transfer-encoding", "gzip, chunked")])
    assert run(request.to).errors.keys() == {"Transfer-Encoding"}
    assert owner.get("q").messages == []


def test_slow_senders_are_let_go(app: App, owner: Caller) -> None:
    """A body that does not arrive in time is refused, and the next request is served."""
    owner.create("q")

    async def work(gateway: Gateway) -> list[Reply]:
        slow = [Request(body=b"x"), Request(body=[b"x"])]
        for request in slow:
            request.hold = asyncio.Event()
        replies = await asyncio.gather(*(request.to(gateway) for request in slow))
        return [*replies, await Request(body=b"x").to(gateway)]

    *late, prompt = make_runner(app, arrival=0)(work)
    assert [(reply.status, reply.errors) for reply in late] == [(400, {"body": "Has not arrived in time"})] * 2
    assert prompt.status == 201
    assert owner.get("q").bodies == ["x"]


# Headers


@pytest.mark.parametrize("name", ["x-message-key", "x-header-a", "x-after", "x-ttl", "content-type", "authorization"])
def test_headers_that_cannot_be_read_are_refused(run: Run, owner: Caller, name: str) -> None:
    """A known header whose value is not ASCII is refused, not ignored."""
    owner.create("q", type="public")
    key = None if name == "authorization" else KEY
    reply = run(Request(body=b"x", headers=[(name, "ü")], key=key).to)
    assert (reply.status, list(reply.errors)) == (400, [name])
    assert owner.get("q").messages == []


def test_other_headers_may_be_anything(run: Run, owner: Caller) -> None:
    """Headers that mean nothing here do not matter, nor do names that WSGI could mistake for others."""
    owner.create("q", partitions=9)
    headers = [("cookie", "ü"), ("x_ttl", "0"), ("x_partition", "77"), ("x_header_a", "ü"), ("user-agent", "ü")]
    assert run(Request(body=b"x", headers=headers).to).status == 201
    [message] = owner.get("q", partitions="*").messages
    assert "headers" not in message


def test_headers_given_twice_are_joined(run: Run, owner: Caller) -> None:
    """A header given twice is one with both values, which no number survives."""
    owner.create("q")
    headers = [("x-header-a", "1"), ("x-header-a", "2")]
    assert run(Request(body=b"x", headers=headers).to).status == 201
    assert owner.get("q").messages[0]["headers"] == {"a": "1,2"}
    assert run(Request(body=b"x", headers=[("x-ttl", "1"), ("x-ttl", "2")]).to).errors.keys() == {"ttl"}


# In the loop


@pytest.mark.parametrize(
    ("path", "name", "match"),
    [
        ("/v1/a/q", "v1.queue", {"app": "a", "queue": "q"}),
        ("/v1/a/%C3%BC%20", "v1.queue", {"app": "a", "queue": "ü "}),
        ("/v1/a/claims/claims/ack/", "v1.ack", {"app": "a", "queue": "claims"}),
        ("/v1/a/q/claims//", "gateway", {}),
        ("/v1/a/%FF", "gateway", {}),
        ("/v1/%0A", "v1.application", {"app": "\n"}),
        ("/v1/a/q/claims%0A", "v1.ids", {"app": "a", "queue": "q", "ids": "claims\n"}),
        ("/v1/a/_read", "v1.read", {"app": "a"}),
        ("/v1//q", "gateway", {}),
        ("*", "gateway", {}),
        ("/v1/a/" + "%C3%BC" * 100, "v1.queue", {"app": "a", "queue": "ü" * 100}),
    ],
)
def test_paths_lead_to_resources(app: App, path: str, name: str, match: dict[str, str]) -> None:
    """The path of a request, long or short, names a resource and its parent; the cached answer is the same."""
    for _ in range(2):
        view = app.resources.find_cached("GET", path.encode())
        assert (view.endpoint.name, {part: text for part, text in view.match.items() if part != "_"}) == (name, match)


@pytest.mark.parametrize("outcome", ["none", "unknown"])
def test_writes_that_do_not_end_are_given_up(
    app: App, owner: Caller, between: InterposedStore, outcome: Outcome
) -> None:
    """A write in the loop that is not done in time is 503 with its outcome; its later end has no effect."""
    owner.create("q")
    owner.post("q", "known")
    held = Held(outcome)
    between.instead(Messages.append, held.append)
    kind = [("content-type", "application/json")]

    async def work(gateway: Gateway) -> tuple[Reply, Reply]:
        requests = Request(body=b"x"), Request(body=b'{"messages":[{"body":1},{"body":2}]}', headers=kind)
        single, batch = await asyncio.gather(*(request.to(gateway) for request in requests))
        for done in held.done:
            done(None, StoreClosed("closing"))
        await asyncio.sleep(0.01)
        return single, batch

    single, batch = make_runner(app, deadline=0.0)(work)
    assert (single.status, single.json["outcome"], single.headers["Retry-After"]) == (503, outcome, "1")
    assert (batch.status, batch.json["outcome"], batch.json["outcomes"]) == (503, outcome, [outcome] * 2)


def test_an_id_ahead_holds_nobody_up(run: Run, owner: Caller) -> None:
    """A post that waits until the clock has passed its X-After blocks neither other requests nor a thread."""
    owner.create("q")
    owner.post("q", "known")
    now = ids.now_ticks()
    after = now + ids.TICKS_PER_SECOND // 4, 0

    async def work(gateway: Gateway) -> list[int]:
        ahead = asyncio.create_task(Request(body=b"ahead", headers=[("x-after", ids.to_hex(after))]).to(gateway))
        await asyncio.sleep(0)
        other = await Request(body=b"other").to(gateway)
        assert not ahead.done()
        return [other.status, (await ahead).status]

    with replace(ids.now_ticks, lambda: now), replace(bridge.run, lambda *_: None):
        assert run(work) == [201, 201]
    assert owner.get("q").bodies == ["known", "other", "ahead"]


# In threads


def test_an_application_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """An exception out of the application is a plain 500; the thread lives on."""

    class Failing(Stub):
        def work(self, request: Asked, match: Match) -> Response:
            if request.query:
                raise ZeroDivisionError("the secret of the house")
            return super().work(request, match)

    async def work(gateway: Gateway) -> list[Reply]:
        return [await Request("GET", "/", query=query).to(gateway) for query in ("x", "y", "z", "", "")]

    replies = make_runner(Failing())(work)
    assert [reply.status for reply in replies] == [500, 500, 500, 200, 200]
    assert "secret" not in replies[0].text
    assert "secret" in caplog.text
