"""Bodies of requests without a credential are read only if they may be about public queues."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from queuey.app.service import App
from queuey.console.resources import make_console
from queuey.facades.settings import EmodbFacade, Facades, MqFacade, RqmsFacade, SqsFacade
from queuey.model.messages import QueueSpec
from queuey.storage import Store, bridge
from queuey.web.gateway import Gateway
from tests.facades.serving import facade_app
from tests.web.gateway_calls import TEST_TIMEOUT, Request, make_runner

ID = "0123456789ab11e88000000000000001"
SIGNATURE = (
    "AWS4-HMAC-SHA256 Credential=QAAAAAAAAAAAAAAAAAAA/20260101/eu/sqs/aws4_request, SignedHeaders=host;x-amz-date, "
    f"Signature={'0' * 64}"
)
FOR_STRANGERS = {"POST /v1/{app}/_rights{_:/?}", "POST /v1/{app}/_read{_:/?}", "POST /v1/{app}/_stream{_:/?}"}
"""Requests about several queues, which may be public and whose names are in the body."""
OPEN = re.compile(r"\w+ /(?:mq|rqms)/")
"""Requests of facades that have no credentials: the operator restricts who can reach them."""
FORMS = {"POST /console/login", "POST /console/logout"}
"""Small forms of the console, which contain the credential or a token of this browser."""
VALUES = {"app": "a", "queue": "q", "account": "1", "base": "queue"}


def _targets(app: App) -> Iterator[str]:
    for route, endpoint in app.resources.routes:
        yield from (f"{method} {route.pattern}" for method in endpoint._views if method in {"POST", "PUT", "DELETE"})


def _path(pattern: str) -> str:
    def value(match: re.Match[str]) -> str:
        return "" if match[2] == ":/?" else VALUES.get(match[1], ID)

    return re.sub(r"\{(\w+)(:[^{}]+)?\}", value, pattern)


@pytest.mark.parametrize("credential", [None, "Application wrong", "Nothing known", SIGNATURE])
def test_bodies_that_are_read(store: Store, credential: str | None) -> None:
    """A caller without a valid credential is refused before its body is read, except by routes for public queues."""
    bridge.run(store.applications.create_application("a"))
    bridge.run(store.catalogue.create_queue("a", "q", QueueSpec(partitions=1)))
    mq, rqms, sqs = MqFacade(prefix="/mq"), RqmsFacade(prefix="/rqms"), SqsFacade(prefix="/sqs")
    served = Facades(app="a", emodb=EmodbFacade(beside=True), mq=mq, rqms=rqms, sqs=sqs)
    app = facade_app(store, served, secret=b"x" * 32, includes=[make_console(list)])
    targets = set(_targets(app))

    async def ask_all(gateway: Gateway) -> set[str]:
        read = set()
        for target in sorted(targets):
            method, pattern = target.split()
            request = Request(method, _path(pattern), [b"!", b"!"], headers=[("content-type", "application/json")])
            request.headers[0] = ("authorization", credential) if credential else ("x-none", "")
            reply = await asyncio.wait_for(request.to(gateway), TEST_TIMEOUT)
            assert 200 <= reply.status < 500, (target, reply)
            if len(request.pieces) < 2:
                read.add(target)
        return read

    public = set() if credential == "Application wrong" else FOR_STRANGERS
    assert make_runner(app)(ask_all) == public | FORMS | set(filter(OPEN.match, targets))
