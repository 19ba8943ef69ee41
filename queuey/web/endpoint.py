"""Resources: each is declared once, with its path, its methods, and what each method needs of the server.

A view is a coroutine function, which runs on the event loop and must not block: long work runs in a thread by
:meth:`queuey.web.requests.Request.in_thread`. Every resource with GET has HEAD, and every resource has OPTIONS; other
methods get 405. Resources of the original API answer as the original did: other methods get 404, HEAD included, and
requests without a credential get 403 instead of 401.

A path is percent-decoded once. Paths with an encoded slash, which would split a name in two, or with a name ``.`` or
``..``, which proxies and HTTP libraries rewrite, get 404. A name that is encoded twice (``%252F``) stands for the text
after one decoding (``%2F``), which is a name like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from queuey.storage.deadlines import GivenUp
from queuey.web.admission.long_polls import make_client_left
from queuey.web.errors import MethodNotAllowed, NoSuchResource, as_unauthenticated, error_response
from queuey.web.requests import (
    MAX_WARNED_LENGTH,
    OWN_HEADER_PREFIX,
    Ignored,
    Request,
    record_unknown_names,
)
from queuey.web.responses import Header, Response, text_response

Match = dict[str, str]
"""The named parts of a path."""
Handler = Callable[[Request, Match], Coroutine[Any, Any, Response]]

MAX_CACHED_PATHS, MAX_CACHED_PATH_BYTES = 1024, 200
"""Max cached resources, and max bytes of a cached path."""

WARNING = "Warning"
MESSAGE_HEADERS = (
    *("x-ttl", "x-partition", "x-message-key", "x-delay", "x-after", "x-encoding"),
    *("idempotency-key", "last-event-id"),
)
"""Headers that some operation reads."""
COMMON_HEADERS = frozenset(
    ["accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host", "user-agent"]
)
"""Headers that nearly all requests have; every operation accepts them without a warning."""
MAX_COMPARED_LENGTH, MAX_COMPARED_HEADERS = 20, 24
"""Max characters of a header's name, and max headers of a request, that are compared with known ones."""
MIN_SIMILARITY = 0.8
"""Min similarity (difflib ratio) of a misspelt header to a known one."""


class View:
    """The view of one method.

    Args:
        handler: Returns the response, or raises an error.
        reads_query: The view reads the query. Otherwise every query field is unknown.
        ends_with_client: The view returns messages or other long answers, and may wait for them. It is given up when
            the client has left.
        headers: The names of the headers that the view knows; if None, it warns of no other headers.
    """

    __slots__ = ("ends_with_client", "handler", "headers", "reads_query")

    def __init__(
        self,
        handler: Handler,
        *,
        reads_query: bool = False,
        ends_with_client: bool = False,
        headers: frozenset[str] | None = None,
    ) -> None:
        self.handler = handler
        self.reads_query = reads_query
        self.ends_with_client = ends_with_client
        self.headers = headers


class Endpoint:
    """One resource: its views, and what its clients expect of errors.

    Args:
        name: Name of the resource in the metrics.
        views: Views by method. A bare function becomes a view without options.
        original: The resource is part of the original API, whose clients expect its answers.
        refuses_unknown: Unknown fields of a query or body are an error. Otherwise they cause a warning.
        for_monitors: Requests count for the resource and not for an application, so that other requests cannot make the
            service appear unhealthy.
        otherwise: Answers requests with any other method; if None, these get 405, or 404 in the original API.
    """

    __slots__ = ("_allow", "_original", "_otherwise", "_views", "for_monitors", "name", "refuses_unknown")

    def __init__(
        self,
        name: str,
        views: Mapping[str, View | Handler],
        *,
        original: bool = False,
        refuses_unknown: bool = False,
        for_monitors: bool = False,
        otherwise: Handler | None = None,
    ) -> None:
        self.name = name
        self.for_monitors = for_monitors
        self.refuses_unknown = refuses_unknown
        self._original = original
        self._views = {method: view if isinstance(view, View) else View(view) for method, view in views.items()}
        self._otherwise = View(otherwise or self._refuse_method, reads_query=True)
        if not original and otherwise is None:
            if "GET" in self._views:
                self._views["HEAD"] = self._views["GET"]
            self._views["OPTIONS"] = View(self._answer_options, reads_query=True)
        self._allow = ", ".join(sorted(self._views))

    def view(self, method: str) -> View:
        return self._views.get(method, self._otherwise)

    def is_for_monitor(self, request: Request) -> bool:
        """Returns whether this is a resource for monitors, and the request a GET or HEAD without query and body."""
        plain = self.for_monitors and request.method in {"GET", "HEAD"} and not request.query
        return plain and request.length == 0

    def make_refusal(self, request: Request, error: Exception) -> Response:
        """Makes the response to a view's error."""
        if isinstance(error, GivenUp) and request.client is not None and request.client.has_left:
            error = make_client_left()
        return error_response(error if self._original else as_unauthenticated(error), request)

    async def _answer_options(self, request: Request, match: Match) -> Response:
        return self._add_allow(text_response(self._allow))

    async def _refuse_method(self, request: Request, match: Match) -> Response:
        """Answers 405, or 404 in the original API, with the methods in ``Allow``."""
        if self._original:
            return self._add_allow(error_response(NoSuchResource("The resource does not have this method."), request))
        text = f"{request.method[:20]} is not a method of this resource. It has: {self._allow}."
        return self._add_allow(error_response(MethodNotAllowed(text), request))

    def _add_allow(self, response: Response) -> Response:
        response.headers += (("Allow", self._allow),)
        return response


class ResourceMatch(NamedTuple):
    """The resource of a path.

    Attributes:
        path: The percent-decoded path.
        endpoint: Answers the request.
        match: The named parts of the path.
        view: Answers the method.
    """

    path: str
    endpoint: Endpoint
    match: Match
    view: View


class Resources:
    """Finds resources by their paths, in the order of Pyramid's routes.

    Args:
        routes: Pyramid's routes.
        endpoints: Endpoints by the names of their routes.
        nowhere: Answers paths that no route matches, or that :func:`decode_path` refuses.

    Attributes:
        routes: Pyramid's routes, each with its endpoint.
    """

    def __init__(self, routes: Sequence[Any], endpoints: Mapping[str, Endpoint], nowhere: Endpoint) -> None:
        self.routes = [(route, endpoints[route.name]) for route in routes]
        self._nowhere = nowhere
        self._shapes = [_find_shapes(route.pattern) for route in routes]
        every = [shape for shapes in self._shapes for shape in shapes or ()]
        self._lengths = {slashes for slashes, _ in every}
        self._ends = {end for _, end in every if end is not None}
        self._routes: dict[tuple[int | None, str | None], list[tuple[Any, Endpoint]]] = {}
        self.find_cached = lru_cache(MAX_CACHED_PATHS)(self.find)

    def find(self, method: str, raw: bytes) -> ResourceMatch:
        """Finds the resource of a path as it was sent. Only routes whose shape the path may have are compared."""
        path = decode_path(raw)
        if path is None:
            return ResourceMatch(raw.decode("latin-1"), self._nowhere, {}, self._nowhere.view(method))
        slashes, end = path.count("/"), path[path.rfind("/") + 1 :]
        shape = slashes if slashes in self._lengths else None, end if end in self._ends else None
        routes = self._routes.get(shape)
        if routes is None:
            routes = self._routes[shape] = self._select(*shape)
        for route, endpoint in routes:
            # Routes end in ``$``, which also matches before a newline at the end of the path.
            if (match := route.match(path)) is not None and not (path[-1:] == "\n" and route.match(path[:-1]) == match):
                return ResourceMatch(path, endpoint, match, endpoint.view(method))
        return ResourceMatch(path, self._nowhere, {}, self._nowhere.view(method))

    def _select(self, slashes: int | None, end: str | None) -> list[tuple[Any, Endpoint]]:
        """Returns the routes that a path with these slashes and this last name may have; None stands for all others."""
        return [
            route
            for route, shapes in zip(self.routes, self._shapes, strict=True)
            if shapes is None or any(shape in ((slashes, end), (slashes, None)) for shape in shapes)
        ]


_PLACEHOLDER = re.compile(r"\{\w+(?::((?:[^{}]|\{[^{}]*\})*))?\}")
_OPTIONAL_SLASH = re.compile(r"\{\w+:/\?\}$")
_WITHOUT_SLASH = re.compile(r"(?:\[\^/[a-z0-9_]*\][+*]?|\[[a-z0-9-]+\]\+)*|\w+(\|\w+)*")


def _find_shapes(pattern: str) -> list[tuple[int, str | None]] | None:
    """Returns what paths of a route may look like: the number of slashes, and the last name or None for any.

    Args:
        pattern: A route's pattern in Pyramid's syntax. Returns None if its paths may have any number of slashes.
    """
    whole, optional = _OPTIONAL_SLASH.subn("", pattern)
    rest = _PLACEHOLDER.sub("", whole)
    if set(rest) & set("*:{}") or not all(map(_WITHOUT_SLASH.fullmatch, _PLACEHOLDER.findall(whole))):
        return None
    text = _PLACEHOLDER.sub("{}", whole if whole.startswith("/") else "/" + whole)
    last = text[text.rfind("/") + 1 :]
    shapes: list[tuple[int, str | None]] = [(text.count("/"), None if "{}" in last else last)]
    return [*shapes, (text.count("/") + 1, "")] if optional else shapes


def add_warnings(headers: Sequence[Header], ignored: Mapping[str, Ignored]) -> tuple[Header, ...]:
    """Returns headers with warnings of ignored names: a few names of each kind, percent-encoded.

    They are appended to a Warning header that is there already: many clients keep one header of each name.
    """
    existing = [value for name, value in headers if name == WARNING]
    texts = [_make_warning(kind, names) for kind, names in ignored.items()]
    return (*(header for header in headers if header[0] != WARNING), (WARNING, ", ".join([*existing, *texts])))


def _make_warning(kind: str, ignored: Ignored) -> str:
    names = ", ".join(quote(name, safe="")[:MAX_WARNED_LENGTH] for name in ignored.names)
    more = f" and {ignored.total - len(ignored.names)} more" if ignored.total > len(ignored.names) else ""
    return f'299 - "Ignored, as they are no {kind}: {names}{more}"'


def record_ignored_headers(request: Request, allowed: frozenset[str]) -> None:
    """Records headers that only other operations read, or that look like a misspelt one.

    Any other header is accepted: clients and proxies add their own.

    Raises:
        InvalidRequest: There is such a header, and the request asks for ``strict``.
    """
    keeps = OWN_HEADER_PREFIX in allowed
    candidates = sorted(request.headers.keys() - allowed)[:MAX_COMPARED_HEADERS]
    suspects = [name for name in candidates if len(name) <= MAX_COMPARED_LENGTH and _is_like_ours(name)]
    if ignored := [name for name in suspects if not (keeps and name.startswith(OWN_HEADER_PREFIX))]:
        known_names = sorted(allowed.difference(COMMON_HEADERS))
        record_unknown_names(request, ignored, "header", "operation", known_names)


@lru_cache(1024)
def _is_like_ours(name: str) -> bool:
    """Returns whether a header's name is one that some operation reads, or similar to it."""
    return name.startswith(OWN_HEADER_PREFIX[:-1]) or bool(get_close_matches(name, MESSAGE_HEADERS, 1, MIN_SIMILARITY))


_DOT_SEGMENTS = frozenset({".", ".."})


def decode_path(raw: bytes) -> str | None:
    """Decodes the path of a request as it was sent. Returns None if no resource can have it.

    That is a path with an encoded slash, with a name ``.`` or ``..``, or in another encoding than UTF-8.
    """
    if b"%" in raw:
        if b"%2f" in raw.lower():
            return None
        raw = unquote_to_bytes(raw)
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        return None
    return path if "." not in path or _DOT_SEGMENTS.isdisjoint(path.split("/")) else None
