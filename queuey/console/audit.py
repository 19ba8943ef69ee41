"""Views of the audit log, and of the keys that a caller may issue and revoke."""

from __future__ import annotations

from queuey.console.sessions import Ask
from queuey.errors import InvalidRequest
from queuey.service.operating.audit import Entry
from queuey.web.errors import NoSuchResource
from queuey.web.responses import Response
from queuey.web.v1.messages import format_place, parse_place

FIELDS = frozenset({"cursor", "queue"})
CONTENT = frozenset({"error", "shape", "message_key"})
"""Details of entries that were in messages."""
OUTCOMES = {"done": "Done", "partly": "Partly done", "failed": "Not done", "unknown": "Not known"}


def show_log(ask: Ask) -> Response:
    """Lists entries about queues for which the caller has the right ``admin``, and the caller's own, newest first."""
    ask.service.queues.require_application(ask.application)
    patterns, who = ask.caller.patterns(ask.application, "admin"), ask.callers.holder(ask.request)
    queue = ask.given.get("queue", "")

    def is_shown(entry: Entry) -> bool:
        return queue in {"", entry.queue} and _is_seen(ask, entry, who)

    try:
        page = ask.service.audit.page(ask.application, ask.given.get("cursor", ""), is_shown)
    except ValueError as error:
        raise InvalidRequest({"cursor": str(error)}) from None
    return ask.render(
        "audit.html",
        "Audit log of",
        queue or ask.application,
        name=queue,
        rows=[(format_place(*place), entry) for place, entry in page.entries],
        following=page.cursor,
        patterns=patterns,
        outcomes=OUTCOMES,
    )


def show_entry(ask: Ask) -> Response:
    """Shows an entry to callers who see it in the list."""
    ask.service.queues.require_application(ask.application)
    partition, position = parse_place(ask.match["place"])
    entry = ask.service.audit.find(ask.application, (partition or 1, position))
    who = ask.callers.holder(ask.request)
    if entry is None or not _is_seen(ask, entry, who):
        raise NoSuchResource("There is no such entry of the audit log that you may see.")
    reads = entry.who == who or ask.may("read", entry.queue)
    return ask.render(
        "entry.html",
        OUTCOMES[entry.outcome],
        name=entry.queue,
        entry=entry,
        is_cut=not (reads or CONTENT.isdisjoint(entry.details)),
        hidden={"go_on", "reason"} | (set() if reads else CONTENT),
    )


def _is_seen(ask: Ask, entry: Entry, who: str) -> bool:
    """Returns whether a caller sees an entry: one about the application needs the right for all queues."""
    if entry.queue:
        return entry.who == who or ask.may("admin", entry.queue)
    return entry.who == who or "*" in ask.caller.patterns(ask.application, "admin")


def show_keys(ask: Ask) -> Response:
    """Lists the keys that the caller could have made."""
    ask.patterns("admin")
    keys = ask.service.keys.list(ask.application, ask.caller)
    return ask.render("keys.html", "Keys of", ask.application, keys=keys)
