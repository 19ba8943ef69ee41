"""Renders pages: templates escape all values, and the Content-Security-Policy allows only our own scripts.

Addresses of static files contain their hash, so that browsers may cache them forever. Bodies of messages are shown as
indented JSON, text, or bytes in hex. All of them are untrusted.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import DictLoader, Environment, PackageLoader, StrictUndefined

from queuey.console import cookies
from queuey.console.filters import (
    coloured_json,
    compact,
    heads,
    label_cells,
    moment,
    moment_absolute,
    size,
    spark_paths,
)
from queuey.model.messages import OPERATORS, Message, body_bytes
from queuey.model.rights import USERS_TENANT_PREFIX, Action, Caller, application_of_owner
from queuey.model.time_parsing import format_duration
from queuey.web.endpoint import Match
from queuey.web.errors import NoSuchResource
from queuey.web.requests import Request
from queuey.web.responses import Header, Response

ROOT = "/console"
HTML: Header = ("Content-Type", "text/html; charset=utf-8")
HEADERS: tuple[Header, ...] = (
    ("X-Content-Type-Options", "nosniff"),
    # Without a referrer, a browser would send Origin: null with our own forms.
    ("Referrer-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Headers of every response except static files."""
SEE_OTHER = 303

FILE_TYPES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "vendor/htmx-2.0.11.min.js": "text/javascript",
    "vendor/uPlot-1.6.32.min.js": "text/javascript",
    "vendor/uPlot-1.6.32.min.css": "text/css",
}
FILE_ROUTE = "/console/static/{hash}/{name:.+}"
MAX_SHOWN = 64 * 1024
"""Max characters of a body on a page."""
MAX_HEX_BYTES = 4096
MAX_DEPTH = 32
"""Max depth of JSON that is indented; deeper JSON would be mostly indentation."""
MAX_PREVIEW = 200
TABS: tuple[tuple[str, str, Action | None], ...] = (
    ("Overview", "", None),
    ("Queues", "_queues", "measure"),
    ("Groups", "_groups", "measure"),
    ("Failures", "_failures", "read"),
    ("Schedules", "_schedules", "admin"),
    ("Keys", "_keys", "admin"),
    ("Audit log", "_audit", "admin"),
)
"""Pages of an application: text, name in the address, and the right that they need with at least one queue."""
MACROS = ("table", "sort_head", "next_page", "codes", "badge", "tile", "spark")
_HEX_LINE_BYTES = 16
_NOT_PRINTABLE = re.compile(r"[^ -~]")
_BRACKETS = re.compile(r"[\[\]{}]")


def make_policy(nonce: str) -> str:
    own = f"'nonce-{nonce}'"
    return (
        f"default-src 'none'; script-src {own}; style-src {own}; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def link(*parts: object, **query: object) -> str:
    """Returns the address of a page.

    Args:
        parts: Parts of the path, below the root.
        query: Fields of the query; fields that are None or blank are omitted.

    Example:
        >>> link("a", "shop", "a/b?", since="x y", key="")
        '/console/a/shop/a%2Fb%3F?since=x+y'
    """
    path = "/".join((ROOT, *(quote(str(part), safe="") for part in parts)))
    fields = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(fields)}" if fields else path


def is_part(request: Request) -> bool:
    """Returns whether a script (htmx) loads only a part of a page."""
    return "hx-request" in request.headers


def describe_caller(caller: Caller) -> str:
    if caller.tenant.startswith(USERS_TENANT_PREFIX):
        application, _, user = min(caller.names).partition(" ")
        return f"{user} of {application}"
    application = application_of_owner(caller.tenant)
    return "operator's key" if application == OPERATORS else f"key of {application}"


def render(
    request: Request,
    template: str,
    title: str,
    *headers: Header,
    of: str = "",
    status: int = 200,
    caller: Caller | None = None,
    **values: object,
) -> Response:
    """Renders a page; for a request of htmx only its template, without the frame around it.

    Args:
        request: The request to answer.
        template: The template of the page's content.
        title: The title of the page.
        headers: Further headers, which replace usual ones of the same name.
        of: An untrusted name behind the title.
        status: HTTP status of the response.
        caller: The caller who has logged in; None if nobody has, or if that is unknown. Only a caller's page has tabs
            and a form token.
        values: Values for the template.
    """
    nonce, part = secrets.token_urlsafe(16), is_part(request)
    token = cookies.read(request, cookies.SESSION_COOKIE) if caller is not None else None
    values |= {
        "template": template,
        "title": title,
        "of": of,
        "nonce": nonce,
        "who": None if caller is None else describe_caller(caller),
        "form_token": None if token is None else cookies.form_token(token),
        "part": part,
        "tabs": [] if caller is None else list_tabs(caller, str(values.get("application", "")), request.path),
        "path": request.path,
    }
    html = _environment().get_template(template if part else "base.html").render(values)
    content = html.encode("utf-8", "replace")
    own = {name for name, _ in headers}
    usual = (header for header in HEADERS if header[0] not in own)
    return Response(status, content, HTML, ("Content-Security-Policy", make_policy(nonce)), *usual, *headers)


def list_tabs(caller: Caller, application: str, path: str) -> list[tuple[str, str, bool]]:
    """Returns text, address and whether it is shown now, of each tab that the caller may see in an application.

    Without an application it returns none. Pages of a queue belong to the tab of queues.
    """
    if not application:
        return []
    section, _, act = path.removeprefix(link("a", application)).lstrip("/").partition("/")
    if section == "_acts":
        section = {"key": "_keys", "schedule": "_schedules"}[act.partition("-")[0]]
    elif section and not section.startswith("_"):
        section = "_queues"
    return [
        (text, link(*filter(None, ("a", application, name))), name == section)
        for text, name, action in TABS
        if not action or caller.find_patterns(application, action)
    ]


def redirect(address: str, *headers: Header) -> Response:
    return Response(SEE_OTHER, b"", ("Location", address), *HEADERS, *headers)


def _read_templates() -> dict[str, str]:
    loader, environment = PackageLoader("queuey.console"), Environment(autoescape=True)
    return {name: loader.get_source(environment, name)[0] for name in loader.list_templates()}


_TEMPLATES = _read_templates()
"""Read at the start, as a new installation may replace the files while the service runs."""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=DictLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Callable[..., Any]] = {
        "moment": moment,
        "moment_absolute": moment_absolute,
        "bytes": size,
        "seconds": format_duration,
        "thousands": "{:,}".format,
        "compact": compact,
        "coloured_json": coloured_json,
        "labelled": label_cells,
    }
    environment.filters.update(filters)
    environment.globals.update(link=link, file=file_address, heads=heads, spark_paths=spark_paths)
    macros = environment.get_template("macros.html").make_module()
    environment.globals.update({name: getattr(macros, name) for name in MACROS})
    return environment


class File(NamedTuple):
    content: bytes
    kind: str
    digest: str


def _read_file(name: str) -> File:
    content = (files("queuey.console") / "static" / name).read_bytes()
    return File(content, FILE_TYPES[name], sha256(content).hexdigest()[:20])


FILES = {name: _read_file(name) for name in FILE_TYPES}
"""Read at the start, as a new installation may replace the files while the service runs."""


def file_address(name: str) -> str:
    return f"/console/static/{FILES[name].digest}/{name}"


async def show_file(request: Request, match: Match) -> Response:
    """Sends a static file, which browsers may cache forever; an old hash in the address is not found."""
    name = match["name"]
    file = FILES.get(name)
    if file is None or file.digest != match["hash"]:
        raise NoSuchResource("This page does not exist.")
    return Response(
        200,
        file.content,
        ("Content-Type", f"{file.kind}; charset=utf-8"),
        ("Cache-Control", "public, max-age=31536000, immutable"),
        ("X-Content-Type-Options", "nosniff"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )


class ShownBody(msgspec.Struct, frozen=True):
    """A body for a page.

    Attributes:
        kind: ``JSON``, ``text`` or ``bytes``.
        text: What the page shows.
        size: Bytes of the whole body.
        is_cut: Whether the page shows only a part.
    """

    kind: str
    text: str
    size: int
    is_cut: bool


def make_shown_body(body: str | bytes) -> ShownBody:
    """Returns a body for a page: text up to :data:`MAX_SHOWN` characters, or a hex dump up to :data:`MAX_HEX_BYTES`.

    A JSON object or array is indented unless it is too large or too deep.
    """
    size = body_bytes(body)
    if isinstance(body, bytes):
        return ShownBody("bytes", _hex_dump(body[:MAX_HEX_BYTES]), size, len(body) > MAX_HEX_BYTES)
    kind, text = "text", body
    if (pretty := _indent_json(body)) is not None:
        kind, text = "JSON", pretty
    return ShownBody(kind, text[:MAX_SHOWN], size, len(text) > MAX_SHOWN)


def make_preview(message: Message) -> str:
    """Returns the beginning of a body in one line: bytes in hex, text with single spaces.

    A cut one has up to :data:`MAX_PREVIEW` characters and ends with ``…``.
    """
    body = message.body
    text = body[: MAX_PREVIEW // 4].hex(" ") if isinstance(body, bytes) else " ".join(body[: 2 * MAX_PREVIEW].split())
    is_cut = len(body) > (MAX_PREVIEW // 4 if isinstance(body, bytes) else 2 * MAX_PREVIEW) or len(text) > MAX_PREVIEW
    return text[: MAX_PREVIEW - 1] + "…" if is_cut else text


def _indent_json(text: str) -> str | None:
    if len(text) > MAX_SHOWN or not text.lstrip().startswith(("{", "[")) or _max_depth(text) > MAX_DEPTH:
        return None
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError):
        return None


def _max_depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _hex_dump(body: bytes) -> str:
    lines = []
    for offset in range(0, len(body), _HEX_LINE_BYTES):
        chunk = body[offset : offset + _HEX_LINE_BYTES]
        text = _NOT_PRINTABLE.sub(".", chunk.decode("latin-1"))
        lines.append(f"{offset:08x}  {chunk.hex(' '):<{3 * _HEX_LINE_BYTES - 1}}  {text}")
    return "\n".join(lines)
