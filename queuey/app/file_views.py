"""Views that need no credential: the service, its OpenAPI document, and the browser client."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import msgspec

from queuey import __version__
from queuey.access.operations import declare
from queuey.api.queues import Hello
from queuey.runtime.limits import Limits
from queuey.settings import is_loopback
from queuey.storage import Store
from queuey.web import openapi
from queuey.web.endpoint import Match
from queuey.web.openapi import ResponseSpec, Tag
from queuey.web.parameters import ANY_TEXT
from queuey.web.requests import Request
from queuey.web.responses import JSON, Response, encode, json_response

Describe = Callable[[Limits], dict[str, Any]]
"""Returns the OpenAPI document with the limits in force."""


@cache
def _encode_document(describe: Describe, limits: Limits) -> bytes:
    return encode(describe(limits))


# Files are read at the start, because an upgrade may replace them while the service runs.
_PAGE, STYLE, SCRIPT = ((files("queuey") / "app" / f"api_page.{kind}").read_text() for kind in ("html", "css", "js"))
"""The page, which ``deploy/api_page.py`` makes of the OpenAPI document; its styles; the script that adds its forms."""
ADDRESS = "http://127.0.0.1:5000"
"""The URL of the service in the examples of the page."""


@cache
def _render_page(limits: Limits, link: str, *, sends: bool) -> bytes:
    page: str = openapi.fill_in_limits(_PAGE, msgspec.structs.asdict(limits))
    page = page.replace("{version}", __version__).replace("{link}", link).replace("{style}", STYLE)
    return (page.replace("</body>", f'<script type="module">{SCRIPT}</script>\n</body>') if sends else page).encode()


@cache
def _make_policy(*, sends: bool) -> str:
    """Returns the Content-Security-Policy of the page; it allows only the page's styles, by hash.

    With ``sends`` it also allows the page's script, by hash, and requests to this service.
    ``'self'`` would be wrong for scripts, because it allows every URL of the service, including stored messages.
    """
    style, script = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (STYLE, SCRIPT)
    )
    sending = f"script-src {script}; connect-src 'self'; require-trusted-types-for 'script'; "
    return (
        f"default-src 'none'; {sending if sends else ''}style-src {style}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


ORIGIN = re.compile(r"https?://[\w.\[\]:-]{1,260}", re.ASCII)
"""Addresses that the page may show in shell commands: they have no characters special to a shell."""


_CLIENT = {name: (files("queuey") / "javascript" / name).read_bytes() for name in ("queuey.js", "queuey.d.ts")}

LINKS = {
    "api": "/v1/",
    "application": "/v1/{application}",
    "openapi": "/v1/openapi.json",
    "docs": "/docs",
    "version": "/__version__",
    "health": "/__heartbeat__",
}


class HelloView:
    """View of ``/`` and of ``/v1/``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._id: str | None = None

    async def show(self, request: Request, match: Match) -> Response:
        if self._id is None:
            self._id = await self._store.identity()
        return json_response(Hello(version=__version__, store=self._store.name, id=self._id, links=LINKS))


class FileViews:
    """Views of ``/v1/openapi.json``, ``/docs`` and ``/client``."""

    def __init__(self, limits: Limits, describe: Describe, *, on_loopback: bool) -> None:
        self._describe = describe
        self._limits = limits
        self._on_loopback = on_loopback

    async def document(self, request: Request, match: Match) -> Response:
        servers = encode([{"url": request.origin}])
        return Response(200, b'{"servers":%b,%b' % (servers, _encode_document(self._describe, self._limits)[1:]), JSON)

    async def page(self, request: Request, match: Match) -> Response:
        """Serves the page of the API, with forms that send requests if all is on this machine.

        That is, if only this machine can connect and the request names it. The rendered page is cached; only the
        address of the request is inserted each time.
        """
        # The link to the document is relative, because a proxy may serve everything under a path.
        link = "../v1/openapi.json" if request.path.endswith("/") else "v1/openapi.json"
        sends = self._on_loopback and _names_this_machine(request)
        caching = "no-store" if sends else "public, max-age=3600"
        render = partial(_render_page, self._limits, link, sends=sends)
        page = await request.in_thread(render, computes=True)
        if ORIGIN.fullmatch(request.origin):
            page = page.replace(ADDRESS.encode(), request.origin.encode())
        return Response(
            200,
            page,
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", _make_policy(sends=sends)),
            ("Cache-Control", caching),
            ("Vary", "X-Forwarded-Proto"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        )

    async def client(self, request: Request, match: Match) -> Response:
        name = request.path.rstrip("/").rpartition("/")[2]
        kind = "text/javascript" if name.endswith(".js") else "application/typescript"
        return Response(
            200,
            _CLIENT[name],
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Access-Control-Allow-Origin", "*"),
            ("Cross-Origin-Resource-Policy", "cross-origin"),
            ("Cache-Control", "public, max-age=3600"),
            ("X-Content-Type-Options", "nosniff"),
        )


def _names_this_machine(request: Request) -> bool:
    """Returns whether the request's host is localhost or a loopback address. A name that resolves to one is not."""
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


SERVICE_TAG = Tag("Service", "The service itself, its API document and its browser client. No key is needed.")
OF_SERVICE: dict[str, Any] = {"anonymous": True, "errors": (400, 500, 503)}
OF_FILE: dict[str, Any] = {"anonymous": True, "errors": (400,)}
CLIENT_HEADERS = {"Access-Control-Allow-Origin": "`*`: pages of any origin may load it"}
OPERATIONS = (
    declare(SERVICE_TAG, "GET /", "Show service", Hello, HelloView.show, resource="root", **OF_SERVICE),
    declare(SERVICE_TAG, "GET /v1", "Show API", Hello, HelloView.show, resource="hello", **OF_SERVICE),
    declare(
        SERVICE_TAG,
        "GET /v1/openapi.json",
        "Get OpenAPI document",
        {200: ResponseSpec({openapi.JSON: {"type": "object"}})},
        FileViews.document,
        **OF_FILE,
    ),
    declare(
        SERVICE_TAG,
        "GET /docs",
        "Get API page, made from the OpenAPI document",
        {200: ResponseSpec({"text/html": ANY_TEXT}, {"Content-Security-Policy": "Allows only what is in the page"})},
        FileViews.page,
        **OF_FILE,
    ),
    declare(
        SERVICE_TAG,
        "GET /client/queuey.js",
        "Get browser client",
        {200: ResponseSpec({"text/javascript": ANY_TEXT}, CLIENT_HEADERS)},
        FileViews.client,
        resource="client",
        **OF_FILE,
    ),
    declare(
        SERVICE_TAG,
        "GET /client/queuey.d.ts",
        "Get browser client types",
        {200: ResponseSpec({"application/typescript": ANY_TEXT}, CLIENT_HEADERS)},
        FileViews.client,
        resource="client_types",
        **OF_FILE,
    ),
)
