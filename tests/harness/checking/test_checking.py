"""Each rule finds its violation in a history, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from queuey.model import ids
from tests.harness.checking import good, groups, messages, spoils
from tests.harness.checking.counts import count_groups, count_messages
from tests.harness.checking.history import History
from tests.harness.checking.records import Outcome, Post, Read, Record, Sent, Shown
from tests.harness.checking.rules import LIMITS, check, count_checked
from tests.harness.history import Fault

GOOD = good.make_group_history()


@pytest.mark.parametrize("what", spoils.GROUPS)
def test_spoiled_groups(what: str) -> None:
    """The broken rule reports a record that was dropped, doubled or altered; a good history breaks none."""
    expected, spoil = spoils.GROUPS[what]
    assert check(History(GOOD), groups.GROUPS) == []
    assert expected <= {violation.rule for violation in check(History(spoil(GOOD)), groups.GROUPS)}


def test_every_rule_is_tested() -> None:
    """Each rule has a way to spoil a history, and is among those that a report lists as checked."""
    assert set().union(*(rules_broken for rules_broken, _ in spoils.GROUPS.values())) == groups.GROUPS.keys()
    assert {rule for rule, _ in SPOILED.values()} == messages.MESSAGES.keys()
    assert all(count_checked(count_messages(History(HISTORY)), messages.MESSAGES).values())
    assert all(count_checked(count_groups(History(GOOD)), groups.GROUPS).values())


# Messages: what a rule allows, next to what breaks it


def name(seconds: float) -> str:
    return ids.to_hex((ids.EPOCH_TICKS + round(seconds * ids.TICKS_PER_SECOND), ids.LOW_MIN))


def post(
    at: float, body: str, outcome: Outcome = "acknowledged", *, web: str = "web-1", after: str | None = None
) -> Post:
    """Returns a post of one message that took 0.1 s. If acknowledged, its id is the instant of its start."""
    good = outcome == "acknowledged"
    sent, names = (Sent(body, 1),), (name(at),) if good else ()
    return Post(at, at + 0.1, web, "w", "q", sent, 201 if good else 503, (outcome,), names, after, not good)


def page(at: float, *bodies: tuple[float, str], reader: str = "r", since: float | None = None, final: int = 0) -> Read:
    """Returns a page read in 0.1 s. Its horizon, and its cursor, is 1 s before its start."""
    shown = tuple(Shown(1, name(when), body) for when, body in bodies)
    start, horizon = {} if since is None else {1: name(since)}, name(at - 1)
    read = Read(at, at + 0.1, "web-1", reader, "q", (1,), 200, start, horizon=horizon)
    return structs.replace(read, shown=shown, next={1: horizon}, final=final)


def full(*bodies: tuple[float, str]) -> list[Record]:
    return [page(100 + n, *bodies, reader=f"f{n}", final=n) for n in (1, 2, 3)]


def rules(*records: Record, apart: bool = False) -> set[str]:
    found = check(History(records), messages.MESSAGES, LIMITS._replace(apart=apart))
    return {violation.rule for violation in found}


POSTS = A, B, NONE, UNKNOWN = post(10, "a"), post(10.2, "b"), post(10.4, "c", "none"), post(10.6, "u", "unknown")
PAGES = PAGE, NEXT = page(12, (10, "a"), (10.2, "b"), (10.6, "u")), page(13, since=11)
FULL = full((10, "a"), (10.2, "b"), (10.6, "u"))
HISTORY: list[Record] = [*POSTS, *PAGES, *FULL]
"""A good history."""


def put(old: Record, *new: Record) -> list[Record]:
    return [one for record in HISTORY for one in (new if record is old else (record,))]


def change(old: Any, **fields: Any) -> list[Record]:  # noqa: ANN401 - a record and its fields
    return put(old, structs.replace(old, **fields))


def show(*bodies: tuple[float, str]) -> list[Record]:
    return put(PAGE, page(12, *bodies))


SPOILED = {
    "a reader is not shown a message": ("G1", show((10, "a"), (10.6, "u"))),
    "a full read lacks an acknowledged message": ("lost", put(FULL[0], page(101, (10.2, "b"), reader="f1", final=1))),
    "a full read lacks what another shows": (
        "settled",
        put(FULL[1], page(102, (10, "a"), (10.2, "b"), reader="f2", final=2)),
    ),
    "a page shows a message twice": ("page", show((10, "a"), (10, "a"), (10.2, "b"))),
    "a body is another": ("truth", show((10, "other"), (10.2, "b"))),
    "a partition is another": ("truth", change(PAGE, shown=(Shown(2, name(10), "a"), *PAGE.shown[1:]))),
    "what is shown was never sent": ("truth", put(A)),
    "what is shown was called none": ("G2", put(A, post(10, "a", "none"))),
    "an unknown one that is there was called none": ("G2", put(UNKNOWN, post(10.6, "u", "none"))),
    "a post is recorded twice": ("answers", put(A, A, A)),
    "an acknowledged id is another": ("truth", change(A, ids=(name(10.1),))),
    "an id is not above its X-After": ("G3", change(B, after=name(11.5))),
    "a 503 lacks Retry-After": ("answers", change(NONE, retry_after=False)),
    "a page is missing": ("page", put(PAGE)),
    "a page is in another order": ("page", change(PAGE, shown=PAGE.shown[::-1])),
    "a cursor goes back": ("page", change(PAGE, next={1: name(9)})),
    "a horizon is not above what is shown": ("page", change(PAGE, horizon=name(10.1))),
    "an answer took a minute": ("available", change(UNKNOWN, end=80.0)),
}
"""By description: the rule that must notice, and the history."""


@pytest.mark.parametrize("what", SPOILED)
def test_spoiled_messages(what: str) -> None:
    """The broken rule reports a record that was dropped, doubled or altered; a good history breaks none."""
    rule, records = SPOILED[what]
    assert rules(*HISTORY) == set()
    assert rule in rules(*records)


def test_acknowledged_below_a_cursor() -> None:
    """A message that appears only after a reader has passed it is missed, though every full read shows it."""
    violations = check(History([post(10, "a"), page(12), page(13, since=11), *full((10, "a"))]), messages.MESSAGES)
    assert [violation.rule for violation in violations] == ["G1"]
    assert "12.000" in violations[0].text, "the page that passed it is named"
    assert rules(post(10, "a"), page(10.5), *full((10, "a"))) == set(), "a reader that has not come to it"


def test_data_centres_that_are_apart() -> None:
    """A message from another data centre may come late but not be lost; one from the same may do neither."""
    other, own = post(10, "a", web="web-2"), post(10, "a")
    late = [page(12), page(13, since=11), *full((10, "a"))]
    assert rules(other, *late) == {"G1"}
    assert rules(other, *late, apart=True) == set()
    assert rules(other, page(12), *full(), apart=True) == {"lost"}
    assert rules(own, page(12), *full((10, "a")), apart=True) == {"G1"}


def test_ids_of_one_process() -> None:
    """Ids of a process ascend for a client that has seen an answer, not for concurrent posts."""
    first = structs.replace(post(10, "a"), ids=(name(11),))
    at_once = structs.replace(post(10.05, "b"), ids=(name(10.5),))
    after = structs.replace(post(10.2, "c"), ids=(name(10.7),))
    assert rules(first, at_once, page(10.9), *full((10.5, "b"), (11, "a"))) == set()
    later: list[Record] = [page(10.9), *full((10.5, "b"), (10.7, "c"), (11, "a"))]
    assert rules(first, at_once, after, *later) == {"G3"}
    assert rules(first, at_once, structs.replace(after, web="web-2"), *later) == set()


def test_requests_succeed_again() -> None:
    """After a fault and the grace, a web process must accept posts and answer reads."""
    fault = Fault(20, 25, "kill", "node-1")
    refused = [post(40 + n, str(n), "none") for n in range(5)]
    events: list[Record] = [fault, *refused, post(45, "b"), page(41), *full((45, "b"))]
    assert rules(*events) == set()
    assert rules(*events, post(45, "c", "none", web="web-2")) == {"available"}, "at web-2"
    assert rules(fault, *refused, page(41), *full()) == {"available"}, "no post"
    assert rules(fault, post(45, "b"), page(26), *full((45, "b"))) == {"available"}, "no read"
    assert rules(fault, post(29, "b"), page(29), *full((29, "b"))) == {"available"}, "within the grace"
    early: list[Record] = [post(10, "x", "none"), post(19, "y", "none"), *events]
    assert rules(*early) == {"available"}, "before the fault"
    for kind, expected in ("kill", {"available"}), ("stall", set()):
        again = Fault(29, 29.9, kind)
        assert rules(fault, again, post(45, "b", "none"), *full()) == expected, "half a second is left"


# Numbers
