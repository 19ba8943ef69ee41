"""A client that calls an application through the gateway, as the server does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from queuey.access.credentials.readers import Identity, digest_of
from queuey.app.service import App
from queuey.model.errors import NotAuthenticated
from queuey.model.rights import parse_scope
from queuey.storage import Store, bridge
from tests.web import published
from tests.web.gateway_calls import Reply, Request, serve

__all__ = ["Caller", "Reply"]
NUMBERS = itertools.count()


class Caller:
    """Calls an application with one credential and checks every answer against the OpenAPI document."""

    def __init__(self, app: App, authorization: str | None = None, base: str = "/v1/queuey") -> None:
        self.app = app
        self.authorization = authorization
        self.base = base

    def send(
        self,
        method: str,
        path: str,
        body: bytes | list[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        query: str = "",
        **how: bool,
    ) -> Reply:
        """Sends a request, without a check; ``path`` is percent-encoded. ``how`` is as for :class:`Request`."""
        named = [(name.lower().replace("_", "-"), value) for name, value in (headers or {}).items()]
        credentials = [] if self.authorization is None else [("authorization", self.authorization)]
        request = Request(method, path, body, headers=[*credentials, *named], query=query, key=None, **how)
        return serve(self.app).reply_to(request)

    def __call__(
        self,
        method: str,
        path: str = "",
        body: bytes | str = b"",
        *,
        headers: dict[str, str] | None = None,
        **query: object,
    ) -> Reply:
        """Sends a request, and checks the answer unless it is to HEAD.

        ``path`` is below the application unless it begins with a slash; a query in it replaces ``query``.
        """
        if not path.startswith("/"):
            path = f"{self.base}/{path}" if path else self.base
        path, _, parameters = path.partition("?")
        query_text = parameters or urlencode(query)
        raw = body.encode() if isinstance(body, str) else body
        reply = self.send(method, path, raw, headers, query_text)
        if method != "HEAD":
            content = json.loads(reply.body) if reply.is_json else "text"
            published.check(method, path, reply.status, reply.headers, content, raw="raw=" in query_text)
        return reply

    def get(self, path: str = "", **query: object) -> Reply:
        return self("GET", path, b"", headers=None, **query)

    def send_json(self, method: str, path: str, content: object, **headers: str) -> Reply:
        """Sends JSON; ``X_TTL=…`` sets a header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self(method, path, json.dumps(content), headers={"Content-Type": "application/json", **named})

    def send_form(self, method: str, path: str = "", **fields: object) -> Reply:
        return self(method, path, urlencode(fields), headers={"Content-Type": "application/x-www-form-urlencoded"})

    def create(self, name: str, **fields: object) -> str:
        reply = self.send_form("POST", "", queue_name=name, **fields)
        assert reply.status == 201, reply
        return name

    def post(self, queue: str, body: bytes | str, **headers: str) -> dict[str, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = self("POST", queue, body, headers=named)
        assert reply.status == 201, reply
        return reply.messages[0]

    def claim(self, queue: str = "q", **asked: object) -> list[dict[str, Any]]:
        reply = self("POST", f"{queue}/claims", b"", headers=None, **asked)
        assert reply.status == 200, reply
        return reply.messages

    def batch(self, queue: str, *items: object, **headers: str) -> Reply:
        return self.send_json("POST", queue, {"messages": list(items)}, **headers)


class Tokens:
    """Reads the credentials of the test's users."""

    scheme = "Token"
    max_cache_seconds = 60.0

    def __init__(self) -> None:
        self.known: dict[str, Identity] = {}

    async def read(self, credential: str, now: float) -> Identity:
        if credential not in self.known:
            raise NotAuthenticated("No such token")
        return self.known[credential]


def limited_caller(owner: Caller, store: Store, allow: str = "", queues: str = "") -> Caller:
    """Returns a caller with another key of the owner's application, limited to these verbs and patterns."""
    secret = f"limited{next(NUMBERS)}"
    scope = parse_scope(allow.split(","), queues.split(","))
    bridge.run(store.applications.add_key("queuey", digest_of(secret), scope=scope))
    return Caller(owner.app, f"Application {secret}")
