"""Views of applications: their list, and the queues, failures, schedules, keys and audit log of one application."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from queuey.console import overview, pages
from queuey.console.acts import SCHEDULE_ACTS
from queuey.console.filters import Sorting
from queuey.console.queue import sample_failures
from queuey.console.sessions import PageRequest
from queuey.messages.message_views import format_place, parse_place
from queuey.model.deadletters import holds_dead
from queuey.model.errors import InvalidRequest, NotFound
from queuey.model.messages import Meta, Queue
from queuey.model.rights import Caller, application_of_scoped_name, owner_name
from queuey.operations.audit_log import AuditEntry
from queuey.operations.message_search import group_by_reason
from queuey.web.errors import NoSuchResource
from queuey.web.responses import Response

FIELDS = frozenset({"prefix", "start", "depth"})
QUEUES_FIELDS = FIELDS | {"sort", "down"}
FAILURES_FIELDS = frozenset({"start"})
SCHEDULES_FIELDS = frozenset({"start"})
LOG_FIELDS = frozenset({"cursor", "queue"})
PAGE_SIZE = 100
MAX_APPLICATIONS, MAX_QUEUES = 20, 10
"""Max applications on a page with figures, and max queues of each that are counted."""
SEARCH_TIMEOUT = 1.0
"""Timeout for counting queues and for searching dead letters, in seconds."""
DAY = 86_400.0
MAX_SEARCHED = 1000
"""Max queues that one page of failures searches for dead letters."""
MAX_SAMPLED = 20
"""Max queues of dead letters that one page of failures reads."""
MAX_REASONS = 100

MESSAGE_DETAILS = frozenset({"error", "shape", "message_key"})
"""Details of audit entries that were copied from messages."""
OUTCOMES = {"done": "Done", "partly": "Partly done", "failed": "Not done", "unknown": "Not known"}


async def show_applications(page_request: PageRequest) -> Response:
    """Lists the applications that the caller may see or, without fields in the query, redirects to the only one.

    Only operators see all, in pages; the prefix filters one page. With ``depth``, it shows figures of the first
    :data:`MAX_APPLICATIONS`.
    """
    prefix, start = _prefix_and_start(page_request)
    operates = any(grant.application is None for grant in page_request.caller.grants)
    if operates:
        names, following = await page_request.service.queues.list_applications(start=start, limit=PAGE_SIZE)
    else:
        names, following = _own_applications(page_request.caller), None
    if len(names) == 1 and following is None and not page_request.given:
        return pages.redirect(pages.link("a", names[0]))
    matching = [name for name in names if name.startswith(prefix)]
    counted = "depth" in page_request.given
    return await page_request.render(
        "applications_table.html" if counted and pages.is_part(page_request.request) else "applications.html",
        "Applications",
        names=matching,
        totals=await _count_totals(page_request, matching) if counted else None,
        prefix=prefix,
        start=start,
        following=_next_start(prefix, following),
        operates=operates,
    )


async def _count_totals(page_request: PageRequest, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    until = time.monotonic() + SEARCH_TIMEOUT
    for name in names[:MAX_APPLICATIONS]:
        if time.monotonic() > until or not page_request.caller.find_patterns(name, "measure"):
            continue
        with suppress(NotFound):
            totals[name] = (await overview.survey_queues(page_request, name, MAX_QUEUES, until)).totals()
    return totals


async def show_queues(page_request: PageRequest) -> Response:
    """Lists queues. Counts their messages only with ``depth`` or ``sort``; sorts only within the page.

    Counting ends at :data:`SEARCH_TIMEOUT`; the page says how many queues were not counted. A caller who may not list
    queues gets the page of :func:`queuey.console.overview.find_unlisted_page`.
    """
    if (refusal := await overview.find_unlisted_page(page_request)) is not None:
        return refusal
    application, patterns = page_request.application, await page_request.patterns("measure")
    prefix, start = _prefix_and_start(page_request)
    sort, down = page_request.given.get("sort", ""), "down" in page_request.given
    if sort and sort not in SORT_KEYS:
        raise InvalidRequest({"sort": f"Is not one of {', '.join(SORT_KEYS)}"})
    queues, following = await page_request.service.queues.list(
        application, start=start, limit=PAGE_SIZE, patterns=patterns
    )
    counted = bool(sort or "depth" in page_request.given)
    until = time.monotonic() + SEARCH_TIMEOUT if counted else None
    rows = await overview.make_rows(page_request, [queue for queue in queues if queue.name.startswith(prefix)], until)
    return await page_request.render(
        "queues_table.html" if counted and pages.is_part(page_request.request) else "queues.html",
        "Queues of",
        application,
        rows=_sort_rows(rows, sort, down=down) if counted else rows,
        counted=counted,
        uncounted=sum(row.backlog is None for row in rows),
        columns=_list_columns([row.queue for row in rows]),
        sorting=Sorting(sort or "name", down, partial(_sort_address, page_request, prefix, start)),
        prefix=prefix,
        start=start,
        following=_next_start(prefix, following),
        patterns=patterns,
        is_whole=not start and following is None,
    )


def _sort_address(page_request: PageRequest, prefix: str, start: str, sort: str, down: bool) -> str:  # noqa: FBT001 - as Sorting calls it
    fields = {"prefix": prefix, "start": start, "sort": sort, "down": "on" if down else ""}
    return pages.link("a", page_request.application, "_queues", **fields)


def _find_figure(name: str, row: overview.OverviewRow) -> float | None:
    figure: float | None = getattr(row.backlog, name, None)
    return figure


SORT_KEYS: dict[str, Callable[[overview.OverviewRow], Any]] = {
    "name": lambda row: row.queue.name,
    **{name: partial(_find_figure, name) for name in ("waiting", "claimed", "retrying", "dead", "oldest")},
    "sent": lambda row: row.rates[0],
    "taken": lambda row: row.rates[1],
}
"""Sort keys of rows; rows without a value come last, in both directions."""


def _sort_rows(rows: Sequence[overview.OverviewRow], sort: str, *, down: bool) -> list[overview.OverviewRow]:
    value = SORT_KEYS[sort or "name"]
    counted = [row for row in rows if value(row) is not None]
    return sorted(counted, key=value, reverse=down) + [row for row in rows if value(row) is None]


def _list_columns(queues: Sequence[Queue]) -> list[str]:
    """Returns the fields in which the queues of a page differ; creation times differ from a day on."""
    fields = ("kind", "type", "partitions", "consistency")
    differ = [name for name in fields if len({getattr(queue, name) for queue in queues}) > 1]
    created = [queue.created for queue in queues]
    return [*differ, "created"] if created and max(created) - min(created) >= DAY else differ


async def show_failures(page_request: PageRequest) -> Response:
    """Groups the newest dead letters of an application by reason, for one page of queues at a time.

    A page ends at :data:`MAX_SAMPLED` queues of dead letters or the timeout, but has at least one queue with some.
    """
    application, start = page_request.application, page_request.given.get("start", "")
    patterns = await page_request.patterns("read")
    queues, following = await page_request.service.queues.list(
        application, start=start, limit=MAX_SEARCHED, patterns=patterns
    )
    samples: dict[str, dict[str, Any]] = {}
    until = time.monotonic() + SEARCH_TIMEOUT
    for queue in queues:
        names = [name for name in _dead_letter_names(queue) if name not in samples]
        if samples and names and (len(samples) + len(names) > MAX_SAMPLED or time.monotonic() > until):
            following = queue.name
            break
        for name in names:
            samples[name] = await sample_failures(page_request, name)
    reasons = group_by_reason(sample["failures"] for sample in samples.values() if sample["failures"] is not None)
    return await page_request.render(
        "failures.html",
        "Failures of",
        application,
        samples=list(samples.values()),
        reasons=reasons[:MAX_REASONS],
        left_out=len(reasons[MAX_REASONS:]),
        start=start,
        following=following,
        patterns=patterns,
    )


def _dead_letter_names(queue: Queue) -> list[str]:
    own = [queue.name] if holds_dead(queue.name) else []
    return [*own, queue.dead_letter] if queue.dead_letter else own


def _prefix_and_start(page_request: PageRequest) -> tuple[str, str]:
    prefix = page_request.given.get("prefix", "")
    return prefix, max(prefix, page_request.given.get("start", ""))


def _next_start(prefix: str, following: str | None) -> str | None:
    return following if following is not None and following.startswith(prefix) else None


def _own_applications(caller: Caller) -> list[str]:
    owned = {name.removeprefix(owner_name("")) for name in caller.names if name.startswith(owner_name(""))}
    owned |= {application_of_scoped_name(name) for name in caller.names if " " in name}
    return sorted(owned | {grant.application for grant in caller.grants if grant.application is not None})


async def show_schedules(page_request: PageRequest) -> Response:
    may_see, start = await page_request.make_name_test("admin"), page_request.given.get("start", "")
    schedules, following = await page_request.service.schedules.list(page_request.application, may_see, start=start)
    return await page_request.render(
        "schedules.html",
        "Schedules of",
        page_request.application,
        schedules=schedules,
        following=following,
        patterns=await page_request.patterns("admin"),
        may_add=bool(page_request.caller.find_patterns(page_request.application, "send")),
    )


async def show_schedule(page_request: PageRequest) -> Response:
    """Shows a schedule of a queue that the caller administers, with the acts that the caller may do.

    The acts have either pause or resume, as the schedule's state allows.
    """
    schedule = await page_request.service.schedules.show(
        page_request.application, page_request.match["schedule"], await page_request.make_name_test("admin")
    )
    plan = schedule.plan
    idle = "schedule-pause" if plan.paused else "schedule-resume"
    return await page_request.render(
        "schedule.html",
        "Schedule",
        schedule.name,
        schedule=schedule,
        acts=[act for act in SCHEDULE_ACTS if act.name != idle and act.may_act_on(page_request, plan.queue)],
        body=pages.make_shown_body(plan.message.draft.body),
        meta=plan.message.meta or Meta(),
    )


async def show_log(page_request: PageRequest) -> Response:
    """Lists audit entries, newest first: those of queues with the right ``admin``, and the caller's own.

    With ``queue``, it lists only that queue's. Refuses an invalid ``cursor``.
    """
    await page_request.authorization.require_application(page_request.application)
    patterns, who = (
        page_request.caller.find_patterns(page_request.application, "admin"),
        await page_request.callers.find_holder_name(page_request.request),
    )
    queue = page_request.given.get("queue", "")

    def is_shown(entry: AuditEntry) -> bool:
        return queue in {"", entry.queue} and _may_see(page_request, entry, who)

    try:
        page = await page_request.service.audit.read_page(
            page_request.application, page_request.given.get("cursor", ""), is_shown
        )
    except ValueError as error:
        raise InvalidRequest({"cursor": str(error)}) from None
    return await page_request.render(
        "audit.html",
        "Audit log of",
        queue or page_request.application,
        name=queue,
        rows=[(format_place(*place), entry) for place, entry in page.entries],
        following=page.cursor,
        patterns=patterns,
        outcomes=OUTCOMES,
    )


async def show_entry(page_request: PageRequest) -> Response:
    """Shows an audit entry; one that the caller may not see counts as missing.

    Hides details from messages without the right ``read``, except for who acted.
    """
    await page_request.authorization.require_application(page_request.application)
    partition, position = parse_place(page_request.match["place"])
    entry = await page_request.service.audit.find(page_request.application, (partition or 1, position))
    who = await page_request.callers.find_holder_name(page_request.request)
    if entry is None or not _may_see(page_request, entry, who):
        raise NoSuchResource("The audit log has no such entry, or you may not see it.")
    reads = entry.who == who or page_request.may("read", entry.queue)
    return await page_request.render(
        "entry.html",
        OUTCOMES[entry.outcome],
        name=entry.queue,
        entry=entry,
        is_cut=not (reads or MESSAGE_DETAILS.isdisjoint(entry.details)),
        hidden={"go_on", "reason"} | (set() if reads else MESSAGE_DETAILS),
    )


def _may_see(page_request: PageRequest, entry: AuditEntry, who: str) -> bool:
    """Returns whether an entry is the caller's own, or is of a queue with the right ``admin``.

    An entry about the application needs ``admin`` for all queues.
    """
    if entry.queue:
        return entry.who == who or page_request.may("admin", entry.queue)
    return entry.who == who or "*" in page_request.caller.find_patterns(page_request.application, "admin")


async def show_keys(page_request: PageRequest) -> Response:
    await page_request.patterns("admin")
    keys = await page_request.service.keys.list(page_request.application, page_request.caller)
    return await page_request.render("keys.html", "Keys of", page_request.application, keys=keys)
