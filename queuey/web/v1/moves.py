"""Views of moves: all messages of a queue to another one."""

from __future__ import annotations

from collections.abc import Callable

from queuey.api.progress import MoveList, MoveState, NewMove
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response
from queuey.web.v1.views import Views
from queuey.web.validators import Errors


class MoveViews(Views):
    """Views of ``/v1/{app}/_moves`` and of the moves under it."""

    def begin(self, request: Request, match: Match) -> Response:
        """Begins a move, or finds the one that is under way between the same queues."""
        self._authorization.require_credential(request, self._authorization.caller(request))
        errors = Errors()
        asked = self.fields(NewMove).body(request, errors)
        errors.check()
        enter, ends = self._authorization.enter, [{**match, "queue": name} for name in (asked.source, asked.target)]
        for end in ends:  # That both exist comes before what the caller may do with them.
            self._authorization.find(request, end)
        source, target = ends
        enter(request, source, "read")
        report = self._service.moves.begin(enter(request, source, "delete"), enter(request, target, "send"))
        response = json_response(report, 202)
        response.headers += (("Location", f"/v1/{match['app']}/_moves/{report.id}"),)
        return response

    def list(self, may_see: Callable[[str], bool], application: str) -> MoveList:
        return MoveList(moves=tuple(self._service.moves.list(application, may_see)))

    def show(self, may_see: Callable[[str], bool], application: str, move: str) -> MoveState:
        return self._service.moves.show(application, move, may_see)

    def cancel(self, may_delete: Callable[[str], bool], application: str, move: str) -> MoveState:
        return self._service.moves.cancel(application, move, may_delete)
