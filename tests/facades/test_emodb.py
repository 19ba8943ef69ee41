"""The facade of EmoDB in process: rights, effects of the clock, full queues, and stores that fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.app.service import App
from queuey.facades.emodb import views
from queuey.facades.settings import EmodbFacade, Facades
from queuey.model.errors import StoreUnavailable
from queuey.model.rights import parse_scope
from queuey.storage import Messages, Store, bridge
from queuey.web.gateway import Gateway
from tests.backends import Clock
from tests.facades.serving import facade_app
from tests.facades.test_facades import failing
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import Request, make_runner

KEYS = {
    "all": None,
    "post": parse_scope(["send", "measure"], ["team-*"]),
    "poll": parse_scope(["read", "delete"], ["team-*"]),
    "work": parse_scope(["read", "claim"], ["team-*"]),
}
REFUSED = (403, '{"reason":"not authorized"}')


class Emodb:
    """Sends JSON to an application that serves EmoDB, with a key that is chosen for each call and perhaps a query."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._caller = Caller(app)

    def __call__(self, key: str, method: str, path: str, body: object = None) -> Reply:
        path, _, query = path.partition("?")
        raw = b"" if body is None else json.dumps(body).encode()
        headers = {"X-BV-API-Key": key, "Content-Type": "application/json"}
        return self._caller.send(method, path, raw, headers, query)

    def get(self, path: str, key: str = "all") -> Any:  # noqa: ANN401 - tests look into it
        reply = self(key, "GET", path)
        assert reply.status == 200, reply
        return reply.json

    def call_successfully(self, method: str, path: str, body: object = None) -> None:
        reply = self("all", method, path, body)
        assert (reply.status, reply.json) == (200, {"success": True})


@pytest.fixture
def emodb(store: Store, between: InterposedStore) -> Emodb:
    """The application ``shop`` with keys of several scopes, beside ``others`` with one key."""
    bridge.run(store.applications.create_application("shop"))
    bridge.run(store.applications.create_application("others"))
    for name, scope in KEYS.items():
        bridge.run(store.applications.add_key("shop", digest_of(name), scope=scope))
    bridge.run(store.applications.add_key("others", digest_of("foreign")))
    return Emodb(facade_app(between.store, Facades(app="shop", emodb=EmodbFacade(beside=True))))


def ids_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["id"] for message in messages]


@pytest.mark.parametrize("base", ["queue", "dedupq"])
def test_who_may_do_what(emodb: Emodb, base: str) -> None:
    """A key does what its verbs and patterns allow, whether the queue is there or not, and nothing else."""
    calls: dict[tuple[str, str, Any], set[str]] = {
        ("POST", "/send", 1): {"post"},
        ("POST", "/sendbatch", (1, 2)): {"post"},
        ("GET", "/poll", None): {"poll", "work"},
        ("GET", "/peek", None): {"poll", "work"},
        ("POST", "/ack", ()): {"poll", "work"},
        ("POST", "/renew", ()): {"poll", "work"},
        ("POST", "/unclaimall", None): {"poll", "work"},
        ("GET", "/size", None): {"post", "poll", "work"},
        ("GET", "/claimcount", None): {"post", "poll", "work"},
        ("DELETE", "", None): {"poll"},
    }
    for name in ("team-a", "other"):
        for _ in range(2):  # once without the queue, once with it
            for (method, path, body), allowed in calls.items():
                for key in ("post", "poll", "work", "foreign", "unknown", ""):
                    reply = emodb(key, method, f"/{base}/1/{name}{path}", body)
                    may = key in allowed and name == "team-a"
                    assert (reply.status == 200) == may, (key, method, path, reply)
                    assert may or (reply.status, reply.text) == REFUSED
            emodb.call_successfully("POST", f"/{base}/1/{name}/send", 0)


def test_a_batch_for_several_queues(emodb: Emodb) -> None:
    """If the caller may not send to one of the queues, that one is named and nothing is stored."""
    reply = emodb("post", "POST", "/queue/1/_sendbatch", {"team-a": [1], "other": [2]})
    assert (reply.status, reply.json, "X-BV-Exception" in reply.headers) == (403, {"queue": "other"}, False)
    assert emodb("all", "POST", "/queue/1/_sendbatch", {"a": [1], "B": [2]}).status == 400
    assert emodb("all", "POST", "/queue/1/_sendbatch", {"a": [1], "b": ["x" * 30_720]}).status == 400
    assert [emodb.get(f"/queue/1/{name}/size") for name in ("team-a", "a", "b")] == [0, 0, 0]
    assert emodb("post", "POST", "/queue/1/_sendbatch", {"team-a": [1], "team-b": [2]}).status == 200


def test_who_may_move(emodb: Emodb) -> None:
    """A move needs what polls and purges the source, and what sends to the target; everyone may see how it stands."""
    assert [emodb(key, "POST", "/queue/1/_move?from=team-a&to=team-b").status for key in KEYS] == [200, 403, 403, 403]
    reference = emodb("all", "POST", "/queue/1/_move?from=a&to=b").json["id"]
    statuses = {key: emodb(key, "GET", f"/queue/1/_move/{reference}").status for key in (*KEYS, "foreign", "")}
    assert statuses == {"all": 200, "post": 200, "poll": 200, "work": 200, "foreign": 403, "": 403}


def test_claims_by_the_clock(emodb: Emodb, clock: Clock) -> None:
    """Claims last as long as requested; renewing never shortens them, and begins a claim if none is left."""
    emodb.call_successfully("POST", "/queue/1/q/sendbatch", [1, 2])
    first, second = ids_of(emodb.get("/queue/1/q/poll"))
    emodb.call_successfully("POST", "/queue/1/q/renew?ttl=5", [first])
    emodb.call_successfully("POST", "/queue/1/q/renew?ttl=90", [second])
    clock.advance(29)
    assert emodb.get("/queue/1/q/poll") == []
    clock.advance(3)
    assert ids_of(emodb.get("/queue/1/q/poll?ttl=3600")) == [first]
    clock.advance(60)
    emodb.call_successfully("POST", "/queue/1/q/renew", [second])
    clock.advance(29)
    assert emodb.get("/queue/1/q/claimcount") == 2
    clock.advance(3)
    assert emodb.get("/queue/1/q/claimcount") == 1
    emodb.call_successfully("POST", "/queue/1/q/ack", [second])
    assert emodb.get("/queue/1/q/size") == 1


@pytest.mark.parametrize("call", ["poll", "peek", "send", "ack", "renew", "size"])
def test_a_bad_name_is_an_error_of_callers_with_a_key(emodb: Emodb, call: str) -> None:
    """The key comes first: without one, and with a wrong one, a name that no queue can have is 403, else 400."""

    async def ask(gateway: Gateway) -> list[tuple[int, bool]]:
        replies = []
        for key in ("", "unknown", "all"):
            method = "POST" if call in {"send", "ack", "renew"} else "GET"
            kind = ("content-type", "application/json")
            request = Request(method, f"/queue/1/Bad/{call}", b"[]" if method == "POST" else b"", headers=[kind])
            request.headers[0] = ("x-bv-api-key", key)
            replies.append(await request.to(gateway))
        return [(reply.status, "Queue name must be" in reply.text) for reply in replies]

    assert make_runner(emodb.app)(ask) == [(403, False), (403, False), (400, True)]


def test_polls_of_a_full_queue(emodb: Emodb) -> None:
    """Polls of a full queue return nothing until claims end; ``ttl=0`` claims nothing and shows what waits."""
    [facade] = emodb.app.facades
    assert isinstance(facade, views.EmodbFacade)
    emodb.call_successfully("POST", "/queue/1/q/sendbatch", list(range(9)))
    with replace_in(views, views.MAX_CLAIMED, 4):
        first, second, third = (ids_of(emodb.get("/queue/1/q/poll?ttl=3600&limit=3")) for _ in range(3))
        assert (len(first), len(second), third) == (3, 3, [])
        assert len(emodb.get("/queue/1/q/poll?ttl=0")) == 3
        emodb.call_successfully("POST", "/queue/1/q/ack", first)
        assert len(emodb.get("/queue/1/q/poll?ttl=3600")) == 3


def test_a_store_that_fails(emodb: Emodb, between: InterposedStore) -> None:
    """The client learns that it may try again, and when; a defect shows an id and nothing of its cause."""
    emodb.call_successfully("POST", "/queue/1/q/send", 1)
    between.instead(Messages.append, failing(StoreUnavailable("away", retry_after=30)))
    reply = emodb("all", "POST", "/queue/1/q/send", 1)
    assert (reply.status, reply.json) == (503, {"message": "away", "retryAfterSeconds": 5})
    assert reply.headers["X-BV-Exception"] == "com.bazaarvoice.emodb.common.api.ServiceUnavailableException"
    assert reply.headers["Retry-After"] == "5"
    between.instead(Messages.append, failing(ValueError("defect")))
    crashed = emodb("all", "POST", "/queue/1/q/send", 1)
    assert (crashed.status, crashed.json.keys(), "defect" in crashed.text) == (500, {"message"}, False)
    between.restore(Messages.append)
    assert emodb.get("/queue/1/q/size") == 1


def test_requests_that_are_too_long(emodb: Emodb) -> None:
    """A request over the limit is refused before the service has read it all."""
    reply = emodb("all", "POST", "/queue/1/q/sendbatch", ["x" * 30_000] * 300)
    assert (reply.status, reply.json.keys()) == (413, {"message"})
    assert emodb("all", "POST", "/queue/1/q/sendbatch", [1] * 1_000_002).status == 413
    assert emodb("all", "POST", "/queue/1/_sendbatch", {f"q{number}": [] for number in range(1001)}).status == 400
    assert emodb.get("/queue/1/q/size") == 0
