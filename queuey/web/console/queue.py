"""Views of one queue: its page, and the parts of it that take a moment and are fetched by themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from queuey import ids
from queuey.access import format_principal
from queuey.deadletters import holds_dead, queues_for
from queuey.errors import ClaimsRefused, NotAllowed, NotFound
from queuey.service import Progress, QueueAccess, Service
from queuey.web.authorization import Authorization
from queuey.web.console import pages
from queuey.web.console.acts import OF_QUEUES, OFFERED
from queuey.web.console.sessions import require_caller
from queuey.web.endpoint import Match
from queuey.web.errors import NoSuchResource
from queuey.web.requests import Request, read_query
from queuey.web.responses import Response

MAX_COUNTED = 1000
"""Jobs that are counted; more are estimated."""
MAX_JOBS = 20
"""Jobs under way that are listed."""
MAX_GROUPS = 10
"""Groups on a page: the lag of each is found partition by partition."""
OTHERS = "You have no right to see it here."
"""Why somebody may not see something, where nothing better is known."""
FIELDS = frozenset({"start"})
Part = Callable[[Request, QueueAccess], dict[str, Any]]


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a consumer group is.

    Attributes:
        count: Messages that lie ahead in all partitions.
        exact: They were counted.
        seconds: Age of the oldest of them.
        updated: When an offset was last recorded, in seconds since 1970.
        partitions: By partition.
    """

    name: str
    count: int
    exact: bool
    seconds: float
    updated: float
    partitions: list[Progress]


class QueueViews:
    """Views of ``/console/a/{app}/{queue}`` and of the parts under it."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._service = service
        self._authorization = authorization
        self._parts: dict[str, Part] = {
            "size": self._size,
            "backlog": self._backlog,
            "groups": self._groups,
            "moves": self._moves,
            "dead": self._dead,
        }

    def show(self, request: Request, match: Match) -> Response:
        """Shows what is known of a queue at once."""
        caller = require_caller(self._authorization, request)
        queue = self._authorization.find(request, match)
        rights = self._authorization.rights(request, queue.application, queue.name)
        acts = [act for act in OF_QUEUES if act.name in OFFERED and set(act.needs) <= set(rights)]
        try:
            access = self._authorization.enter(request, queue, "measure")
        except NotAllowed as refusal:
            if not rights:
                raise
            return pages.render(
                request,
                "queue_closed.html",
                caller=caller,
                application=queue.application,
                queue=queue,
                rights=rights,
                acts=acts,
                why=refusal.args[0] or OTHERS,
            )
        about = self._service.queues.describe(access)
        queue = about.queue
        return pages.render(
            request,
            "queue.html",
            caller=caller,
            application=queue.application,
            queue=queue,
            about=about,
            principals=list(map(format_principal, queue.principals)),
            partitions=[(part, _time(part.oldest), _time(part.newest)) for part in about.partitions],
            count=sum(part.count for part in about.partitions),
            exact=all(part.exact for part in about.partitions),
            rights=rights,
            parts=list(self._parts),
            acts=acts,
        )

    def part(self, request: Request, match: Match) -> Response:
        """Shows one part; alone for a script, as a page of its own for everybody else."""
        caller = require_caller(self._authorization, request)
        find = self._parts.get(match["part"])
        if find is None:
            raise NoSuchResource("The resource could not be found.")
        access = self._authorization.enter(request, self._authorization.find(request, match), "measure")
        values = find(request, access)
        rights = self._authorization.rights(request, access.queue.application, access.queue.name)
        return pages.render(
            request,
            f"parts/{match['part']}.html",
            caller=caller,
            application=access.queue.application,
            queue=access.queue,
            rights=rights,
            **values,
        )

    def _size(self, request: Request, access: QueueAccess) -> dict[str, Any]:
        count = self._service.queues.count(access.queue) or 0
        sizes = self._service.browsing.sizes(access)
        return {"count": count, "sampled": sizes.count, "total": sizes.of(count)}

    def _backlog(self, request: Request, access: QueueAccess) -> dict[str, Any]:
        claims = self._service.claims
        try:
            backlog = claims.backlog(access, MAX_COUNTED)
        except ClaimsRefused as refusal:
            return {"backlog": None, "refusal": str(refusal), "jobs": [], "hidden": ""}
        try:
            reading = self._authorization.enter(request, access.queue, "read")
        except NotAllowed as refusal:
            return {"backlog": backlog, "refusal": "", "jobs": [], "hidden": refusal.args[0]}
        jobs = [(job, ids.to_hex(job.position)) for job in claims.outstanding(reading, MAX_JOBS)]
        return {"backlog": backlog, "refusal": "", "jobs": jobs, "hidden": ""}

    def _groups(self, request: Request, access: QueueAccess) -> dict[str, Any]:
        start = read_query(request, FIELDS).get("start", "")
        names = [name for name in self._service.offsets.groups(access) if name >= start]
        shown = []
        for name in names[:MAX_GROUPS]:
            with suppress(NotFound):  # Somebody has forgotten it meanwhile.
                shown.append(self._progress(access, name))
        return {"groups": shown, "following": names[MAX_GROUPS] if len(names) > MAX_GROUPS else None}

    def _progress(self, access: QueueAccess, name: str) -> GroupProgress:
        found = self._service.offsets.progress(access, name)
        return GroupProgress(
            name,
            sum(one.lag.count for one in found),
            all(one.lag.exact for one in found),
            max((one.lag.seconds for one in found), default=0.0),
            max((one.offset.updated for one in found if one.offset is not None), default=0.0),
            found,
        )

    def _moves(self, request: Request, access: QueueAccess) -> dict[str, Any]:
        queue, matching = access.queue, self._authorization.matching
        try:
            is_seen = matching(request, queue.application, "measure")
            moves = self._service.moves.list(queue.application, lambda name: name == queue.name and is_seen(name))
        except NotAllowed as refusal:
            return {"moves": [], "cancels": [], "hidden": refusal.args[0] or OTHERS}
        try:
            may_delete = matching(request, queue.application, "delete")
        except NotAllowed:
            return {"moves": moves, "cancels": [], "hidden": ""}
        return {"moves": moves, "cancels": [move.source for move in moves if may_delete(move.source)], "hidden": ""}

    def _dead(self, request: Request, access: QueueAccess) -> dict[str, Any]:
        queue = access.queue
        names = {queue.name} if holds_dead(queue.name) else queues_for(queue.name, queue.dead_letter)
        service, authorization = self._service, self._authorization
        found = [failures(service, authorization, request, queue.application, name) for name in sorted(names)]
        return {"found": found}


def failures(
    service: Service, authorization: Authorization, request: Request, application: str, name: str
) -> dict[str, Any]:
    """Returns a sample of one queue of dead letters, or why there is none."""
    try:
        letters = authorization.find(request, {"app": application, "queue": name})
        access = authorization.enter(request, letters, "read")
        found = service.browsing.failures(access)
    except NotFound:
        return {"name": name, "failures": None, "why": "There is no such queue, so there are no dead letters."}
    except NotAllowed as refusal:
        return {"name": name, "failures": None, "why": f"Not shown: {refusal.args[0] or OTHERS}"}
    rights = authorization.rights(request, application, name)
    return {"name": name, "failures": found, "why": "", "may_send_back": {"read", "delete"} <= set(rights)}


def _time(position: ids.Position | None) -> float | None:
    return None if position is None else ids.ticks_to_seconds(position[0])
