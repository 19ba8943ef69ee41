"""Resources: declared once, with their path, their methods, and what each method needs of the server.

A view is a coroutine function, which the event loop runs and which may not block, or a function that may block, which
is run in a thread. Every resource has HEAD where it has GET, and OPTIONS; other methods are 405. Resources of the
original's answer as the original's did: other methods are 404, HEAD included, and requests without a credential get 403
instead of 401.

A path is percent-decoded once. No resource has a name with an encoded slash, which would become two names, or that is
``.`` or ``..``, which proxies and HTTP libraries take for something else: these are 404. What is encoded twice
(``%252F``) stands for the text that one decoding gives (``%2F``), which is a name like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from queuey.metrics import Metrics
from queuey.storage.calls import GivenUp
from queuey.web.admission.long_polls import client_left
from queuey.web.errors import MethodNotAllowed, NoSuchResource, as_stranger_sees, error_response
from queuey.web.requests import (
    MAX_NAME,
    OWN_HEADER,
    BodyWanted,
    Ignored,
    Request,
    announced_length,
    note_unknown,
    read_query,
)
from queuey.web.responses import Header, Response, text_response

Match = dict[str, str]
"""The parts of the path that a route names."""
Handler = Callable[[Request, Match], Response] | Callable[[Request, Match], Coroutine[Any, Any, Response]]


PATHS, SHORT_PATH = 1024, 200
"""Max cached routes, and max bytes of a cached path."""

WARNING = "Warning"
MESSAGE_HEADERS = (
    *("x-ttl", "x-partition", "x-message-key", "x-delay", "x-after", "x-encoding"),
    *("idempotency-key", "last-event-id"),
)
"""Headers that have a meaning at some operation."""
COMMON_HEADERS = frozenset(
    ["accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host", "user-agent"]
)
"""Headers that nearly all requests have; they are known everywhere."""
MAX_LENGTH, MAX_COMPARED = 20, 24
"""Max characters of a header's name, and max names of a request, that are compared with ours."""
LIKENESS = 0.8
"""Min likeness of a misspelt header to one that has a meaning, as difflib computes it."""


class View:
    """The view of one method.

    Args:
        answer: Returns the response, or raises an error.
        asks: It reads the query. Without it every field of a query is unknown.
        page: The response may have a page of messages, for which memory is reserved first.
        reads: It has messages, for which the view reserves memory; nobody needs it when the client has left. The view
            may wait for messages.
        headers: The names of the headers that it knows; None: it warns of no others.

    Attributes:
        blocks: It has to run in a thread.
    """

    __slots__ = ("answer", "asks", "blocks", "headers", "page", "reads")

    def __init__(
        self,
        answer: Handler,
        *,
        asks: bool = False,
        page: bool = False,
        reads: bool = False,
        headers: frozenset[str] | None = None,
    ) -> None:
        self.answer: Any = answer
        self.asks = asks
        self.blocks = not iscoroutinefunction(answer)
        self.page = page
        self.reads = reads or self.blocks
        self.headers = headers


class Endpoint:
    """Answers the requests for one resource, counts them, and turns errors into responses.

    Args:
        name: For the metrics.
        metrics: Where requests are counted.
        views: By method; a function alone is a view that asks nothing.
        original: The original had this resource, and clients of it know how it answers.
        operation: It is for monitors. Its requests count for itself and not for an application, so that no other
            requests make the service appear unhealthy.
        otherwise: Answers requests with any other method; None: there is none.
    """

    __slots__ = ("_allow", "_metrics", "_original", "_otherwise", "_views", "name", "operation")

    def __init__(
        self,
        name: str,
        metrics: Metrics,
        views: Mapping[str, View | Handler],
        *,
        original: bool = False,
        operation: bool = False,
        otherwise: Handler | None = None,
    ) -> None:
        self.name = name
        self.operation = operation
        self._metrics = metrics
        self._original = original
        self._views = {method: view if isinstance(view, View) else View(view) for method, view in views.items()}
        self._otherwise = View(otherwise or self._no_such_method, asks=True)
        if not original and otherwise is None:
            if "GET" in self._views:
                self._views["HEAD"] = self._views["GET"]
            self._views["OPTIONS"] = View(self._options, asks=True)
        self._allow = ", ".join(sorted(self._views))

    def view(self, method: str) -> View:
        """Returns what answers requests with a method."""
        return self._views.get(method, self._otherwise)

    def is_for_monitor(self, request: Request) -> bool:
        """Returns whether a request is a plain question of a monitor."""
        plain = self.operation and request.method in {"GET", "HEAD"} and not request.query
        return plain and announced_length(request) == 0

    async def answer(self, view: View, request: Request, match: Match) -> Response:
        """Answers a request by one of the views, and counts it.

        Raises:
            BodyWanted: The body is needed, and was not taken in yet.
        """
        start = perf_counter()
        try:
            if not view.asks and request.query:
                read_query(request)
            if view.headers is not None and not view.headers.issuperset(request.headers):
                note_headers(request, view.headers)
            if view.blocks:
                reads = request.method in {"GET", "HEAD"}
                work = partial(view.answer, request, match)
                response: Response = await request.in_pool(work, computes=reads or view.page, page=view.page)
            else:
                response = await view.answer(request, match)
        except BodyWanted:
            raise
        except Exception as error:  # noqa: BLE001 - an error of any kind must become a response
            if not self._original:
                error = as_stranger_sees(error)
            if isinstance(error, GivenUp) and request.is_left:
                error = client_left()
            response = error_response(error, request)
        if request.ignored:
            response.headers = with_warning(response.headers, request.ignored)
        self._metrics.observe(self.name, response.status, perf_counter() - start)
        return response

    def count(self, response: Response, seconds: float) -> None:
        """Counts a request."""
        self._metrics.observe(self.name, response.status, seconds)

    async def _options(self, request: Request, match: Match) -> Response:
        """Answers OPTIONS with the allowed methods."""
        return self._allowing(text_response(self._allow))

    async def _no_such_method(self, request: Request, match: Match) -> Response:
        if self._original:
            return self._allowing(error_response(NoSuchResource("The resource does not have this method."), request))
        text = f"{request.method[:20]} is no method of this resource. It has: {self._allow}."
        return self._allowing(error_response(MethodNotAllowed(text), request))

    def _allowing(self, response: Response) -> Response:
        response.headers += (("Allow", self._allow),)
        return response


class Found(NamedTuple):
    """The resource of a path.

    Attributes:
        path: Percent-decoded.
        endpoint: What answers.
        match: The parts of the path that the route names.
    """

    path: str
    endpoint: Endpoint
    match: Match


class Resources:
    """Finds resources by their paths, in the order of Pyramid's routes.

    Args:
        routes: Pyramid's.
        endpoints: By the names of their routes.
        bridge: Answers for all other routes, whose views are Pyramid's.
        nowhere: Answers where no route leads.

    Attributes:
        routes: Pyramid's, each with what answers.
    """

    def __init__(
        self, routes: Sequence[Any], endpoints: Mapping[str, Endpoint], bridge: Endpoint, nowhere: Endpoint
    ) -> None:
        self.routes = [(route, endpoints.get(route.name, bridge)) for route in routes]
        self._nowhere = nowhere
        self._remembered = lru_cache(PATHS)(self._find)

    def find(self, raw: bytes) -> Found:
        """Returns what a path leads to, as it was sent."""
        return self._remembered(raw) if len(raw) <= SHORT_PATH else self._find(raw)

    def _find(self, raw: bytes) -> Found:
        path = decode_path(raw)
        if path is None:
            return Found(raw.decode("latin-1"), self._nowhere, {})
        for route, endpoint in self.routes:
            # Routes end in a ``$``, which a newline may follow that is in no part of the path.
            if (match := route.match(path)) is not None and not (path[-1:] == "\n" and route.match(path[:-1]) == match):
                return Found(path, endpoint, match)
        return Found(path, self._nowhere, {})


def with_warning(headers: Sequence[Header], ignored: Mapping[str, Ignored]) -> tuple[Header, ...]:
    """Returns headers with warnings that name what was ignored, a few names of each kind, percent-encoded.

    They stand behind a warning that is there already, in the same header: many clients keep one of each name.
    """
    before = [value for name, value in headers if name == WARNING]
    texts = [_warning(kind, each) for kind, each in ignored.items()]
    return (*(header for header in headers if header[0] != WARNING), (WARNING, ", ".join([*before, *texts])))


def _warning(kind: str, ignored: Ignored) -> str:
    names = ", ".join(quote(name, safe="")[:MAX_NAME] for name in ignored.names)
    more = f" and {ignored.total - len(ignored.names)} more" if ignored.total > len(ignored.names) else ""
    return f'299 - "Ignored, as they are no {kind}: {names}{more}"'


def note_headers(request: Request, allowed: frozenset[str]) -> None:
    """Records headers that have a meaning elsewhere only, or that look like a misspelt one.

    Clients and proxies may add any others.

    Raises:
        InvalidRequest: There is one, and the request asks for ``strict``.
    """
    keeps = OWN_HEADER in allowed
    others = sorted(request.headers.keys() - allowed)[:MAX_COMPARED]
    names = [name for name in others if len(name) <= MAX_LENGTH and _is_like_ours(name)]
    if ignored := [name for name in names if not (keeps and name.startswith(OWN_HEADER))]:
        shown = sorted(allowed.difference(COMMON_HEADERS))
        note_unknown(request, ignored, "header", "operation", shown)


@lru_cache(1024)
def _is_like_ours(name: str) -> bool:
    return name.startswith(OWN_HEADER[:-1]) or bool(get_close_matches(name, MESSAGE_HEADERS, 1, LIKENESS))


_DOTS = frozenset({".", ".."})


def decode_path(raw: bytes) -> str | None:
    """Decodes the path of a request as it was sent; None: no resource has it.

    That is one of which a name holds a slash, is ``.`` or ``..``, or is no UTF-8.
    """
    if b"%" in raw:
        if b"%2f" in raw.lower():
            return None
        raw = unquote_to_bytes(raw)
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        return None
    return path if "." not in path or _DOTS.isdisjoint(path.split("/")) else None
