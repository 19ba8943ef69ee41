"""Pages of consumer groups whose partitions the service divides: their list, and one group."""

from __future__ import annotations

from functools import partial

from queuey.api.groups import GroupListQuery, GroupQuery
from queuey.console.sessions import Asks
from queuey.web.endpoint import Match
from queuey.web.requests import Request, read_query
from queuey.web.responses import Response
from queuey.web.v1.groups.members import GroupViews

FIELDS = frozenset({"start"})


class GroupPages:
    """Views of ``_groups`` and of the groups under it, with the rights of version 1 of the API."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self._groups = GroupViews(asks.service, asks.authorization)

    async def show_all(self, request: Request, match: Match) -> Response:
        start = read_query(request, FIELDS).get("start", "")
        ask = await request.in_pool(partial(self._asks.of, request, match, {}))
        groups = await self._groups.names(request, match, GroupListQuery(start=start))
        return ask.render("groups.html", "Consumer groups of", ask.application, groups=groups)

    async def show(self, request: Request, match: Match) -> Response:
        start = read_query(request, FIELDS).get("start", "")
        ask = await request.in_pool(partial(self._asks.of, request, match, {}))
        group = await self._groups.find(request, match, GroupQuery(start=start, lag=True))
        names = {member.number: member.instance or f"#{member.number}" for member in group.members}
        return ask.render("group.html", "Consumer group", group.group, group=group, names=names)
