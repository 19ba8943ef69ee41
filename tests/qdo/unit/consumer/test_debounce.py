"""Changes of a group's members are answered soon, and those that come together by one answer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from qdo.consumer.rebalance.member_states import RebalanceDebounce
from qdo.coordination import Member

SECONDS = 0.05
NOW = 1000.0


def group(names: str) -> Mapping[str, Member]:
    """Gives members, one for each letter."""
    return {name: Member(name) for name in names}


@pytest.fixture
def settling() -> RebalanceDebounce:
    """A group at work whose members a and b were answered long ago."""
    made = RebalanceDebounce(SECONDS)
    assert made.age(group("ab"), NOW - 60, at_work=True) == SECONDS
    return made


def test_a_change_after_a_while_is_answered_at_once(settling: RebalanceDebounce) -> None:
    """Nobody waits for a second one, and asking again changes nothing."""
    assert settling.age(group("abc"), NOW, at_work=True) == SECONDS
    assert settling.age(group("abc"), NOW + 0.001, at_work=True) == SECONDS


def test_changes_that_follow_soon_gather(settling: RebalanceDebounce) -> None:
    """They are answered together, when the time since the last answer is over; so is what comes after those."""
    settling.age(group("abc"), NOW, at_work=True)
    assert settling.age(group("abcd"), NOW + 0.01, at_work=True) == pytest.approx(0.01)
    assert settling.age(group("abcde"), NOW + 0.04, at_work=True) == pytest.approx(0.04)
    assert settling.age(group("abcde"), NOW + 0.0501, at_work=True) == SECONDS
    assert settling.age(group("abcdef"), NOW + 0.06, at_work=True) < SECONDS


def test_a_change_that_is_undone_asks_for_nothing(settling: RebalanceDebounce) -> None:
    """Whoever comes and goes while changes gather leaves no trace."""
    settling.age(group("abc"), NOW, at_work=True)
    assert settling.age(group("abcd"), NOW + 0.01, at_work=True) < SECONDS
    assert settling.age(group("abc"), NOW + 0.02, at_work=True) == SECONDS


def test_a_new_group_gathers_from_its_first_member_on() -> None:
    """Without a target the first change waits too, and later ones make nobody wait longer."""
    settling = RebalanceDebounce(SECONDS)
    assert settling.age(group("a"), NOW, at_work=False) == pytest.approx(0.0)
    assert settling.age(group("ab"), NOW + 0.03, at_work=False) == pytest.approx(0.03)
    assert settling.age(group("ab"), NOW + 0.0501, at_work=False) == SECONDS


def test_without_time_for_settling_everything_is_answered_at_once() -> None:
    """Zero seconds are no time to wait, however often something changes."""
    settling = RebalanceDebounce(0.0)
    ages = [settling.age(group("abcdef"[:count]), NOW, at_work=count > 1) for count in range(1, 6)]
    assert ages == [0.0] * 5
