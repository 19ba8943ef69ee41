"""Who makes the service read a body: of strangers, only requests that may be answered for public queues."""

from __future__ import annotations

import asyncio
import re

import pytest

from queuey.messages import QueueSpec
from queuey.settings import EmodbFacade, Facades, SqsFacade
from queuey.storage import Store
from queuey.web import make_app
from queuey.web.gateway.asgi import Gateway
from queuey.web.v1.spec import OPERATIONS
from tests.web.gateway_calls import ALWAYS, Request, running

ID = "0123456789ab11e88000000000000001"
FOR_STRANGERS = {"POST /v1/{app}/_rights", "POST /v1/{app}/_read", "POST /v1/{app}/_stream"}
"""Requests about several queues, whose names are in the body and which may be public."""
OF_FACADES = {"POST /queue/1/q/send", "POST /queue/1/q/sendbatch", "POST /dedupq/1/q/ack", "POST /queue/1/_sendbatch"}


@pytest.mark.parametrize("credential", [None, "Application wrong", "Nothing known"])
def test_bodies_that_are_read(store: Store, credential: str | None) -> None:
    """Who has no valid credential is refused before its body is read, by every route but those for public queues."""
    store.create_application("a")
    store.create_queue("a", "q", QueueSpec(partitions=1))
    served = Facades(app="a", emodb=EmodbFacade(beside=True), sqs=SqsFacade(prefix="/sqs"))
    targets = {f"{each.method} {each.path}" for each in OPERATIONS if each.method in {"POST", "PUT"}} | OF_FACADES

    async def ask_all(gateway: Gateway) -> set[str]:
        read = set()
        for target in sorted(targets):
            method, path = target.split()
            named = re.sub(r"\{.+?\}", ID, path.replace("{app}", "a").replace("{queue}", "q"))
            request = Request(method, named, [b"!", b"!"], headers=[("content-type", "application/json")])
            request.headers[0] = ("authorization", credential) if credential else ("x-none", "")
            reply = await asyncio.wait_for(request.to(gateway), ALWAYS)
            assert 400 <= reply.status < 500, (target, reply)
            if len(request.pieces) < 2:
                read.add(target)
        return read

    expected = set() if credential == "Application wrong" else FOR_STRANGERS
    assert running(make_app(store, served=served, secret=b"x" * 32))(ask_all) == expected
