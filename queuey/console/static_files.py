"""Static files of pages. Each address has the file's hash, so that browsers keep the file for ever."""

from __future__ import annotations

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


def _read(name: str) -> File:
    content = (files("queuey.console") / "static" / name).read_bytes()
    return File(content, NAMES[name], sha256(content).hexdigest()[:20])


FILES = {name: _read(name) for name in NAMES}
"""Read at the start: an installation beside a running service replaces them."""


def address(name: str) -> str:
    return f"/console/static/{FILES[name].digest}/{name}"


async def show(request: Request, match: Match) -> Response:
    """Serves a file, if it is the one that the address means."""
    name = match["name"]
    file = FILES.get(name)
    if file is None or file.digest != match["hash"]:
        raise NoSuchResource("The resource could not be found.")
    return Response(
        200,
        file.content,
        ("Content-Type", f"{file.kind}; charset=utf-8"),
        ("Cache-Control", "public, max-age=31536000, immutable"),
        ("X-Content-Type-Options", "nosniff"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )
