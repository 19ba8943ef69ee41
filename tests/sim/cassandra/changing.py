"""A storm in which the timing stored in the keyspace changes, while processes post, read, freeze and crash.

The command that changes it may stop with the process in which it runs; another one then goes on. Some processes get no
answer when they read the timing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

from queuey.model.errors import QueueyError, StoreUnavailable
from queuey.model.messages import Queue
from queuey.storage.cassandra import CassandraOptions
from queuey.storage.cassandra.admin import timing_changes
from queuey.storage.cassandra.cluster import Driver, timing
from queuey.storage.cassandra.cluster.timing import (
    MANY_CENTRES_TIMING,
    KeyspaceTiming,
    StoredTiming,
    encode,
    make_settled,
)
from queuey.storage.cassandra.time import timing_in_force
from tests.replacing import replace, replace_in
from tests.sim.cassandra import cql
from tests.sim.cassandra.loops import present_thread
from tests.sim.cassandra.pace import SOON, Pace
from tests.sim.cassandra.posts import PostSite, PostStorm
from tests.sim.world import Process

LEASE, EVERY = 3.0, 0.5
"""Seconds. Shorter than in the product, to shorten histories."""
SECONDS = 24.0


@dataclasses.dataclass(frozen=True)
class FollowingPace(Pace):
    """Events are scaled to the lower times. The store follows the timing in the keyspace."""

    def options(self) -> CassandraOptions:
        return dataclasses.replace(super().options(), follow=True)


FOLLOWING = FollowingPace(SOON.timing, heartbeat=0.25, calm=SOON.calm)


@contextmanager
def short_lease() -> Iterator[None]:
    """Shortens the lease and its checks, and makes them run by simulated time."""
    with ExitStack() as replaced:
        for module in (timing_in_force, timing_changes):
            replaced.enter_context(replace_in(module, timing.LEASE, LEASE))
        replaced.enter_context(replace_in(timing_in_force, timing_in_force.READ_INTERVAL, EVERY))
        replaced.enter_context(replace_in(timing_changes, time, SimpleNamespace(time=_now)))
        replaced.enter_context(replace(timing_changes.read_timing_status, read_timing_status))
        yield


def _now() -> float:
    assert Process.present is not None
    return Process.present.world.now


def read_timing_status(driver: Driver, options: CassandraOptions) -> timing_changes.TimingStatus:
    """Reads the timing alone: the simulated cluster cannot scan tables."""
    [(text,)] = driver.run(timing_in_force.READ_TIMING, consistency=options.catalogue_read)
    return timing_changes.TimingStatus(timing.decode(text), {}, 1)


class FollowingSite(PostSite):
    """A web process that may get no answers about the timing for a while."""

    deaf_until = 0.0

    def start(self) -> None:
        """Starts the store, whose reads of the timing fail or do nothing while the process is deaf."""
        super().start()
        timing_ = self.store._timing
        refresh, renew = timing_.refresh, timing_.renew

        def refresh_or_not(driver: Driver) -> None:
            if self.process.world.now >= self.deaf_until:
                refresh(driver)

        async def renew_or_not(driver: Driver) -> str | None:
            if self.process.world.now < self.deaf_until:
                raise StoreUnavailable("no answer about the times")
            return await renew(driver)

        timing_.refresh, timing_.renew = refresh_or_not, renew_or_not  # type: ignore[method-assign]


class ChangingStorm(PostStorm):
    sites: list[FollowingSite]  # type: ignore[assignment]
    before, wanted = MANY_CENTRES_TIMING, SOON.timing
    seconds = SECONDS

    def __init__(self, seed: int) -> None:
        self._begun = False
        self.changes = 0
        super().__init__(seed, FOLLOWING)

    def _new_site(self) -> PostSite:
        if not self._begun:
            self._begun = True
            self._insert(make_settled(self.before, "first"))
        return FollowingSite(self.world, self.cluster, generous=self._generous, on_loop=self._on_loop)

    def _insert(self, stored: StoredTiming) -> None:
        for place, change in cql.command(timing_changes._SWAP_TIMING.cql).changes(
            (encode(stored), None), 1, self.world.now
        ):
            self.cluster.committed[place].absorb(change)
            for node in self.cluster.nodes:
                node.data[place].absorb(change)

    def planned_events(self) -> dict[Callable[[], None], int]:
        rng = self.world.rng
        planned = {work: 2 * times for work, times in super().planned_events().items()}
        self.world.after(rng.random() * 4.0, self._change_times)
        if rng.random() < 0.6:
            self.world.after(rng.random() * 4.0, self._deafen)
        return planned | {self._cause_long_fault: rng.choice((0, 2, 4))}

    def read_partition(self, site: PostSite, partition: int, queue: Queue) -> None:  # type: ignore[override]
        super().read_partition(site, partition, queue)
        self.readers[-1].busy, self.readers[-1].every = self.seconds, 0.25

    # Events

    def _cause_long_fault(self) -> None:
        """Pauses a process, or takes a node away, for 0.5 to 7 s."""
        rng, site = self.world.rng, self.pick_site()
        seconds = rng.choice((0.5, 2.0, 4.0, 7.0))
        if rng.random() < 0.7:
            site.process.pause(seconds)
        else:
            rng.choice(self.cluster.nodes).away_until = self.world.now + seconds

    def _deafen(self) -> None:
        site = self.pick_site()
        assert isinstance(site, FollowingSite)
        site.deaf_until = self.world.now + self.world.rng.choice((2.0, 20.0))

    def _change_times(self) -> None:
        """Changes the times in the store, retrying after errors; in half of the cases again 6 s later."""
        site = self.pick_site()
        assert isinstance(site, PostSite)

        async def work() -> None:
            while True:  # bounded: by the end of the history
                try:
                    await site.core.in_thread(lambda: change_times(site, self.wanted))
                except QueueyError:
                    await asyncio.sleep(0.5)
                    continue
                self.changes += 1
                return

        site.begin(work())
        if self.world.rng.random() < 0.5:
            self.world.after(6.0, self._change_times)


def change_times(site: PostSite, wanted: KeyspaceTiming) -> None:
    timing_changes.change_timing(
        site.store._driver, site.store._options, wanted, lambda _line: None, wait_between_steps
    )


def wait_between_steps(seconds: float) -> None:
    present_thread().pause(seconds)
