"""Pages of other origins: which of them a browser lets speak with an application's queues (WHATWG Fetch, CORS).

An origin is allowed by name, per application. No credential goes with a request by itself, as there are no cookies, so
none is ever allowed here; a page sends its token in the header Authorization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from queuey.web.requests import Request
from queuey.web.responses import Header, Response

METHODS = "GET, HEAD, POST, PUT, DELETE"
ASKED = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, "
    "X-TTL, X-Partition, X-Message-Key, X-Delay, X-After, X-Encoding"
)
"""Headers that a page may send, beside X-Header-… that are named."""
MAX_AGE = 7200
"""Interval for which a browser caches a preflight, in seconds; Chromium's maximum."""
MAX_NAMED = 16
"""Max custom headers in a preflight."""
OWN = "x-header-"


class Origins:
    """The origins of pages that each application allows.

    Args:
        allowed: Origins by application, such as ``https://app.example.com``.
    """

    def __init__(self, allowed: Mapping[str, Sequence[str]]) -> None:
        self._allowed = {application: frozenset(origins) for application, origins in allowed.items()}

    def preflight(self, request: Request) -> Response | None:
        """Answers a browser that asks before it sends a request for a page; None: this is no such question."""
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return None
        if request.headers.get("origin") not in self._allowed.get(_application(request.path), ()):
            return None
        named = request.headers.get("access-control-request-headers", "").lower().split(",")
        own = [name for name in map(str.strip, named) if name.startswith(OWN) and name.isascii()][:MAX_NAMED]
        return Response(
            204,
            b"",
            *self.headers(request, ()),
            ("Access-Control-Allow-Methods", METHODS),
            ("Access-Control-Allow-Headers", ", ".join([ASKED, *own])),
            ("Access-Control-Max-Age", str(MAX_AGE)),
        )

    def headers(self, request: Request, sent: Sequence[Header]) -> tuple[Header, ...]:
        """Returns the headers that let a page read an answer, and all headers that it has."""
        allowed = self._allowed.get(_application(request.path))
        if allowed is None:
            return ()
        origin = request.headers.get("origin")
        varies = ("Vary", "Origin")
        if origin not in allowed:
            return (varies,)
        shown = ", ".join(dict.fromkeys(name for name, _ in sent))
        return varies, ("Access-Control-Allow-Origin", str(origin)), ("Access-Control-Expose-Headers", shown)


def _application(path: str) -> str:
    """Returns the application in a path of the API; blank: there is none."""
    return path.split("/", 3)[2] if path.startswith("/v1/") else ""
