"""Views of named messages: ``/v1/{app}/{queue}/named/{name}``."""

from __future__ import annotations

from functools import partial

from queuey.access.authorization import Authorization
from queuey.access.operations import QUEUE, Views, declare, json_answers
from queuey.api.messages import FetchQuery, Posted
from queuey.api.values import Done
from queuey.messages.message_json import render_fetched
from queuey.messages.message_views import (
    KEPT_HEADERS_TEXT,
    MESSAGE_OR_RAW,
    STORED,
    make_raw_response,
    parse_single,
    render_posted,
)
from queuey.messages.names import Changed, NameUseCases
from queuey.messages.posts import Draft
from queuey.model.errors import InvalidRequest, NotFound
from queuey.model.messages import MAX_NAME_LENGTH
from queuey.runtime.limits import Limits
from queuey.web.endpoint import Match
from queuey.web.openapi import Tag
from queuey.web.requests import Request, read_body
from queuey.web.responses import JSON, Response, json_response


class UnknownName(NotFound):
    code = "InvalidName"
    form = 'No message has the name "{name}". Create one: POST or PUT to this address.'


class NameViews(Views):
    """Create, replace, get and delete a message by its name."""

    def __init__(self, authorization: Authorization, limits: Limits, names: NameUseCases) -> None:
        super().__init__(authorization, limits)
        self._names = names

    async def create(self, request: Request, match: Match) -> Response:
        """Stores a message under a free name (201).

        If the name has the same message already, answers with that (200).
        """
        access = await self._authorization.admit(request, match, "send")
        name, draft = _read_name(match), await request.parse_body(partial(self._read_draft, request))
        changed = await access.apply(partial(self._names.create, name=name, draft=draft))
        return _answer_stored(changed, 201 if changed.stored else 200)

    async def replace(self, request: Request, match: Match) -> Response:
        access = await self._authorization.admit(request, match, "overwrite")
        name, draft = _read_name(match), await request.parse_body(partial(self._read_draft, request))
        return _answer_stored(await access.apply(partial(self._names.replace, name=name, draft=draft)), 200)

    async def fetch(self, request: Request, match: Match) -> Response:
        await request.share.reserve(self._limits.page_bytes)
        access = await self._authorization.admit(request, match, "read")
        name = _read_name(match)
        raw = self.fields(FetchQuery).query(request).raw
        message = await access.apply(partial(self._names.fetch, name=name))
        if message is None:
            raise UnknownName(name)
        return make_raw_response(message) if raw else Response(200, render_fetched([message]), JSON)

    async def delete(self, request: Request, match: Match) -> Response:
        access = await self._authorization.admit(request, match, "delete")
        name = _read_name(match)
        await access.apply(partial(self._names.delete, name=name))
        return json_response(Done())

    def _read_draft(self, request: Request) -> Draft:
        if "idempotency-key" in request.headers:
            text = "Is not allowed for named messages: POST stores a message once without it, and PUT can be repeated"
            raise InvalidRequest({"idempotency_key": text})
        return parse_single(request, read_body(request, self._limits.max_body), self._limits, None)


def _read_name(match: Match) -> str:
    name = match["name"]
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidRequest({"name": f"Longer than maximum length {MAX_NAME_LENGTH}"})
    return name


def _answer_stored(changed: Changed, status: int) -> Response:
    assert changed.location is not None  # noqa: S101 - the message was stored or found
    body = render_posted([changed.location])
    if changed.merged is not None:
        body = body.removesuffix(b"}]}") + f',"merged":"{changed.merged}"}}]}}'.encode()
    return Response(status, body, JSON)


NAMES_TAG = Tag("Named messages", "Messages that you find and replace by a name of your choice.")
NAMED = QUEUE + "/named/{name}"
OPERATIONS = (
    declare(
        NAMES_TAG,
        f"POST {NAMED}",
        "Create named message",
        json_answers(Posted, 201, 200),
        NameViews.create,
        about="201: stored. 200: the same message has the name already; `merged` is its status as a job. 409: another "
        f"message has it. {KEPT_HEADERS_TEXT}",
        further_errors=(409,),
        resource="named",
        **STORED,
    ),
    declare(
        NAMES_TAG,
        f"PUT {NAMED}",
        "Replace named message",
        Posted,
        NameViews.replace,
        about="Removes the message that has the name. A caller that has claimed it gets 409 when it acknowledges it. "
        f"{KEPT_HEADERS_TEXT}",
        further_errors=(409,),
        **STORED,
    ),
    declare(
        NAMES_TAG,
        f"GET {NAMED}",
        "Get named message",
        MESSAGE_OR_RAW,
        NameViews.fetch,
        query=FetchQuery,
        further_errors=(409,),
        ends_with_client=True,
    ),
    declare(NAMES_TAG, f"DELETE {NAMED}", "Delete named message", Done, NameViews.delete, further_errors=(409,)),
)
