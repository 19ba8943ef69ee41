"""Views of what stands in the audit log, and of the keys that one may make and revoke."""

from __future__ import annotations

from collections.abc import Sequence

from queuey.access import matches
from queuey.errors import InvalidRequest
from queuey.service import Service
from queuey.service.operating.audit import Entry
from queuey.web.authorization import Authorization
from queuey.web.console import pages
from queuey.web.console.sessions import SessionCallers, require_caller
from queuey.web.endpoint import Match
from queuey.web.errors import NoSuchResource
from queuey.web.requests import Request, read_query
from queuey.web.responses import Response
from queuey.web.v1.messages import format_place, parse_place

FIELDS = frozenset({"cursor", "queue"})
CONTENT = frozenset({"error", "shape", "message_key"})
"""Details of entries that were in messages."""


class AuditView:
    """Views of ``_audit``: entries about queues for which the caller has the right ``admin``, and the caller's own."""

    def __init__(self, service: Service, authorization: Authorization, callers: SessionCallers) -> None:
        self._service = service
        self._authorization = authorization
        self._callers = callers

    def list(self, request: Request, match: Match) -> Response:
        """Lists entries, the newest first."""
        caller = require_caller(self._authorization, request)
        application, given = match["app"], read_query(request, FIELDS)
        self._service.queues.require_application(application)
        patterns, who = caller.patterns(application, "admin"), self._callers.holder(request)
        try:
            page = self._service.audit.page(application, given.get("cursor", ""))
        except ValueError as error:
            raise InvalidRequest({"cursor": str(error)}) from None
        queue = given.get("queue", "")
        seen = [(format_place(*place), entry) for place, entry in page.entries if _is_seen(entry, who, patterns)]
        return pages.render(
            request,
            "audit.html",
            caller=caller,
            application=application,
            queue_name=queue,
            rows=[(place, entry) for place, entry in seen if queue in {"", entry.queue}],
            following=page.cursor,
            patterns=patterns,
            is_whole="*" in patterns,
        )

    def show(self, request: Request, match: Match) -> Response:
        """Shows one entry, to those who see it in the list."""
        caller = require_caller(self._authorization, request)
        application = match["app"]
        self._service.queues.require_application(application)
        partition, position = parse_place(match["place"])
        entry = self._service.audit.find(application, (partition or 1, position))
        who = self._callers.holder(request)
        if entry is None or not _is_seen(entry, who, caller.patterns(application, "admin")):
            raise NoSuchResource("There is no such entry of the audit log that you may see.")
        reads = entry.who == who or _matches(caller.patterns(application, "read"), entry.queue)
        return pages.render(
            request,
            "entry.html",
            caller=caller,
            application=application,
            entry=entry,
            queue_name=entry.queue,
            is_cut=not (reads or CONTENT.isdisjoint(entry.details)),
            hidden={"go_on", "reason"} | (set() if reads else CONTENT),
        )


def _is_seen(entry: Entry, who: str, patterns: Sequence[str]) -> bool:
    """Returns whether an entry is shown to somebody who may change queues of these patterns."""
    return entry.who == who or "*" in patterns or (bool(entry.queue) and _matches(patterns, entry.queue))


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


class KeysView:
    """The view of ``_keys`` under an application."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._service = service
        self._authorization = authorization

    def show(self, request: Request, match: Match) -> Response:
        """Lists the keys that the caller could have made."""
        caller = require_caller(self._authorization, request)
        self._authorization.patterns(request, match["app"], "admin")
        keys = self._service.keys.list(match["app"], caller)
        return pages.render(request, "keys.html", caller=caller, application=match["app"], keys=keys)
