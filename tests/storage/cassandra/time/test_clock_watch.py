"""Which nodes the clock is compared with, and when: rounds, and checks that confirm an acknowledgement."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.cluster import Encoded, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.time.clock_check import ClockCheck
from queuey.storage.cassandra.time.clock_watch import MAX_ATTEMPTS, ClockWatch
from queuey.storage.cassandra.time.timing_in_force import TimingInForce
from tests.sim.cassandra.cluster import Node
from tests.storage.cassandra.simulated import FaultlessDriver

DOWN = StoreUnavailable("down")


class Watched:
    """A process that compares its clock with the nodes' when the test says so."""

    def __init__(self) -> None:
        self.driver = FaultlessDriver()
        self.nodes = self.driver.cluster.nodes
        self.clock = self.driver.clock()
        check, timing = ClockCheck(self.clock, lambda: 1.0), TimingInForce(CassandraOptions(), self.clock)
        self.watch = ClockWatch(self.driver, self.clock, check, None, timing=timing, beat=lambda: None)
        self.told: list[Any] = []

    def silence(self, numbers: Iterable[int], *, light: bool = False) -> None:
        silent = {self.nodes[number].address for number in numbers}
        self.driver.fail = lambda request: (
            DOWN if request.host in silent and (isinstance(request, Encoded) or not light) else None
        )

    def confirm(self) -> StoreUnavailable | None:
        """Confirms an answer that has just arrived, if need be within 2 s; returns the error or None."""
        self.told.clear()
        self.driver.sent.clear()
        self.watch.confirm_soon(self.told.append)
        self.driver.advance(2.0 if not self.told else 0.0)
        error: StoreUnavailable | None
        [error] = self.told
        return error

    def check(self) -> bool:
        return self.driver.run_to_end(self.watch.check())

    def check_again(self) -> None:
        """Compares the clock again, as a light check uses the answers before the last round; forgets the requests."""
        assert self.check()
        self.driver.sent.clear()

    @property
    def asked(self) -> list[int]:
        addresses = [node.address for node in self.nodes]
        return [addresses.index(str(request.host)) for request in self.driver.sent]


@pytest.fixture
def watched() -> Watched:
    """A process whose clock is right, and was compared."""
    opened = Watched()
    assert opened.check()
    assert sorted(opened.asked) == [0, 1, 2]
    opened.driver.sent.clear()
    return opened


@pytest.mark.parametrize(
    ("centres", "silent", "is_enough"),
    [
        ("aaa", {1, 2}, False),
        ("aaa", {0, 2}, False),
        ("aaa", {1}, True),
        ("aa", {1}, True),
        ("abb", {1, 2}, True),
        ("aab", {0, 1}, True),
        ("aaabb", {1, 2, 3}, False),
    ],
)
def test_half_of_the_nodes_must_answer(centres: str, silent: set[int], *, is_enough: bool) -> None:
    """Half of the nodes must answer: a single one may be this machine; those of a cut-off centre do not count."""
    watched = Watched()
    watched.nodes[:] = [Node(number, 0.0) for number in range(1, len(centres) + 1)]
    watched.driver.centres = [*centres]
    watched.silence(silent)
    assert watched.check() == is_enough
    if not is_enough:
        with pytest.raises(StoreUnavailable):
            watched.driver.run_to_end(watched.watch.require_sound())


@pytest.mark.parametrize("silent", [[], [1], [1, 2]])
def test_a_node_of_the_same_machine_confirms_nothing(watched: Watched, silent: list[int]) -> None:
    """A node on the same machine was suspended with the process, so it confirms nothing while no other node answers."""
    minted = watched.clock.boottime()
    watched.nodes[1].offset = watched.nodes[2].offset = 3.0
    watched.silence(silent, light=len(silent) < 2)
    assert isinstance(watched.confirm(), StoreUnavailable)
    assert len(silent) == 2 or not watched.watch.is_timed_correctly_since(minted)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_node_that_is_set_or_slewed_stops_no_writes(watched: Watched, number: int) -> None:
    """While one node's clock is set or slewed, writes are acknowledged by the others, mostly without a round of all."""
    requests = 0
    for turn in range(60):
        minted = watched.clock.boottime()
        watched.driver.advance(0.1)
        watched.nodes[number].offset += 0.008
        if turn % 3 == 0:
            assert watched.check()
        assert watched.confirm() is None
        assert watched.watch.is_timed_correctly_since(minted)
        requests += len(watched.asked)
    assert requests < 60 * 2 + 10 * 3
    minted = watched.clock.boottime()
    watched.nodes[number].offset = 30.0
    assert watched.confirm() is None
    assert watched.watch.is_timed_correctly_since(minted)


def test_answers_of_one_turn_share_a_check(watched: Watched) -> None:
    """For any number of answers in a turn of the loop two nodes are asked, when all answers have arrived."""
    watched.check_again()
    with watched.driver.loop.turn():
        for _ in range(3):
            watched.watch.confirm_soon(watched.told.append)
        assert watched.asked == []
    assert len(watched.asked) == 2
    assert watched.told == [None] * 3


def test_an_answer_that_comes_after_a_check_began_is_not_served_by_it(watched: Watched) -> None:
    """An answer that arrives after a check began has its own check, which does not wait for the other."""
    watched.check_again()
    driver, told = watched.driver, watched.told
    driver.held = True
    for number in (1, 2):
        watched.watch.confirm_soon(partial(_tell, told, number))
        assert len(driver.waiting) == 2 * number
    for answer in driver.waiting[:2]:
        answer()
    assert told == [(1, None)]
    for answer in driver.waiting[2:]:
        answer()
    assert told == [(1, None), (2, None)]


def _tell(told: list[Any], number: int, error: StoreUnavailable | None) -> None:
    told.append((number, error))


def test_a_write_is_confirmed_by_a_round_that_began_later(watched: Watched) -> None:
    """Callers that may wait share a round that began after their answers; without a round they are refused."""
    began = watched.clock.boottime()
    watched.check()
    watched.driver.run_to_end(watched.watch.confirm(began))
    assert len(watched.driver.sent) == 3
    watched.driver.run_to_end(watched.watch.confirm(watched.clock.boottime()))
    assert len(watched.driver.sent) == 6
    watched.driver.advance(0.1)
    watched.driver.fail = lambda _request: DOWN
    assert isinstance(watched.confirm(), StoreUnavailable)
    assert sum(isinstance(request, StatementRequest) for request in watched.driver.sent) == 3 * MAX_ATTEMPTS
