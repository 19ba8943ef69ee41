"""The beginning of all views of version 1."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from queuey.api.queues import Action
from queuey.service import QueueAccess, Service
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.fields import Fields
from queuey.web.requests import Request

S = TypeVar("S", bound=msgspec.Struct)


class Views:
    """Views that share a service."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._service = service
        self._limits = service.limits
        self._authorization = authorization
        self._fields: dict[type, Fields[msgspec.Struct]] = {}

    def fields(self, kind: type[S]) -> Fields[S]:
        """Returns what reads a struct within the limits in force."""
        found = self._fields.get(kind)
        if found is None:
            found = self._fields[kind] = Fields(kind, self._limits)
        return found  # type: ignore[return-value] # of this kind

    def enter(self, request: Request, match: Match, action: Action) -> QueueAccess:
        """Admits the caller to the queue that a path names, in a thread."""
        return self._authorization.enter(request, self._authorization.find(request, match), action)
