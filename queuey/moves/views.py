"""Views of moves: ``/v1/{app}/_moves``."""

from __future__ import annotations

from collections.abc import Callable

from queuey.access.authorization import Authorization
from queuey.access.operations import Views
from queuey.api.progress import MoveList, MoveState, NewMove
from queuey.moves.moves import MoveUseCases
from queuey.runtime.limits import Limits
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response
from queuey.web.validators import Errors


class MoveViews(Views):
    """Views of ``/v1/{app}/_moves`` and of the moves under it."""

    def __init__(self, authorization: Authorization, limits: Limits, moves: MoveUseCases) -> None:
        super().__init__(authorization, limits)
        self._moves = moves

    def begin(self, request: Request, match: Match) -> Response:
        """Starts a move, or returns the one that is running between the same queues.

        Needs ``read`` and ``delete`` on the source, and ``send`` on the target; a missing queue takes precedence over a
        missing right. Answers 202 with the move's address in ``Location`` in both cases.
        """
        self._authorization.require_credential(request, self._authorization.authenticate(request))
        errors = Errors()
        body = self.fields(NewMove).body(request, errors)
        errors.check()
        enter, ends = self._authorization.enter, [{**match, "queue": name} for name in (body.source, body.target)]
        for end in ends:
            self._authorization.find(request, end)
        source, target = ends
        enter(request, source, "read")
        report = self._moves.begin(enter(request, source, "delete"), enter(request, target, "send"))
        response = json_response(report, 202)
        response.headers += (("Location", f"/v1/{match['app']}/_moves/{report.id}"),)
        return response

    def list(self, may_see: Callable[[str], bool], application: str) -> MoveList:
        return MoveList(moves=tuple(self._moves.list(application, may_see)))

    def show(self, may_see: Callable[[str], bool], application: str, move: str) -> MoveState:
        return self._moves.show(application, move, may_see)

    def cancel(self, may_delete: Callable[[str], bool], application: str, move: str) -> MoveState:
        return self._moves.cancel(application, move, may_delete)
