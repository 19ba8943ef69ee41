"""Pages of a queue: overview, jobs, groups, dead letters and options, each at its own address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, get_args

from queuey.access.queue_access import QueueAccess
from queuey.api.claims import JobStatus
from queuey.api.progress import Offsets
from queuey.api.queues import QueueInfo
from queuey.console import charts, pages
from queuey.console.sessions import PageRequest
from queuey.model import ids
from queuey.model.deadletters import holds_dead, list_dead_letter_queues
from queuey.model.errors import ClaimsRefused, InvalidRequest, NotAllowed, NotFound
from queuey.model.messages import Queue, option_metas
from queuey.web.responses import Response

MAX_COUNTED = charts.MAX_COUNTED
"""Max jobs that are counted; more are estimated."""
MAX_JOBS, MAX_WORKERS = 20, 50
MAX_REASONS = 3
MAX_GROUPS = 10
"""Max groups on a page, as the lag of each is computed for every partition."""
NO_RIGHT_TEXT = "You have no right to see it here."
"""The default reason for not showing something."""
FIELDS = frozenset({"range"})
TAB_FIELDS = frozenset({"start", "state"})


class Tab(NamedTuple):
    """A page of a queue.

    Attributes:
        title: The text of its link.
        heading: The heading of the page, before the name of the queue.
        find: Returns the values for its template.
    """

    title: str
    heading: str
    find: Callable[[PageRequest, QueueAccess], Awaitable[dict[str, Any]]]


async def show(page_request: PageRequest) -> Response:
    """Shows the overview, or only the acts of a caller with other rights than ``measure``; refuses without any."""
    queue = await page_request.queue()
    try:
        access = await page_request.enter("measure")
    except NotAllowed as refusal:
        if not (rights := page_request.rights(queue)):
            raise
        values = {"queue": queue, "why": refusal.args[0] or NO_RIGHT_TEXT, **_offered_acts(page_request, queue, rights)}
        return await page_request.render("queue_closed.html", "Queue", queue.name, **values)
    head = await read_head_values(page_request, access)
    values = await _read_overview(page_request, access, head)
    return await page_request.render("queue.html", "Queue", queue.name, **head, **values)


async def show_tab(page_request: PageRequest) -> Response:
    tab = TABS[page_request.match["tab"]]
    access = await page_request.enter("measure")
    values = await tab.find(page_request, access)
    return await page_request.render(
        f"queue_{page_request.match['tab']}.html",
        tab.heading,
        page_request.name,
        **await read_head_values(page_request, access),
        **values,
    )


async def read_head_values(page_request: PageRequest, access: QueueAccess) -> dict[str, Any]:
    """Returns the values of the head of each page of a queue: acts, and links to the pages that have contents.

    Pages that the caller may not read are left out. ``dead_letter_queues`` has the visible ones, and whether the
    caller may read them.
    """
    queue, rights = access.queue, page_request.rights(access.queue)
    with_claims = takes_claims(page_request, queue)
    queues = await _find_visible_dead_letter_queues(page_request, queue)
    dead_letter_queues = {other.name: "read" in page_request.rights(other) for other in queues}
    applies = {
        "": True,
        "jobs": with_claims and "read" in rights,
        "groups": bool(await page_request.service.offsets.list_groups(access)),
        "dead": any(dead_letter_queues.values()),
        "messages": "read" in rights,
        "options": True,
    }
    titles = {"": "Overview", "messages": "Messages"} | {name: tab.title for name, tab in TABS.items()}
    address = (
        page_request.request.path.removeprefix(pages.link("a", page_request.application, page_request.name))
        .strip("/")
        .partition("/")[0]
    )
    sections = [
        (
            titles[name],
            pages.link(*filter(None, ("a", page_request.application, page_request.name, name))),
            name == address,
        )
        for name, does in applies.items()
        if does
    ]
    return {
        "queue": queue,
        "dead_letter_queues": dead_letter_queues,
        "sections": sections,
        "with_claims": with_claims,
        "paused": with_claims and queue.claims == "paused",
        **_offered_acts(page_request, queue, rights, with_claims=with_claims),
    }


def takes_claims(page_request: PageRequest, queue: Queue) -> bool:
    """Returns whether the store allows claims of the queue at all; a queue whose claims are paused allows them."""
    try:
        page_request.service.claims.logs.check(queue)
    except ClaimsRefused:
        return False
    return True


def _offered_acts(
    page_request: PageRequest, queue: Queue, rights: list[Any], *, with_claims: bool = False
) -> dict[str, Any]:
    hidden = ("resume" if queue.claims == "open" else "pause",) if with_claims else ("pause", "resume")
    offered: dict[str, Any] = {"rights": rights, "acts": [], "dangers": [], "group_acts": []}
    for act in page_request.queue_acts:
        if act.place and act.name not in hidden and set(act.needs).issubset(rights):
            offered[act.place].append(act)
    return offered


async def _find_visible_dead_letter_queues(page_request: PageRequest, queue: Queue) -> list[Queue]:
    queues = []
    for name in {queue.name} if holds_dead(queue.name) else list_dead_letter_queues(queue.name, queue.dead_letter):
        with suppress(NotFound, NotAllowed):
            queues.append(await page_request.queue(name))
    return sorted(queues, key=lambda other: other.name)


async def _read_overview(page_request: PageRequest, access: QueueAccess, head: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of the overview: backlog, tiles, reasons of dead letters, running moves and activity.

    Reads only what the caller has the right to read, and names the rest. ``head`` is from :func:`read_head_values`.
    """
    cells = await page_request.history.read(access.queue)
    figures = await charts.measure_figures(page_request.service, access, cells)
    readable = [name for name, is_readable in head["dead_letter_queues"].items() if is_readable]
    samples = {name: (await sample_failures(page_request, name))["failures"] for name in readable}
    reasons = [(name, reason) for name, sample in samples.items() if sample for reason in sample.groups]
    span = charts.choose_span(page_request.given.get("range", ""), cells)
    return {
        "about": await page_request.service.queues.describe(access),
        "backlog": figures.backlog,
        "tiles": figures.tiles(),
        "reasons": reasons[:MAX_REASONS],
        "moves": [move for move in (await _read_moves(page_request))["moves"] if move.state == "running"],
        "unseen": [] if "read" in head["rights"] else ["messages", "jobs"],
        "closed": len(head["dead_letter_queues"]) > len(readable),
        "spans": charts.SPAN_SECONDS,
        "span": span,
        "rows": charts.make_table(cells, charts.SPAN_SECONDS[span]),
    }


async def _read_options(page_request: PageRequest, access: QueueAccess) -> dict[str, Any]:
    queue, about = access.queue, await page_request.service.queues.describe(access)
    sizes = await page_request.service.browsing.sample_sizes(access)
    return {
        "about": about,
        "options": _option_rows(queue, about),
        "partitions": [
            (number, part, _time_of_place(part.oldest), _time_of_place(part.newest))
            for number, part in about.partition_info.items()
        ],
        # Groups have their own page.
        "found": await page_request.service.explaining.explain_queue(access, max_counted=MAX_COUNTED, max_groups=0),
        "sampled": sizes.count,
        "total": sizes.estimate_bytes(about.count),
        **await _read_moves(page_request),
    }


def _option_rows(queue: Queue, about: QueueInfo) -> list[tuple[str, object, bool]]:
    """Returns title, value and whether it is a time of each option; 0 is shown as no limit unless it is a time.

    The backoff and a missing description are in words.
    """
    delays = "as usual" if queue.backoff is None else f"{queue.backoff.first:g} s to {queue.backoff.most:g} s"
    in_words = {"backoff": delays, "description": queue.description or "none"}
    rows = []
    for name, option in option_metas().items():
        value = in_words.get(name, getattr(about, name))
        is_time = (option.extra or {})["seconds"]
        rows.append((option.title or name, "no limit" if value == 0 and not is_time else value, is_time))
    return rows


async def _read_jobs(page_request: PageRequest, access: QueueAccess) -> dict[str, Any]:
    """Returns outstanding jobs, of one state if the query names it, workers, and a sample of tasks by name.

    Needs ``read``, and refuses an unknown state. Lists at most :data:`MAX_JOBS` jobs and :data:`MAX_WORKERS` workers.
    If the store refuses claims of the queue, it returns only the reason.
    """
    reading, state = await page_request.enter("read"), page_request.given.get("state", "")
    states = get_args(JobStatus)
    if state and state not in states:
        raise InvalidRequest({"state": f"Is not one of {', '.join(states)}"})
    try:
        overview = page_request.service.claims.overview
        workers = await overview.list_workers(access)
        jobs = await overview.list_jobs(reading, MAX_JOBS + 1, states=True, only_status=state or None)  # type: ignore[arg-type]
    except ClaimsRefused as refusal:
        return {"refusal": str(refusal)}
    tasks, sampled = await page_request.service.browsing.count_tasks(reading)
    return {
        "refusal": "",
        "state": state,
        "states": ("", *states),
        "jobs": [(job, bytes(job.state or b"").decode()) for job in jobs[:MAX_JOBS]],
        "is_cut": len(jobs) > MAX_JOBS,
        "workers": workers[:MAX_WORKERS],
        "others": len(workers[MAX_WORKERS:]),
        "tasks": tasks.most_common(MAX_JOBS),
        "sampled": sampled,
    }


async def _read_groups(page_request: PageRequest, access: QueueAccess) -> dict[str, Any]:
    """Returns up to :data:`MAX_GROUPS` groups with offsets, owners and members, from the name ``start`` on.

    Skips deleted groups; a group that the service does not coordinate has only offsets. Owners
    and members are shown to callers that may see groups.
    """
    start = page_request.given.get("start", "")
    names = [name for name in await page_request.service.offsets.list_groups(access) if name >= start]
    offsets: dict[str, Offsets] = {}
    owners: dict[str, dict[int, str]] = {}
    members: dict[str, int] = {}
    sees_groups = bool(page_request.caller.find_patterns(page_request.application, "measure"))
    for name in names[:MAX_GROUPS]:
        with suppress(NotFound, InvalidRequest):  # The group was deleted, or the service does not coordinate it.
            offsets[name] = await page_request.service.offsets.read_progress(access, name)
            if not sees_groups:
                continue
            served = await page_request.service.groups.show(
                page_request.application, name, lambda queue: queue.name == page_request.name
            )
            texts = {member.number: member.name for member in served.members}
            members[name] = len(texts)
            owners[name] = {n: texts[p.owner] for n, p in served.queues[page_request.name].items() if p.owner in texts}
    following = names[MAX_GROUPS] if len(names) > MAX_GROUPS else None
    values = {"groups": offsets, "members": members, "owners": owners, "following": following}
    return values | {"sees_groups": sees_groups}


async def _read_moves(page_request: PageRequest) -> dict[str, Any]:
    values: dict[str, Any] = {"moves": [], "cancels": [], "hidden": ""}
    try:
        is_seen = await page_request.make_name_test("measure")
        moves = await page_request.service.moves.list(
            page_request.application, lambda name: name == page_request.name and is_seen(name)
        )
    except NotAllowed as refusal:
        return values | {"hidden": refusal.args[0] or NO_RIGHT_TEXT}
    values["moves"] = moves
    if moves:
        with suppress(NotAllowed):
            may_delete = await page_request.make_name_test("delete")
            values["cancels"] = [move.source for move in moves if may_delete(move.source)]
    return values


async def _read_dead_letters(page_request: PageRequest, access: QueueAccess) -> dict[str, Any]:
    return {
        "found": [
            await sample_failures(page_request, letters.name)
            for letters in await _find_visible_dead_letter_queues(page_request, access.queue)
        ]
    }


TABS = {
    "jobs": Tab("Jobs", "Jobs of", _read_jobs),
    "groups": Tab("Groups", "Groups of", _read_groups),
    "dead": Tab("Dead letters", "Dead letters of", _read_dead_letters),
    "options": Tab("Options", "Options of", _read_options),
}
"""The pages other than the overview and the messages, by name in the address."""


async def sample_failures(page_request: PageRequest, name: str) -> dict[str, Any]:
    """Returns a sample of the dead letters in a queue, and whether the caller may send them back.

    If the queue does not exist or may not be read, ``failures`` is None and ``why`` has the reason.
    """
    try:
        access = await page_request.enter("read", name)
        sample = await page_request.service.browsing.sample_failures(access)
    except NotFound:
        return {"name": name, "failures": None, "why": "This queue does not exist, so there are no dead letters."}
    except NotAllowed as refusal:
        return {"name": name, "failures": None, "why": f"Not shown: {refusal.args[0] or NO_RIGHT_TEXT}"}
    may_send_back = {"read", "delete"} <= set(page_request.rights(access.queue))
    return {"name": name, "failures": sample, "why": "", "may_send_back": may_send_back}


def _time_of_place(place: str | None) -> float | None:
    return None if place is None else ids.ticks_to_seconds(ids.parse_position(place)[0])
