"""Requests with a false identity use up no quota of the caller that they name, nor of other addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from queuey.access.credentials.readers import ApplicationKeys, Identity, digest_of
from queuey.console.resources import make_console
from queuey.facades.settings import Facades, SqsFacade
from queuey.settings import Rates, UserIssuer
from queuey.storage import Store, bridge
from queuey.web.admission.rates import RateLimits
from queuey.web.admission.scheduling import ScheduledWork, stranger_tenant
from queuey.web.gateway import Gateway
from tests.access.users.issuer import AUDIENCE, Issuer, patient_readers, serving
from tests.console.conftest import examine
from tests.facades.serving import facade_app
from tests.facades.sqs.signing import DEPLOYMENT, Sqs, new_key
from tests.replacing import replace
from tests.tenants import KEY
from tests.web.gateway_calls import Request, make_runner, until

LISTING = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}
FORGED = 6
ADDRESS = "198.51.100.7"


class RequestFrom(Request):
    """A request from an address, without the usual key."""

    def __init__(self, *given: Any, address: str = ADDRESS, **also: Any) -> None:  # noqa: ANN401 - as the base has it
        super().__init__(*given, key=None, **also)
        self.address = address

    @property
    def scope(self) -> dict[str, Any]:
        return super().scope | {"client": (self.address, 1234)}


class Scene:
    """An application with a valid owner's key, access key and user, each of which has been used."""

    def __init__(self, store: Store, issuer: Issuer, keys: str) -> None:
        bridge.run(store.applications.create_application("queuey"))
        bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
        self.store, self.issuer, self.later = store, issuer, 0.0
        own = UserIssuer(issuer=issuer.name, audience=AUDIENCE, keys=keys, queues={"inbox-{user}": ("read",)})
        served = Facades(sqs=SqsFacade(prefix="/sqs"))
        self.app = facade_app(
            store,
            served,
            secret=DEPLOYMENT,
            readers=patient_readers({"queuey": (own,)}),
            includes=[make_console(examine)],
            clock=lambda: self.later,
        )
        self.sqs = Sqs(self.app, new_key(store, "queuey"), "/sqs")
        self.forger = Sqs(self.app, Credentials(self.sqs.key.access_key, "a guess"), "/sqs")

    def owner(self) -> RequestFrom:
        return RequestFrom("GET", "/v1/queuey", headers=[("authorization", f"Application {KEY}")])

    def sign_request(self, by: Sqs, body: bytes = b"{}") -> RequestFrom:
        return _make_request(by.sign_request(body, LISTING))

    def link(self, by: Sqs, seconds: int = 60) -> RequestFrom:
        def auth(*known: Any) -> SigV4QueryAuth:  # noqa: ANN401 - as SigV4Auth has them
            return SigV4QueryAuth(*known, expires=seconds)

        return _make_request(by.sign_request(b"", {}, "/?Action=ListQueues", method="GET", auth=auth))

    def revoke(self) -> RequestFrom:
        """Revokes the key if it is valid, and advances the clock by a minute; returns a request with the key."""
        if (key := bridge.run(self.store.applications.find_key(digest_of("lost")))) is not None:
            bridge.run(self.store.applications.revoke_key("queuey", key.id))
            self.later += 60.0
        return self.lost()

    def lost(self) -> RequestFrom:
        return RequestFrom("GET", "/v1/queuey/q/a/b/c", headers=[("authorization", "Application lost")])

    def token(self, token: str) -> RequestFrom:
        return RequestFrom("GET", "/v1/queuey/inbox", headers=[("authorization", f"Bearer {token}")])

    def session(self) -> RequestFrom:
        return RequestFrom(
            "GET", "/console/a/queuey", headers=[("host", "localhost"), ("cookie", f"session={'a' * 43}")]
        )


def _make_request(request: AWSRequest) -> RequestFrom:
    parts = urlsplit(request.url)
    headers = [(name.lower(), str(value)) for name, value in request.headers.items()]
    if request.body and all(name != "content-length" for name, _ in headers):
        headers.append(("content-length", str(len(request.body))))
    return RequestFrom(request.method, parts.path, request.body or b"", headers=headers, query=parts.query)


@pytest.fixture
def scene(store: Store) -> Iterator[Scene]:
    issuer = Issuer()
    with serving(issuer.make_key_set()) as keys:
        yield Scene(store, issuer, keys.url)


CLAIMS: dict[str, Callable[[Scene], RequestFrom]] = {
    "unknown key": lambda scene: RequestFrom("GET", "/v1/queuey", headers=[("authorization", "Application unknown")]),
    "revoked key": Scene.revoke,
    "forged signature": lambda scene: scene.sign_request(scene.forger),
    "forged address": lambda scene: scene.link(scene.forger),
    "altered body": lambda scene: _alter_body(scene.sign_request(scene.sqs)),
    "forged token": lambda scene: scene.token(_forged_token(scene.issuer)),
    "invented session": Scene.session,
}


def _forged_token(issuer: Issuer) -> str:
    forger = Issuer(issuer.name)
    forger.rotate("first")
    return forger.token("ann")


def _alter_body(request: RequestFrom) -> RequestFrom:
    request.pieces = [b"[]"]
    return request


@pytest.mark.parametrize("claim", CLAIMS)
def test_who_is_not_verified_uses_up_nothing(scene: Scene, claim: str) -> None:
    """However many unverified requests claim to be a caller, its rates, memory, places and turns stay as they were."""
    bridge.run(scene.store.applications.add_key("queuey", digest_of("lost")))
    limits = RateLimits(Rates(application=100, application_burst=100, user=100, user_burst=100), clock=lambda: 1000.0)

    async def work(gateway: Gateway) -> None:
        verified = [scene.owner(), scene.sign_request(scene.sqs), scene.token(scene.issuer.token("ann")), scene.lost()]
        assert [(await request.to(gateway)).status for request in verified] == [200, 200, 404, 404]
        before = _buckets(limits)
        replies = [await CLAIMS[claim](scene).to(gateway) for _ in range(FORGED)]
        assert all(400 <= reply.status < 500 or reply.status == 303 for reply in replies), replies
        assert _buckets(limits) == before
        assert not any("RateLimit" in reply.headers for reply in replies[1:])
        assert gateway.shares.memory.free == gateway.shares.memory.total
        assert not gateway.shares.present
        assert gateway.polls.places.free == gateway.polls.places.total

    make_runner(scene.app, rates=limits)(work)


def _buckets(limits: RateLimits) -> dict[str, dict[str, float]]:
    return {kind: dict(buckets.full_at) for kind, buckets in limits.buckets.items()}


def test_unknown_keys_of_one_address_keep_no_other_address_waiting(scene: Scene) -> None:
    """With threads busy, a new valid key is read after one wrong one of another address, not after all of them."""
    read: list[bytes] = []
    find = ApplicationKeys.find

    async def note(self: ApplicationKeys, digest: bytes) -> Identity:
        try:
            return await find(self, digest)
        finally:
            read.append(digest)

    async def work(gateway: Gateway) -> None:
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold() -> None:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(60)

        held = [asyncio.create_task(gateway.shares.threads.run("another", hold)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(CLAIMS["unknown key"](scene).to(gateway)) for _ in range(20)]
        await until(lambda: len(gateway.shares.threads.turns) >= 15)
        mine = scene.owner()
        mine.address = "203.0.113.9"
        waiting.append(asyncio.create_task(mine.to(gateway)))
        threads, tenant = gateway.shares.threads, stranger_tenant(mine.address)
        # The request waits, runs, or was already read by a spare thread.
        await until(
            lambda: tenant in threads.turns.jobs or threads.job_quota.held(tenant) > 0 or digest_of(KEY) in read
        )
        release.set()
        await asyncio.gather(*held, *waiting)

    with replace(ApplicationKeys.find, note):
        make_runner(scene.app)(work)
    assert read.index(digest_of(KEY)) < 8


def test_a_body_counts_for_its_address_until_its_signature_is_right(scene: Scene) -> None:
    """The body of a forged request does not count against the memory of the application that it names."""

    async def work(gateway: Gateway) -> None:
        await scene.owner().to(gateway)
        request = scene.sign_request(scene.forger, b"{" + b" " * 200_000 + b"}")
        request.hold, [body] = asyncio.Event(), request.pieces
        request.pieces = [body[:1000], body[1000:]]
        task = asyncio.create_task(request.to(gateway))
        await until(lambda: gateway.shares.memory.held(stranger_tenant(ADDRESS)) > 0)
        assert gateway.shares.memory.held("app:queuey") == 0
        request.hold.set()
        assert (await task).status == 403

    make_runner(scene.app)(work)


def test_forged_requests_take_turns(scene: Scene) -> None:
    """While forged requests come, they count as a tenant of their own, and wait for its turn."""

    async def work(gateway: Gateway) -> None:
        await scene.owner().to(gateway)
        await scene.sign_request(scene.forger).to(gateway)
        assert gateway.shares.has_several
        entered: list[str] = []
        enter = gateway.shares.scheduler.wait_for_turn

        async def note(tenant: str, size: int) -> ScheduledWork:
            entered.append(tenant)
            return await enter(tenant, size)

        gateway.shares.scheduler.wait_for_turn = note  # type: ignore[method-assign]
        await scene.sign_request(scene.forger).to(gateway)
        await scene.sign_request(scene.sqs).to(gateway)
        assert entered == [stranger_tenant(ADDRESS), stranger_tenant(ADDRESS), "app:queuey"]

    make_runner(scene.app)(work)
