"""Tests of the clock check: its states and their transitions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.storage.cassandra.time.clock_check import GAP, ClockCheck, ClockDifference
from tests.storage.cassandra.time.clocks import Machine

S = 1.0
"""Max clock difference of the store, in seconds."""
QUICK = 0.001
"""Error of the answer to a quick request, in seconds."""


class Cluster:
    """Three nodes with their own clocks, and a process that compares its clock with theirs."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.nodes = [0.0, 0.0, 0.0]
        """Seconds by which the nodes' clocks are ahead of the true time."""
        self.difference = S
        self.skew = ClockCheck(self.machine.clock, lambda: self.difference)

    def check(self, errors: Sequence[float] = (QUICK, QUICK, QUICK)) -> bool:
        self.skew.apply_round(self.readings(errors))
        return self.skew.sound()

    def readings(self, errors: Sequence[float] = (QUICK, QUICK, QUICK)) -> dict[str, ClockDifference]:
        return {
            f"node {number}": self.reading(ahead, error)
            for number, (ahead, error) in enumerate(zip(self.nodes, errors, strict=True))
        }

    def reading(self, ahead: float = 0.0, error: float = QUICK) -> ClockDifference:
        machine = self.machine
        middle = round((machine.error - ahead) * 1e9) - machine.clock.offset
        return ClockDifference(
            middle - round(error * 1e9), middle + round(error * 1e9), machine.clock.raw_boottime_ns()
        )

    def set_clock(self, ahead: float) -> None:
        """Sets how far the wall clock is ahead, and lets the store's clock accept it unchecked."""
        self.machine.ahead = ahead
        self.machine.clock.accept(self.machine.clock.wall_offset())


@pytest.fixture
def cluster() -> Cluster:
    """A cluster whose clocks are right, before the first check."""
    return Cluster()


@pytest.mark.parametrize(
    ("ahead", "nodes", "errors", "sound", "complaint"),
    [
        (0.0, [0.0, 0.0, 0.0], [QUICK] * 3, True, None),
        *((off, [0.0, 0.0, 0.0], [QUICK] * 3, False, f"{off:+.3f}") for off in (-3600.0, -0.5, 0.5, 3600.0)),
        # Between 0.3 and 0.5 S health is red and every request is served.
        *((off, [0.0, 0.0, 0.0], [QUICK] * 3, True, "") for off in (-0.49, -0.31, 0.31, 0.49)),
        # The median decides: a single wrong node is named and stops nobody; with the minority the process refuses.
        (0.0, [0.0, 30.0, 0.0], [QUICK] * 3, True, "node 1"),
        (0.0, [30.0, 30.0, 0.0], [QUICK] * 3, False, "-30.000"),
        # Offset and error add up; a refused clock has no possible offset within S/2.
        (0.0, [0.0, 0.0, 0.0], [0.51] * 3, None, "give or take 0.51"),
        (0.0, [0.0, 0.0, 0.0], [0.49, 0.49, 0.51], True, None),
        (0.2, [0.0, 0.0, 0.0], [0.4] * 3, None, ""),
        (1.0, [0.0, 0.0, 0.0], [0.4] * 3, False, ""),
    ],
)
def test_the_first_check(
    cluster: Cluster,
    ahead: float,
    nodes: list[float],
    errors: list[float],
    complaint: str | None,
    *,
    sound: bool | None,
) -> None:
    """The first check leads from unknown to sound, to refusing, or to neither (None), and reports it."""
    cluster.set_clock(ahead)
    cluster.nodes = nodes
    assert cluster.check(errors) == bool(sound)
    assert cluster.skew.refusing == (sound is False)
    found = cluster.skew.problem()
    assert (found is None) == (complaint is None)
    assert (complaint or "") in (found or "")


def test_a_clock_that_is_set_right_is_served_with_again(cluster: Cluster) -> None:
    """From refusing to sound: after a check within S/2 the right wall clock is accepted, and requests are served."""
    cluster.set_clock(5.0)
    assert not cluster.check()
    cluster.machine.ahead = 0.0
    assert cluster.check()
    assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("missed", "counted"), [(3.0, 3.0), (0.05, 0.05), (-3.0, 0.0)])
def test_what_a_standstill_took_counts_as_age(cluster: Cluster, missed: float, counted: float) -> None:
    """When the wall clock shows how long a machine was suspended, all ages grow by that."""
    assert cluster.check()
    clock, before = cluster.machine.clock, cluster.machine.clock.boottime()
    cluster.nodes = [missed] * 3
    cluster.check()
    assert clock.boottime() == before
    cluster.machine.ahead = missed
    assert cluster.check()
    assert clock.boottime() - before == pytest.approx(counted, abs=1e-6)
    assert clock.now_and_boottime()[1] == pytest.approx(clock.boottime())


def test_no_check_for_long_makes_it_unknown(cluster: Cluster) -> None:
    """From sound to unknown: after a pause one check comes before the next acknowledgement."""
    assert cluster.check()
    cluster.machine.advance(GAP)
    assert cluster.skew.sound()
    cluster.machine.advance(0.001)
    assert not cluster.skew.sound()
    assert not cluster.skew.refusing
    cluster.skew.apply_round({})
    assert not cluster.skew.sound()
    assert cluster.check()


@pytest.mark.parametrize("step", [-3600.0, -0.2, 0.2, 3600.0])
def test_a_step_of_the_wall_clock_makes_it_unknown(cluster: Cluster, step: float) -> None:
    """From sound to unknown: if the wall clock jumps, ids do not follow, and a check decides which clock is right."""
    assert cluster.check()
    cluster.machine.ahead = step
    assert not cluster.skew.sound()
    assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)
    assert cluster.check()
    assert abs(cluster.machine.error) <= 0.3 * S
    assert cluster.skew.wall_off == (abs(step) > 0.3 * S)


def test_a_wrong_wall_clock_does_no_harm_to_a_running_process(cluster: Cluster) -> None:
    """A process whose clock was right continues by the boot time while the wall clock is wrong, with red health."""
    assert cluster.check()
    cluster.machine.ahead = -7200.0
    for _ in range(100):
        cluster.machine.advance(1.0)
        assert cluster.check()
        assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)
    assert "wall clock" in (cluster.skew.problem() or "")
    cluster.machine.ahead = 0.0
    assert cluster.check()
    assert cluster.skew.problem() is None


def test_a_wall_clock_that_jumps_during_a_check_is_judged_as_it_is(cluster: Cluster) -> None:
    """The wall clock that a check concerns is accepted, not one that was set wrongly meanwhile."""
    assert cluster.check()
    readings = cluster.readings()
    cluster.machine.ahead = 3600.0
    cluster.skew.apply_round(readings)
    assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)


def test_a_wall_clock_is_not_taken_over_by_a_rough_check(cluster: Cluster) -> None:
    """A wall clock is accepted only if its offset is known to 0.1 S."""
    cluster.set_clock(0.2)
    cluster.machine.ahead = 0.0
    assert cluster.check([0.2, 0.2, 0.2])
    assert cluster.machine.error == pytest.approx(0.2)
    assert cluster.check()
    assert cluster.machine.error == pytest.approx(0.0, abs=1e-6)


def test_slow_answers_do_not_end_a_refusal(cluster: Cluster) -> None:
    """When the nodes' clocks move away the clock is refused, until answers show that it is right again."""
    assert cluster.check()
    cluster.nodes = [0.6] * 3
    assert not cluster.check()
    assert cluster.skew.refusing
    cluster.machine.advance(GAP + 0.001)
    cluster.nodes = [0.0] * 3
    assert not cluster.check([0.6, 0.6, 0.6])
    assert cluster.skew.refusing
    assert cluster.check()


@pytest.mark.parametrize("errors", [[0.09], [0.2, QUICK]])
def test_a_standstill_that_most_answers_hide_makes_it_off(cluster: Cluster, errors: list[float]) -> None:
    """A suspend hidden by two of five slow answers is found when the clock can be set: earlier ids do not count."""
    machine = cluster.machine
    readings = {f"node {number}": cluster.reading(error=0.8 if number < 2 else QUICK) for number in range(5)}
    cluster.skew.apply_round(readings, node_count=5)
    assert cluster.skew.sound()
    minted = machine.clock.boottime()
    cluster.nodes, machine.ahead = [0.55] * 3, 0.55
    for error in errors:
        machine.advance(0.1)
        cluster.skew.apply_round(cluster.readings([error] * 3), node_count=5)
        assert cluster.skew.sound() == (error < 0.1)
    assert minted <= cluster.skew.wrong_until
    assert machine.error == pytest.approx(0.55)


def test_what_was_known_is_of_use_to_a_slow_answer_but_does_not_replace_it(cluster: Cluster) -> None:
    """Recent answers are intersected. An answer that could hide a jump beyond S/2 does not check earlier ids."""
    assert cluster.check()
    began = cluster.machine.clock.boottime()
    cluster.machine.advance(1.0)
    assert cluster.check([0.6, 0.6, 0.6])
    assert not cluster.skew.sound(began + 0.5)
    assert cluster.check([0.4, 0.4, 0.4])
    assert cluster.skew.sound(began + 0.5)
    assert cluster.skew.error == pytest.approx(QUICK + 0.001)


def one_sided(cluster: Cluster, ahead: float, *, there: float = 0.0, back: float = 0.0) -> ClockDifference:
    low, high, at = cluster.reading(ahead)
    return ClockDifference(low - round(there * 1e9), high + round(back * 1e9), at)


@pytest.mark.parametrize(("there", "back", "counts"), [(0.0, 0.9, True), (0.3, 0.0, True), (0.6, 0.0, False)])
def test_only_the_way_to_the_nodes_hides_that_we_were_behind(
    cluster: Cluster, there: float, back: float, *, counts: bool
) -> None:
    """A clock that is behind needs an answer to a quick request; how far it is ahead is known from before."""
    for _ in range(2):
        assert cluster.check()
        cluster.machine.advance(0.25)
    began = cluster.machine.clock.boottime()
    answers = {f"node {number}": one_sided(cluster, 0.0, there=there, back=back) for number in range(3)}
    assert all(cluster.skew.apply_light_answer(*answer) for answer in answers.items()) == counts
    cluster.skew.apply_round(answers, began, node_count=3)
    assert cluster.skew.sound(began) == counts
    assert cluster.skew.sound()


def test_what_was_known_does_not_hide_a_standstill(cluster: Cluster) -> None:
    """Slow answers meet the known interval, but count alone for suspends, in rounds and in light checks."""
    for _ in range(2):
        assert cluster.check()
        cluster.machine.advance(0.25)
    began = cluster.machine.clock.boottime()
    answers = {f"node {number}": one_sided(cluster, 0.7, back=0.8) for number in range(3)}
    assert not any(cluster.skew.apply_light_answer(*answer) for answer in answers.items())
    cluster.skew.apply_round(answers, began, node_count=3)
    assert not cluster.skew.sound(began)


def test_two_standstills_count_together(cluster: Cluster) -> None:
    """Two suspends add up: a light check counts from the last round, not from an inconclusive light check."""
    for _ in range(2):
        cluster.skew.apply_round(cluster.readings() | {"node 0": one_sided(cluster, 0.0, there=0.4)}, node_count=3)
    assert cluster.skew.apply_light_answer("node 0", cluster.reading(0.3))
    assert not cluster.skew.apply_light_answer("node 0", one_sided(cluster, 0.6, back=0.31))


def test_a_light_check_needs_what_was_known_before_the_last_round(cluster: Cluster) -> None:
    """A light check does not use answers of the last round, since one node may have been read before the suspend."""
    answers = cluster.readings() | {"node 2": one_sided(cluster, 0.7, there=0.7, back=0.1)}
    cluster.skew.apply_round(answers, node_count=3)
    assert cluster.skew.sound()
    assert not cluster.skew.apply_light_answer("node 2", cluster.reading(0.7))
    cluster.skew.apply_round(answers, node_count=3)
    assert cluster.skew.apply_light_answer("node 0", cluster.reading())


def test_the_error_grows_with_age(cluster: Cluster) -> None:
    """The error grows by a millisecond a second, so a clock near the limit is off seconds later, or with another S."""
    cluster.set_clock(0.495)
    assert cluster.check()
    cluster.machine.advance(3.0)
    assert cluster.skew.sound()
    cluster.machine.advance(2.0)
    assert not cluster.skew.sound()
    cluster.set_clock(0.2)
    assert cluster.check()
    cluster.difference = 0.25
    assert not cluster.skew.sound()


@pytest.mark.parametrize("jump", [-0.01, 0.01])
def test_a_jump_replaces_what_was_known(cluster: Cluster, jump: float) -> None:
    """An answer that contradicts the known interval replaces it, and earlier ids are not confirmed."""
    assert cluster.check()
    cluster.machine.advance(1.0)
    minted = cluster.machine.clock.boottime()
    assert cluster.check()
    assert minted > cluster.skew.wrong_until
    cluster.nodes = [jump] * 3
    assert cluster.check()
    assert minted <= cluster.skew.wrong_until
    assert cluster.skew.median == pytest.approx(-jump)


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
    """After a good check the clock is within S/2 of the nodes' median, whatever the clocks do."""
    cluster = Cluster()
    for seconds, ahead, nodes, errors in steps:
        cluster.machine.advance(seconds)
        cluster.machine.ahead = ahead
        cluster.nodes = nodes
        began = cluster.machine.clock.boottime()
        if cluster.check(errors) and cluster.skew.sound(began):
            assert abs(cluster.machine.error - sorted(nodes)[1]) <= 0.5 * S + 1e-6
