"""Whom the clock is compared with, and when: rounds, and what confirms an answer to a write."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.clocks.clock_check import GAP, ClockCheck
from queuey.storage.cassandra.clocks.clock_watch import ATTEMPTS, ClockWatch
from queuey.storage.cassandra.clocks.timing_in_force import TimingInForce
from queuey.storage.cassandra.driver import Done, Encoded, Request
from queuey.storage.cassandra.options import CassandraOptions
from tests.unit.cassandra.clocks.clocks import Machine

S = 1.0
ALL = ["node 0", "node 1", "node 2"]


class Nodes:
    """A driver that knows the nodes and answers their time at once."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.up = [True, True, True]
        self.centres = ["here"] * 3
        self.asked: list[str] = []
        self.ahead = [0.0] * 3
        """Seconds that their clocks are ahead."""
        self.slow: set[str] = set()
        """Those that do not answer light checks."""
        self.silent: set[str] = set()
        """Those that answer nothing."""
        self.fault: StoreUnavailable | None = None

    def hosts(self) -> list[SimpleNamespace]:
        """The nodes."""
        nodes = enumerate(zip(self.up, self.centres, strict=True))
        return [SimpleNamespace(address=f"node {number}", up=up, dc=dc) for number, (up, dc) in nodes]

    def set_all(self, ahead: float) -> None:
        """Sets all their clocks."""
        self.ahead = [ahead] * 3

    def problem(self) -> str | None:
        """None: connected."""
        return None

    def send(self, request: Request | Encoded, done: Done) -> None:
        """Answers, after a millisecond."""
        node, light = str(request.host), isinstance(request, Encoded)
        self.asked.append(node)
        self.machine.advance(0.001)
        true = self.machine.true + self.ahead[int(node[-1])]
        now = UUID(hex=ids.to_hex((ids.seconds_to_ticks(true), 0)))
        self.machine.advance(0.001)
        silent = node in self.silent or (light and node in self.slow)
        failing = self.fault or (StoreUnavailable("slow") if silent else None)
        done(None if failing else [(now.time if light else now,)], failing)


class AtOnce(Executor):
    """A pool that is never busy."""

    closed = False

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Does it."""
        if self.closed:
            raise RuntimeError
        work(*arguments, **named)


def watch_of(nodes: Nodes) -> ClockWatch:
    """A watch that asks only when told."""
    driver: Any = nodes
    clock = nodes.machine.clock
    timing = TimingInForce(CassandraOptions(), clock)
    check = ClockCheck(clock, lambda: S)
    return ClockWatch(driver, clock, check, None, timing=timing, beat=lambda: None, pool=AtOnce())


def test_every_node_that_is_up_is_asked() -> None:
    """A round asks all coordinators that are there, and the answers are taken at the middle of their time."""
    nodes = Nodes(Machine())
    nodes.up[2] = False
    watch = watch_of(nodes)
    assert watch.check()
    assert nodes.asked == ["node 0", "node 1"]
    assert abs(watch._clock_check.median) < 0.0005


@pytest.mark.parametrize("reachable", [0, 1])
def test_one_of_three_nodes_is_not_enough(reachable: int) -> None:
    """After a restart nothing is served by the clock of one node, which may be that of this machine, and wrong."""
    nodes = Nodes(Machine())
    nodes.machine.ahead = nodes.ahead[0] = 2.0
    nodes.machine.clock.accept(nodes.machine.clock.wall_offset())
    nodes.silent = {*ALL} - {ALL[reachable]}
    watch = watch_of(nodes)
    with pytest.raises(StoreUnavailable):
        watch.require()
    nodes.silent.clear()
    assert not watch.check()
    assert watch.refusing()


def test_two_of_three_nodes_are_enough() -> None:
    """As they are for quorums."""
    nodes = Nodes(Machine())
    nodes.silent = {"node 1"}
    watch_of(nodes).require()


@pytest.mark.parametrize("is_up", [False, True])
def test_half_of_two_nodes_is_enough(*, is_up: bool) -> None:
    """Else nothing could be read when one of them is away."""
    nodes = Nodes(Machine())
    nodes.up, nodes.centres = [True, is_up], ["here", "here"]
    nodes.silent = {"node 1"}
    watch = watch_of(nodes)
    watch.require()
    assert soon(watch) is None


def test_a_data_centre_that_is_cut_off_does_not_count() -> None:
    """Its nodes are no part of those of which half are needed; when one of them answers they are."""
    nodes = Nodes(Machine())
    nodes.centres = ["here", "there", "there"]
    nodes.silent = {"node 1", "node 2"}
    watch = watch_of(nodes)
    assert watch.check()
    nodes.up = [True, False, True]
    nodes.centres = ["here", "here", "there"]
    assert watch.check()
    nodes = Nodes(Machine())
    nodes.centres = ["here", "here", "there"]
    nodes.silent = {"node 0", "node 1"}
    assert watch_of(nodes).check(), "all of those that can be reached"
    nodes = Nodes(Machine())
    nodes.up, nodes.centres, nodes.ahead = [True] * 5, ["here"] * 3 + ["there"] * 2, [0.0] * 5
    nodes.silent = {"node 1", "node 2", "node 3"}
    assert not watch_of(nodes).check(), "two of five"


def test_require_asks_only_if_need_be() -> None:
    """A sound clock costs no request; one that is unknown is checked first."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.require()
    watch.require()
    assert len(nodes.asked) == 3
    nodes.machine.advance(GAP + 1)
    watch.require()
    assert len(nodes.asked) == 6


def soon(watch: ClockWatch) -> StoreUnavailable | None:
    """Confirms an answer that has just come; returns what was told."""
    told: list[StoreUnavailable | None] = []
    watch.confirm_soon(told.append)
    [error] = told
    return error


def test_an_answer_is_confirmed_by_two_nodes() -> None:
    """However recent the last check was, one begins after an answer, and asks two nodes if all is as it was."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    nodes.asked.clear()
    assert soon(watch) is None
    assert nodes.asked == ["node 0", "node 1"]


def test_an_answer_is_confirmed_by_all_nodes_after_a_jump() -> None:
    """One that tells another time than expected has all be asked, and writes of before are not vouched for."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    minted = nodes.machine.clock.boottime()
    nodes.asked.clear()
    nodes.set_all(0.1)
    assert soon(watch) is None
    assert sorted({*nodes.asked}) == ALL
    assert not watch.timed_correctly_since(minted)
    assert watch.sound()
    nodes.set_all(3.0)
    assert isinstance(soon(watch), StoreUnavailable)


@pytest.mark.parametrize("away", [0, 1])
def test_a_node_of_the_same_machine_confirms_nothing(away: int) -> None:
    """It stood still as the process did, and was asked first; another one tells, or the round if that one is away."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    minted = nodes.machine.clock.boottime()
    nodes.ahead = [0.0, 3.0, 3.0]
    nodes.slow = {*ALL[1 : 1 + away]}
    assert isinstance(soon(watch), StoreUnavailable)
    assert not watch.timed_correctly_since(minted)


def test_a_node_of_the_same_machine_alone_confirms_nothing() -> None:
    """While no other node answers, what was known of them says nothing about the present."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    nodes.ahead = [0.0, 3.0, 3.0]
    nodes.silent = {"node 1", "node 2"}
    assert isinstance(soon(watch), StoreUnavailable)
    assert isinstance(soon(watch), StoreUnavailable), "nor when nobody else is left to be asked"


@pytest.mark.parametrize("node", [0, 1, 2])
def test_one_node_that_is_set_stops_no_writes(node: int) -> None:
    """Writes in flight are acknowledged: all are asked, most of whom agree."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    minted = nodes.machine.clock.boottime()
    nodes.ahead[node] = 30.0
    assert soon(watch) is None
    assert watch.timed_correctly_since(minted)


@pytest.mark.parametrize("node", [0, 1, 2])
def test_one_node_that_is_slewed_stops_no_writes(node: int) -> None:
    """By 80 ms a second, for some seconds: most writes do not even have all be asked."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    nodes.asked.clear()
    for number in range(60):
        minted = nodes.machine.clock.boottime()
        nodes.machine.advance(0.1)
        nodes.ahead[node] += 0.008
        if number % 3 == 0:
            assert watch.check()
        assert soon(watch) is None
        assert watch.timed_correctly_since(minted)
    assert len(nodes.asked) < 60 * 2 + 20 * 3 + 10 * 3


def test_an_answer_is_confirmed_by_another_node_if_one_is_slow() -> None:
    """Then by all; the slow ones are left alone until they have answered with all others."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    nodes.asked.clear()
    nodes.slow = {"node 0"}
    assert soon(watch) is None
    assert sorted(nodes.asked) == ALL
    nodes.asked.clear()
    assert soon(watch) is None
    assert nodes.asked == ["node 1", "node 2"]
    nodes.slow = {*ALL}
    nodes.asked.clear()
    assert soon(watch) is None
    assert nodes.asked == ["node 1", "node 2", *ALL]


def test_a_closed_store_confirms_nothing() -> None:
    """What would have to wait is refused."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    pool: Any = watch._pool
    pool.closed = True
    assert isinstance(soon(watch), StoreUnavailable)


def test_a_write_is_confirmed_by_a_check_that_began_later() -> None:
    """Callers that may wait make sure by all nodes, and share a round that began after all their answers."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    began = nodes.machine.clock.boottime()
    watch.check()
    nodes.asked.clear()
    watch.confirm(began)
    assert nodes.asked == []
    watch.confirm(began + 0.0001)
    assert nodes.asked == ALL


def test_a_check_that_fails_confirms_nothing() -> None:
    """While no node answers, an acknowledgement is refused after some attempts, however sound the clock was."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    nodes.machine.advance(0.1)
    nodes.fault = StoreUnavailable("down")
    assert watch.sound()
    with pytest.raises(StoreUnavailable):
        watch.confirm(nodes.machine.clock.boottime())
    assert len(nodes.asked) == 3 + 3 * ATTEMPTS


def test_require_says_what_is_wrong() -> None:
    """A clock that is off, or that nobody could compare, is refused with the reason."""
    nodes = Nodes(Machine())
    nodes.fault = StoreUnavailable("down")
    watch = watch_of(nodes)
    with pytest.raises(StoreUnavailable, match="not been compared"):
        watch.require()
    nodes.fault = None
    nodes.set_all(2.0)
    with pytest.raises(StoreUnavailable, match=r"-2\.00"):
        watch.require()
    assert watch.refusing()
    nodes.set_all(0.0)
    watch.require()
    assert not watch.refusing()
