"""The declaration of operations of version 1, and the base class of their views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from inspect import iscoroutinefunction
from typing import Any, TypeVar

import msgspec

from queuey.access.authorization import Authorization
from queuey.access.queue_access import QueueAccess
from queuey.api.values import Done
from queuey.model.errors import InvalidRequest
from queuey.model.rights import Action
from queuey.runtime.limits import Limits
from queuey.web import openapi
from queuey.web.endpoint import COMMON_HEADERS, MESSAGE_HEADERS, Handler, Match, View
from queuey.web.fields import Fields, Queries
from queuey.web.openapi import JSON
from queuey.web.requests import OWN_HEADER_PREFIX, Request
from queuey.web.responses import Response, json_response

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


class Operation(openapi.Operation, frozen=True, kw_only=True):
    """An HTTP method of a path.

    Attributes:
        view: Method of a class of views. With an ``action`` it is called as ``view(access, *names, query)`` and
            returns the struct of the answer, None for success without further fields, or a response: see
            :meth:`Views.dispatch`. Without an action it takes a request and the parts of its path, authorizes the
            caller itself, and returns a response.
        action: Action that the caller must be allowed on the queue in the path, or on some queue of the application.
        page, reads: See :class:`~queuey.web.endpoint.View`.
    """

    view: Callable[..., Any]
    action: Action | None = None
    page: bool = False
    reads: bool = False

    def bind(self, owners: Iterable[Any]) -> View:
        """Returns the endpoint's view, bound to the owner whose class has the method ``view``."""
        name = self.view.__name__
        [owner] = [owner for owner in owners if getattr(type(owner), name, None) is self.view]
        answer = getattr(owner, name)
        if self.action is not None:
            answer = owner.dispatch(self, answer)
        asks = self.query is not None
        return View(answer, asks=asks, page=self.page, reads=self.reads, headers=self._accepted_headers())

    def _accepted_headers(self) -> frozenset[str]:
        """Returns the headers that get no warning; with any body, all headers of messages: the view may refuse some."""
        names = {parameter.name.lower() for parameter in self.parameters if parameter.place == "header"}
        return COMMON_HEADERS.union(names, (*MESSAGE_HEADERS, OWN_HEADER_PREFIX) if "*/*" in self.body else ())


def bind_by_path(operations: Iterable[Operation], owners: Iterable[Any]) -> list[tuple[str, Mapping[str, View]]]:
    """Returns the views of each path by method. Paths are in the order of matching: fixed words before placeholders.

    Args:
        operations: Operations in any order.
        owners: An object of each class of views.
    """
    views: dict[str, dict[str, View]] = {}
    for operation in operations:
        views.setdefault(operation.path, {})[operation.method] = operation.bind(owners)
    return sorted(views.items(), key=lambda path_and_views: ["{" in part for part in path_and_views[0].split("/")])


class Views:
    """Base class of views.

    Args:
        authorization: Checks who the caller is, and what it may do.
        limits: Limits of one request.
    """

    def __init__(self, authorization: Authorization, limits: Limits) -> None:
        self._authorization = authorization
        self._limits = limits
        self._fields: dict[type, Fields[msgspec.Struct]] = {}

    def fields(self, kind: type[S]) -> Fields[S]:
        reader = self._fields.get(kind)
        if reader is None:
            reader = self._fields[kind] = Fields(kind, self._limits)
        return reader  # type: ignore[return-value] # of this kind

    def enter(self, request: Request, match: Match, action: Action, parse: Callable[[], T]) -> tuple[QueueAccess, T]:
        """Authorizes the caller, and parses the path.

        A missing queue takes precedence over a parse error, and that over a missing right.
        """
        try:
            parsed = parse()
        except InvalidRequest:
            self._authorization.find(request, match)  # A missing queue takes precedence over a parse error.
            raise
        return self._authorization.enter(request, match, action), parsed

    def dispatch(self, operation: Operation, view: Callable[..., Any]) -> Handler:
        """Returns a handler that authorizes the caller, reads the request, calls the view, and answers with its result.

        The view gets the access to the queue in the path; if the path only has an application, a predicate of queue
        names and the application's name. The other names in the path follow, then the struct of the query or the JSON
        object in the body. A view that is a coroutine runs on the event loop, and its operation has no body.
        """
        action, of_queue = operation.action, "{queue}" in operation.path
        assert action is not None  # noqa: S101 - only such operations are dispatched
        names = re.findall(r"{(\w+)}", operation.path)[2 * of_queue :]
        read_input = self._make_reader(operation)

        def enter(request: Request, match: Match) -> QueueAccess | Callable[[str], bool]:
            if of_queue:
                return self._authorization.enter(request, match, action)
            return self._authorization.make_name_test(request, match["app"], action)

        def call(access: object, request: Request, match: Match) -> Any:  # noqa: ANN401 - what a view returns
            return view(access, *map(match.__getitem__, names), *(() if read_input is None else (read_input(request),)))

        def answer(request: Request, match: Match) -> Response:
            return _make_response(call(enter(request, match), request, match))

        async def answer_on_loop(request: Request, match: Match) -> Response:
            access = await self._authorization.admit(request, match, action)
            return _make_response(await call(access, request, match))

        return answer_on_loop if iscoroutinefunction(view) else answer

    def _make_reader(self, operation: Operation) -> Callable[[Request], Any] | None:
        if operation.query is not None:
            return Queries(self.fields(operation.query).query).read
        return self.fields(operation.body[JSON]).json if JSON in operation.body else None


def _make_response(result: Any) -> Response:  # noqa: ANN401 - the struct of an answer
    return result if isinstance(result, Response) else json_response(Done() if result is None else result)
