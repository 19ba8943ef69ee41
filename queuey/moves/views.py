"""Views of moves: ``/v1/{app}/_moves``."""

from __future__ import annotations

from collections.abc import Callable

from queuey.access.authorization import Authorization
from queuey.access.operations import APP, Views, declare
from queuey.api.progress import MoveList, MoveState, NewMove
from queuey.moves.moves import MoveUseCases
from queuey.runtime.limits import Limits
from queuey.web.endpoint import Match
from queuey.web.openapi import JSON, ResponseSpec, Tag
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response
from queuey.web.validators import Errors


class MoveViews(Views):
    """Views of ``/v1/{app}/_moves`` and of the moves under it."""

    def __init__(self, authorization: Authorization, limits: Limits, moves: MoveUseCases) -> None:
        super().__init__(authorization, limits)
        self._moves = moves

    async def begin(self, request: Request, match: Match) -> Response:
        """Starts a move, or returns the one that is running between the same queues.

        Needs ``read`` and ``delete`` on the source, and ``send`` on the target; a missing queue takes precedence over a
        missing right. Answers 202 with the move's address in ``Location`` in both cases.
        """
        self._authorization.require_credential(request, await self._authorization.identify(request))
        errors = Errors()
        body = self.fields(NewMove).body(request, errors)
        errors.check()
        admit, ends = self._authorization.admit, [{**match, "queue": name} for name in (body.source, body.target)]
        for end in ends:
            await self._authorization.find(request, end)
        source, target = ends
        await admit(request, source, "read")
        report = await self._moves.begin(await admit(request, source, "delete"), await admit(request, target, "send"))
        response = json_response(report, 202)
        response.headers += (("Location", f"/v1/{match['app']}/_moves/{report.id}"),)
        return response

    async def list(self, may_see: Callable[[str], bool], application: str) -> MoveList:
        return MoveList(moves=tuple(await self._moves.list(application, may_see)))

    async def show(self, may_see: Callable[[str], bool], application: str, move: str) -> MoveState:
        return await self._moves.show(application, move, may_see)

    async def cancel(self, may_delete: Callable[[str], bool], application: str, move: str) -> MoveState:
        return await self._moves.cancel(application, move, may_delete)


MOVES_TAG = Tag("Moves", "Move the messages of one queue to another.")
MOVE = APP + "/_moves/{move}"
OPERATIONS = (
    declare(
        MOVES_TAG,
        f"POST {APP}/_moves",
        "Move messages to another queue",
        {202: ResponseSpec({JSON: MoveState}, {"Location": "Address of the move"})},
        MoveViews.begin,
        about="Starts to move the messages that the queue has now. While the move runs, the same request returns it "
        "again. 409: the queue is being moved to another one, or its consistency level does not allow claims.",
        body=NewMove,
        further_errors=(409,),
    ),
    declare(MOVES_TAG, f"GET {APP}/_moves", "List moves", MoveList, MoveViews.list, "measure"),
    declare(MOVES_TAG, f"GET {MOVE}", "Show move", MoveState, MoveViews.show, "measure"),
    declare(
        MOVES_TAG,
        f"DELETE {MOVE}",
        "Cancel move",
        MoveState,
        MoveViews.cancel,
        "delete",
        about="Moved messages stay in the target. A move that has ended does not change.",
    ),
)
