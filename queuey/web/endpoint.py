"""One view per resource, which chooses by the method: cheaper than one view per method.

Every resource has HEAD where it has GET, and OPTIONS; other methods are 405. Resources of the original's answer as the
original's did: other methods are 404, HEAD included, and requests without a credential get 403 instead of 401.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from queuey.errors import NoCredential, NotAllowed, QueueChanged
from queuey.metrics import Metrics
from queuey.web.errors import MethodNotAllowed, NoSuchResource, error_response
from queuey.web.requests import UNKNOWN, check_path, read_query, with_warning
from queuey.web.responses import Environ, Response, text_response

Match = dict[str, str]
"""The parts of the path that a route names."""
Handler = Callable[[Environ, Match], Response]
Begun = tuple[Coroutine[Any, Any, Any], Callable[[Any], Response]]
EarlyHandler = Callable[[Environ, Match], Begun | Response]
"""Never blocks: returns the response, or a call and how to answer with its result."""

WAITER = "queuey.waiter"
"""Set in the environ by a server that waits for messages itself: a :class:`~queuey.service.Waiter`, whose ``wait``
then says whether the response should wait. It has an attribute ``endpoint``, and its requests are counted by the
server."""


class Hot(NamedTuple):
    """What a path says that may be handled at once: a resource, and what the path names."""

    resource: str
    match: Match


class WouldBlock(Exception):
    """The request has to be handled in a thread that may block. Nothing has been done."""


class Awaited(msgspec.Struct, frozen=True):
    """A response that is not known before a call has ended.

    Attributes:
        call: The call.
        finish: Makes the response of its result or error. Raises :class:`WouldBlock` when the request has to be handled
            anew, in a thread.
    """

    call: Coroutine[Any, Any, Any]
    finish: Callable[[Any, Exception | None], Response]


def _asking_nothing(handler: Handler) -> Handler:
    """Returns a handler whose requests have no query; where one has, its fields are unknown."""

    def handle(environ: Environ, match: Match) -> Response:
        if environ.get("QUERY_STRING"):
            read_query(environ)
        return handler(environ, match)

    return handle


class Endpoint:
    """Handles the requests for one resource, counts them, and turns errors into responses."""

    __slots__ = ("_admit", "_allow", "_at_once", "_handlers", "_metrics", "_name", "_original", "look_up")

    def __init__(
        self,
        name: str,
        metrics: Metrics,
        handlers: Mapping[str, Handler],
        at_once: Mapping[str, EarlyHandler] | None = None,
        look_up: Callable[[Environ, Match], None] | None = None,
        *,
        asking: Container[str] = (),
        original: bool = False,
        admit: Callable[[Environ], object] | None = None,
    ) -> None:
        """Names a resource and its methods.

        Args:
            name: For the metrics.
            metrics: Where requests are counted.
            handlers: By method.
            at_once: By method, handlers that never block, for :meth:`begin`.
            look_up: Blocks in their stead: brings into memory what they need.
            asking: Methods whose handlers read the query themselves.
            original: The original had this resource, and clients of it know how it answers.
            admit: Prepares the environ of each request, unless the server did.
        """
        self._handlers = {
            method: handler if method in asking else _asking_nothing(handler) for method, handler in handlers.items()
        }
        if not original:
            if "GET" in handlers:
                self._handlers["HEAD"] = self._handlers["GET"]
            self._handlers["OPTIONS"] = self._options
        self._allow = ", ".join(sorted(self._handlers))
        self._original = original
        self._at_once = dict(at_once or {})
        self.look_up = look_up
        self._metrics = metrics
        self._name = name
        self._admit = admit

    def begins(self, method: str) -> bool:
        """Returns whether requests with a method can perhaps be answered without blocking."""
        return method in self._at_once

    def __call__(self, context: Any, request: Any) -> Response:  # noqa: ANN401 - Pyramid's objects have no types
        """Called by Pyramid."""
        start = perf_counter()
        environ: Environ = request.environ
        if self._admit is not None:
            self._admit(environ)
        try:
            check_path(environ)
            response = self._handlers.get(environ["REQUEST_METHOD"], self._no_such_method)(environ, request.matchdict)
        except Exception as error:  # noqa: BLE001 - an error of any kind must become a response
            if isinstance(error, NotAllowed) and error.anonymous and not self._original:
                error = NoCredential(*error.args)
            response = error_response(error, environ)
        if UNKNOWN in environ:
            response.headers = with_warning(response.headers, environ[UNKNOWN])
        self._observe(environ, response, start)
        return response

    def begin(self, environ: Environ, match: Match) -> Response | Awaited:
        """Answers without blocking, at once or later.

        Raises:
            WouldBlock: The request has to be handled in a thread.
        """
        start = perf_counter()
        handler = self._at_once.get(environ["REQUEST_METHOD"])
        if handler is None:
            raise WouldBlock
        try:
            begun = handler(environ, match)
        except WouldBlock:
            raise
        except Exception as error:  # noqa: BLE001 - an error of any kind must become a response
            begun = error_response(error, environ)
        if isinstance(begun, Response):
            self._observe(environ, begun, start)
            return begun
        call, respond_with = begun

        def finish(value: object, error: Exception | None) -> Response:
            if isinstance(error, QueueChanged) or (value is None and error is None):
                raise WouldBlock
            try:
                response = respond_with(value) if error is None else error_response(error, environ)
            except Exception as failure:  # noqa: BLE001 - an error of any kind must become a response
                response = error_response(failure, environ)
            self._observe(environ, response, start)
            return response

        return Awaited(call, finish)

    def _observe(self, environ: Environ, response: Response, start: float) -> None:
        """Counts a request, unless this was a try of one that may wait."""
        if (waiter := environ.get(WAITER)) is None:
            self._metrics.observe(self._name, response.status, perf_counter() - start)
        else:
            waiter.endpoint = self._name

    def _options(self, environ: Environ, match: Match) -> Response:
        """Says which methods there are."""
        return self._allowing(text_response(self._allow))

    def _no_such_method(self, environ: Environ, match: Match) -> Response:
        if self._original:
            return self._allowing(error_response(NoSuchResource("The resource does not have this method."), environ))
        text = f"{environ['REQUEST_METHOD'][:20]} is no method of this resource. It has: {self._allow}."
        return self._allowing(error_response(MethodNotAllowed(text), environ))

    def _allowing(self, response: Response) -> Response:
        response.headers += (("Allow", self._allow),)
        return response
