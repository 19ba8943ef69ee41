"""In no history of clocks, standstills and slow answers is an id acknowledged or a horizon chosen that G1 forbids."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import pytest

from queuey.storage.cassandra.clocks import clock_check
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.clocks.clock_check import ClockCheck
from queuey.storage.cassandra.clocks.intervals import Interval
from queuey.storage.cassandra.clocks.light_checks import WITNESSES
from tests.replacing import replace, replace_in
from tests.unit.cassandra.clocks.clock_histories import draw, play, violations

FEW, MANY, PARTS = 200, 100_000, 20
"""Histories of ``make test`` and of ``make slow``, and the number of tests that the latter are divided into."""


def test_histories() -> None:
    """Neither a standstill nor slow answers of any kind hide that the clock is off by more than S/2."""
    assert violations(range(FEW)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_histories(part: int) -> None:
    """The same in 100,000."""
    first = FEW + part * MANY // PARTS
    assert violations(range(first, first + MANY // PARTS)) == {}


def test_histories_are_what_they_should_be() -> None:
    """Writes are acknowledged and refused, and clocks are found right and off."""
    outcomes = [play(draw(seed)) for seed in range(40)]
    assert sum(one.acknowledged for one in outcomes) > 50
    assert sum(one.refused for one in outcomes) > 50
    assert sum(one.served for one in outcomes) > sum(one.stopped for one in outcomes)
    assert sum(one.refusals for one in outcomes) > 10
