"""Acts on keys: issue a key with fewer rights than one's own, and revoke such a key."""

from __future__ import annotations

import time

from queuey.access import VERBS, parse_scope
from queuey.console.acts.act import Act, Deed, Field
from queuey.console.filters import moment_absolute
from queuey.console.sessions import Ask
from queuey.errors import InvalidRequest
from queuey.messages import Scope
from queuey.time_parsing import duration


class IssueKey(Act):
    name, title, needs = "key-add", "Make a key", ("admin",)
    fields = noted = (*VERBS, "queues", "expires", "note")
    about = (
        "A key may do less than you, and ends no later than your key or session. Until then it works, also if yours is "
        "revoked or you log out; revoke it then, too."
    )
    button = "Make the key"

    def inputs(self, ask: Ask) -> tuple[Field, ...]:
        no_yes = (("", "no"), ("yes", "yes"))
        return (
            *(Field(verb, f"May {verb}", "", "choice", choices=no_yes) for verb in VERBS),
            Field("queues", "Queues", "*", hint="Patterns, separated by commas: orders-*"),
            Field("expires", "Ends after", _usual(ask), hint="Such as 12h or 90d; at most a year."),
            Field("note", "What it is for"),
        )

    def do(self, ask: Ask) -> Deed:
        keys, scope, note = ask.service.keys, _scope(ask), ask.get("note")
        try:
            seconds = duration(ask.get("expires"))
        except ValueError as error:
            raise InvalidRequest({"expires": str(error)}) from None
        expires = keys.check(
            ask.application, ask.caller, scope, seconds=seconds, note=note, until=ask.callers.rights_end(ask.request)
        )
        secret, key = keys.issue(ask.application, scope, expires, note)
        text = f"Made key {key.id}: {', '.join(scope.allow)} for {', '.join(scope.queues)}, until "
        return Deed(text=f"{text}{moment_absolute(expires)}.", details={"key": key.id}, secret=secret)


def _usual(ask: Ask) -> str:
    """Returns the default lifetime of a key."""
    ends = ask.callers.rights_end(ask.request)
    left = None if ends is None else max(1, int((ends - time.time()) // 60))
    return "90d" if left is None or left > 90 * 1440 else f"{left}m"


def _scope(ask: Ask) -> Scope:
    """Parses the limits of a key.

    Raises:
        InvalidRequest: It has no verb, or a pattern cannot be.
    """
    verbs = [verb for verb in VERBS if ask.get(verb)]
    if not verbs:
        raise InvalidRequest({VERBS[0]: "Choose at least one verb"})
    if not ask.get("queues").strip(", "):
        raise InvalidRequest({"queues": "Missing; * means all"})
    try:
        scope = parse_scope(verbs, ask.get("queues").split(","))
    except ValueError as error:
        raise InvalidRequest({"queues": str(error)}) from None
    assert scope is not None  # noqa: S101 - there are verbs
    return scope


class RevokeKey(Act):
    name, title, needs = "key-revoke", "Revoke a key", ("admin",)
    fields = noted = ("key",)
    button = "Revoke it"
    destroys = True

    def effects(self, ask: Ask) -> str:
        key = ask.service.keys.find(ask.application, ask.caller, ask.get("key"))
        note = f" ({key.note})" if key.note else ""
        return (
            f"Key {key.id}{note} is refused from then on: here at once, in other processes within ten seconds.\n"
            "This cannot be undone."
        )

    def do(self, ask: Ask) -> Deed:
        ask.service.keys.revoke(ask.application, ask.caller, ask.get("key"))
        return Deed(text=f"Revoked key {ask.get('key')}.")
