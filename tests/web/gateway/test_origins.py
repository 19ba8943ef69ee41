"""CORS: pages of other origins may call an application that allows their origin by name."""

from __future__ import annotations

from queuey.app.service import App
from queuey.app.version_1 import OPERATIONS
from queuey.settings import Rates
from queuey.web.admission.rates import RateLimits
from queuey.web.gateway import Gateway
from queuey.web.origins import MAX_CUSTOM_HEADERS
from tests.web.caller import Caller
from tests.web.gateway_calls import Reply, Request, make_runner

ORIGIN, THERE = "https://app.example.com", "https://evil.example.com"
FOR_BROWSERS = {
    "access-control-allow-origin",
    "access-control-expose-headers",
    "vary",
    "content-length",
    "cache-control",
}
"""Response headers for the browser itself, and those that it exposes by default."""
ROUTES = sorted({operation.path for operation in OPERATIONS if "{app}" in operation.path})


def ask(app: App, *requests: Request) -> list[Reply]:
    async def work(gateway: Gateway) -> list[Reply]:
        return [await request.to(gateway) for request in requests]

    replies: list[Reply] = make_runner(app, origins={"queuey": (ORIGIN,)})(work)
    return replies


def preflight(path: str, origin: str = ORIGIN, headers: str = "authorization") -> Request:
    named = [("origin", origin), ("access-control-request-method", "POST"), ("access-control-request-headers", headers)]
    return Request("OPTIONS", path, headers=named, key=None)


def test_each_route_has_preflights(app: App) -> None:
    """The origin that is allowed is answered by name, and any other not at all; no credential is ever allowed."""
    paths = [
        route.replace("{app}", "queuey").replace("{ids}", "0" * 32).replace("{", "").replace("}", "")
        for route in ROUTES
    ]
    for path, allowed in zip(paths, ask(app, *map(preflight, paths)), strict=True):
        assert (allowed.status, allowed.body) == (204, b""), path
        assert allowed.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert allowed.headers["Vary"] == "Origin"
        assert "Last-Event-ID" in allowed.headers["Access-Control-Allow-Headers"]
        assert "access-control-allow-credentials" not in allowed.headers
    elsewhere = [preflight(path.replace("/queuey", "/guest", 1)) for path in paths]
    for reply in ask(app, *(preflight(path, THERE) for path in paths), *elsewhere):
        assert not [name for name in reply.headers if name.startswith("access-control-")]


def test_answers_may_be_read(owner: Caller, app: App) -> None:
    """Successes, errors and streams have CORS headers for an allowed origin, and none otherwise."""
    owner.create("q")
    replies = ask(
        app,
        *(
            Request("GET", path, headers=[("origin", ORIGIN)])
            for path in ("/v1/queuey/q", "/v1/queuey/none", "/v1/queuey/_stream")
        ),
        Request("POST", "/v1/queuey/q", b"x", headers=[("origin", ORIGIN)]),
        Request("GET", "/v1/queuey/q", headers=[("origin", THERE)]),
        Request("GET", "/v1/queuey/q"),
        Request("GET", "/v1/", headers=[("origin", ORIGIN)]),
    )
    assert [reply.status for reply in replies] == [200, 404, 200, 201, 200, 200, 200]
    allowed = [reply.headers.get("Access-Control-Allow-Origin") for reply in replies]
    assert allowed == [ORIGIN] * 4 + [None] * 3
    assert [reply.headers.get("Vary") for reply in replies] == ["Origin"] * 6 + [None]


def test_every_header_of_an_answer_is_shown(owner: Caller, app: App) -> None:
    """Rates, refusals, warnings and what a message carries: a browser shows a page only headers that are listed."""
    owner.create("q")
    rates = RateLimits(Rates(application=1.0, application_burst=3), clock=lambda: 1000.0)
    origin = ("origin", ORIGIN)
    kept = [origin, ("x-header-colour", "red"), ("idempotency-key", "one")]

    async def work(gateway: Gateway) -> list[Reply]:
        stored = await Request("POST", "/v1/queuey/q", b'{"messages":[', headers=kept).to(gateway)
        again = await Request("POST", "/v1/queuey/q", b'{"messages":[', headers=kept).to(gateway)
        path = f"/v1/queuey/q/{stored.messages[0]['partition']}:{stored.messages[0]['key']}"
        raw = [await Request("GET", path, query="raw=1", headers=[origin]).to(gateway) for _ in range(2)]
        return [stored, again, *raw]

    replies = make_runner(app, origins={"queuey": (ORIGIN,)}, rates=rates)(work)
    assert [reply.status for reply in replies] == [201, 201, 200, 429]
    for reply in replies:
        listed = {name.strip().lower() for name in reply.headers["Access-Control-Expose-Headers"].split(",")}
        sent = {name for name in reply.headers if name not in FOR_BROWSERS}
        assert sent <= listed
        assert {"ratelimit", "ratelimit-policy"} <= listed
    assert {"warning", "idempotent-replayed"} <= set(replies[1].headers)
    assert {"x-message-id", "x-header-colour", "x-partition"} <= set(replies[2].headers)
    assert "retry-after" in replies[3].headers


def test_own_headers_are_named(app: App) -> None:
    """Headers that are stored with a message may be sent if they are few; other headers are not allowed by them."""
    names = ",".join(["x-header-colour", "x-evil", *(f"x-header-{n}" for n in range(50))])
    [reply] = ask(app, preflight("/v1/queuey/q", headers=names))
    allowed = reply.headers["Access-Control-Allow-Headers"]
    assert "x-header-colour" in allowed
    assert "evil" not in allowed
    assert allowed.count("x-header-") == MAX_CUSTOM_HEADERS


def test_without_the_setting_nothing_is_said(app: App) -> None:
    """Answers have no CORS headers unless an application names an origin."""

    async def work(gateway: Gateway) -> None:
        reply = await preflight("/v1/queuey/q").to(gateway)
        assert not {name for name in reply.headers if name.startswith("access-control-")}

    make_runner(app)(work)
