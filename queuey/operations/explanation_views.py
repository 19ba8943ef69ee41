"""Views of explanations: why a message cannot be read or claimed now, and what readers of a queue see."""

from __future__ import annotations

from queuey.access.authorization import Authorization
from queuey.access.operations import Views
from queuey.access.queue_access import QueueAccess
from queuey.api.queues import QueueExplanation
from queuey.messages.message_views import parse_place
from queuey.operations.explanations import Explaining
from queuey.runtime.limits import Limits
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response


class ExplanationViews(Views):
    """Views of ``explain`` under a queue."""

    def __init__(self, authorization: Authorization, limits: Limits, explaining: Explaining) -> None:
        super().__init__(authorization, limits)
        self._explaining = explaining

    def explain_message(self, request: Request, match: Match) -> Response:
        access, (partition, position) = self.enter(request, match, "read", lambda: parse_place(match["id"]))
        return json_response(self._explaining.explain(access, position, partition))

    def explain_queue(self, access: QueueAccess) -> QueueExplanation:
        return self._explaining.explain_queue(access)
