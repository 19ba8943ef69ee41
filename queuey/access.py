"""Who may do what with a queue: pure decisions over a queue's row and the caller's names.

A caller is a set of names such as ``app:reports`` or ``bid:ann@example.org``; an anonymous caller has none. What a
queue grants beyond its owner is written as principals in the same form, optionally limited: ``app:reports=read``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal

from queuey.messages import Principal, Queue

Action = Literal["read", "commit", "delete", "write", "manage"]
"""``commit`` is recording consumer offsets, ``manage`` is changing the queue itself."""

MAX_NAME = 200

_APPLICATION = re.compile(r"app:[\w.\-]+")
_MAIL = re.compile(r"bid:[\w.!#$%&'*+/?^`{|}~\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)*")
_RIGHTS = {
    "": (True, True),
    "=read": (True, False),
    "=delete": (False, True),
    "=read+delete": (True, True),
    "=delete+read": (True, True),
}
_SUFFIX = {(True, True): "", (True, False): "=read", (False, True): "=delete"}


def owner_name(application: str) -> str:
    """Returns the name that every caller with one of the application's keys has."""
    return f"app:{application}"


def parse_principal(text: str) -> Principal:
    """Reads one principal.

    Raises:
        ValueError: It is none; the message says so in words for the caller.
    """
    name, equals, rights = text.partition("=")
    readable, deletable = _RIGHTS.get(equals + rights, (False, False))
    form = _APPLICATION if name.startswith("app:") else _MAIL
    if not (readable or deletable) or len(name) > MAX_NAME or form.fullmatch(name) is None:
        raise ValueError(
            f'"{text[:MAX_NAME]}" is not app:<name> or bid:<mail address>, with =read or =delete or nothing'
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
    """Writes a principal so that :func:`parse_principal` reads it back."""
    return principal.name + _SUFFIX[principal.read, principal.delete]


def allowed(queue: Queue, names: Collection[str], action: Action) -> bool:
    """Decides whether a caller may do something with a queue.

    Writing and managing belong to the owning application alone. Reading and deleting do so too, unless the queue has
    principals: then they belong to those alone. A public queue can be read by everybody, but that opens nothing
    that changes state.
    """
    if action == "read" and queue.type == "public":
        return True
    if action in {"write", "manage"} or not queue.principals:
        return f"app:{queue.application}" in names
    if action == "delete":
        return any(principal.delete and principal.name in names for principal in queue.principals)
    return any(principal.read and principal.name in names for principal in queue.principals)
