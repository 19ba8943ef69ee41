"""Whether the clock agrees with the cluster's: states and what moves between them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver import Done, Request
from queuey.storage.cassandra.ids.clock import ATTEMPTS, FRESH, GAP, ClockCheck, ClockReading, ClockWatch
from tests.unit.cassandra.ids.clocks import Machine

S = 1.0
QUICK = 0.001


class Cluster:
    """Three nodes with clocks of their own, and a process that compares its clock with theirs."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.nodes = [0.0, 0.0, 0.0]
        """Seconds that the nodes' clocks are ahead of the true time."""
        self.skew = ClockCheck(self.machine.clock, S)

    def check(self, errors: Sequence[float] = (QUICK, QUICK, QUICK)) -> bool:
        """Makes a round; returns whether the clock is sound."""
        self.skew.note(self.readings(errors))
        return self.skew.sound()

    def readings(self, errors: Sequence[float] = (QUICK, QUICK, QUICK)) -> list[ClockReading]:
        """What the nodes answer; each answer is wrong by as much as its error allows."""
        machine = self.machine
        return [
            ClockReading(f"node {number}", machine.error - ahead + error, machine.ahead - ahead + error, error)
            for number, (ahead, error) in enumerate(zip(self.nodes, errors, strict=True))
        ]


@pytest.fixture
def cluster() -> Cluster:
    """A cluster whose clocks are right, before the first check."""
    return Cluster()


def test_nothing_is_sound_before_the_first_check(cluster: Cluster) -> None:
    """A process that has not compared its clock does not trust it, and says so."""
    assert not cluster.skew.sound()
    assert not cluster.skew.refusing
    assert "not been compared" in (cluster.skew.complaint() or "")


def test_a_good_check_makes_it_sound(cluster: Cluster) -> None:
    """Unknown to sound: a check within 0.4 S."""
    assert cluster.check()
    assert cluster.skew.complaint() is None


@pytest.mark.parametrize("off", [-3600.0, -0.41, 0.41, 3600.0])
def test_a_clock_that_is_off_from_the_start_is_refused(cluster: Cluster, off: float) -> None:
    """Unknown to refusing: a wall clock that was wrong at the start is never used."""
    cluster.machine.ahead = off
    cluster.machine.clock.accept()
    assert not cluster.check()
    assert cluster.skew.refusing
    assert cluster.skew.wall_off
    assert f"{off + QUICK:+.3f}" in (cluster.skew.complaint() or "")


@pytest.mark.parametrize("off", [-0.35, 0.35])
def test_a_clock_that_is_a_little_off_is_red_only(cluster: Cluster, off: float) -> None:
    """Between 0.3 and 0.4 S health is red and everything is served."""
    cluster.machine.ahead = off
    cluster.machine.clock.accept()
    assert cluster.check()
    assert cluster.skew.complaint() is not None


def test_a_clock_that_is_set_right_is_served_with_again(cluster: Cluster) -> None:
    """Refusing to sound: a check within 0.4 S, at which the right wall clock is taken over."""
    cluster.machine.ahead = 5.0
    cluster.machine.clock.accept()
    assert not cluster.check()
    cluster.machine.ahead = 0.0
    assert cluster.check()
    assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("missed", "counted"), [(3.0, 3.0), (0.05, 0.0), (-3.0, 0.0)])
def test_what_a_standstill_took_counts_as_age(cluster: Cluster, missed: float, counted: float) -> None:
    """Once the wall clock shows how long a machine stood still, all ages are that much higher; small steps are none."""
    assert cluster.check()
    clock, before = cluster.machine.clock, cluster.machine.clock.boottime()
    cluster.nodes = [missed] * 3
    cluster.check()
    assert clock.boottime() == before
    cluster.machine.ahead = missed
    assert cluster.check()
    assert clock.boottime() - before == pytest.approx(counted)
    assert clock.both()[1] == pytest.approx(clock.boottime())


def test_the_nodes_moving_away_is_refused(cluster: Cluster) -> None:
    """Sound to refusing: a check beyond 0.4 S, though nothing happened to the own clock."""
    assert cluster.check()
    cluster.nodes = [0.5, 0.5, 0.5]
    assert not cluster.check()
    assert cluster.skew.refusing


def test_no_check_for_long_makes_it_unknown(cluster: Cluster) -> None:
    """Sound to unknown: after a pause of any kind a check comes before the next acknowledgement, and suffices."""
    assert cluster.check()
    cluster.machine.advance(GAP)
    assert cluster.skew.sound()
    cluster.machine.advance(0.001)
    assert not cluster.skew.sound()
    assert not cluster.skew.refusing
    assert cluster.check()


@pytest.mark.parametrize("step", [-3600.0, -0.2, 0.2, 3600.0])
def test_a_step_of_the_wall_clock_makes_it_unknown(cluster: Cluster, step: float) -> None:
    """Sound to unknown: the wall clock jumped; ids do not follow it, and a check settles who is right."""
    assert cluster.check()
    cluster.machine.ahead = step
    assert not cluster.skew.sound()
    assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)
    assert cluster.check()
    assert abs(cluster.machine.error) <= 0.3 * S
    assert cluster.skew.wall_off == (abs(step) > 0.3 * S)


def test_a_wrong_wall_clock_does_no_harm_to_a_running_process(cluster: Cluster) -> None:
    """A process whose clock was right goes on by the boot time for as long as the wall clock is wrong, in red."""
    assert cluster.check()
    cluster.machine.ahead = -7200.0
    for _ in range(100):
        cluster.machine.advance(1.0)
        assert cluster.check()
        assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)
    assert "wall clock" in (cluster.skew.complaint() or "")
    cluster.machine.ahead = 0.0
    assert cluster.check()
    assert cluster.skew.complaint() is None


def test_a_wall_clock_that_jumps_during_a_check_is_not_taken_over(cluster: Cluster) -> None:
    """What is taken over is the wall clock that was compared, not one that was set meanwhile."""
    assert cluster.check()
    readings = cluster.readings()
    cluster.machine.ahead = 3600.0
    cluster.skew.note(readings)
    assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)


def test_one_node_that_is_off_is_only_red(cluster: Cluster) -> None:
    """The median decides; a single coordinator's wrong clock is named and stops nobody."""
    cluster.nodes = [0.0, 30.0, 0.0]
    assert cluster.check()
    assert cluster.skew.off == ("node 1",)
    assert "node 1" in (cluster.skew.complaint() or "")
    cluster.nodes = [0.0, 0.0, 0.0]
    assert cluster.check()
    assert cluster.skew.complaint() is None


def test_two_nodes_that_are_off_decide(cluster: Cluster) -> None:
    """Whoever is with the minority refuses: ids must agree with most."""
    cluster.nodes = [30.0, 30.0, 0.0]
    assert not cluster.check()
    assert cluster.skew.off == ("node 2",)


def test_slow_answers_count_for_nothing(cluster: Cluster) -> None:
    """An answer that took so long that the comparison may be wrong by more than 0.1 S is no check."""
    assert not cluster.check([0.11, 0.2, 5.0])
    assert not cluster.skew.refusing
    cluster.nodes = [30.0, 30.0, 0.0]
    assert cluster.check([0.11, 0.2, 0.1])


def test_no_answers_change_nothing(cluster: Cluster) -> None:
    """A round without answers neither refuses nor renews."""
    assert cluster.check()
    cluster.machine.advance(GAP + 1)
    cluster.skew.note([])
    assert not cluster.skew.sound()


@given(
    st.lists(
        st.tuples(
            st.floats(0, 20),
            st.floats(-2, 2),
            st.lists(st.floats(-2, 2), min_size=3, max_size=3),
            st.lists(st.sampled_from([0.001, 0.09, 0.5]), min_size=3, max_size=3),
        ),
        max_size=12,
    )
)
def test_who_is_sound_is_near_the_median(steps: list[tuple[float, float, list[float], list[float]]]) -> None:
    """Whatever the clocks do: right after a check that left it sound, the clock is within 0.5 S of the nodes' median.

    0.4 S, and at most 0.1 S of error.
    """
    cluster = Cluster()
    for seconds, ahead, nodes, errors in steps:
        cluster.machine.advance(seconds)
        cluster.machine.ahead = ahead
        cluster.nodes = nodes
        exact = sorted(node for node, error in zip(nodes, errors, strict=True) if error <= 0.1 * S)
        if cluster.check(errors) and exact:
            low, high = exact[(len(exact) - 1) // 2], exact[len(exact) // 2]
            assert abs(cluster.machine.error - (low + high) / 2) <= 0.5 * S + 1e-6


class Nodes:
    """A driver that knows the nodes and answers their time at once."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.up = [True, True, False]
        self.asked: list[str] = []
        self.ahead = 0.0
        self.fault: StoreUnavailable | None = None

    def hosts(self) -> list[SimpleNamespace]:
        """The nodes."""
        return [SimpleNamespace(address=f"node {number}", up=up) for number, up in enumerate(self.up)]

    def problem(self) -> str | None:
        """None: connected."""
        return None

    def send(self, request: Request, done: Done) -> None:
        """Answers, after a millisecond."""
        self.asked.append(str(request.host))
        self.machine.advance(0.001)
        now = UUID(hex=ids.to_hex((ids.seconds_to_ticks(self.machine.true + self.ahead), 0)))
        self.machine.advance(0.001)
        done(None if self.fault else [(now,)], self.fault)


def watch_of(nodes: Nodes) -> ClockWatch:
    """A watch that asks only when told."""
    return ClockWatch(nodes, nodes.machine.clock, ClockCheck(nodes.machine.clock, S), None)  # type: ignore[arg-type]


def test_every_node_that_is_up_is_asked() -> None:
    """A round asks all coordinators that are there, and the answers are taken at the middle of their time."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    assert watch.check()
    assert nodes.asked == ["node 0", "node 1"]
    assert abs(watch._clock_check.median) < 0.0005


def test_require_asks_only_if_need_be() -> None:
    """A sound clock costs no request; one that is unknown is checked first."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.require()
    watch.require()
    assert len(nodes.asked) == 2
    nodes.machine.advance(GAP + 1)
    watch.require()
    assert len(nodes.asked) == 4


def test_a_write_is_confirmed_by_a_recent_check() -> None:
    """An acknowledgement needs a check that began within FRESH before the answer: an older one is made anew."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    began = nodes.machine.boottime - 0.004
    assert watch.confirmed(began + FRESH)
    assert not watch.confirmed(began + FRESH + 0.01)
    watch.confirm(began + FRESH)
    assert len(nodes.asked) == 2
    nodes.machine.advance(FRESH)
    watch.confirm(nodes.machine.boottime)
    assert len(nodes.asked) == 4


def test_a_check_that_fails_confirms_nothing() -> None:
    """While no node answers, an acknowledgement is refused after some attempts, however sound the clock was."""
    nodes = Nodes(Machine())
    watch = watch_of(nodes)
    watch.check()
    nodes.machine.advance(FRESH + 0.1)
    nodes.fault = StoreUnavailable("down")
    assert watch.sound()
    with pytest.raises(StoreUnavailable):
        watch.confirm(nodes.machine.boottime)
    assert len(nodes.asked) == 2 + 2 * ATTEMPTS


def test_require_says_what_is_wrong() -> None:
    """A clock that is off, or that nobody could compare, is refused with the reason."""
    nodes = Nodes(Machine())
    nodes.fault = StoreUnavailable("down")
    watch = watch_of(nodes)
    with pytest.raises(StoreUnavailable, match="not been compared"):
        watch.require()
    nodes.fault = None
    nodes.ahead = 2.0
    with pytest.raises(StoreUnavailable, match=r"-2\.00"):
        watch.require()
    assert watch.refusing()
    nodes.ahead = 0.0
    watch.require()
    assert not watch.refusing()
