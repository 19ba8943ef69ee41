"""Pages of consumer groups that the service coordinates: the list, and a single group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from queuey.api.groups import GroupInfo, GroupListQuery, GroupQuery
from queuey.console.pages import is_part
from queuey.console.sessions import PageRequestFactory
from queuey.groups.member_views import GroupViews
from queuey.groups.shown_groups import LAG_PAGE_SIZE
from queuey.model.errors import GroupNotFound
from queuey.web.endpoint import Match
from queuey.web.requests import Request, read_query
from queuey.web.responses import Response

FIELDS = frozenset({"start"})
LIST_FIELDS = frozenset({"start", "lag"})
PAGE_SIZE = 20
READ_TIMEOUT = 1.0
"""Timeout in seconds for reading the groups of a page."""
MIN_LAG_SECONDS = 60.0
"""Min age of the oldest unprocessed message at which a group is lagging, in seconds."""


class GroupSummary(NamedTuple):
    """The state of a group, in queues that the caller may see.

    Attributes:
        state: ``empty``, ``rebalancing``, ``lagging`` or ``ok``, or blank if the caller sees no partitions.
        members: Number of members that are not absent.
        lag: Number of unprocessed messages.
        seconds: Age of the oldest unprocessed message.
        exact: Whether all messages were counted; otherwise there may be more.
    """

    state: str
    members: int
    lag: int
    seconds: float
    exact: bool

    @property
    def lags(self) -> bool:
        return self.seconds >= MIN_LAG_SECONDS


def status_of(group: GroupInfo) -> GroupSummary:
    """Returns the state of a group, the first that applies: no members, an owner to change, a long lag, or ok.

    ``seconds`` is the longest lag of any partition with unprocessed messages.
    """
    partitions = [partition for by_number in group.queues.values() for partition in by_number.values()]
    members = sum(member.state != "absent" for member in group.members)
    seconds = max((partition.lag_seconds or 0.0 for partition in partitions if partition.lag), default=0.0)
    if partitions and not members:
        state = "empty"
    elif any(partition.target != partition.owner for partition in partitions):
        state = "rebalancing"
    elif seconds >= MIN_LAG_SECONDS:
        state = "lagging"
    else:
        state = "ok" if partitions else ""
    exact = all(p.lag_exact for p in partitions) and len(group.queues) < LAG_PAGE_SIZE
    return GroupSummary(state, members, sum(p.lag or 0 for p in partitions), seconds, exact)


class GroupPages:
    """Views of ``_groups`` and of the groups under it, with the rights of version 1 of the API."""

    def __init__(self, page_requests: PageRequestFactory) -> None:
        self._page_requests = page_requests
        service = page_requests.service
        self._groups = GroupViews(page_requests.authorization, service.limits, service.groups)

    async def show_all(self, request: Request, match: Match) -> Response:
        """Lists groups by name; reads their states only with the field ``lag``, which a script sends."""
        fields = read_query(request, LIST_FIELDS)
        page_request = await self._page_requests.identify(request, match, fields)
        names, following = await self.list_names(request, match, PAGE_SIZE, fields.get("start", ""))
        until = time.monotonic() + READ_TIMEOUT
        statuses = await self.read_statuses(request, match, names, until) if "lag" in fields else None
        values: dict[str, Any] = {
            "names": names,
            "statuses": statuses,
            "following": following,
            "start": fields.get("start", ""),
        }
        template = "groups_table.html" if "lag" in fields and is_part(request) else "groups.html"
        return await page_request.render(template, "Consumer groups of", page_request.application, **values)

    async def list_names(
        self, request: Request, match: Match, limit: int, start: str = ""
    ) -> tuple[Sequence[str], str | None]:
        page = await self._groups.list_names(request, match, GroupListQuery(start=start, limit=limit))
        return page.groups, page.next

    async def read_statuses(
        self, request: Request, match: Match, names: Sequence[str], until: float
    ) -> dict[str, GroupSummary]:
        """Returns the states of groups by name, as many as can be read until a time, without deleted groups."""
        statuses: dict[str, GroupSummary] = {}
        for name in names:
            if time.monotonic() > until:
                break
            with suppress(GroupNotFound):  # The group was deleted meanwhile.
                query = GroupQuery(lag=True)
                group = await self._groups.find(request, {**match, "group": name}, query, few=True)
                statuses[name] = status_of(group)
        return statuses

    async def show(self, request: Request, match: Match) -> Response:
        start = read_query(request, FIELDS).get("start", "")
        page_request = await self._page_requests.identify(request, match, {})
        group = await self._groups.find(request, match, GroupQuery(start=start, lag=True))
        names = {member.number: member.name for member in group.members}
        values: dict[str, Any] = {"group": group, "names": names, "group_status": status_of(group)}
        return await page_request.render("group.html", "Consumer group", group.group, **values)
