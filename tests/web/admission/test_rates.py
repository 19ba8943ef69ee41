"""Rate limits, called as the server calls them: who is counted, and what a refused request costs."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.facades.settings import EmodbFacade, Facades, MqFacade, RqmsFacade
from queuey.model.rights import Caller, Grant
from queuey.model.user_queues import queue_name, user_name
from queuey.settings import Rates, UserIssuer
from queuey.settings.definitions import OwnRates
from queuey.storage import Store, bridge
from queuey.web.admission.rates import RateLimits
from queuey.web.gateway import Gateway
from tests.access.users.issuer import AUDIENCE, Issuer, patient_readers, serving
from tests.facades.serving import facade_app
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller as Client
from tests.web.caller import Reply
from tests.web.gateway_calls import Request, Run, make_runner

ALPHA = Caller(frozenset({"alpha eve"}), (Grant("alpha", frozenset({"read"}), "inbox-eve"),), "users of alpha")


def make_limited_runner(app: App, **rates: Any) -> Run:  # noqa: ANN401 - fields
    """Returns a runner of coroutines with a gateway that has these limits and a clock that stands still."""
    return make_runner(app, rates=RateLimits(Rates(**rates), clock=lambda: 1000.0))


def test_one_too_many_is_refused_before_its_body_is_read(app: App, owner: Client) -> None:
    """The first answers say what is left; the next is 429 with the time to retry, and its body is not read."""
    owner.create("q")

    async def work(gateway: Gateway) -> None:
        for remaining in (1, 0):
            reply = await Request(body=b"hello").to(gateway)
            assert reply.status == 201
            assert reply.headers["RateLimit-Policy"] == '"application";q=2;w=4'
            assert reply.headers["RateLimit"].startswith(f'"application";r={remaining};t=')
        request = Request(body=[b"never read"])
        reply = await request.to(gateway)
        assert request.pieces == [b"never read"]
        assert reply.status == 429
        assert (reply.headers["Retry-After"], reply.json["outcome"]) == ("2", "none")
        assert reply.headers["RateLimit"] == '"application";r=0;t=4'
        assert reply.json["error_msg"]["TooManyRequests"].startswith("Too many requests of this application: it may ")

    make_limited_runner(app, application=0.5, application_burst=2)(work)
    assert [message["body"] for message in owner.get("q").messages] == ["hello", "hello"]


def test_others_and_monitors_are_not_disturbed(app: App, owner: Client) -> None:
    """Another application has a bucket of its own; monitors and callers without a credential have none."""
    owner.create("q", type="public")

    async def work(gateway: Gateway) -> None:
        async def ask(path: str, key: str | None) -> int:
            return (await Request("GET", path, key=key).to(gateway)).status

        assert [await ask("/v1/queuey/q", KEY) for _ in range(2)] == [200, 429]
        assert [await ask("/v1/queuey/q", GUEST_KEY) for _ in range(2)] == [200, 429]
        assert [await ask("/v1/queuey/q", None) for _ in range(3)] == [200] * 3
        assert [await ask("/__heartbeat__", KEY) for _ in range(3)] == [200] * 3
        assert [await ask("/v1/queuey/q", "unknown") for _ in range(3)] == [401] * 3

    make_limited_runner(app, application=1)(work)


def test_a_user_over_the_limit_disturbs_no_other_user(store: Store) -> None:
    """Each user of an application has a limit of their own, also with a new token each time; the owner has none."""
    issuer = Issuer()
    with serving(issuer.make_key_set()) as keys:
        own = UserIssuer(issuer=issuer.name, audience=AUDIENCE, keys=keys.url, queues={"inbox-{user}": ("read",)})
        bridge.run(store.applications.create_application("queuey"))
        bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
        app = make_app(store, readers=patient_readers({"queuey": (own,)}))
        inboxes = {user: queue_name("inbox-{user}", user_name(issuer.name, user)) for user in ("ann", "bob")}
        for name in inboxes.values():
            Client(app, f"Application {KEY}").create(name)

        async def work(gateway: Gateway) -> None:
            async def read(user: str) -> int:
                bearer = [("authorization", f"Bearer {issuer.token(user, jti=next(numbers))}")]
                reply = await Request("GET", f"/v1/queuey/{inboxes[user]}", headers=bearer, key=None).to(gateway)
                assert reply.headers["RateLimit"].startswith('"user";r=')
                return reply.status

            numbers = map(str, count())
            assert [await read("ann") for _ in range(4)] == [200, 200, 429, 429]
            assert [await read("bob") for _ in range(3)] == [200, 200, 429]
            assert [(await Request(path=f"/v1/queuey/{inboxes['ann']}", body=b"x").to(gateway)).status] == [201]

        make_limited_runner(app, user=2)(work)


@pytest.mark.parametrize(
    ("also", "path", "counted"),
    [
        (ALPHA, "shop", {"shop", "shop ann"}),
        (ALPHA, "nobody", {"alpha", "alpha eve", "shop", "shop ann"}),
        (Caller(frozenset({"app:alpha"})), "shop", {"alpha", "shop", "shop ann"}),
        (Caller(grants=(Grant("alpha", frozenset({"read"})),)), "shop", {"shop", "shop ann"}),
        (Caller(grants=(Grant(None, frozenset({"measure"})),)), "shop", {"@all", "shop", "shop ann"}),
        (Caller(frozenset({"shop bob"})), "shop", {"shop", "shop ann", "shop bob"}),
    ],
)
def test_a_credential_more_evades_no_limit(also: Caller, path: str, counted: set[str]) -> None:
    """A request counts against every tenant that its credentials identify for the application."""
    ann = Caller(frozenset({"shop ann"}), (Grant("shop", frozenset({"read"}), "inbox-ann"),), "users of shop")
    both = Caller(ann.names | also.names, ann.grants + also.grants, "app:alpha")
    rates = Rates(application=9, user=9)
    limits = RateLimits(rates, clock=lambda: 1000.0)
    headers, refusal = limits.count(both, path)
    assert refusal is None
    assert {name for buckets in limits.buckets.values() for name in buckets.full_at} == counted
    assert len(headers) == 2
    assert all(value.count('"application"') == 1 and value.count('"user"') <= 1 for _, value in headers)


def test_the_limit_that_is_reached_is_told() -> None:
    """Of several buckets of one kind the headers have the one with least left; a refused request takes from none."""
    own = {"shop": OwnRates(application=1), "alpha": OwnRates(application=0.5)}
    limits = RateLimits(Rates(application=100, applications=own), clock=lambda: 1000.0)
    both = Caller(frozenset({"app:shop", "app:alpha", "app:more"}))
    headers, refusal = limits.count(both, "shop")
    assert refusal is None
    assert dict(headers)["RateLimit-Policy"] == '"application";q=1;w=2'
    headers, refusal = limits.count(both, "shop")
    assert refusal is not None
    assert refusal.retry_after == 2
    assert dict(headers)["RateLimit"] == '"application";r=0;t=2'
    assert limits.count(Caller(frozenset({"app:more"})), "more")[0][1][1] == '"application";r=98;t=1'


def test_a_refused_request_needs_no_thread(app: App, owner: Client) -> None:
    """While all threads are busy, a request that is one too many is answered at once."""
    owner.create("q")

    async def work(gateway: Gateway) -> None:
        assert (await Request(body=b"x").to(gateway)).status == 201
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold() -> None:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(60)

        held = [asyncio.create_task(gateway.shares.threads.run("another", hold)) for _ in range(2)]
        await asyncio.sleep(0)
        assert (await Request("DELETE", "/v1/queuey/q").to(gateway)).status == 429
        assert not any(task.done() for task in held)
        release.set()
        await asyncio.gather(*held)

    make_limited_runner(app, application=1)(work)


@pytest.mark.parametrize(
    ("path", "first", "retry_after"),
    [("/mq/q/messages", 204, "10"), ("/rqms/q", 200, "1"), ("/queue/1/q/size", 200, "2")],
)
def test_facades(store: Store, path: str, first: int, retry_after: str) -> None:
    """The callers of a facade use up the requests of its application, and are refused in the facade's own words."""
    bridge.run(store.applications.create_application("shop"))
    bridge.run(store.applications.add_key("shop", digest_of("key")))
    served = Facades(
        app="shop", mq=MqFacade(prefix="/mq"), rqms=RqmsFacade(prefix="/rqms"), emodb=EmodbFacade(beside=True)
    )

    async def work(gateway: Gateway) -> list[Reply]:
        headers = [("x-bv-api-key", "key")]
        return [await Request("GET", path, headers=headers).to(gateway) for _ in range(2)]

    allowed, refused = make_limited_runner(facade_app(store, served), application=0.5, application_burst=1)(work)
    assert allowed.status == first
    assert (refused.status, refused.headers["Retry-After"]) == (503, retry_after)
    assert (refused.headers.get("X-BV-Exception", "").endswith("ServiceUnavailableException")) == ("queue" in path)
