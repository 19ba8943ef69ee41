"""Principals as text, and their rights."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.messages import Principal, Queue, Scope
from queuey.model.rights import (
    ANYBODY,
    VERBS,
    Action,
    Caller,
    Grant,
    Verb,
    explain_refusal,
    format_principal,
    is_allowed,
    matches,
    name_within,
    parse_principal,
    parse_principals,
    parse_scope,
)

NAMES = [
    *("app:reports", "app:my-app_2.x", "app:Größe", "bid:ann@example.org", "bid:a.b+c@d-e.example.co.uk"),
    *("bid:root@localhost", "user:nhabavi2.ann~20@x"),
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
    """Applications and mail addresses of every usual form are parsed, with or without limits."""
    principal = parse_principal(name + suffix)
    assert (principal.name, principal.read, principal.delete) == (name, *rights)


@pytest.mark.parametrize(
    "text",
    [
        *("", "app:", "bid:", "x", "own", "app:a b", "app:a/b", "app:a:b", "user:", "user:a b", "user:a:b", "App:x"),
        *("bid:ann", "bid:@x.org", "bid:ann@", "bid:ann@x..org", "bid:a@b@c", "app:x=", "app:x=write"),
        *("app:x=read=delete", "app:x=read,app:y", "app:x\n", "app:x\x00", "app:" + "x" * 200),
    ],
)
def test_what_is_no_principal(text: str) -> None:
    """Any other text is refused with an error that quotes it."""
    with pytest.raises(ValueError, match=r"is not app:<name>, bid:<mail address> or user:<name>"):
        parse_principal(text)


@given(found=st.lists(principals, max_size=6, unique_by=lambda principal: principal.name))
def test_text_and_back(found: list[Principal]) -> None:
    """Written principals are parsed the same, in the same order."""
    assert parse_principals(map(format_principal, found)) == tuple(found)


def test_rights_given_twice_add_up() -> None:
    """A repeated name is one principal with the rights of both, at its first place; blanks are skipped."""
    principals = parse_principals(["app:x=read", "", " app:y ", "app:x=delete", "   "])
    assert principals == (Principal("app:x"), Principal("app:y"))


@given(queue=queues, caller=callers)
def test_only_the_owner_writes_and_manages(queue: Queue, caller: Caller) -> None:
    """Only the owning application may write and manage, whatever the principals and the type."""
    actions: list[Action] = ["send", "overwrite", "admin"]
    for action in actions:
        assert is_allowed(queue, caller, action) == ("app:own" in caller.names)


@given(queue=queues, caller=callers)
def test_reading_and_deleting(queue: Queue, caller: Caller) -> None:
    """With principals exactly those with the right may read or delete; without, the owner; all read a public queue."""

    def granted(right: str) -> bool:
        if not queue.principals:
            return "app:own" in caller.names
        return any(p.name in caller.names and getattr(p, right) for p in queue.principals)

    assert is_allowed(queue, caller, "delete") == granted("delete")
    assert is_allowed(queue, caller, "claim") == granted("read")
    for action in READING:
        assert is_allowed(queue, caller, action) == (queue.type == "public" or granted("read"))


ACTIONS: list[Action] = ["send", "overwrite", "read", "delete", "claim", "admin", "measure"]


@given(pattern=st.text("ab*", max_size=8), name=st.text("ab*", max_size=10))
def test_patterns(pattern: str, name: str) -> None:
    """A star stands for any text, also empty text, and every other character for itself."""
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    assert matches(pattern, name) == expected


def test_patterns_take_no_time() -> None:
    """A pattern of many stars that almost matches takes little time."""
    assert not matches("*a" * 10_000 + "b", "a" * 50_000)


@given(
    queue=queues,
    allow=st.frozensets(st.sampled_from(VERBS), min_size=1),
    patterns=st.lists(st.sampled_from(["q", "q*", "x*", "*"]), max_size=2),
    application=st.sampled_from(["own", "x", None]),
)
def test_a_grant_never_opens_more_than_its_owner_has(
    queue: Queue, allow: frozenset[Verb], patterns: list[str], application: str | None
) -> None:
    """A grant over one application allows a part of its owner's rights; all verbs and queues allow exactly these."""
    owner, grant = Caller(frozenset({"app:own"})), Grant(application, allow, tuple(patterns))
    whole = Caller(grants=(Grant("own", frozenset(VERBS)),))
    for action in ACTIONS:
        assert is_allowed(queue, whole, action) == is_allowed(queue, owner, action)
        if is_allowed(queue, Caller(grants=(grant,)), action) and not is_allowed(queue, Caller(), action):
            assert grant.permits("own", action)
            assert any(matches(pattern, "q") for pattern in patterns)
            assert application is None or (application == "own" and is_allowed(queue, owner, action))


@given(queue=queues)
def test_a_user_is_not_the_owner_whom_principals_name(queue: Queue) -> None:
    """If a queue has principals, a grant of its single name allows neither reading nor deleting."""
    user, limited = (Caller(grants=(Grant("own", frozenset(VERBS), queues),)) for queues in ("q", ("q",)))
    named = msgspec.structs.replace(queue, principals=(*queue.principals, Principal("app:own")))
    for action in ACTIONS:
        owners = action in {"send", "overwrite", "admin"}
        assert is_allowed(named, user, action) == (owners or is_allowed(named, ANYBODY, action))
        assert is_allowed(named, limited, action)
    open_ = msgspec.structs.replace(queue, principals=())
    assert all(is_allowed(open_, user, action) for action in ACTIONS)


def test_overwriting_needs_two_verbs() -> None:
    """Overwriting needs two verbs in one grant, as it removes a message; two grants do not add up."""
    queue = Queue(application="own", name="q", uid=1, qid=1)
    apart = tuple(Grant("own", frozenset({verb})) for verb in VERBS)
    assert not is_allowed(queue, Caller(grants=apart), "overwrite")
    assert is_allowed(queue, Caller(grants=(Grant("own", frozenset({"send", "delete"})),)), "overwrite")


def test_patterns_of_a_caller() -> None:
    """The queues that a caller may list follow from its grants to list; the name of a single queue is not listed."""
    read: frozenset[Verb] = frozenset({"read"})
    grants = Grant("own", read, ("a*", "b")), Grant("own", read, "inbox"), Grant("own", frozenset({"send"}), ("c*",))
    assert Caller(grants=grants).find_patterns("own", "measure") == ("a*", "b")
    assert (
        Caller(grants=grants).find_patterns("own", "admin") == Caller(grants=grants).find_patterns("x", "measure") == ()
    )
    assert Caller(frozenset({"app:own"}), grants).find_patterns("own", "admin") == ("*",)


def test_what_is_lacking() -> None:
    """A refusal says what the credential allows or that it is for others, and names no queue."""
    caller = Caller(grants=(Grant("own", frozenset({"send", "read"}), ("orders-*",)),))
    assert explain_refusal(caller, "own", "admin", "orders-1") == "This needs admin; the credential allows send, read."
    assert (
        explain_refusal(caller, "own", "overwrite") == "This needs send with delete; the credential allows send, read."
    )
    assert explain_refusal(caller, "own", "read", "x") == "The credential is limited to other queues."
    assert (
        explain_refusal(caller, "own", "read", "orders-1")
        == "The principals of the queue keep the credential's holder out."
    )
    assert explain_refusal(caller, "x", "read", "orders-1") == "The credential is for another application."
    assert explain_refusal(Caller(frozenset({"app:x"})), "own", "read", "q") == ""
    user = Caller(grants=(Grant("own", frozenset({"read"}), "inbox"),))
    assert explain_refusal(user, "own", "measure").endswith("by their names. It neither lists nor creates any.")
    both = Caller(grants=(*caller.grants, *user.grants))
    assert explain_refusal(both, "own", "admin") == "This needs admin; the credential allows send, read."


def test_scopes() -> None:
    """Verbs are sorted, and missing parts mean all; no parts mean no limit."""
    assert parse_scope(["read", " send", ""], ["a*", "b ", "a*"]) == Scope(("send", "read"), ("a*", "b"))
    assert parse_scope(["claim"]) == Scope(("claim",), ("*",))
    assert parse_scope(queues=["a"]) == Scope(VERBS, ("a",))
    assert parse_scope([""], [" "]) is None


@pytest.mark.parametrize(
    ("allow", "patterns", "text"),
    [
        (["write"], [], '"write" is not one of send, read'),
        ([], ["a/b"], '"a/b" is not a pattern'),
        ([], ["a\x00"], "is not a pattern"),
        ([], ["a" * 101], "up to 100 characters"),
        ([], list("abcdefghijklmnopqrstu"), "21 patterns of queues; 20 at most"),
    ],
)
def test_what_is_no_scope(allow: list[str], patterns: list[str], text: str) -> None:
    """Invalid verbs are refused, and so are patterns that are too many, too long or match no name."""
    with pytest.raises(ValueError, match=re.escape(text)):
        parse_scope(allow, patterns)


@given(queue=queues, known=callers)
def test_users_of_an_application_have_no_name_elsewhere(queue: Queue, known: Caller) -> None:
    """A user's name within one application gives rights to its queues only."""
    names = known.names - {"app:own"}
    users = {app: Caller(names=frozenset(name_within(app, name) for name in names)) for app in ("own", "x")}
    actions: list[Action] = ["read", "delete", "claim", "measure"]
    for action in actions:
        assert is_allowed(queue, users["own"], action) == is_allowed(queue, Caller(names=names), action)
        assert is_allowed(queue, users["x"], action) == is_allowed(queue, ANYBODY, action)
