"""The way to views that an include has added in Pyramid's own way: a plug-in's pages, with templates, sessions, CSRF.

Pyramid's router runs them in a thread, with a whole WSGI environ. ``docs/extending.md`` shows such an include.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from typing import Any

from queuey.web.requests import Request, read_body
from queuey.web.responses import Header, Response, body_of

_NO_PREFIX = frozenset({"content-type", "content-length"})


class Bridge:
    """Answers requests by Pyramid's router.

    Args:
        router: From ``make_wsgi_app``.
        max_body: Bytes of the longest body.
    """

    def __init__(self, router: Callable[..., Iterable[bytes]], max_body: int) -> None:
        self._router = router
        self._max_body = max_body

    def answer(self, request: Request, _match: object) -> Response:
        """Answers one; blocks. Errors without a view of their own are raised."""
        started: list[Any] = [500, []]

        def start_response(status: str, headers: list[Header], _error: object = None) -> None:
            started[:] = int(status[:3]), headers

        result = self._router(environ_of(request, read_body(request, self._max_body)), start_response)
        try:
            body = body_of(list(result))
        finally:
            if (close := getattr(result, "close", None)) is not None:
                close()
        status, headers = started
        # The length of what is sent is known by then; of a HEAD it is what a GET would send.
        kept = request.method == "HEAD"
        return Response(status, body, *(each for each in headers if kept or each[0].lower() != "content-length"))


def environ_of(request: Request, body: bytes) -> dict[str, Any]:
    """Returns a request as WSGI has it (PEP 3333)."""
    environ = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.path.encode().decode("latin-1"),
        "QUERY_STRING": request.query,
        "SERVER_NAME": "queuey",
        "SERVER_PORT": "0",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        environ[key if name in _NO_PREFIX else f"HTTP_{key}"] = value
    environ["CONTENT_LENGTH"] = str(len(body))  # also of a chunked one
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    return environ
