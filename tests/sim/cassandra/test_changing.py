"""The timing of a keyspace changes while processes use it, in simulated histories; each step of that is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.admin import timing_changes
from queuey.storage.cassandra.cluster import timing
from queuey.storage.cassandra.cluster.timing import KeyspaceTiming, make_settled
from queuey.storage.cassandra.time.timing_in_force import TimingInForce
from tests.sim.cassandra import changing, histories
from tests.sim.cassandra.changing import ChangingStorm, short_lease
from tests.sim.cassandra.histories import FIRST, Kind, broken, play
from tests.sim.cassandra.posts import PostSite
from tests.sim.playing import answering, find_violations

SEEN, SEEDS = 4, (0, 1, 5)
"""Histories whose times become shorter, and seeds of each kind in `make check`. Sites of the last read on loops."""
MANY = histories.MANY // 4
"""Histories of each kind in the slow tests. They are longer than others."""


class RaisingStorm(ChangingStorm):
    """A storm in which the times become longer."""

    before, wanted = timing.ONE_CENTRE_TIMING, timing.MANY_CENTRES_TIMING


class DeafStorm(ChangingStorm):
    """A storm in which one process gets no answer about the timing, while writes are often late."""

    def planned_events(self) -> dict[Callable[[], None], int]:
        super().planned_events()
        self.weather.late, self.weather.lost, self.weather.stalls = 0.6, 0.0, 0.1
        self.sites[0].deaf_until = self.world.now + self.seconds
        for _ in range(150):
            self.world.after(self.seconds * self.world.rng.random(), self._post)
        return {}


@pytest.fixture(autouse=True)
def _short_lease() -> Iterator[None]:
    with short_lease():
        yield


@pytest.fixture(scope="module")
def storms() -> list[ChangingStorm]:
    """The first histories, checked to break no rule."""
    with short_lease():
        storms = [ChangingStorm(seed) for seed in range(SEEN)]
        assert [one.run() for one in storms] == [[]] * SEEN
    return storms


def seeds(storm: Kind, first: int = 0) -> list[int]:
    shown = {one.seed for one in MUTATIONS.values() if one.play is play(storm)}
    return sorted({seed for seed in SEEDS if seed >= first} | shown)


@pytest.mark.usefixtures("storms")
def test_rules_hold_while_times_get_shorter() -> None:
    """The rules hold while W, U, S, D and C become shorter."""
    assert find_violations(seeds(ChangingStorm, SEEN), play(ChangingStorm)) == []


def test_a_process_that_misses_the_change_stops() -> None:
    """The rules hold if one of the processes never learns of the change: it stops."""
    assert find_violations(seeds(DeafStorm), play(DeafStorm)) == []


def test_rules_hold_while_times_get_longer() -> None:
    """The rules hold while the times become longer."""
    assert find_violations(seeds(RaisingStorm), play(RaisingStorm)) == []


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
def test_many_histories() -> None:
    """The rules hold in many histories of both kinds."""
    assert find_violations(range(FIRST, FIRST + MANY), play(ChangingStorm)) == []
    assert find_violations(range(FIRST, FIRST + MANY), play(RaisingStorm)) == []


def test_changes_of_times_finish(storms: list[ChangingStorm]) -> None:
    """The change finishes and all processes use the new timing, whatever failed."""
    assert sum(one.changes for one in storms) > 0
    for one in storms:
        if one.changes:
            timings = [site.store._timing for site in one.sites]
            assert all(each.stored.kept == each.stored.assumed == one.wanted for each in timings)


def change_times_in_one_step(site: PostSite, wanted: KeyspaceTiming) -> None:
    driver, options = site.store._driver, site.store._options
    stored = timing_changes.read_timing_status(driver, options).stored
    if not timing_changes._compare_and_swap(driver, options, make_settled(wanted, "at once"), stored):
        raise StoreUnavailable("another command was faster")


RULES = "G1 none attempt"

MUTATIONS = {
    "times change in two steps": broken(
        ChangingStorm, RULES, 9, (changing, changing.change_times, change_times_in_one_step)
    ),
    "the second step waits for all processes": broken(ChangingStorm, RULES, 73, answering(changing.wait_between_steps)),
    "a process stops when its lease is over": broken(
        DeafStorm, RULES, 11, answering(TimingInForce.is_fresh, answer=True)
    ),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms its history breaks a guarantee."""
    assert MUTATIONS[name].find_violations()
