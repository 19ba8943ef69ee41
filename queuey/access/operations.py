"""How the views of a room declare their operations of version 1, and the base class of the views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
from queuey.web.fields import Fields
from queuey.web.openapi import JSON, ResponseSpec, Tag
from queuey.web.parameters import BODY_ERRORS, USUAL_ERRORS
from queuey.web.requests import OWN_HEADER_PREFIX, Queries, Request
from queuey.web.responses import Response, json_response

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
APP = "/v1/{app}"
QUEUE = APP + "/{queue}"


class Operation(openapi.DocumentedOperation, frozen=True, kw_only=True):
    """An HTTP method of a path.

    Attributes:
        view: Coroutine of a class of views. With an ``action`` it is called as ``view(access, *names, query)`` and
            returns the struct of the answer, None for success without further fields, or a response: see
            :meth:`Views.dispatch`. Without an action it takes a request and the parts of its path, authorizes the
            caller itself, and returns a response.
        action: Action that the caller must be allowed on the queue in the path, or on some queue of the application.
        ends_with_client: See :class:`~queuey.web.endpoint.View`.
        resource: The name of the path in the metrics, given by the first operation of the path; by default the last
            word of the path.
    """

    view: Callable[..., Any]
    action: Action | None = None
    ends_with_client: bool = False
    resource: str = ""

    @property
    def last_word(self) -> str:
        return self.path.rpartition("/")[2].strip("_{}").removesuffix(".json")

    @property
    def path_names(self) -> list[str]:
        """The names in braces, without the application and the queue."""
        return [name for name in re.findall(r"{(\w+)}", self.path) if name not in {"app", "queue"}]

    def bind(self, owners: Iterable[Any]) -> Callable[..., Any]:
        name = self.view.__name__
        [owner] = [owner for owner in owners if getattr(type(owner), name, None) is self.view]
        method: Callable[..., Any] = getattr(owner, name)
        return method

    def make_view(self, method: Any) -> View:  # noqa: ANN401 - from bind
        """Returns the endpoint's view."""
        handler = method if self.action is None else method.__self__.dispatch(self, method)
        reads_query, headers = self.query is not None, self._accepted_headers()
        return View(handler, reads_query=reads_query, ends_with_client=self.ends_with_client, headers=headers)

    def _accepted_headers(self) -> frozenset[str]:
        """Returns the headers that get no warning; with any body, all headers of messages: the view may refuse some."""
        names = {parameter.name.lower() for parameter in self.parameters if parameter.place == "header"}
        return COMMON_HEADERS.union(names, (*MESSAGE_HEADERS, OWN_HEADER_PREFIX) if "*/*" in self.body else ())


def declare(
    tag: Tag,
    request: str,
    summary: str,
    answer: Any,  # noqa: ANN401 - a msgspec type
    view: Callable[..., Any],
    action: Action | None = None,
    *,
    body: Any = None,  # noqa: ANN401 - a msgspec type
    further_errors: Sequence[int] = (),
    **more: Any,  # noqa: ANN401 - other fields of an operation
) -> Operation:
    """Returns the operation of a request line such as ``GET /path``.

    ``answer`` is the type of the JSON answer with status 200, or all answers by status. ``body`` is the type of a JSON
    body, or all bodies by media type. ``further_errors`` has the error statuses besides the usual ones.
    """
    method, path = request.split(" ")
    more["success"] = answer if isinstance(answer, dict) else json_answers(answer, 200)
    more["body"] = {} if body is None else body if isinstance(body, dict) else {JSON: body}
    more.setdefault("errors", (*(USUAL_ERRORS if body is None else BODY_ERRORS), *further_errors))
    return Operation(tag=tag, method=method, path=path, summary=summary, view=view, action=action, **more)


def json_answers(kind: Any, *statuses: int) -> dict[int, ResponseSpec]:  # noqa: ANN401 - a msgspec type
    return {status: ResponseSpec({JSON: kind}) for status in statuses}


class Views:
    """Base class of views."""

    def __init__(self, authorization: Authorization, limits: Limits) -> None:
        self._authorization = authorization
        self._limits = limits
        self._fields: dict[type, Fields[msgspec.Struct]] = {}

    def fields(self, kind: type[S]) -> Fields[S]:
        reader = self._fields.get(kind)
        if reader is None:
            reader = self._fields[kind] = Fields(kind, self._limits)
        return reader  # type: ignore[return-value] # of this kind

    async def enter(
        self, request: Request, match: Match, action: Action, parse: Callable[[], T]
    ) -> tuple[QueueAccess, T]:
        """Authorizes the caller, and parses the path.

        A missing queue takes precedence over a parse error, and that over a missing right.
        """
        try:
            parsed = parse()
        except InvalidRequest:
            await self._authorization.find(request, match)  # A missing queue takes precedence over a parse error.
            raise
        return await self._authorization.admit(request, match, action), parsed

    def dispatch(self, operation: Operation, view: Callable[..., Any]) -> Handler:
        """Returns a handler that authorizes the caller, reads the request, calls the view, and answers with its result.

        The view gets the access to the queue in the path; if the path only has an application, a predicate of queue
        names and the application's name. The other names in the path follow, then the struct of the query or the JSON
        object in the body.
        """
        action, of_queue = operation.action, "{queue}" in operation.path
        assert action is not None  # noqa: S101 - only such operations are dispatched
        names = operation.path_names if of_queue else re.findall(r"{(\w+)}", operation.path)
        read_input = self._make_reader(operation)

        async def handle(request: Request, match: Match) -> Response:
            access: QueueAccess | Callable[[str], bool]
            if of_queue:
                access = await self._authorization.admit(request, match, action)
            else:
                access = await self._authorization.make_name_test(request, match["app"], action)
            values = map(match.__getitem__, names)
            read = () if read_input is None else (await request.parse_body(partial(read_input, request)),)
            result = await view(access, *values, *read)
            return result if isinstance(result, Response) else json_response(Done() if result is None else result)

        return handle

    def _make_reader(self, operation: Operation) -> Callable[[Request], Any] | None:
        if operation.query is not None:
            return Queries(self.fields(operation.query).query).read
        return self.fields(operation.body[JSON]).json if JSON in operation.body else None
