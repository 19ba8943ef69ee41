"""Decides what a caller may do with a queue: pure functions of the queue's row and the caller.

A caller has names, such as ``app:reports`` or ``bid:ann@example.org``, and grants. The name of the owning application
has all rights. Other names have the rights that the queue's principals give them, optionally limited:
``app:reports=read``. A grant lends the owner's rights for some verbs and some queues of one application.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from queuey.model.messages import Principal, Queue, Scope, is_readable

Verb = Literal["send", "read", "delete", "claim", "admin", "measure"]
"""A right that a grant may allow:

* ``send``: store new messages.
* ``read``: read messages, and all that ``measure`` shows.
* ``delete``: delete messages by id or name. With ``send`` also overwrite them by id and replace them by name.
* ``claim``: record and remove the offsets of consumer groups, and all that ``measure`` shows. With ``read`` also claim
  and acknowledge messages; ``read`` with ``delete`` allows that, too.
* ``admin``: create, change, purge and delete queues, and all that ``measure`` shows.
* ``measure``: list queues; see their fields, counts, groups, offsets and lags, but no messages.
"""
Action = Literal["send", "overwrite", "read", "delete", "work", "claim", "admin", "measure"]
"""A way to use a queue.

``overwrite`` writes messages at ids that the caller names. ``work`` claims and acknowledges messages.
"""
VERBS: tuple[Verb, ...] = get_args(Verb)

_SUFFICIENT_VERBS: dict[Action, tuple[frozenset[Verb], ...]] = {
    "send": (frozenset({"send"}),),
    "overwrite": (frozenset({"send", "delete"}),),
    "read": (frozenset({"read"}),),
    "delete": (frozenset({"delete"}),),
    "work": (frozenset({"read", "claim"}), frozenset({"read", "delete"})),
    "claim": (frozenset({"claim"}),),
    "admin": (frozenset({"admin"}),),
    "measure": (frozenset({"measure"}), frozenset({"read"}), frozenset({"claim"}), frozenset({"admin"})),
}
"""Sets of verbs by action. Having all verbs of one set is enough."""

_OWNER_ONLY_ACTIONS: frozenset[Action] = frozenset({"send", "overwrite", "admin"})
_READ_ACTIONS: frozenset[Action] = frozenset({"read", "measure"})

MAX_NAME_LENGTH = 200
MAX_PATTERNS = 20
MAX_PATTERN_LENGTH = 100

_ACCESS_KEY = re.compile(r"QK[A-Z2-7]{18}")
_APPLICATION = re.compile(r"app:[\w.\-]+")
_USER = re.compile(r"user:[A-Za-z0-9._@~\-]+")
_MAIL = re.compile(r"bid:[\w.!#$%&'*+/?^`{|}~\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)*")
_NAME_PATTERNS = {"app": _APPLICATION, "user": _USER}
_RIGHTS_BY_SUFFIX = {
    "": (True, True),
    "=read": (True, False),
    "=delete": (False, True),
    "=read+delete": (True, True),
    "=delete+read": (True, True),
}
_SUFFIX_BY_RIGHTS = {(True, True): "", (True, False): "=read", (False, True): "=delete"}


def is_access_key(text: str) -> bool:
    """Returns whether a text is the id of an SQS access key. The note of such a key begins with this id."""
    return _ACCESS_KEY.fullmatch(text) is not None


def owner_name(application: str) -> str:
    return f"app:{application}"


def application_of_owner(tenant: str) -> str:
    return tenant.removeprefix("app:")


USERS_TENANT_PREFIX = "users of "
"""Prefix of the tenant that all users of an application share."""


def name_within(application: str, name: str) -> str:
    """Returns the name of a user who is known to only one application."""
    return f"{application} {name}"


def application_of_scoped_name(name: str) -> str:
    return name.partition(" ")[0]


def parse_principal(text: str) -> Principal:
    """Parses a principal.

    Raises:
        ValueError: The text is not a principal. The message can be shown to the caller.
    """
    name, equals, rights = text.partition("=")
    readable, deletable = _RIGHTS_BY_SUFFIX.get(equals + rights, (False, False))
    form = _NAME_PATTERNS.get(name.partition(":")[0], _MAIL)
    if not (readable or deletable) or len(name) > MAX_NAME_LENGTH or form.fullmatch(name) is None:
        raise ValueError(
            f'"{text[:MAX_NAME_LENGTH]}" is not app:<name>, bid:<mail address> or user:<name>, with =read or =delete '
            "or nothing"
        )
    return Principal(name, read=readable, delete=deletable)


def parse_principals(texts: Iterable[str]) -> tuple[Principal, ...]:
    """Parses principals, keeping their order. Blank texts are skipped. Rights of the same name are combined.

    Raises:
        ValueError: A text is not a principal. The message can be shown to the caller.
    """
    principals: dict[str, Principal] = {}
    for text in texts:
        if not (stripped := text.strip()):
            continue
        new = parse_principal(stripped)
        old = principals.get(new.name, new)
        principals[new.name] = Principal(new.name, read=old.read or new.read, delete=old.delete or new.delete)
    return tuple(principals.values())


def format_principal(principal: Principal) -> str:
    return principal.name + _SUFFIX_BY_RIGHTS[principal.read, principal.delete]


@lru_cache(maxsize=256)
def _actions(allow: frozenset[Verb]) -> frozenset[Action]:
    return frozenset(action for action, sets in _SUFFICIENT_VERBS.items() if any(enough <= allow for enough in sets))


def matches(pattern: str, name: str) -> bool:
    """Returns whether a pattern matches a whole name. ``*`` stands for any characters, also for none."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    position, end = len(first), len(name) - len(last)
    for text in middle:
        index = name.find(text, position, end)
        if index < 0:
            return False
        position = index + len(text)
    return True


class Grant(msgspec.Struct, frozen=True):
    """Lends its holder the rights of a queue's owner, for some verbs and some queues.

    If principals exclude the owner from a queue, only a grant for all applications gives access. If the owner is one of
    the principals, grants with patterns have its rights. Grants with a single name do not, because their holders are
    users.

    Attributes:
        application: Owner of the queues; None for all applications.
        allow: Verbs.
        queues: Patterns of queue names, in which ``*`` stands for any text; or a string, the exact name of one queue.
            Holders of patterns may list matching queues and, with ``admin``, create them. Holders of a single name may
            do neither.
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
    """The caller of a request, as identified by its credentials.

    Attributes:
        names: Names that principals may use. ``app:<application>`` makes the caller the owner of the application's
            queues. A name from :func:`name_within` counts only for the queues of that application.
        grants: Further rights.
        tenant: Name under which its requests are counted if applications share a process, such as ``app:reports``.
        expires: When the first of its credentials expires (seconds since 1970), or None.
    """

    names: frozenset[str] = frozenset()
    grants: tuple[Grant, ...] = ()
    tenant: str = ""
    expires: float | None = None

    @property
    def is_anonymous(self) -> bool:
        return not self.names and not self.grants

    @property
    def holder(self) -> str:
        """Name under which its long polls and bodies count: limited keys apart from the application's own."""
        return self.tenant if self.names or not self.grants else f"{self.tenant}, limited"

    def names_within(self, application: str) -> list[str]:
        """Returns the caller's names that count for an application's queues, as principals write them, sorted."""
        inside = name_within(application, "")
        return sorted(name.removeprefix(inside) for name in self.names if " " not in name or name.startswith(inside))

    def reader_within(self, application: str) -> str | None:
        """Returns the name under which the caller's read marks in an application's queues are kept, or None.

        A user's name takes precedence over the application of another credential. All keys of an application are one
        reader.
        """
        names = sorted(self.names_within(application), key=lambda name: name.startswith("app:"))
        if names:
            return names[0]
        limited = any(grant.application == application for grant in self.grants)
        return owner_name(application) if limited else None

    def grants_within(self, application: str) -> list[Grant]:
        """Returns the grants for an application's queues. The owner has a grant of everything."""
        grants = [grant for grant in self.grants if grant.application in {None, application}]
        return [Grant(application, frozenset(VERBS)), *grants] if owner_name(application) in self.names else grants

    def administers(self, application: str) -> bool:
        """Returns whether the caller has ``admin`` for all queues of an application."""
        return "*" in self.find_patterns(application, "admin")

    def find_patterns(self, application: str, action: Action) -> Sequence[str]:
        """Returns patterns of the queue names for which an action is allowed, even if the queues do not exist.

        The owner has only the pattern ``*``. Grants of a queue by its exact name do not count.
        """
        if owner_name(application) in self.names:
            return ("*",)
        patterns = [
            pattern
            for grant in self.grants
            if grant.permits(application, action) and not isinstance(grant.queues, str)
            for pattern in grant.queues
        ]
        return ("*",) if "*" in patterns else tuple(dict.fromkeys(patterns))


class MemberCredential(msgspec.Struct, frozen=True):
    """The credential with which a member joined.

    Attributes:
        id: Digest of the key, or the user name. Later requests must have the same.
        caller: Rights of the credential at the time of the join.
    """

    id: bytes
    caller: Caller


ANYBODY = Caller()


def parse_scope(allow: Iterable[str] = (), queues: Iterable[str] = ()) -> Scope | None:
    """Parses the limits of a key. Blank texts are skipped. Returns None without any limits.

    Without verbs all verbs are allowed, and without patterns all queues.

    Raises:
        ValueError: A verb or a pattern is not valid. The message can be shown to the caller.
    """
    verbs = {text.strip() for text in allow} - {""}
    patterns = tuple(dict.fromkeys(text.strip() for text in queues if text.strip()))
    if unknown := sorted(verbs.difference(VERBS)):
        raise ValueError(f'"{unknown[0][:MAX_NAME_LENGTH]}" is not one of {", ".join(VERBS)}')
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"{len(patterns)} patterns of queues; {MAX_PATTERNS} at most")
    for pattern in patterns:
        if len(pattern) > MAX_PATTERN_LENGTH or not is_readable(pattern) or "/" in pattern:
            raise ValueError(
                f'"{pattern[:MAX_PATTERN_LENGTH]}" is not a pattern of queue names: use up to {MAX_PATTERN_LENGTH} '
                "characters of queue names, and * for any text"
            )
    if not verbs and not patterns:
        return None
    return Scope(tuple(verb for verb in VERBS if verb in (verbs or VERBS)), patterns or ("*",))


def is_allowed(queue: Queue, caller: Caller, action: Action) -> bool:
    """Decides whether a caller may perform an action on a queue.

    Only the owning application may send, overwrite, and change the queue. All other actions are allowed to the owner
    if the queue has no principals, and otherwise only to the principals. Every caller may read a public queue. A grant
    allows what the owner may do, within the limits of the grant. What the owner may do only as a principal is allowed
    only by grants with patterns.
    """
    owner = f"app:{queue.application}"
    names = caller.names
    if owner in names and not queue.principals:
        return True
    by_principals = bool(queue.principals) and action not in _OWNER_ONLY_ACTIONS
    if action in _READ_ACTIONS and queue.type == "public":
        return True
    for grant in caller.grants:
        if grant.permits(queue.application, action) and grant.matches(queue.name):
            if grant.application is None:
                return True
            if not (by_principals and isinstance(grant.queues, str)):
                names |= {owner}
    if not by_principals:
        return owner in names
    return any(_has_right(p, action) and _is_named(queue, p, names) for p in queue.principals)


def _has_right(principal: Principal, action: Action) -> bool:
    """Returns whether a principal may act: ``work`` needs both rights, ``delete`` that one, all others ``read``."""
    if action == "work":
        return principal.read and principal.delete
    return principal.delete if action == "delete" else principal.read


def _is_named(queue: Queue, principal: Principal, names: frozenset[str]) -> bool:
    return principal.name in names or name_within(queue.application, principal.name) in names


def may_know(queue: Queue, caller: Caller) -> bool:
    """Returns whether a caller may know that a queue exists.

    It may if the queue is public, or as its owner, by a grant, or as one of its principals.
    """
    names = caller.names
    if owner_name(queue.application) in names or queue.type == "public":
        return True
    if any(grant.application in {None, queue.application} and grant.matches(queue.name) for grant in caller.grants):
        return True
    return any(_is_named(queue, principal, names) for principal in queue.principals)


SHARES_TEXT = "A credential without admin for all queues gets at most half of that, and none of the last tenth."
"""Explains :func:`has_room` in errors."""


def has_room(limit: int, held: int, own: int = 0, size: int = 1, *, is_admin: bool) -> bool:
    """Returns whether a credential may take ``size`` more of what all credentials of an application share.

    They hold ``held`` of the limit, it itself ``own``. Without ``admin`` for all queues it gets at most half of the
    limit, and leaves the last tenth to administrators: they still work, and can remove what fills the rest.
    """
    if is_admin:
        return held + size <= limit
    return own + size <= limit // 2 and held + size <= limit - limit // 10


def may_create_key(caller: Caller, application: str, scope: Scope) -> bool:
    """Returns whether a caller may create a key with a scope: it needs ``admin`` and all rights of the new key.

    Unless the caller is the owner, the key must have fewer rights or queues than the caller's grant.

    To check that a pattern is within another one, the inner pattern is matched as a text: only a star matches its star.
    """
    requested = _actions(frozenset(verb for verb in VERBS if verb in scope.allow))
    for grant in caller.grants_within(application):
        patterns, own = grant.queues, _actions(grant.allow)
        if isinstance(patterns, str) or "admin" not in own or not requested <= own:
            continue
        if not all(any(matches(outer, inner) for outer in patterns) for inner in scope.queues):
            continue
        owns = owner_name(application) in caller.names
        narrower = any(not any(matches(inner, outer) for inner in scope.queues) for outer in patterns)
        if owns or narrower or requested < own:
            return True
    return False


def explain_refusal(caller: Caller, application: str, action: Action, name: str | None = None) -> str:
    """Explains which verbs or queues the caller's grants lack for a refused action; blank without any grants.

    The sentence mentions only the caller's own rights.

    Args:
        caller: The caller.
        application: Owner of the queues.
        action: The refused action.
        name: The queue, or None for actions without a queue, such as lists.
    """
    grants = [grant for grant in caller.grants if grant.application in {None, application}]
    if not grants:
        return "The credential is for another application." if caller.grants else ""
    if name is None:
        matching = [grant for grant in grants if not isinstance(grant.queues, str)]
    else:
        matching = [grant for grant in grants if grant.matches(name)]
    if not matching and name is None:
        return "The credential is for single queues by their names. It neither lists nor creates any."
    if not matching:
        return "The credential is limited to other queues."
    if any(action in _actions(grant.allow) for grant in matching):
        return "The principals of the queue keep the credential's holder out."
    verbs = " or ".join(" with ".join(verb for verb in VERBS if verb in enough) for enough in _SUFFICIENT_VERBS[action])
    held = ", ".join(verb for verb in VERBS if any(verb in grant.allow for grant in matching))
    return f"This needs {verbs}; the credential allows {held}."
