"""Each rule of groups finds its violation in an otherwise good history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.groups.checking import GROUPS, Commit, GroupHistory, Stay
from tests.harness.checking.rules import check

PLACE = "q", 1


def good() -> GroupHistory:
    """Returns the history of a partition that is given back once, and lost once."""
    history = GroupHistory(messages={PLACE: [(n, 0) for n in range(1, 7)]}, recorded={PLACE: (6, 0)})
    history.acknowledged = {PLACE: {(1, 0), (4, 0)}}
    history.observed[PLACE] = [(2, 0), (2, 0), (6, 0)]
    history.stays = [
        Stay(PLACE, "a.1", "", 10, None, "new", 1.0, 2.0, "given back", [(1.1, (1, 0)), (1.2, (2, 0))]),
        Stay(PLACE, "b.1", "", 20, (2, 0), "given back", 2.5, 3.0, "over", [(2.6, (3, 0)), (2.7, (4, 0))]),
        Stay(PLACE, "a.1", "", 30, (2, 0), "lost", 4.0, handled=[(4.0 + n / 10, (n, 0)) for n in range(3, 7)]),
    ]
    history.commits = [
        Commit(PLACE, "a.1", 10, (2, 0), 1.5, 1.6, "done"),
        Commit(PLACE, "b.1", 20, (4, 0), 4.5, 4.6, "refused"),
        Commit(PLACE, "a.1", 30, (6, 0), 4.7, 4.8, "done"),
    ]
    return history


def _stay(index: int, **values: Any) -> Callable[[GroupHistory], None]:  # noqa: ANN401 - of its fields
    def change(history: GroupHistory) -> None:
        history.stays[index] = replace(history.stays[index], **values)

    return change


def _commit(index: int, **values: Any) -> Callable[[GroupHistory], None]:  # noqa: ANN401 - of its fields
    def change(history: GroupHistory) -> None:
        history.commits[index] = replace(history.commits[index], **values)

    return change


SPOILS: dict[str, tuple[Callable[[GroupHistory], object], set[str]]] = {
    "a message vanished": (lambda history: history.acknowledged[PLACE].add((9, 0)), {"lost"}),
    "one was not handled": (lambda history: history.stays[2].handled.pop(), {"lost"}),
    "one was left out": (lambda history: history.stays[2].handled.pop(0), {"order"}),
    "begun too late": (_stay(2, offset=(4, 0)), {"order", "back"}),
    "two owners": (_stay(1, end=4.1), {"alone"}),
    "a late commit": (_commit(1, outcome="done"), {"fenced", "back"}),
    "after it was given back": (_stay(0, released=1.4), {"fenced"}),
    "two of one epoch": (_stay(1, epoch=30), {"fenced"}),
    "an offset of nobody": (lambda history: history.recorded.update({PLACE: (5, 0)}), {"back"}),
    "seen going back": (lambda history: history.observed[PLACE].append((1, 0)), {"back"}),
    "not its word": (_stay(0, how="over"), {"word"}),
}


def test_good() -> None:
    """The rules find nothing in a good history."""
    assert check(good(), GROUPS) == []


@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt(spoil: str) -> None:
    """Each rule finds its violation, and no other rule does."""
    history = good()
    change, rules = SPOILS[spoil]
    change(history)
    assert {violation.rule for violation in check(history, GROUPS)} == rules


def test_every_rule_is_spoilt() -> None:
    """Each rule has a history that breaks it."""
    assert set().union(*(rules for _, rules in SPOILS.values())) == GROUPS.keys()
