"""Principals as text, and who may do what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.access import Action, Caller, allowed, format_principal, parse_principal, parse_principals
from queuey.messages import Principal, Queue

NAMES = [
    "app:reports",
    "app:my-app_2.x",
    "app:Größe",
    "bid:ann@example.org",
    "bid:a.b+c@d-e.example.co.uk",
    "bid:root@localhost",
]
READING: list[Action] = ["read", "measure"]
RIGHTS = {"": (True, True), "=read": (True, False), "=delete": (False, True), "=read+delete": (True, True)}

principals = st.builds(
    lambda name, rights: Principal(name, read=rights[0], delete=rights[1]),
    st.sampled_from([*NAMES, "app:x", "app:y"]),
    st.sampled_from([(True, True), (True, False), (False, True)]),
)
queues = st.builds(
    lambda kind, found: Queue(
        application="own", name="q", uid=1, qid=1, type=kind, principals=tuple({p.name: p for p in found}.values())
    ),
    st.sampled_from(["user", "public"]),
    st.lists(principals, max_size=3),
)
callers = st.builds(Caller, st.frozensets(st.sampled_from([*NAMES, "app:own", "app:x"]), max_size=3))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("suffix", "rights"), RIGHTS.items())
def test_forms(name: str, suffix: str, rights: tuple[bool, bool]) -> None:
    """Applications and mail addresses of every usual form are read, with or without limits."""
    found = parse_principal(name + suffix)
    assert (found.name, found.read, found.delete) == (name, *rights)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "app:",
        "bid:",
        "x",
        "own",
        "app:a b",
        "app:a/b",
        "app:a:b",
        "App:x",
        "bid:ann",
        "bid:@x.org",
        "bid:ann@",
        "bid:ann@x..org",
        "bid:a@b@c",
        "app:x=",
        "app:x=write",
        "app:x=read=delete",
        "app:x=read,app:y",
        "app:x\n",
        "app:x\x00",
        "app:" + "x" * 200,
    ],
)
def test_what_is_no_principal(text: str) -> None:
    """Everything else is refused with a text that quotes it."""
    with pytest.raises(ValueError, match=r"is not app:<name> or bid:<mail address>"):
        parse_principal(text)


@given(found=st.lists(principals, max_size=6, unique_by=lambda principal: principal.name))
def test_text_and_back(found: list[Principal]) -> None:
    """Written principals are read back the same, in the same order."""
    assert parse_principals(map(format_principal, found)) == tuple(found)


def test_rights_given_twice_add_up() -> None:
    """One name given twice is one principal with the rights of both, where it stood first; blanks are skipped."""
    found = parse_principals(["app:x=read", "", " app:y ", "app:x=delete", "   "])
    assert found == (Principal("app:x"), Principal("app:y"))


@given(queue=queues, caller=callers)
def test_only_the_owner_writes_and_manages(queue: Queue, caller: Caller) -> None:
    """Writing and managing belong to the owning application, whatever the principals and the type."""
    actions: list[Action] = ["send", "overwrite", "admin"]
    for action in actions:
        assert allowed(queue, caller, action) == ("app:own" in caller.names)


@given(queue=queues, caller=callers)
def test_reading_and_deleting(queue: Queue, caller: Caller) -> None:
    """With principals exactly those with the right may; without, the owner; a public queue is read by all."""

    def granted(right: str) -> bool:
        if not queue.principals:
            return "app:own" in caller.names
        return any(p.name in caller.names and getattr(p, right) for p in queue.principals)

    assert allowed(queue, caller, "delete") == granted("delete")
    assert allowed(queue, caller, "claim") == granted("read")
    for action in READING:
        assert allowed(queue, caller, action) == (queue.type == "public" or granted("read"))


@given(queue=queues)
def test_the_anonymous_only_ever_read(queue: Queue) -> None:
    """Who has no credential changes nothing."""
    actions: list[Action] = ["send", "overwrite", "admin", "delete", "claim"]
    assert not any(allowed(queue, Caller(), action) for action in actions)
