"""The guarantees of the Cassandra store in simulated histories, some of which fail if a mechanism is taken out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from queuey.model.ids import LOW_MIN
from queuey.storage.cassandra.cluster import Done, Encoded, StatementRequest
from queuey.storage.cassandra.read.bucket_index import BucketIndex
from queuey.storage.cassandra.statements.message_codec import INSERT
from queuey.storage.cassandra.tables.messages import CassandraMessages, SliceReader
from queuey.storage.cassandra.time import clock, clock_check
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.cassandra.time.clock_check import WITNESSES, ClockCheck
from queuey.storage.cassandra.time.clock_watch import ClockWatch
from queuey.storage.cassandra.write import undo_writes
from queuey.storage.cassandra.write.writer import MessageWriter
from tests.sim import storm
from tests.sim.cassandra.claims import ON_CLUSTER
from tests.sim.cassandra.histories import FIRST, MANY, broken, play
from tests.sim.cassandra.messages import MessageStorm, Site
from tests.sim.cassandra.pace import PATIENT
from tests.sim.playing import Real, answering, around, find_violations

ORDERED = dataclasses.replace(ON_CLUSTER, kinds=("ordered",))
SEEN, FEW = 12, 5
"""Histories of messages, which two tests share, and of each other kind, without those that show a mutation."""


class SharedStorm(MessageStorm):
    """A storm with a node on the machine of a process, which stands still, and restarts with a wrong clock."""

    shared = 1
    sends_late = False
    """Whether the machine stands still between the making of an id and its sending."""
    _posting: Site | None = None

    def planned_events(self) -> dict[Callable[[], None], int]:
        return super().planned_events() | {
            self._stand_still: 2,
            self._restart_with_wrong_clock: 1,
            self._cause_fault: 0,
        }

    def pick_site(self) -> Site:
        return self._posting or super().pick_site()

    def _stand_still(self) -> None:
        """Posts and stops the machine for 7 s: at a random time, or just before or after the message is sent."""
        site = self._posting = self.sites[0]
        self._post()
        self._posting = None
        if self.world.rng.random() < 0.5:
            self.world.after(self.world.random_time(2 * self.weather.slow), partial(site.machine.stand_still, 7.0))
            return
        driver = site.store._driver
        send = driver.send

        def send_and_stand_still(request: StatementRequest | Encoded, done: Done) -> None:
            is_late = self.sends_late and request.statement in INSERT
            if not is_late:
                send(request, done)
            if request.statement in INSERT:
                driver.send = send  # type: ignore[method-assign]
                site.machine.stand_still(7.0)
            if is_late:
                site.process.soon(0.0, partial(send, request, done))

        driver.send = send_and_stand_still  # type: ignore[method-assign]

    def _restart_with_wrong_clock(self) -> None:
        site = self.sites[0]
        site.machine.set_clock(8.0)
        site.crash()
        for _ in range(5):
            self.start_readers(site)
        self.world.after(1.0, site.machine.set_clock)


class StandingStorm(SharedStorm):
    """A storm without a node on the stopped machine. Its pending requests are sent afterwards."""

    shared, sends_late = 0, True

    def planned_events(self) -> dict[Callable[[], None], int]:
        return super().planned_events() | {self._restart_with_wrong_clock: 0}


@pytest.fixture(scope="module")
def storms() -> list[MessageStorm]:
    """The first histories, checked to break no rule."""
    histories = [MessageStorm(seed) for seed in range(SEEN)]
    assert [one.run() for one in histories] == [[]] * SEEN
    return histories


@pytest.mark.usefixtures("storms")
def test_messages() -> None:
    """Whatever fails, readers are shown acknowledged messages, once and in order, and nothing that failed for good.

    That includes the histories that show a mutation.
    """
    for kind, seed in {(one.play, one.seed): None for one in MUTATIONS.values()}:
        assert find_violations([seed], kind) == []


def test_nodes_beside_processes() -> None:
    """A node whose clock goes wrong together with a process's clock is no witness for it."""
    assert find_violations(range(FEW), play(SharedStorm)) == []


def test_claims() -> None:
    """Claims keep their guarantees on the store itself, as on the model of its logs."""
    assert find_violations(range(2 * FEW), storm.play(ON_CLUSTER)) == []


def test_ordered_queues() -> None:
    """Messages of one key in an ordered queue are claimed one after another on the store itself."""
    assert find_violations(range(FEW), storm.play(ORDERED)) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
def test_messages_in_many_histories() -> None:
    """The rules of messages hold in ``SIM_CLUSTER_HISTORIES`` histories from the seed ``SIM_SEED`` on."""
    assert find_violations(range(FIRST, FIRST + MANY), play()) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
def test_claims_in_many_histories() -> None:
    """The rules of claims hold in many histories of plain and of ordered queues."""
    assert find_violations(range(FIRST, FIRST + MANY), storm.play(ON_CLUSTER)) == []
    assert find_violations(range(FIRST, FIRST + MANY // 4), storm.play(ORDERED)) == []


def test_histories_have_every_outcome(storms: list[MessageStorm]) -> None:
    """Posts succeed, fail and stay in doubt; posted messages are read; a seed determines the history."""
    outcomes = [post.outcome for one in storms for post in one.posts]
    assert outcomes.count("acknowledged") > len(outcomes) / 2
    assert outcomes.count("none") > 0
    assert outcomes.count("unknown") > 0
    assert sum(naming.outcome == "acknowledged" for one in storms for naming in one.namings) > 0
    again = MessageStorm(3)
    again.run()
    assert [post.outcome for post in again.posts] == [post.outcome for post in storms[3].posts]
    assert [reader.cursor for reader in again.readers] == [reader.cursor for reader in storms[3].readers]


async def read_with_late_horizon(real: Real, store: CassandraMessages, *asked: Any) -> Any:  # noqa: ANN401
    """Ends a page at the horizon as of the end of the read."""
    pages = await real(store, *asked)
    for page in pages:
        if not page.more:
            page.next = store._clock.now() - clock.ticks(PATIENT.timing.levels["strong"].delay), LOW_MIN
    return pages


def stamp_below_write(now: int, ticks: int) -> int:
    return clock.stamp_of(ticks) - 1


def find_lookup_of_any_age(real: Real, index: BucketIndex, *where: object, since: float, **kind: bool) -> Any:  # noqa: ANN401
    return real(index, *where, since=-1e9, **kind)


def apply_round_of_few_nodes(real: Real, check: ClockCheck, answers: object, began: object, _there: int) -> None:
    real(check, answers, began, 1)


def adopt_wall_clock(clock: SteadyClock, offset: int) -> None:
    """Adopts the wall clock, and counts no time as missed."""
    clock.offset = offset


VOUCHING_ACROSS_JUMPS = (
    (ClockWatch.is_timed_correctly_since, lambda watch, _: watch.sound()),
    (SteadyClock.accept, adopt_wall_clock),
)

MUTATIONS = {
    "the horizon is chosen before the read": broken(
        MessageStorm, "G1", 0, around(CassandraMessages.read, read_with_late_horizon)
    ),
    "an undo write is not below the write's timestamp": broken(
        MessageStorm, "none", 0, (undo_writes, clock.undo_timestamp, stamp_below_write)
    ),
    "reads end a read delay before the clock": broken(MessageStorm, "G1", 2, answering(SliceReader._choose_delay, 0.0)),
    "a bucket is recorded before its first use": broken(
        MessageStorm, "G1", 0, answering(MessageWriter._find_unrecorded)
    ),
    "a lookup of buckets has a max age": broken(
        MessageStorm, "G1", 3, around(BucketIndex.find_cached, find_lookup_of_any_age)
    ),
    "the clock is compared with the nodes' clocks": broken(
        MessageStorm, "G1", 0, answering(ClockCheck.sound, answer=True), answering(ClockCheck.apply_round)
    ),
    "each acknowledgement has a clock check": broken(
        StandingStorm, "G1", 0, (ClockWatch.confirm_soon, lambda _, told: told(None))
    ),
    "two nodes confirm a light check": broken(SharedStorm, "G1", 11, (clock_check, WITNESSES, 1)),
    "half of the nodes answer a round": broken(
        SharedStorm, "G1", 1, around(ClockCheck._apply_round, apply_round_of_few_nodes)
    ),
    "ids from before a clock jump are not confirmed": broken(StandingStorm, "G1 none", 2, *VOUCHING_ACROSS_JUMPS),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms its history breaks a guarantee."""
    assert MUTATIONS[name].find_violations()
