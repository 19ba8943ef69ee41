"""The overview of an application, and the figures of queues in lists. Their cost is bounded for any application."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from queuey.api.claims import Backlog
from queuey.console import pages
from queuey.console.charts import count_backlog, mean_rates
from queuey.console.groups import GroupPages
from queuey.console.queue import sample_failures
from queuey.console.sessions import PageRequest, PageRequestFactory
from queuey.model.deadletters import holds_dead, queue_for
from queuey.model.errors import ClaimsRefused, InvalidRequest, NotAllowed, NotFound, StoreBusy
from queuey.model.messages import Finding, Queue
from queuey.model.rights import VERBS, is_allowed
from queuey.operations.message_search import FailureCount, group_by_reason
from queuey.operations.queue_activity import ActivityQuery, Cells
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response

FIELDS = frozenset({"queue"})
MAX_QUEUES = 50
MAX_PARTITIONS = 400
"""Max partitions that are counted for one page, over all its queues."""
COUNT_TIMEOUT = 1.0
"""Timeout for counting queues, and for reading groups, in seconds."""
MAX_SHOWN = 10
MAX_SAMPLED = 3
"""Max queues of dead letters that an overview reads."""


class OverviewRow(msgspec.Struct, frozen=True):
    """A queue with its figures.

    Attributes:
        backlog: The backlog; None if the messages were not counted.
        cells: The activity; None if the queue was not used in the last hour.
    """

    queue: Queue
    backlog: Backlog | None
    cells: Cells | None

    @property
    def rates(self) -> tuple[float, float]:
        return (0.0, 0.0) if self.cells is None else mean_rates(self.cells)

    @property
    def undone(self) -> int:
        return sum(getattr(self.backlog, name, 0) for name in ("waiting", "delayed", "claimed", "retrying"))


class Survey(NamedTuple):
    """Some queues of an application.

    Attributes:
        rows: Queues that the caller may measure, most recently used first.
        is_whole: Whether the application has no further queues.
    """

    rows: Sequence[OverviewRow]
    is_whole: bool

    @property
    def jobs(self) -> list[OverviewRow]:
        """Rows of queues that do not hold dead letters of others."""
        letters = {row.queue.dead_letter for row in self.rows}
        return [row for row in self.rows if not holds_dead(row.queue.name) and row.queue.name not in letters]

    @property
    def dead(self) -> dict[str, int]:
        """Number of dead letters by the queue that holds them, without empty queues.

        The number that their source queue reports has precedence over the messages counted in the queue itself.
        """
        jobs = {row.queue.name: row.backlog for row in self.jobs}
        reported = {queue_for(name): backlog.dead for name, backlog in jobs.items() if backlog}
        others = {row.queue.name: row.undone for row in self.rows if row.queue.name not in jobs}
        return {name: count for name, count in (others | reported).items() if count}

    @property
    def largest(self) -> list[OverviewRow]:
        """Rows of up to :data:`MAX_SHOWN` queues in use, those with the largest backlog or rate first.

        A row ranks by its share of the largest backlog or of the highest rate. Queues of dead letters are left out.
        """
        used = [row for row in self.jobs if row.undone or any(row.rates)]
        backlog = max((row.undone for row in used), default=0) or 1
        rate = max((sum(row.rates) for row in used), default=0) or 1
        return sorted(used, key=lambda row: -max(row.undone / backlog, sum(row.rates) / rate))[:MAX_SHOWN]

    def totals(self) -> dict[str, Any]:
        """Sums the figures of all counted queues; dead letters count once, not as waiting.

        ``uncounted`` is the number of queues without a backlog.
        """
        jobs, backlogs = self.jobs, [row.backlog for row in self.jobs if row.backlog]
        sums = {
            name: sum(getattr(backlog, name) for backlog in backlogs)
            for name in ("waiting", "delayed", "claimed", "retrying")
        }
        cells = [row.cells for row in jobs if row.cells]
        return sums | {
            "exact": all(backlog.exact for backlog in backlogs),
            "dead": sum(self.dead.values()),
            "oldest": min((backlog.oldest for backlog in backlogs if backlog.oldest is not None), default=None),
            "sent": sum(row.rates[0] for row in jobs),
            "taken": sum(row.rates[1] for row in jobs),
            "sent_cells": [sum(cell) for cell in zip(*(row.sent for row in cells), strict=True)],
            "taken_cells": [sum(cell) for cell in zip(*(row.taken for row in cells), strict=True)],
            "uncounted": sum(row.backlog is None for row in self.rows),
        }


async def count_backlogs(page_request: PageRequest, queues: Iterable[Queue], until: float) -> dict[str, Backlog]:
    """Counts the messages of queues that the caller may measure, in their order, until a timeout.

    Leaves out queues with more partitions than remain of ``MAX_PARTITIONS``, and queues that are gone or too busy.
    """
    backlogs: dict[str, Backlog] = {}
    partitions = MAX_PARTITIONS
    for queue in queues:
        if (
            queue.partitions > partitions
            or time.monotonic() > until
            or not is_allowed(queue, page_request.caller, "measure")
        ):
            continue
        partitions -= queue.partitions
        with suppress(NotFound, NotAllowed, StoreBusy):
            backlogs[queue.name] = await _count_backlog(page_request, queue)
    return backlogs


async def _count_backlog(page_request: PageRequest, queue: Queue) -> Backlog:
    where = {"app": queue.application, "queue": queue.name}
    access = await page_request.authorization.admit(page_request.request, where, "measure")
    return await count_backlog(page_request.service, access)


async def make_rows(page_request: PageRequest, queues: Sequence[Queue], until: float | None) -> list[OverviewRow]:
    """Returns queues of the application with their figures. Without ``until``, messages are not counted.

    Figures that the caller may not measure are None.
    """
    query = ActivityQuery(page_request.application, uids=[queue.uid for queue in queues])
    active = await page_request.history.read_activity(query) if queues else []
    cells = {activity.uid: activity.cells for activity in active}
    backlogs = {} if until is None else await count_backlogs(page_request, queues, until)
    return [
        OverviewRow(
            queue,
            backlogs.get(queue.name),
            cells.get(queue.uid) if is_allowed(queue, page_request.caller, "measure") else None,
        )
        for queue in queues
    ]


async def survey_queues(page_request: PageRequest, application: str, limit: int, until: float) -> Survey:
    """Counts the most recently used queues, then the first ones by name, until a limit or a timeout.

    Queues that the caller may not measure are left out. If a list by name would take too long, it has only the recently
    used ones.
    """
    patterns = page_request.caller.find_patterns(application, "measure")
    active = await page_request.history.read_activity(ActivityQuery(application, patterns))
    try:
        listed, following = await page_request.service.queues.list(
            application, start="", limit=limit, patterns=patterns
        )
    except InvalidRequest:  # The list would have to read too many queues to find one that matches.
        listed, following = [], ""
    by_name = {queue.name: queue for queue in listed}
    names = list(dict.fromkeys([*(activity.name for activity in active), *by_name]))
    queues = []
    for name in names[:limit]:
        with suppress(NotFound):
            queue = by_name.get(name) or await page_request.service.find(application, name)
            if is_allowed(queue, page_request.caller, "measure"):
                queues.append(queue)
    backlogs = await count_backlogs(page_request, queues, until)
    cells = {activity.uid: activity.cells for activity in active}
    counted = [OverviewRow(queue, backlogs.get(queue.name), cells.get(queue.uid)) for queue in queues]
    return Survey(counted, following is None and len(names) <= limit)


async def find_unlisted_page(page_request: PageRequest) -> Response | None:
    """Returns a page for a caller who may not list queues, or None if the caller may.

    The page lists the caller's grants and opens a queue by name; its status is 403 if the caller has no grants.
    """
    try:
        await page_request.patterns("measure")
    except NotAllowed as refusal:
        grants, why = page_request.caller.grants_within(page_request.application), refusal.args[0]
        values = {"status": 200 if grants else 403, "grants": grants, "verbs": VERBS, "why": why}
        return await page_request.render("queues_unlisted.html", "Queues of", page_request.application, **values)
    return None


async def show(page_request: PageRequest) -> Response:
    """Shows the page of an application, or redirects to the page of ``queue``. A script loads the figures."""
    if name := page_request.given.get("queue"):
        return pages.redirect(pages.link("a", page_request.application, name))
    return await find_unlisted_page(page_request) or await page_request.render(
        "overview.html", "Overview of", page_request.application
    )


class OverviewPages:
    """The view of ``_overview``: the figures of an application.

    Args:
        page_requests: Identifies callers.
        groups: Reads groups.
        findings: Returns the findings about the store that a caller may see, or None if they take too long.
    """

    def __init__(
        self,
        page_requests: PageRequestFactory,
        groups: GroupPages,
        findings: Callable[[PageRequest], Awaitable[Sequence[Finding] | None]],
    ) -> None:
        self._page_requests = page_requests
        self._groups = groups
        self._findings = findings

    async def show(self, request: Request, match: Match) -> Response:
        page_request = await self._page_requests.identify(request, match, {})
        await request.share.reserve(page_request.service.limits.page_bytes)
        values = await _collect_figures(page_request)
        names, following = await self._groups.list_names(request, match, MAX_SHOWN)
        groups = await self._groups.read_statuses(request, match, names, time.monotonic() + COUNT_TIMEOUT)
        values |= {"groups": groups, "more_groups": following is not None or len(groups) < len(names)}
        values["findings"] = await self._findings(page_request)
        return await page_request.render("overview_figures.html", "Overview of", page_request.application, **values)


async def _collect_figures(page_request: PageRequest) -> dict[str, Any]:
    patterns = await page_request.patterns("measure")
    surveyed = await survey_queues(page_request, page_request.application, MAX_QUEUES, time.monotonic() + COUNT_TIMEOUT)
    return {
        "survey": surveyed,
        "totals": surveyed.totals(),
        "workers": await _count_workers(page_request, surveyed.jobs),
        "reasons": await _sample_reasons(page_request, surveyed.dead),
        "patterns": patterns,
    }


async def _count_workers(page_request: PageRequest, queues: Iterable[OverviewRow]) -> int | None:
    """Returns the number of workers with jobs in queues that the caller may read.

    Returns None if there are claimed jobs, but only in queues that the caller may not read.
    """
    names: set[str] = set()
    claimed = [row for row in queues if row.backlog and row.backlog.claimed]
    readable = [row for row in claimed if is_allowed(row.queue, page_request.caller, "read")]
    for row in readable:
        with suppress(NotFound, NotAllowed, ClaimsRefused):
            access = await page_request.enter("read", row.queue.name)
            names |= {load.worker for load in await page_request.service.claims.overview.list_workers(access)}
    return len(names) if readable or not claimed else None


async def _sample_reasons(page_request: PageRequest, dead: Mapping[str, int]) -> list[list[tuple[str, FailureCount]]]:
    """Groups dead letters of the :data:`MAX_SAMPLED` largest queues by reason; returns up to :data:`MAX_SHOWN`.

    The latest reason comes first. Queues that the caller may not read are left out.
    """
    largest = sorted(dead, key=lambda name: -dead[name])[:MAX_SAMPLED]
    samples = [(await sample_failures(page_request, name))["failures"] for name in largest]
    reasons = group_by_reason(sample for sample in samples if sample is not None)
    return sorted(reasons, key=lambda reason: -max(failure.latest for _, failure in reason))[:MAX_SHOWN]
