"""Views of read marks: ``PUT /v1/{app}/{queue}/read`` and ``POST /v1/{app}/_unread``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from queuey import ids
from queuey.api import messages as api
from queuey.errors import QueueyError
from queuey.ids import Position
from queuey.service import Mark, QueueAccess, parse_bound
from queuey.service.ranges import OTHERS
from queuey.service.unread import DEFAULT_COUNTED, Marks, Unread
from queuey.web import validators
from queuey.web.endpoint import Match
from queuey.web.errors import error_texts
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response
from queuey.web.v1.views import Views
from queuey.web.validators import Errors, bad_json


def _ends(value: object, end: Callable[[Mark], Position]) -> Marks:
    """Reads an id, or ids by partition; an instant names no message that anybody has seen."""
    text = validators.text(value)
    try:
        bound = parse_bound(text)
    except ValueError:
        bound = None
    marks = {OTHERS: bound} if isinstance(bound, Mark) else dict(bound or {})
    if not marks or any(mark.end != ids.following(mark.start) for mark in marks.values()):
        raise validators.BadField(
            f'"{validators.show(text)}" is not the id of a message, ids by partition (1:<id>,2:<id>) or a cursor'
        )
    return {number: end(mark) for number, mark in marks.items()}


def _take_ends(asked: api.NewReadMark, errors: Errors) -> Marks:
    """Reads up to where messages are read; bad fields are in ``errors``."""
    until = errors.take("until", _ends, asked.until, lambda mark: mark.end)
    cursor = errors.take("cursor", _ends, asked.cursor, lambda mark: mark.start)
    if until is not None and cursor is not None:
        errors["cursor"] = "Not together with until"
    if until is None and cursor is None and not errors:
        errors["until"] = f"{validators.REQUIRED}, or cursor"
    return until or cursor or {}


def _texts(marks: Marks) -> dict[int, str]:
    return {number: ids.to_hex(at) for number, at in marks.items()}


def unread_fields(unread: Unread) -> dict[str, Any]:
    """Returns the fields of one queue in answers and events."""
    return {"read": _texts(unread.marks), "unread": unread.count, "more": unread.more}


class UnreadViews(Views):
    def mark(self, request: Request, match: Match) -> Response:
        access = self._authorization.enter(request, match, "read")
        reader = self._authorization.reader(request, match["app"])
        errors = Errors()
        asked = self.fields(api.NewReadMark).body(request, errors)
        ends = _take_ends(asked, errors)
        errors.check()
        marked = self._service.unread.mark(access, reader, ends, back=asked.back)
        return json_response(api.ReadMark(read=_texts(marked.marks), pending=marked.pending))

    def count(self, request: Request, match: Match) -> Response:
        """Counts unread messages of several queues; an error of one does not keep the rest from being counted."""
        self._service.queues.require_application(match["app"])
        reader = self._authorization.reader(request, match["app"])
        given = self.fields(api.UnreadAsked).json(request, b"{}")
        errors = Errors()
        limit = self.fields(api.UnreadAsked).read({"limit": given.get("limit")}, errors).limit or DEFAULT_COUNTED
        names = self._names(request, match["app"], given.get("queues"), errors)
        errors.check()
        entered = [self._authorization.enter_to_read(request, match["app"], name) for name in names]
        accesses = [each for each in entered if isinstance(each, QueueAccess)]
        counts = iter(self._service.unread.unread(accesses, reader, limit))
        found = [next(counts) if isinstance(each, QueueAccess) else each for each in entered]
        return json_response(api.UnreadQueues(queues=tuple(map(_shown, names, found))))

    def _names(self, request: Request, application: str, asked: object, errors: Errors) -> Sequence[str]:
        most = self._limits.max_queues_per_stream
        names = self._authorization.readable(request, application, most + 1) if asked is None else asked
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise bad_json('"queues" is no list of names')
        if len(names) > most:
            errors["queues"] = f"Longer than maximum length {most}: name fewer in each of several calls"
        return list(dict.fromkeys(names))


def _shown(name: str, found: Unread | QueueyError | None) -> api.UnreadQueue | api.QueueReadError:
    if isinstance(found, QueueyError):
        return api.QueueReadError(queue_name=name, error_msg=error_texts(found))
    if found is None:
        return api.UnreadQueue(queue_name=name, read={}, unread=None, more=True)
    return api.UnreadQueue(queue_name=name, **unread_fields(found))
