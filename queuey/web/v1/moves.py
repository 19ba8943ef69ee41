"""Views of moves: all messages of a queue to another one."""

from __future__ import annotations

from typing import TypeVar

from queuey.service import MoveReport, Service
from queuey.web import validators
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.requests import Request, read_body, read_object
from queuey.web.responses import Response, json_response
from queuey.web.v1 import schemas
from queuey.web.validators import Errors

M = TypeVar("M", bound=schemas.ListedMove)


class MoveViews:
    """Views of ``/v1/{app}/_moves`` and of the moves under it."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._moves = service.moves
        self._limits = service.limits
        self._authorization = authorization

    def begin(self, request: Request, match: Match) -> Response:
        """Begins a move, or finds the one that is under way between the same queues."""
        given = read_object(read_body(request, self._limits.max_body))
        errors = Errors()
        names = {field: errors.take(field, validators.text, given.get(field)) for field in ("from", "to")}
        for field, name in names.items():
            if name is None:
                errors.setdefault(field, validators.REQUIRED)
        errors.check()
        enter, find = self._authorization.enter, self._authorization.find
        source, target = (find(request, {"app": match["app"], "queue": name or ""}) for name in names.values())
        enter(request, source, "read")
        way = enter(request, source, "delete")
        report = self._moves.begin(way, enter(request, target, "send"))
        response = json_response(_shown(report), 202)
        response.headers += (("Location", f"/v1/{match['app']}/_moves/{report.id}"),)
        return response

    def list(self, request: Request, match: Match) -> Response:
        """Lists moves, the newest first."""
        seen = self._authorization.matching(request, match["app"], "measure")
        found = self._moves.list(match["app"], seen)
        return json_response(schemas.MoveList(moves=[_fields(schemas.ListedMove, report) for report in found]))

    def show(self, request: Request, match: Match) -> Response:
        """Shows how a move stands."""
        seen = self._authorization.matching(request, match["app"], "measure")
        return json_response(_shown(self._moves.show(match["app"], match["move"], seen)))

    def cancel(self, request: Request, match: Match) -> Response:
        """Has a move end soon."""
        seen = self._authorization.matching(request, match["app"], "delete")
        return json_response(_shown(self._moves.cancel(match["app"], match["move"], seen)))


def _shown(report: MoveReport) -> schemas.Move:
    return _fields(schemas.Move, report)


def _fields(kind: type[M], report: MoveReport) -> M:
    return kind(
        move=report.id,
        source=report.source,
        target=report.target,
        state=report.state,  # type: ignore[arg-type] # the records hold only these words
        moved=report.moved,
        total=report.total,
        left=report.left,
        began=report.began,
        updated=report.updated,
        ended=report.ended,
        error=report.error or None,
    )
