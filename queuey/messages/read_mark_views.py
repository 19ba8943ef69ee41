"""Views of read marks: ``PUT /v1/{app}/{queue}/read`` and ``POST /v1/{app}/_unread``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from queuey.access.authorization import Authorization
from queuey.access.operations import APP, QUEUE, Views, declare
from queuey.access.queue_access import QueueAccess
from queuey.api import messages as api
from queuey.messages.ranges import OTHER_PARTITIONS, Mark, parse_bound
from queuey.messages.read_marks import DEFAULT_COUNTED, Marks, UnreadCount, UnreadUseCases
from queuey.model import ids
from queuey.model.errors import QueueyError
from queuey.model.ids import Position
from queuey.queues.queues import Queues
from queuey.runtime.limits import Limits
from queuey.web import validators
from queuey.web.endpoint import Match
from queuey.web.errors import error_texts
from queuey.web.openapi import Tag
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response
from queuey.web.validators import Errors, bad_json


def _parse_ends(value: object, end: Callable[[Mark], Position]) -> Marks:
    """Parses a text: an id, ids by partition (``1:<id>,2:<id>``) or a cursor. ``end`` gives the position for a mark.

    Raises BadField for an instant, because it does not name a message.
    """
    text = validators.parse_text(value)
    try:
        bound = parse_bound(text)
    except ValueError:
        bound = None
    marks = {OTHER_PARTITIONS: bound} if isinstance(bound, Mark) else dict(bound or {})
    if not marks or any(mark.end != ids.following(mark.start) for mark in marks.values()):
        raise validators.BadField(
            f'"{validators.show(text)}" is not the id of a message, ids by partition (1:<id>,2:<id>) or a cursor'
        )
    return {number: end(mark) for number, mark in marks.items()}


def _read_ends(body: api.NewReadMark, errors: Errors) -> Marks:
    until = errors.parse_field("until", _parse_ends, body.until, lambda mark: mark.end)
    cursor = errors.parse_field("cursor", _parse_ends, body.cursor, lambda mark: mark.start)
    if until is not None and cursor is not None:
        errors["cursor"] = "Not together with until"
    if until is None and cursor is None and not errors:
        errors["until"] = f"{validators.REQUIRED}, or cursor"
    return until or cursor or {}


def _show_marks(marks: Marks) -> dict[int, str]:
    return {number: ids.to_hex(position) for number, position in marks.items()}


def show_unread(unread: UnreadCount) -> dict[str, Any]:
    return {"read": _show_marks(unread.marks), "unread": unread.count, "more": unread.more}


class UnreadViews(Views):
    def __init__(self, authorization: Authorization, limits: Limits, unread: UnreadUseCases, queues: Queues) -> None:
        super().__init__(authorization, limits)
        self._unread = unread
        self._queues = queues

    async def mark(self, request: Request, match: Match) -> Response:
        """Moves the caller's read marks, back only with ``back``; answers with the marks."""
        access = await self._authorization.admit(request, match, "read")
        reader = await self._authorization.find_reader_name(request, match["app"])
        errors = Errors()
        body = self.fields(api.NewReadMark).body(request, errors)
        ends = _read_ends(body, errors)
        errors.check()
        marked = await self._unread.mark(access, reader, ends, back=body.back)
        return json_response(api.ReadMark(read=_show_marks(marked.marks), pending=marked.pending))

    async def count(self, request: Request, match: Match) -> Response:
        """Counts unread messages of the named queues, or of all that the caller may read if none is named.

        An error of one queue does not affect the others.
        """
        await self._authorization.require_application(match["app"])
        reader = await self._authorization.find_reader_name(request, match["app"])
        body = self.fields(api.UnreadAsked).json(request, b"{}")
        errors = Errors()
        limit = self.fields(api.UnreadAsked).read({"limit": body.get("limit")}, errors).limit or DEFAULT_COUNTED
        names = await self._find_names(request, match["app"], body.get("queues"), errors)
        errors.check()
        admitted = await self._authorization.admit_to_each(request, match["app"], names)
        accesses = [access for access in admitted if isinstance(access, QueueAccess)]
        count = partial(self._unread.unread, accesses, reader, limit)
        counts = iter(await request.read_in_thread(count, page=True))
        results = [next(counts) if isinstance(access, QueueAccess) else access for access in admitted]
        return json_response(api.UnreadQueues(queues=tuple(map(_show_unread, names, results))))

    async def _find_names(self, request: Request, application: str, requested: object, errors: Errors) -> Sequence[str]:
        max_queues = self._limits.max_queues_per_stream
        names = (
            await self._authorization.list_readable_names(request, application, max_queues + 1, self._queues.list)
            if requested is None
            else requested
        )
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise bad_json('"queues" is not a list of names')
        if len(names) > max_queues:
            errors["queues"] = f"Longer than maximum length {max_queues}: send several requests with fewer names"
        return list(dict.fromkeys(names))


def _show_unread(name: str, result: UnreadCount | QueueyError | None) -> api.UnreadQueue | api.QueueReadError:
    if isinstance(result, QueueyError):
        return api.QueueReadError(queue_name=name, error_msg=error_texts(result))
    if result is None:
        return api.UnreadQueue(queue_name=name, read={}, unread=None, more=True)
    return api.UnreadQueue(queue_name=name, **show_unread(result))


UNREAD_TAG = Tag("Unread", "What each user has read, across all devices.")
OPERATIONS = (
    declare(
        UNREAD_TAG,
        f"PUT {QUEUE}/read",
        "Mark messages as read",
        api.ReadMark,
        UnreadViews.mark,
        about="The mark belongs to the caller. It moves back only with `back`. 409: 10,000 others have a mark.",
        body=api.NewReadMark,
        further_errors=(409,),
        resource="mark",
    ),
    declare(
        UNREAD_TAG,
        f"POST {APP}/_unread",
        "Count unread messages",
        api.UnreadQueues,
        UnreadViews.count,
        about="Without `queues`, counts in all that the credential may read, up to {max_queues_per_stream}.",
        body=api.UnreadAsked,
        body_may_be_empty=True,
        ends_with_client=True,
    ),
)
