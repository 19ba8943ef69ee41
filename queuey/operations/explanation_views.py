"""Views of explanations: why a message cannot be read or claimed now, and what readers of a queue see."""

from __future__ import annotations

from queuey.access.authorization import Authorization
from queuey.access.operations import QUEUE, Views, declare
from queuey.access.queue_access import QueueAccess
from queuey.api.messages import Explanation
from queuey.api.queues import QueueExplanation
from queuey.messages.message_views import MESSAGES_TAG, parse_place
from queuey.operations.explanations import Explaining
from queuey.queues.views import QUEUES_TAG
from queuey.runtime.limits import Limits
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response


class ExplanationViews(Views):
    """Views of ``explain`` under a queue."""

    def __init__(self, authorization: Authorization, limits: Limits, explaining: Explaining) -> None:
        super().__init__(authorization, limits)
        self._explaining = explaining

    async def explain_message(self, request: Request, match: Match) -> Response:
        access, (partition, position) = await self.enter(request, match, "read", lambda: parse_place(match["id"]))
        return json_response(await self._explaining.explain(access, position, partition))

    async def explain_queue(self, access: QueueAccess) -> QueueExplanation:
        return await self._explaining.explain_queue(access)


OPERATIONS = (
    declare(
        QUEUES_TAG,
        f"GET {QUEUE}/explain",
        "Explain queue",
        QueueExplanation,
        ExplanationViews.explain_queue,
        "measure",
        about="Shows what determines reads and claims of the queue, and what they get now.",
        resource="explain_queue",
    ),
    declare(
        MESSAGES_TAG,
        "GET " + QUEUE + "/explain/{id}",
        "Explain message",
        Explanation,
        ExplanationViews.explain_message,
        about="Shows why a message is not read or claimed. The answer is 200 even if the message does not exist.",
        resource="explain",
    ),
)
