"""Facades in process: what they answer when the store fails, and under a server that does not know of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NoReturn

import msgspec
import pytest

from queuey.access.credentials.readers import digest_of
from queuey.claims.claims import ClaimUseCases
from queuey.claims.log.log_requests import ClaimUndecided
from queuey.facades import rqms
from queuey.facades.settings import EmodbFacade, Facades, MqFacade, RqmsFacade
from queuey.model.errors import StoreFull, StoreUnavailable
from queuey.model.kinds import TRAITS
from queuey.storage import Messages, Store, bridge
from queuey.web.gateway import Gateway
from tests.contract.claims.test_kinds import OPTIONS
from tests.contract.samples import make_queue
from tests.facades.serving import facade_app
from tests.facades.sqs.signing import DEPLOYMENT, Sqs, new_key
from tests.interposed_store import InterposedStore
from tests.replacing import replace, replace_in
from tests.tenants import KEY
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import Request, make_runner
from tests.web.published import PATHS_IN_ORDER

Call = Callable[[str, str, bytes], Reply]


@pytest.fixture
def mq(store: Store, between: InterposedStore) -> Call:
    """Calls an application that serves MQ under a path, with a method, a path and a body."""
    bridge.run(store.applications.create_application("shop"))
    caller = Caller(facade_app(between.store, Facades(app="shop", mq=MqFacade(prefix="/mq"))))
    return caller.send


def failing(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - of any method
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away", outcome="unknown"), StoreFull("full"), ValueError("defect")]
)
def test_mq_not_stored(mq: Call, between: InterposedStore, error: Exception) -> None:
    """A message that is not certainly stored is answered with 503 and when to try again, whatever went wrong."""
    between.instead(Messages.append, failing(error))
    reply = mq("POST", "/mq/q/messages", b"x")
    assert (reply.status, reply.headers["Retry-After"]) == (503, "10")
    assert ("defect" in reply.text, "crash id" in reply.text) == (False, isinstance(error, ValueError))
    between.restore(Messages.append)
    assert mq("POST", "/mq/q/messages", b"x").status == 201


@pytest.fixture
def mq_and_rqms(store: Store) -> Caller:
    """Returns an application that serves MQ and RQMS under a path each."""
    bridge.run(store.applications.create_application("shop"))
    return Caller(facade_app(store, Facades(app="shop", mq=MqFacade(prefix="/mq"), rqms=RqmsFacade(prefix="/rqms"))))


def ask(caller: Caller, method: str, target: str, body: bytes = b"", **headers: str) -> Reply:
    """Sends a request; ``Sec_Fetch_Site=…`` sets a header."""
    path, _, query = target.partition("?")
    return caller.send(method, path, body, headers, query)


@pytest.mark.parametrize(("path", "act"), [("/mq/q/messages", "post"), ("/rqms/q?id=b", "name")])
@pytest.mark.parametrize("kind", TRAITS)
def test_what_a_kind_refuses(store: Store, mq_and_rqms: Caller, kind: str, path: str, act: str) -> None:
    """MQ posts messages without a key, RQMS posts messages with names: a queue refuses both by its kind."""
    queue = make_queue(store, "q", application="shop", **OPTIONS[kind])
    reply, text = ask(mq_and_rqms, "POST", path, b"1"), queue.traits.refusal(act, queue)
    assert (reply.status, text is None or text in reply.text) == (201 if text is None else 400, True)


PATHS_OF_V1 = [re.sub(r"\{.+?\}", "a", path) for path in PATHS_IN_ORDER if path.startswith("/v1")]


@pytest.mark.parametrize("only", ["emodb", "mq", "rqms", "sqs"])
def test_a_facade_alone_has_no_version_1(store: Store, only: Literal["emodb", "mq", "rqms", "sqs"]) -> None:
    """Every path of version 1 is the facade's own or 404, with a key and without, whatever the method."""
    bridge.run(store.applications.create_application("a"))
    bridge.run(store.applications.add_key("a", digest_of(KEY)))
    run = make_runner(facade_app(store, Facades(only=only, app="a"), secret=b"x" * 32))

    async def ask_all(gateway: Gateway) -> list[Reply]:
        methods = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")
        calls = list(itertools.product(methods, [*PATHS_OF_V1, "/v1/a/b/", "/v1/a/b/claims/", "/v1/a/%C3%A9"]))
        requests = [Request(method, path, b"1") for method, path in calls]
        strangers = [Request(method, path, b"1") for method, path in calls]
        for stranger in strangers:
            stranger.headers = stranger.headers[1:]
        return [await request.to(gateway) for request in (*requests, *strangers)]

    with replace_in(rqms, rqms.FETCH_TIMEOUT, 0.0):
        replies = run(ask_all)
    for reply in replies:
        if only == "emodb":
            assert reply.status == 404, reply
        assert reply.status < 500, reply
        assert b"partitions" not in reply.body


def polls(store: Store) -> dict[str, tuple[Callable[[], Reply], bytes]]:
    """Returns for each facade a function that receives from a queue with a message, and the answer of an empty one."""
    bridge.run(store.applications.create_application("shop"))
    bridge.run(store.applications.add_key("shop", digest_of(KEY)))
    served = Facades(
        app="shop", mq=MqFacade(prefix="/mq"), rqms=RqmsFacade(prefix="/rqms"), emodb=EmodbFacade(beside=True)
    )
    caller = Caller(facade_app(store, served))
    assert ask(caller, "POST", "/mq/q/messages", b"1", **OWN).status == 201
    emodb = partial(ask, caller, "GET", "/queue/1/q/poll?ttl=30", X_BV_API_Key=KEY)
    sqs = Sqs(facade_app(store, Facades(only="sqs"), secret=DEPLOYMENT), new_key(store, "shop"))
    url = sqs.create("s")
    sqs("SendMessage", QueueUrl=url, MessageBody="a")
    return {
        "mq": (lambda: ask(caller, "GET", "/mq/q/messages", b"", **OWN), b""),
        "rqms": (lambda: ask(caller, "GET", "/rqms/q", b"", **OWN), b'{"items":[]}'),
        "emodb": (emodb, b"[]"),
        "sqs": (partial(sqs.ask, "ReceiveMessage", QueueUrl=url), b"{}"),
    }


@pytest.mark.parametrize("facade", ["mq", "rqms", "emodb", "sqs"])
def test_others_took_all_messages(store: Store, facade: str) -> None:
    """A receive whose messages others have taken gets none, as from an empty queue; one without a store fails."""
    receive, nothing = polls(store)[facade]
    with replace(ClaimUseCases.claim, failing(ClaimUndecided("Others took all messages that were found."))):
        reply = receive()
    assert (reply.status, reply.body) == (200 if nothing else 204, nothing)
    with replace(ClaimUseCases.claim, failing(StoreUnavailable("away"))):
        assert receive().status == 503
    reply = receive()
    assert (reply.status, reply.body in {b"", b"{}", b"[]"}) == (200, False)


OWN = {"Host": "127.0.0.1:5000", "Content_Type": "text/plain"}
CALLS = [("POST", "/mq/q/messages"), ("GET", "/mq/q/messages"), ("POST", "/rqms/q?id=b"), ("GET", "/rqms/q")]


def test_pages_of_other_sites_are_refused(mq_and_rqms: Caller) -> None:
    """A request from a page of another site neither stores nor fetches a message, nor creates a queue."""
    pages: list[dict[str, str]] = [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": "http://127.0.0.1:3000"},
        {"Sec_Fetch_Site": "cross-site", "Origin": "http://127.0.0.1:5000"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ]
    for headers in pages:
        assert ask(mq_and_rqms, "POST", "/mq/q/messages", b"1", **OWN, **headers).status == 403
        assert ask(mq_and_rqms, "GET", "/mq/q").status == 404
    assert ask(mq_and_rqms, "POST", "/rqms/q?id=a", b"1").status == 201
    for headers, (method, path) in itertools.product(pages, CALLS):
        refused = ask(mq_and_rqms, method, path, b"1", **OWN, **headers)
        assert (refused.status, "another site" in refused.text) == (403, True)
    assert [item["value"] for item in ask(mq_and_rqms, "GET", "/rqms/q?count=9").json["items"]] == [1]


@pytest.mark.parametrize(
    "headers", [{"Sec_Fetch_Site": "none"}, {"Sec_Fetch_Site": "same-origin"}, {"Origin": "https://127.0.0.1:5000"}, {}]
)
def test_requests_that_are_not_cross_site_are_served(mq_and_rqms: Caller, headers: dict[str, str]) -> None:
    """Programs, addresses typed into a browser, and pages of the service's own origin have all rights."""
    assert ask(mq_and_rqms, "POST", "/rqms/q?id=a", b"1").status == 201
    for method, path in CALLS:
        assert ask(mq_and_rqms, method, path, b"1", **OWN, **headers).status in {200, 201}


@pytest.mark.parametrize("kind", ["mq", "rqms", "sqs", "emodb"])
def test_the_path_of_a_facade_is_its_own_with_a_slash_and_without(store: Store, kind: str) -> None:
    """The facade's path gets the facade's answer, whichever way a client writes it."""
    bridge.run(store.applications.create_application("shop"))
    prefix = "/queue/1" if kind == "emodb" else "/a/b"
    options: dict[str, Any] = {kind: {"beside": True} if kind == "emodb" else {"prefix": prefix}}
    caller = Caller(facade_app(store, msgspec.convert(options | {"app": "shop"}, Facades), secret=b"x" * 32))
    for method in ("GET", "POST"):
        replies = [ask(caller, method, path) for path in (prefix, f"{prefix}/")]
        forms = {(r.status, r.headers["Content-Type"], len(r.body)) for r in replies}  # Bodies of SQS have an id.
        assert len(forms) == 1, replies


def test_rqms_has_no_icon(store: Store) -> None:
    """What a browser asks for by itself fetches nothing, as in the original, also if a queue has that name."""
    bridge.run(store.applications.create_application("shop"))
    app = facade_app(store, Facades(only="rqms", app="shop"))
    assert ask(Caller(app), "POST", "/favicon.ico?id=a", b"1").status == 201

    async def fetch(gateway: Gateway) -> list[Reply]:
        return [await Request("GET", path).to(gateway) for path in ("/favicon.ico", "/other.ico")]

    assert [reply.status for reply in (ask(Caller(app), "GET", "/favicon.ico"), *make_runner(app)(fetch))] == [
        404,
        404,
        200,
    ]


def test_names_that_others_can_point_here_are_refused(mq_and_rqms: Caller) -> None:
    """A page whose own name resolves to this machine is of the same origin, but not the service's page."""
    assert ask(mq_and_rqms, "POST", "/rqms/q?id=a", b"1").status == 201
    for host in ("evil.example", "evil.example:5000", "127.0.0.1.evil.example:5000", "1.2.3.x", "a."):
        page = {"Sec_Fetch_Site": "same-origin", "Origin": f"http://{host}", "Content_Type": "text/plain"}
        for (method, path), headers in itertools.product(CALLS, (page, {"Content_Type": "text/plain"})):
            refused = ask(mq_and_rqms, method, path, b"1", Host=host, **headers)
            assert (refused.status, host in refused.text, "facades.hosts" in refused.text) == (403, True, True)
    assert [item["value"] for item in ask(mq_and_rqms, "GET", "/rqms/q?count=9").json["items"]] == [1]


def test_names_of_the_service_are_not(store: Store) -> None:
    """IP addresses, names that no domain has, and those in a setting reach the service."""
    bridge.run(store.applications.create_application("shop"))
    served = Facades(app="shop", mq=MqFacade(prefix="/mq"), hosts="mq.example.com Jobs.shop")
    caller = Caller(facade_app(store, served))
    here = ("127.0.0.1:5000", "10.0.0.7", "[::1]:5000", "[::ffff:127.0.0.1]:5000", "localhost", "localhost:5000")
    for host in (*here, "queuey:80", "mq.example.com", "MQ.example.com:8080", "jobs.shop:80"):
        page = {"Sec_Fetch_Site": "same-origin", "Origin": f"http://{host}", "Content_Type": "text/plain"}
        for headers in (page, {"Content_Type": "text/plain"}):
            assert ask(caller, "POST", "/mq/q/messages", b"1", Host=host, **headers).status == 201, host
            assert ask(caller, "GET", "/mq/q/messages", b"", Host=host, **headers).status == 200, host


def test_an_rqms_id_has_no_control_characters(mq_and_rqms: Caller) -> None:
    """An id that could be no header of its message is refused, in the protocol's own form, and nothing is stored."""
    for name in ("a%0d%0aX-Evil:%20yes", "%00", "a%7f", "a%09b"):
        refused = ask(mq_and_rqms, "POST", f"/rqms/q?id={name}", b"1")
        assert (refused.status, refused.json["error"]) == (400, True)
        assert "control character" in refused.json["message"]
        assert ask(mq_and_rqms, "PUT", f"/rqms/q/{name}", b"1").status == 400
    assert ask(mq_and_rqms, "GET", "/rqms/q").json == {"items": []}
