"""One check by two coordinators for all answers that have come: none is told by one that began before."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.clocks.intervals import Interval
from queuey.storage.cassandra.clocks.light_checks import LightChecks, decode
from queuey.storage.cassandra.driver import Done, Encoded

NOW = ids.EPOCH_TICKS + 7


class Checks:
    """Light checks whose questions are answered by hand."""

    def __init__(self) -> None:
        self.fastest: tuple[str, ...] = ("near", "far", "other")
        self.witnesses = 2
        self.wrong: tuple[str, ...] = ()
        """Coordinators whose answers are not good."""
        self.asked: list[tuple[str, Done]] = []
        self.of_all: list[int] = []
        self.told: list[tuple[int, StoreUnavailable | None]] = []
        driver: Any = self
        self.checks = LightChecks(driver, lambda: 0, self, lambda: 0.1, self._all)
        self._arrived = 0

    def agrees(self, coordinator: str, answer: Interval) -> bool:
        """Says what the test wants."""
        assert answer.middle == -700
        return coordinator not in self.wrong

    def slow(self, coordinator: str) -> None:
        """Forgets one."""
        self.fastest = tuple(node for node in self.fastest if node != coordinator)

    def send(self, request: Encoded, done: Done) -> None:
        """Is asked."""
        assert request.host is not None
        self.asked.append((request.host, done))

    def arrive(self) -> None:
        """Has one more answer to a write come."""
        self._arrived += 1
        self.checks.begin(partial(self._tell, self._arrived))

    @property
    def nodes(self) -> list[str]:
        """Who has not answered yet."""
        return [node for node, _ in self.asked]

    def answer(self, error: StoreUnavailable | None = None) -> None:
        """Answers the oldest question."""
        _, done = self.asked.pop(0)
        done(None if error else [(NOW,)], error)

    def answer_all(self) -> None:
        """Answers all questions of one check."""
        for _ in tuple(self.asked):
            self.answer()

    def _tell(self, number: int, error: StoreUnavailable | None) -> None:
        self.told.append((number, error))

    def _all(self, waiting: list[Callable[[StoreUnavailable | None], None]]) -> None:
        self.of_all.append(len(waiting))


@pytest.fixture
def checks() -> Checks:
    """Three coordinators that are known, two of which must agree."""
    return Checks()


def test_answers_that_come_meanwhile_share_the_next(checks: Checks) -> None:
    """A check says nothing about what came after it began."""
    for _ in range(3):
        checks.arrive()
    assert checks.nodes == ["near", "far"]
    checks.answer()
    assert checks.told == [], "one may be on the machine that stood still"
    checks.answer()
    assert checks.told == [(1, None)]
    checks.answer_all()
    assert checks.told == [(1, None), (2, None), (3, None)]
    assert checks.asked == []
    checks.arrive()
    assert checks.nodes == ["near", "far"]


def test_one_is_asked_if_no_other_is_known(checks: Checks) -> None:
    """A cluster of one node has one clock."""
    checks.fastest, checks.witnesses = ("near",), 1
    checks.arrive()
    assert checks.nodes == ["near"]
    checks.answer()
    assert checks.told == [(1, None)]


def test_another_is_asked_if_one_does_not_answer(checks: Checks) -> None:
    """In its place; then all are. Others do not wait for that."""
    checks.arrive()
    checks.answer(StoreUnavailable("slow"))
    assert checks.nodes == ["far", "other"]
    checks.answer(StoreUnavailable("slow"))
    assert checks.of_all == [1]
    checks.answer()
    assert (checks.told, checks.of_all) == ([], [1])


def test_all_are_asked_if_too_few_are_left(checks: Checks) -> None:
    """The one that answers does not make up for others that did not."""
    checks.fastest = ("near",)
    checks.arrive()
    assert checks.of_all == [1]
    checks.answer()
    assert checks.told == []
    checks.fastest = ()
    checks.arrive()
    assert (checks.of_all, checks.asked) == ([1, 1], [])


@pytest.mark.parametrize("wrong", ["near", "far"])
def test_all_are_asked_if_an_answer_is_not_good(checks: Checks, wrong: str) -> None:
    """Whoever waited for it is told by them, once."""
    checks.wrong = (wrong,)
    checks.arrive()
    checks.arrive()
    first = checks.asked[:]
    checks.asked.clear()
    for _, done in first:
        done([(NOW,)], None)
    assert (checks.of_all, checks.told) == ([1], [])
    checks.wrong = ()
    checks.answer_all()
    assert (checks.of_all, checks.told) == ([1], [(2, None)])


def test_a_listener_that_fails_stops_nobody(checks: Checks) -> None:
    """The others are told."""

    def failing(_error: StoreUnavailable | None) -> None:
        raise ValueError

    checks.arrive()
    checks.checks.begin(failing)
    checks.arrive()
    checks.answer_all()
    checks.answer_all()
    assert [number for number, _ in checks.told] == [1, 2]


def test_the_time_is_read_from_the_bytes_of_the_answer() -> None:
    """An answer without a description of its columns: kind, flags, two numbers, and a UUID behind its length."""
    first, middle, last = NOW & 0xFFFFFFFF, NOW >> 32 & 0xFFFF, NOW >> 48 | 0x1000
    body = struct.pack(">iiiiiIHH8x", 2, 4, 1, 1, 16, first, middle, last)
    assert decode(body) == [(NOW,)]
