"""Static files of pages. Each address has the file's hash, so that browsers keep the file for ever."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from queuey.web.endpoint import Match
from queuey.web.errors import NoSuchResource
from queuey.web.requests import Request
from queuey.web.responses import Response

NAMES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "vendor/htmx-2.0.11.min.js": "text/javascript",
    "vendor/uPlot-1.6.32.min.js": "text/javascript",
    "vendor/uPlot-1.6.32.min.css": "text/css",
}
"""Every file, and its type."""
ROUTE = "/console/static/{hash}/{name:.+}"


class File(NamedTuple):
    content: bytes
    kind: str
    digest: str


@cache
def file(name: str) -> File:
    content = (files("queuey.web.console") / "static" / name).read_bytes()
    return File(content, NAMES[name], sha256(content).hexdigest()[:20])


def address(name: str) -> str:
    return f"/console/static/{file(name).digest}/{name}"


async def show(request: Request, match: Match) -> Response:
    """Serves a file, if it is the one that the address means."""
    name = match["name"]
    if name not in NAMES or file(name).digest != match["hash"]:
        raise NoSuchResource("The resource could not be found.")
    found = file(name)
    return Response(
        200,
        found.content,
        ("Content-Type", f"{found.kind}; charset=utf-8"),
        ("Cache-Control", "public, max-age=31536000, immutable"),
        ("X-Content-Type-Options", "nosniff"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )
