"""Views of files that are the same for everybody: the OpenAPI document, its page, and the client for browsers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from urllib.parse import urlsplit

from queuey.service import Limits
from queuey.settings import is_loopback
from queuey.web import api_page
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import JSON, Response, encode
from queuey.web.v1.spec import document


@cache
def _document(limits: Limits) -> bytes:
    return encode(document(limits))


@cache
def _page(limits: Limits, link: str, *, sends: bool) -> bytes:
    return api_page.page(document(limits), link, sends=sends).encode()


_CLIENT = {name: (files("queuey.web.javascript") / name).read_bytes() for name in ("queuey.js", "queuey.d.ts")}
"""The files of the client for browsers, read at the start: an installation beside a running service replaces them."""


class FileViews:
    """Views of ``/v1/openapi.json``, ``/docs`` and ``/client``."""

    def __init__(self, limits: Limits, *, on_loopback: bool) -> None:
        self._limits = limits
        self._on_loopback = on_loopback

    async def document(self, request: Request, match: Match) -> Response:
        """Serves the OpenAPI document, with the address that the caller has used as the server's."""
        servers = encode([{"url": request.origin}])
        return Response(200, b'{"servers":%b,%b' % (servers, _document(self._limits)[1:]), JSON)

    def page(self, request: Request, match: Match) -> Response:
        """Serves the OpenAPI document as a page, with forms that send requests if only this machine can see it."""
        # The link to the document is relative, because a proxy may serve everything under a path.
        link = "../v1/openapi.json" if request.path.endswith("/") else "v1/openapi.json"
        sends = self._on_loopback and _names_this_machine(request)
        keeping = "no-store" if sends else "public, max-age=3600"
        return Response(
            200,
            _page(self._limits, link, sends=sends),
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", api_page.policy(sends=sends)),
            ("Cache-Control", keeping),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        )

    def client(self, request: Request, match: Match) -> Response:
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
    """Returns whether the request's host is a loopback address: a name that was bound to one again is none."""
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)
