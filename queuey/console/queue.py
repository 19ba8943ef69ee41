"""Views of one queue: its page, and its slow parts, which scripts fetch separately."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from queuey import ids
from queuey.api.queues import QueueInfo
from queuey.console.acts import OF_QUEUES, OFFERED
from queuey.console.sessions import Ask
from queuey.deadletters import holds_dead, queues_for
from queuey.errors import ClaimsRefused, NotAllowed, NotFound
from queuey.messages import Queue, options
from queuey.service import QueueAccess
from queuey.web.errors import NoSuchResource
from queuey.web.responses import Response

MAX_COUNTED = 1000
"""Max jobs that are counted; more are estimated."""
MAX_JOBS = 20
"""Max claimed jobs in the list."""
MAX_GROUPS = 10
"""Max groups on a page: the lag of each is computed for every partition."""
OTHERS = "You have no right to see it here."
"""Why somebody may not see something, where nothing better is known."""
FIELDS = frozenset({"start"})


def show(ask: Ask) -> Response:
    queue, rights = ask.queue(), ask.rights()
    acts = [act for act in OF_QUEUES if act.name in OFFERED and set(act.needs) <= set(rights)]
    values: dict[str, Any] = {"queue": queue, "rights": rights, "acts": acts}
    try:
        access = ask.enter("measure")
    except NotAllowed as refusal:
        if not rights:
            raise
        return ask.render("queue_closed.html", "Queue", queue.name, **values, why=refusal.args[0] or OTHERS)
    about = ask.service.queues.describe(access)
    parts = {name: title for name, (title, _) in PARTS.items()}
    values |= {"queue": access.queue, "about": about, "parts": parts}
    return ask.render(
        "queue.html",
        "Queue",
        queue.name,
        **values,
        options=_options(access.queue, about),
        partitions=[(n, part, _time(part.oldest), _time(part.newest)) for n, part in about.partition_info.items()],
    )


def _options(queue: Queue, about: QueueInfo) -> list[tuple[str, object, bool]]:
    """Returns label and value of each option, and whether that is a length of time."""
    delays = "as usual" if queue.backoff is None else f"{queue.backoff.first:g} s to {queue.backoff.most:g} s"
    in_words = {"backoff": delays, "description": queue.description or "none"}
    rows = []
    for name, option in options().items():
        value = in_words.get(name, getattr(about, name))
        is_time = (option.extra or {})["seconds"]
        rows.append((option.title or name, "no limit" if value == 0 and not is_time else value, is_time))
    return rows


def show_part(ask: Ask) -> Response:
    """Shows one part: for a script alone, otherwise as a page."""
    part = ask.match["part"]
    if part not in PARTS:
        raise NoSuchResource("The resource could not be found.")
    title, find = PARTS[part]
    access = ask.enter("measure")
    values = find(ask, access)
    return ask.render(f"parts/{part}.html", f"{title} of", ask.name, rights=ask.rights(), **values)


def _size(ask: Ask, access: QueueAccess) -> dict[str, Any]:
    count = ask.service.queues.count(access.queue) or 0
    sizes = ask.service.browsing.sizes(access)
    return {"count": count, "sampled": sizes.count, "total": sizes.of(count)}


def _explanation(ask: Ask, access: QueueAccess) -> dict[str, Any]:
    # Groups are a part of their own.
    return {"found": ask.service.explaining.explain_queue(access, most_counted=MAX_COUNTED, most_groups=0)}


def _backlog(ask: Ask, access: QueueAccess) -> dict[str, Any]:
    change = ("pause", "Pause the claims") if access.queue.claims == "open" else ("resume", "Resume the claims")
    found: dict[str, Any] = {"backlog": None, "refusal": "", "jobs": [], "hidden": "", "change": change}
    try:
        found["backlog"] = ask.service.claims.backlog(access, MAX_COUNTED)
        jobs = ask.service.claims.outstanding(ask.enter("read"), MAX_JOBS, states=True)
    except ClaimsRefused as refusal:
        return found | {"refusal": str(refusal)}
    except NotAllowed as refusal:
        return found | {"hidden": refusal.args[0]}
    return found | {"jobs": [(job, bytes(job.state or b"").decode()) for job in jobs]}


def _groups(ask: Ask, access: QueueAccess) -> dict[str, Any]:
    start = ask.given.get("start", "")
    names = [name for name in ask.service.offsets.groups(access) if name >= start]
    shown, served = {}, set()
    for name in names[:MAX_GROUPS]:
        with suppress(NotFound):  # Somebody has forgotten it meanwhile.
            shown[name] = ask.service.offsets.progress(access, name)
            if ask.service.store.group_head(ask.application, name) is not None:
                served.add(name)
    following = names[MAX_GROUPS] if len(names) > MAX_GROUPS else None
    return {"groups": shown, "served": served, "following": following}


def _moves(ask: Ask, access: QueueAccess) -> dict[str, Any]:
    found: dict[str, Any] = {"moves": [], "cancels": [], "hidden": ""}
    try:
        is_seen = ask.matching("measure")
        moves = ask.service.moves.list(ask.application, lambda name: name == ask.name and is_seen(name))
    except NotAllowed as refusal:
        return found | {"hidden": refusal.args[0] or OTHERS}
    found["moves"] = moves
    with suppress(NotAllowed):
        may_delete = ask.matching("delete")
        found["cancels"] = [move.source for move in moves if may_delete(move.source)]
    return found


def _dead(ask: Ask, access: QueueAccess) -> dict[str, Any]:
    queue = access.queue
    names = {queue.name} if holds_dead(queue.name) else queues_for(queue.name, queue.dead_letter)
    return {"found": [failures(ask, name) for name in sorted(names)]}


PARTS: dict[str, tuple[str, Callable[[Ask, QueueAccess], dict[str, Any]]]] = {
    "explanation": ("What readers see now", _explanation),
    "size": ("Bytes", _size),
    "backlog": ("Jobs", _backlog),
    "groups": ("Consumer groups", _groups),
    "moves": ("Moves", _moves),
    "dead": ("Dead letters", _dead),
}
"""By name: title, and what finds the values of its template."""


def failures(ask: Ask, name: str) -> dict[str, Any]:
    """Returns a sample of the dead letters in one queue, or why there is none."""
    try:
        found = ask.service.browsing.failures(ask.enter("read", name))
    except NotFound:
        return {"name": name, "failures": None, "why": "There is no such queue, so there are no dead letters."}
    except NotAllowed as refusal:
        return {"name": name, "failures": None, "why": f"Not shown: {refusal.args[0] or OTHERS}"}
    may_send_back = {"read", "delete"} <= set(ask.rights(name))
    return {"name": name, "failures": found, "why": "", "may_send_back": may_send_back}


def _time(place: str | None) -> float | None:
    return None if place is None else ids.ticks_to_seconds(ids.parse_position(place)[0])
