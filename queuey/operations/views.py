"""Views of explanations (why a message cannot be read or claimed now, what readers of a queue see) and of redrives."""

from __future__ import annotations

from queuey.access.authorization import Authorization
from queuey.access.operations import QUEUE, Views, declare
from queuey.access.queue_access import QueueAccess
from queuey.api.messages import DeadLettersToSend, Explanation
from queuey.api.queues import QueueExplanation
from queuey.claims.views import JOBS_TAG
from queuey.messages.message_views import MESSAGES_TAG, parse_locations, parse_place
from queuey.model.deadletters import Redriven
from queuey.operations.explanations import Explaining
from queuey.operations.redrive import Redriving
from queuey.queues.views import QUEUES_TAG
from queuey.runtime.limits import Limits
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response
from queuey.web.validators import Errors


class OperatorViews(Views):
    """Views of ``explain`` and ``redrive`` under a queue."""

    def __init__(
        self, authorization: Authorization, limits: Limits, explaining: Explaining, redriving: Redriving
    ) -> None:
        super().__init__(authorization, limits)
        self._explaining = explaining
        self._redriving = redriving

    async def explain_message(self, request: Request, match: Match) -> Response:
        access, (partition, position) = await self.enter(request, match, "read", lambda: parse_place(match["id"]))
        return json_response(await self._explaining.explain(access, position, partition))

    async def explain_queue(self, access: QueueAccess) -> QueueExplanation:
        return await self._explaining.explain_queue(access)

    async def redrive(self, request: Request, match: Match) -> Response:
        """Needs ``read`` and ``delete`` on the queue of dead letters, and ``send`` on each queue that they go to."""
        admit = self._authorization.admit
        reading, removing = await admit(request, match, "read"), await admit(request, match, "delete")
        errors = Errors()
        body = self.fields(DeadLettersToSend).body(request, errors)
        errors.check()
        places = parse_locations(",".join(body.ids), self._limits.max_ids) if body.ids else []
        letters = await self._redriving.fetch(reading, places)

        async def enter(name: str) -> QueueAccess:
            return await admit(request, {**match, "queue": name}, "send")

        trusted = match["queue"] if body.trusted else None
        return json_response(
            await self._redriving.send_back(
                removing, letters, enter, ttl=body.ttl, trusted=trusted, dry_run=body.dry_run
            )
        )


OPERATIONS = (
    declare(
        QUEUES_TAG,
        f"GET {QUEUE}/explain",
        "Explain queue",
        QueueExplanation,
        OperatorViews.explain_queue,
        "measure",
        about="Shows what determines reads and claims of the queue, and what they get now.",
        resource="explain_queue",
    ),
    declare(
        MESSAGES_TAG,
        "GET " + QUEUE + "/explain/{id}",
        "Explain message",
        Explanation,
        OperatorViews.explain_message,
        about="Shows why a message is not read or claimed. The answer is 200 even if the message does not exist.",
        resource="explain",
    ),
    declare(
        JOBS_TAG,
        f"POST {QUEUE}/redrive",
        "Send dead letters back",
        Redriven,
        OperatorViews.redrive,
        about="Moves each once to the end of its former partition. Others stay.",
        body=DeadLettersToSend,
        further_errors=(413,),
    ),
)
