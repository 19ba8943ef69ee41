"""Acts on keys: issue a key with fewer rights than the caller's own, and revoke such a key."""

from __future__ import annotations

import time

from queuey.console.acts.act import Act, ActResult, Field
from queuey.console.filters import moment_absolute
from queuey.console.sessions import PageRequest
from queuey.model.errors import InvalidRequest
from queuey.model.messages import Scope
from queuey.model.rights import VERBS, parse_scope
from queuey.model.time_parsing import parse_duration


class IssueKey(Act):
    """Issues a key with some of the caller's rights, and shows its secret once."""

    name, title, needs = "key-add", "Create a key", ("admin",)
    fields = logged_fields = (*VERBS, "queues", "expires", "note")
    about = (
        "The key has fewer rights than you, and expires no later than your key or session. It still works if your key "
        "is revoked or you log out: revoke it, too."
    )
    button = "Create the key"

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        no_yes = (("", "no"), ("yes", "yes"))
        return (
            *(Field(verb, f"May {verb}", "", "choice", choices=no_yes) for verb in VERBS),
            Field("queues", "Queues", "*", hint="Patterns, separated by commas: orders-*"),
            Field(
                "expires",
                "Expires after",
                await _default_lifetime(page_request),
                hint="Such as 12h or 90d; at most a year.",
            ),
            Field("note", "Purpose of the key"),
        )

    async def do(self, page_request: PageRequest) -> ActResult:
        keys, scope, note = page_request.service.keys, _read_scope(page_request), page_request.get("note")
        try:
            seconds = parse_duration(page_request.get("expires"))
        except ValueError as error:
            raise InvalidRequest({"expires": str(error)}) from None
        expires = keys.check(
            page_request.application,
            page_request.caller,
            scope,
            seconds=seconds,
            note=note,
            until=await page_request.callers.find_rights_end(page_request.request),
        )
        secret, key = await keys.issue(page_request.application, scope, expires, note)
        text = f"Created key {key.id}: {', '.join(scope.allow)} for {', '.join(scope.queues)}, until "
        return ActResult(text=f"{text}{moment_absolute(expires)}.", details={"key": key.id}, secret=secret)


async def _default_lifetime(page_request: PageRequest) -> str:
    """Returns the suggested lifetime of a new key: until the caller's rights end, from a minute to 90 days."""
    ends = await page_request.callers.find_rights_end(page_request.request)
    minutes = None if ends is None else max(1, int((ends - time.time()) // 60))
    return "90d" if minutes is None or minutes > 90 * 1440 else f"{minutes}m"


def _read_scope(page_request: PageRequest) -> Scope:
    verbs = [verb for verb in VERBS if page_request.get(verb)]
    if not verbs:
        raise InvalidRequest({VERBS[0]: "Choose at least one verb"})
    if not page_request.get("queues").strip(", "):
        raise InvalidRequest({"queues": "Missing; * means all"})
    try:
        scope = parse_scope(verbs, page_request.get("queues").split(","))
    except ValueError as error:
        raise InvalidRequest({"queues": str(error)}) from None
    assert scope is not None  # noqa: S101 - there are verbs
    return scope


class RevokeKey(Act):
    name, title, needs = "key-revoke", "Revoke a key", ("admin",)
    fields = logged_fields = ("key",)
    button = "Revoke it"
    destroys = True

    async def effects(self, page_request: PageRequest) -> str:
        key = await page_request.service.keys.find(
            page_request.application, page_request.caller, page_request.get("key")
        )
        note = f" ({key.note})" if key.note else ""
        return (
            f"Key {key.id}{note} stops working: in this process at once, in others within ten seconds.\n"
            "This cannot be undone."
        )

    async def do(self, page_request: PageRequest) -> ActResult:
        await page_request.service.keys.revoke(page_request.application, page_request.caller, page_request.get("key"))
        return ActResult(text=f"Revoked key {page_request.get('key')}.")
