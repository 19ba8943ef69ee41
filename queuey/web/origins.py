"""CORS: which pages of other origins may use an application's queues from a browser (WHATWG Fetch).

Origins are allowed by name, per application. There are no cookies, so a browser adds no credential by itself, and
credentialed requests are never allowed; a page sends its token in the Authorization header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from queuey.web.requests import Request
from queuey.web.responses import Header, Response

METHODS = "GET, HEAD, POST, PUT, DELETE"
ALLOWED_HEADERS = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, "
    "X-TTL, X-Partition, X-Message-Key, X-Delay, X-After, X-Encoding"
)
"""Headers that a page may send, besides the X-Header-… headers that its preflight names."""
MAX_PREFLIGHT_AGE = 7200
"""Interval for which a browser caches a preflight, in seconds; Chromium's maximum."""
MAX_CUSTOM_HEADERS = 16
CUSTOM_HEADER_PREFIX = "x-header-"


class Origins:
    """The origins that each application allows.

    Args:
        allowed: Origins by application, such as ``https://app.example.com``.
    """

    def __init__(self, allowed: Mapping[str, Sequence[str]]) -> None:
        self._allowed = {application: frozenset(origins) for application, origins in allowed.items()}

    def answer_preflight(self, request: Request) -> Response | None:
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return None
        if request.headers.get("origin") not in self._allowed.get(_find_application(request.path), ()):
            return None
        requested = request.headers.get("access-control-request-headers", "").lower().split(",")
        custom = [
            name for name in map(str.strip, requested) if name.startswith(CUSTOM_HEADER_PREFIX) and name.isascii()
        ][:MAX_CUSTOM_HEADERS]
        return Response(
            204,
            b"",
            *self.make_headers(request, ()),
            ("Access-Control-Allow-Methods", METHODS),
            ("Access-Control-Allow-Headers", ", ".join([ALLOWED_HEADERS, *custom])),
            ("Access-Control-Max-Age", str(MAX_PREFLIGHT_AGE)),
        )

    def make_headers(self, request: Request, sent: Sequence[Header]) -> tuple[Header, ...]:
        """Returns the CORS headers of a response.

        An application without origins has none. An origin that is not allowed has only ``Vary``.
        """
        allowed = self._allowed.get(_find_application(request.path))
        if allowed is None:
            return ()
        origin = request.headers.get("origin")
        varies = ("Vary", "Origin")
        if origin not in allowed:
            return (varies,)
        exposed = ", ".join(dict.fromkeys(name for name, _ in sent))
        return varies, ("Access-Control-Allow-Origin", str(origin)), ("Access-Control-Expose-Headers", exposed)


def _find_application(path: str) -> str:
    return path.split("/", 3)[2] if path.startswith("/v1/") else ""
