"""The view of explanations: ``/v1/{app}/{queue}/explain/{id}``."""

from __future__ import annotations

from queuey import ids
from queuey.api.reads import Explanation, Reason
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response
from queuey.web.v1.messages import parse_place
from queuey.web.v1.views import Views


class ExplainView(Views):
    """View of explanations why a message is not read or claimed."""

    def explain(self, request: Request, match: Match) -> Response:
        queue = self._authorization.find(request, match)
        partition, position = parse_place(match["id"])
        found = self._service.explaining.explain(self._authorization.enter(request, queue, "read"), position, partition)
        reasons = tuple(Reason(each.code, each.text, each.partition, each.at) for each in found.reasons)
        return json_response(
            Explanation(
                id=ids.to_hex(position),
                timestamp=ids.timestamp_text(position[0]),
                stored=found.stored,
                readable=found.readable,
                reasons=reasons,
            )
        )
