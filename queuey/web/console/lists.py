"""Views of lists: applications and their queues, by prefix and page by page."""

from __future__ import annotations

from queuey.access import Caller, owner_name
from queuey.service import Service
from queuey.web.authorization import Authorization
from queuey.web.console import pages
from queuey.web.console.sessions import require_caller
from queuey.web.endpoint import Match
from queuey.web.requests import Request, read_query
from queuey.web.responses import Response

FIELDS = frozenset({"prefix", "start"})
PAGE = 100
"""Names on a page."""


class ListViews:
    """Views of ``/console`` and ``/console/a/{app}``."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._service = service
        self._authorization = authorization

    def applications(self, request: Request, match: Match) -> Response:
        """Lists the applications that the caller's key may see."""
        caller = require_caller(self._authorization, request)
        prefix, start = _asked(request)
        operates = any(grant.application is None for grant in caller.grants)
        if operates:
            names, following = self._service.queues.applications(start=start, limit=PAGE)
        else:
            names, following = _own(caller), None
        shown = [name for name in names if name.startswith(prefix)]
        return pages.render(
            request,
            "applications.html",
            caller=caller,
            names=shown,
            prefix=prefix,
            following=following if following is not None and following.startswith(prefix) else None,
            operates=operates,
        )

    def queues(self, request: Request, match: Match) -> Response:
        """Lists the queues of an application that the caller's key may see."""
        caller = require_caller(self._authorization, request)
        application = match["app"]
        prefix, start = _asked(request)
        patterns = self._authorization.patterns(request, application, "measure")
        found, following = self._service.queues.list(application, start=start, limit=PAGE, patterns=patterns)
        return pages.render(
            request,
            "queues.html",
            caller=caller,
            application=application,
            queues=[queue for queue in found if queue.name.startswith(prefix)],
            prefix=prefix,
            following=following if following is not None and following.startswith(prefix) else None,
            patterns=[] if "*" in patterns else patterns,
            is_whole=not start and following is None,
            administers=bool(caller.patterns(application, "admin")),
        )


def _asked(request: Request) -> tuple[str, str]:
    """Returns the prefix that is asked for, and the name that the page begins with."""
    given = read_query(request, FIELDS)
    prefix = given.get("prefix", "")
    return prefix, max(prefix, given.get("start", ""))


def _own(caller: Caller) -> list[str]:
    """Returns the applications that a caller's key is for."""
    owned = {name.removeprefix(owner_name("")) for name in caller.names if name.startswith(owner_name(""))}
    return sorted(owned | {grant.application for grant in caller.grants if grant.application is not None})
