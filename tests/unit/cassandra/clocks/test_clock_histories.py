"""No history of clocks, suspends and slow answers leads to an id or a horizon that G1 forbids."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest

from queuey.storage.cassandra.clocks import clock_check
from queuey.storage.cassandra.clocks.clock_check import WITNESSES, ClockCheck, Interval
from tests.replacing import replace, replace_in
from tests.unit.cassandra.clocks.clock_histories import draw_history, find_violations, play_history

FEW_HISTORIES, MANY_HISTORIES, PARTS = 400, 100_000, 20
"""Histories of ``make test`` and of ``make slow``, and the number of tests that share the latter."""
MAX_HISTORIES = 2000
"""Max histories until a missing mechanism shows, besides the one that is known to show it."""
NOTHING_WRONG: dict[str, Any] = {"standstills": (), "walls": (), "sets": (), "wall": 0.0, "wrong": -1, "shared": -1}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, clock_check.log.name)


def test_histories() -> None:
    """Neither a suspend nor slow answers hide that the clock is off by more than S/2."""
    assert find_violations(range(FEW_HISTORIES)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_histories(part: int) -> None:
    """In 100,000 histories nothing hides that the clock is off by more than S/2."""
    first = FEW_HISTORIES + part * MANY_HISTORIES // PARTS
    assert find_violations(range(first, first + MANY_HISTORIES // PARTS)) == {}


def test_histories_have_every_outcome() -> None:
    """In the histories writes are acknowledged and refused, and clocks are found right and off."""
    outcomes = [play_history(draw_history(seed)) for seed in range(40)]
    assert sum(one.acknowledged for one in outcomes) > 20
    assert sum(one.refused for one in outcomes) > 20
    assert sum(one.served for one in outcomes) > 200
    assert sum(one.stopped for one in outcomes) > 200
    assert sum(one.refusals for one in outcomes) > 10
    assert play_history(draw_history(7)) == play_history(draw_history(7))


def test_slow_answers_do_not_condemn_a_right_clock() -> None:
    """With slow answers a right clock is never found off, and nearly all writes are acknowledged."""
    outcomes = [play_history(dataclasses.replace(draw_history(seed), **NOTHING_WRONG)) for seed in range(100)]
    assert sum(one.refusals for one in outcomes) == 0
    acknowledged, refused = sum(one.acknowledged for one in outcomes), sum(one.refused for one in outcomes)
    assert acknowledged > 20 * refused


def measure_behind_by_known_interval(check: ClockCheck, median: Interval, *, before: bool = True) -> float:
    """Uses old intervals for ids made after them."""
    return REAL_BEHIND(check, check._median or median, before=before)


def no_standstill(_answer: Interval, _known: Interval) -> int:
    """Takes an answer that meets the known interval as proof that the machine was not suspended."""
    return 0


def measure_shortest_suspend(answer: Interval, known: Interval) -> int:
    """Uses the shortest possible suspend for the longest."""
    return known.at_time(answer.at).low - answer.low


def any_round(check: ClockCheck, since: float = -math.inf) -> bool:
    """Accepts a round from before the write."""
    return REAL_SOUND(check)


def apply_round_of_few_nodes(
    check: ClockCheck, answers: Mapping[str, Interval], began: float | None, _there: int
) -> None:
    REAL_APPLY_ROUND(check, answers, began, 1)


def accept_wall_clock_first(check: ClockCheck, answers: Mapping[str, Interval], *others: Any) -> None:  # noqa: ANN401
    """Accepts the wall clock before a round has shown that the clock was right."""
    check._accept_wall()
    REAL_CONCLUDE(check, answers, *others)


def vouch_despite_wrong_clock(check: ClockCheck, answers: Mapping[str, Interval], *others: Any) -> None:  # noqa: ANN401
    """Confirms ids made before the clock was found off."""
    before = check.wrong_until
    REAL_CONCLUDE(check, answers, *others)
    check.wrong_until = before


REAL_BEHIND, REAL_CONCLUDE = ClockCheck._bound_seconds_behind, ClockCheck._conclude
REAL_APPLY_ROUND, REAL_SOUND = ClockCheck._apply_round, ClockCheck.sound

MUTATIONS: dict[str, tuple[int, Callable[[], AbstractContextManager[None]]]] = {
    "a round alone shows that we were not behind": (
        365,
        partial(replace, ClockCheck._bound_seconds_behind, measure_behind_by_known_interval),
    ),
    "longest standstill since the known interval": (365, partial(replace, Interval.max_pause_since, no_standstill)),
    "length of the longest standstill": (450, partial(replace, Interval.max_pause_since, measure_shortest_suspend)),
    "the check comes after the write": (9, partial(replace, ClockCheck.sound, any_round)),
    "half of the nodes answer a round": (37, partial(replace, ClockCheck._apply_round, apply_round_of_few_nodes)),
    "two nodes confirm a light check": (37, partial(replace_in, clock_check, WITNESSES, 1)),
    "the wall clock is not accepted before a check": (
        53760,
        partial(replace, ClockCheck._conclude, accept_wall_clock_first),
    ),
    "ids of a clock that was off are not confirmed": (
        862,
        partial(replace, ClockCheck._conclude, vouch_despite_wrong_clock),
    ),
}
"""A mechanism, the seed whose history needs it, and what removes it."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one mechanism the clock of some history is off by more than S/2."""
    seed, without = MUTATIONS[name]
    with without():
        assert any(find_violations([one]) for one in [seed, *range(MAX_HISTORIES)])
