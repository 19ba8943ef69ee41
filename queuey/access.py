"""Decides what a caller may do with a queue: pure functions of the queue's row and the caller.

A caller has names, such as ``app:reports`` or ``bid:ann@example.org``, and grants. A name may do all that the queues
allow it: everything to the owning application, and what a queue's principals say to others, optionally limited:
``app:reports=read``. A grant lends the owner's name for some verbs and some queues of one application.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import get_args

import msgspec

from queuey.api.queues import Action, Verb
from queuey.messages import Principal, Queue, Scope

VERBS: tuple[Verb, ...] = get_args(Verb)

_ENOUGH: dict[Action, tuple[frozenset[Verb], ...]] = {
    "send": (frozenset({"send"}),),
    "overwrite": (frozenset({"send", "delete"}),),
    "read": (frozenset({"read"}),),
    "delete": (frozenset({"delete"}),),
    "work": (frozenset({"read", "claim"}), frozenset({"read", "delete"})),
    "claim": (frozenset({"claim"}),),
    "admin": (frozenset({"admin"}),),
    "measure": (frozenset({"measure"}), frozenset({"read"}), frozenset({"claim"}), frozenset({"admin"})),
}
"""Sets of verbs any one of which is enough for an action."""

_OWNERS_ALONE: frozenset[Action] = frozenset({"send", "overwrite", "admin"})
_READING: frozenset[Action] = frozenset({"read", "measure"})

MAX_NAME = 200
MAX_PATTERNS = 20
"""Max patterns of one scope."""
MAX_PATTERN = 100
"""Max characters of a pattern."""

_ACCESS_KEY = re.compile(r"QK[A-Z2-7]{18}")
_APPLICATION = re.compile(r"app:[\w.\-]+")
_USER = re.compile(r"user:[A-Za-z0-9._@~\-]+")
_MAIL = re.compile(r"bid:[\w.!#$%&'*+/?^`{|}~\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)*")
_FORMS = {"app": _APPLICATION, "user": _USER}
_RIGHTS = {
    "": (True, True),
    "=read": (True, False),
    "=delete": (False, True),
    "=read+delete": (True, True),
    "=delete+read": (True, True),
}
_SUFFIX = {(True, True): "", (True, False): "=read", (False, True): "=delete"}


def is_access_key(text: str) -> bool:
    """Returns whether a text is the id of an access key of SQS; the note of such a key begins with it."""
    return _ACCESS_KEY.fullmatch(text) is not None


def owner_name(application: str) -> str:
    """Returns the name that every caller with one of the application's keys has."""
    return f"app:{application}"


def application_of_owner(tenant: str) -> str:
    """Returns the application of a tenant that :func:`owner_name` made."""
    return tenant.removeprefix("app:")


USERS_OF = "users of "
"""Prefix of the one tenant of all users of an application."""


def name_within(application: str, name: str) -> str:
    """Returns the name of a user that only one application knows."""
    return f"{application} {name}"


def application_of(name: str) -> str:
    """Returns the application of a name from :func:`name_within`."""
    return name.partition(" ")[0]


def parse_principal(text: str) -> Principal:
    """Reads one principal.

    Raises:
        ValueError: It is none; the message is for the caller.
    """
    name, equals, rights = text.partition("=")
    readable, deletable = _RIGHTS.get(equals + rights, (False, False))
    form = _FORMS.get(name.partition(":")[0], _MAIL)
    if not (readable or deletable) or len(name) > MAX_NAME or form.fullmatch(name) is None:
        raise ValueError(
            f'"{text[:MAX_NAME]}" is not app:<name>, bid:<mail address> or user:<name>, with =read or =delete or '
            "nothing"
        )
    return Principal(name, read=readable, delete=deletable)


def parse_principals(texts: Iterable[str]) -> tuple[Principal, ...]:
    """Reads principals in the order given; blanks are skipped, and rights given to one name twice add up.

    Raises:
        ValueError: One of them is no principal.
    """
    found: dict[str, Principal] = {}
    for text in texts:
        if not (stripped := text.strip()):
            continue
        new = parse_principal(stripped)
        old = found.get(new.name, new)
        found[new.name] = Principal(new.name, read=old.read or new.read, delete=old.delete or new.delete)
    return tuple(found.values())


def format_principal(principal: Principal) -> str:
    """Returns the text that :func:`parse_principal` reads."""
    return principal.name + _SUFFIX[principal.read, principal.delete]


@lru_cache(maxsize=256)
def _actions(allow: frozenset[Verb]) -> frozenset[Action]:
    return frozenset(action for action, sets in _ENOUGH.items() if any(enough <= allow for enough in sets))


def matches(pattern: str, name: str) -> bool:
    """Returns whether a queue's name matches a pattern, in which ``*`` stands for any text. Time: linear."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class Grant(msgspec.Struct, frozen=True):
    """Lends its holder the right of a queue's owner, for some verbs and some queues.

    It opens no queue that principals close to the owner; only a grant over every application does. Where the owner is
    one of the principals, holders of patterns have its right, but not holders of a single name, because they are users.

    Attributes:
        application: Owner of the queues; None: all applications.
        allow: Verbs.
        queues: Patterns of their names, in which ``*`` stands for any text; or, as a single text, the name of one
            queue in which ``*`` stands for itself. Holders of patterns may list and, with ``admin``, create the queues
            that match; a single name is not listed and not created.
    """

    application: str | None
    allow: frozenset[Verb]
    queues: tuple[str, ...] | str = ("*",)

    def permits(self, application: str, action: Action) -> bool:
        return self.application in {None, application} and action in _actions(self.allow)

    def matches(self, name: str) -> bool:
        if isinstance(self.queues, str):
            return name == self.queues
        return any(matches(pattern, name) for pattern in self.queues)


class Caller(msgspec.Struct, frozen=True):
    """The caller of a request, by its credentials.

    Attributes:
        names: Names that principals may use; ``app:<application>`` makes it the owner of the application's queues. A
            name from :func:`name_within` counts for the queues of that application alone.
        grants: Further rights.
        tenant: Name by which its requests are counted where applications share a process, such as ``app:reports``.
        expires: Seconds since 1970 when the first of its credentials ends; None: none does.
    """

    names: frozenset[str] = frozenset()
    grants: tuple[Grant, ...] = ()
    tenant: str = ""
    expires: float | None = None

    @property
    def anonymous(self) -> bool:
        """True without a credential."""
        return not self.names and not self.grants

    def names_within(self, application: str) -> list[str]:
        """Returns the caller's names for principals of an application's queues."""
        inside = name_within(application, "")
        return sorted(name.removeprefix(inside) for name in self.names if " " not in name or name.startswith(inside))

    def reader_within(self, application: str) -> str | None:
        """Returns the name that owns the caller's read marks in an application's queues; None: it has none there.

        A user comes before an application whose key was shown as well. All keys of an application are one reader.
        """
        names = sorted(self.names_within(application), key=lambda name: name.startswith("app:"))
        if names:
            return names[0]
        limited = any(grant.application == application for grant in self.grants)
        return owner_name(application) if limited else None

    def grants_within(self, application: str) -> list[Grant]:
        """Returns its grants for an application's queues; the owner has every right."""
        found = [grant for grant in self.grants if grant.application in {None, application}]
        return [Grant(application, frozenset(VERBS)), *found] if owner_name(application) in self.names else found

    def patterns(self, application: str, action: Action) -> Sequence[str]:
        """Returns patterns of the queues for which it may do something, before they exist.

        They are ``*`` alone for the owner, and empty if there are none.
        """
        if owner_name(application) in self.names:
            return ("*",)
        found = [
            pattern
            for grant in self.grants
            if grant.permits(application, action) and not isinstance(grant.queues, str)
            for pattern in grant.queues
        ]
        return ("*",) if "*" in found else tuple(dict.fromkeys(found))


ANYBODY = Caller()
"""A caller without a credential."""


def parse_scope(allow: Iterable[str] = (), queues: Iterable[str] = ()) -> Scope | None:
    """Reads the limits of a key; blanks are skipped. None: no limits are given.

    Raises:
        ValueError: A verb or a pattern is not valid; the message is for the caller.
    """
    verbs = {text.strip() for text in allow} - {""}
    patterns = tuple(dict.fromkeys(text.strip() for text in queues if text.strip()))
    if unknown := sorted(verbs.difference(VERBS)):
        raise ValueError(f'"{unknown[0][:MAX_NAME]}" is not one of {", ".join(VERBS)}')
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"{len(patterns)} patterns of queues; {MAX_PATTERNS} at most")
    for pattern in patterns:
        if len(pattern) > MAX_PATTERN or not pattern.isprintable() or "/" in pattern:
            raise ValueError(
                f'"{pattern[:MAX_PATTERN]}" is no pattern of queues: up to {MAX_PATTERN} characters as in their names, '
                "and * for any text"
            )
    if not verbs and not patterns:
        return None
    return Scope(tuple(verb for verb in VERBS if verb in (verbs or VERBS)), patterns or ("*",))


def allowed(queue: Queue, caller: Caller, action: Action) -> bool:
    """Decides whether a caller may do something with a queue.

    Sending, overwriting and changing the queue belong to the owning application alone. Everything else does so too,
    unless the queue has principals: then it belongs to those alone. Every caller can read a public queue, but that
    permits no changes. Holders of grants may do what the owner may, each within its limits; what belongs to the owner
    as a principal is lent to holders of patterns alone.
    """
    owner = f"app:{queue.application}"
    names = caller.names
    if owner in names and not queue.principals:
        return True
    by_principals = bool(queue.principals) and action not in _OWNERS_ALONE
    if action in _READING and queue.type == "public":
        return True
    for grant in caller.grants:
        if grant.permits(queue.application, action) and grant.matches(queue.name):
            if grant.application is None:
                return True
            if not (by_principals and isinstance(grant.queues, str)):
                names |= {owner}
    if not by_principals:
        return owner in names
    return any(_is_given(each, action) and _is_named(queue, each, names) for each in queue.principals)


def _is_given(principal: Principal, action: Action) -> bool:
    if action == "work":
        return principal.read and principal.delete
    return principal.delete if action == "delete" else principal.read


def _is_named(queue: Queue, principal: Principal, names: frozenset[str]) -> bool:
    return principal.name in names or name_within(queue.application, principal.name) in names


def concerns(queue: Queue, caller: Caller) -> bool:
    """Returns whether a caller may know that a queue exists: whether it may do anything with it."""
    names = caller.names
    if owner_name(queue.application) in names or queue.type == "public":
        return True
    if any(grant.application in {None, queue.application} and grant.matches(queue.name) for grant in caller.grants):
        return True
    return any(_is_named(queue, principal, names) for principal in queue.principals)


def may_hand_on(caller: Caller, application: str, scope: Scope) -> bool:
    """Returns whether a caller may make a key with a scope: it needs ``admin``, and all rights of that key.

    A pattern within a pattern is found by reading the stars of the inner one as a text that only a star can match.
    """
    wanted = _actions(frozenset(verb for verb in VERBS if verb in scope.allow))
    for grant in caller.grants_within(application):
        patterns, own = grant.queues, _actions(grant.allow)
        if isinstance(patterns, str) or "admin" not in own or not wanted <= own:
            continue
        if not all(any(matches(outer, inner) for outer in patterns) for inner in scope.queues):
            continue
        owns = owner_name(application) in caller.names
        narrower = any(not any(matches(inner, outer) for inner in scope.queues) for outer in patterns)
        if owns or narrower or wanted < own:
            return True
    return False


def lacking(caller: Caller, application: str, action: Action, name: str | None = None) -> str:
    """Returns a sentence on which verbs or queues the caller's grants lack for an action; blank: it has no grants.

    The sentence names nothing but the caller's own rights.

    Args:
        caller: The caller that may not do it.
        application: Owner of the queues.
        action: What it wanted to do.
        name: The queue; None: none in particular, as for lists.
    """
    mine = [grant for grant in caller.grants if grant.application in {None, application}]
    if not mine:
        return "The credential is for another application." if caller.grants else ""
    if name is None:
        near = [grant for grant in mine if not isinstance(grant.queues, str)]
    else:
        near = [grant for grant in mine if grant.matches(name)]
    if not near and name is None:
        return "The credential is for single queues by their names. It neither lists nor creates any."
    if not near:
        return "The credential is limited to other queues."
    if any(action in _actions(grant.allow) for grant in near):
        return "The principals of the queue keep the credential's holder out."
    verbs = " or ".join(" with ".join(verb for verb in VERBS if verb in enough) for enough in _ENOUGH[action])
    held = ", ".join(verb for verb in VERBS if any(verb in grant.allow for grant in near))
    return f"This needs {verbs}; the credential allows {held}."
