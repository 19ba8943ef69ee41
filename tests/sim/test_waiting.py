"""Claims that wait: which one is woken, when, and what waiting costs the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from queuey.claims.log import message_finder
from queuey.claims.log.log_requests import ClaimDelivery, ClaimUndecided
from queuey.claims.log.wakeups import MAX_POLLS, POLL_INTERVAL
from queuey.claims.rules.partition_state import MAX_ABOVE
from queuey.claims.rules.receipts import ClaimReceipt
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import LogPage, Queue
from queuey.storage.partition_watches import Wake
from tests.replacing import replace_in
from tests.sim.replicas import Faults, ModelStore, Replicas
from tests.sim.storm import QUEUE, Poll
from tests.sim.web import Setup, Web
from tests.sim.world import World, begin

LONG = 1000.0
"""Seconds."""


class WakeableStore(ModelStore):
    """A store that wakes its watchers when the test says so, and counts reads of logs."""

    wakes: list[Callable[[], None]]
    reads: int
    refuses: bool
    """Watches fail."""

    def watch(
        self, queue: Queue, partition: int, wake: Wake, *, keeps_read_delay: bool = True, early: bool = False
    ) -> Callable[[], None]:
        if self.refuses:
            raise StoreUnavailable("no clock")
        self.wakes.append(wake)
        return partial(self.wakes.remove, wake)

    def read_log(self, queue: Queue, partition: int, first: int, *, newest: bool = False) -> LogPage:
        WakeableStore.reads += 1
        return super().read_log(queue, partition, first, newest=newest)


@dataclass
class Result:
    """The result of a waiting claim, and its time."""

    poll: Poll
    found: list[ClaimDelivery] | None = None
    error: Exception | None = None
    at: float = 0.0


@dataclass
class Scene:
    world: World = field(default_factory=lambda: World(1))

    def __post_init__(self) -> None:
        WakeableStore.wakes, WakeableStore.reads, WakeableStore.refuses = [], 0, False
        self.replicas = Replicas(self.world, Faults())
        self.one, self.two = (Web(self.world, self.replicas, 0.0, Setup(store=WakeableStore)) for _ in range(2))

    def post(self, *partitions: int) -> list[Position]:
        """Writes messages, and wakes the watchers when they are stored."""
        places: list[Position | None] = []
        for partition in partitions or (1,):
            self.replicas.write(self.one.process, partition, "x", places.append)
        self.after(0.1)
        for wake in WakeableStore.wakes[:]:
            wake()
        return [place for place in places if place is not None]

    def claim(self, web: Web, *, ttl: float = LONG, wait: float = 0.0, limit: int = 1, queue: Queue = QUEUE) -> Result:
        """Begins a claim. Returns its result, which is set when the claim ends."""

        def done(found: list[ClaimDelivery] | None, error: Exception | None) -> None:
            result.found, result.error, result.at = found, error, self.world.now

        result = Result(Poll(web, done, limit=limit, ttl=ttl, wait=wait, queue=queue))
        result.poll.attempt()
        return result

    def claim_soon(self, web: Web, **asked: Any) -> list[ClaimReceipt]:  # noqa: ANN401 - as `claim` has them
        result = self.claim(web, **asked)
        self.after(0.1)
        assert result.found
        return [one.receipt for one in result.found]

    def release(self, web: Web, *receipts: ClaimReceipt) -> None:
        begin(web.core, web.claims.release(QUEUE, receipts))

    def after(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_release_in_this_process_wakes_at_once(scene: Scene) -> None:
    """A waiting claim gets a message released in the same process before any poll is due."""
    scene.post()
    receipts = scene.claim_soon(scene.one)
    waiting = scene.claim(scene.one, wait=LONG)
    scene.after(10 * POLL_INTERVAL)
    tries = waiting.poll.tries
    scene.release(scene.one, *receipts)
    scene.after(POLL_INTERVAL / 5)
    assert waiting.poll.tries == tries + 1
    assert waiting.found
    assert waiting.found[0].deliveries == 2


def test_who_waits_is_tried_again_where_messages_may_be_free(scene: Scene) -> None:
    """If a partition was read up to its limit and has more messages, a waiting claim gets one, and no empty answer."""
    with replace_in(message_finder, MAX_ABOVE, 20):
        scene.post(*[1] * 40)
        receipts = scene.claim_soon(scene.one, limit=20)
        begin(scene.one.core, scene.one.claims.acknowledge(QUEUE, receipts))
        scene.after(0.1)
        short, long = (scene.claim(scene.one, wait=wait) for wait in (0.1, LONG))
        scene.after(0.2)
        assert isinstance(short.error, ClaimUndecided)
        assert (long.found, long.error, long.poll.tries) == (None, None, 1)
        scene.after(60.0)
    assert long.found
    assert long.poll.tries < 10


def test_a_watch_that_fails_is_not_kept(scene: Scene) -> None:
    """A claim that cannot wait because the store refuses its watch leaves nothing that is polled; a later one waits."""
    WakeableStore.refuses = True
    refused = scene.claim(scene.one, wait=LONG)
    scene.after(1.0)
    WakeableStore.refuses = False
    assert isinstance(refused.error, StoreUnavailable)
    reads = WakeableStore.reads
    scene.after(100 * POLL_INTERVAL)
    assert WakeableStore.reads == reads
    waiting = scene.claim(scene.one, wait=LONG)
    scene.after(1.0)
    scene.post()
    scene.after(POLL_INTERVAL / 5)
    assert waiting.found


def test_a_release_in_another_process_is_found_by_a_look(scene: Scene) -> None:
    """A message released in another process is found within a second."""
    scene.post()
    receipts = scene.claim_soon(scene.two)
    waiting = scene.claim(scene.one, wait=LONG)
    scene.after(10 * POLL_INTERVAL)
    scene.release(scene.two, *receipts)
    scene.after(1.0)
    assert waiting.found


def test_an_expiry_wakes(scene: Scene) -> None:
    """A claim that expires is given to a waiting one as soon as it is over for others, whichever process made it."""
    scene.post(1, 1)
    began = scene.world.now
    for web, ttl in ((scene.one, 20.0), (scene.two, 30.0)):
        scene.claim_soon(web, ttl=ttl)
    waiting = [scene.claim(scene.one, wait=LONG) for _ in range(2)]
    scene.after(60.0)
    assert [result.found and len(result.found) for result in waiting] == [1, 1]
    assert [result.at - began for result in waiting] == pytest.approx([21.0, 31.0], abs=0.5)


def test_a_message_wakes_few(scene: Scene) -> None:
    """Of 1,000 claims waiting for one message a few try; messages for all of them are all given out at once."""
    callers = 1000
    waiting = [scene.claim(scene.one, wait=LONG) for _ in range(callers)]
    scene.after(2.0)
    tries = sum(result.poll.tries for result in waiting)
    assert tries == callers
    scene.post()
    scene.after(POLL_INTERVAL)
    assert sum(result.found is not None for result in waiting) == 1
    assert sum(result.poll.tries for result in waiting) - tries <= 10
    scene.post(*[1] * (callers - 1))
    scene.after(2.0)
    assert all(result.found for result in waiting)


def test_who_leaves_hands_on_what_it_was_woken_for(scene: Scene) -> None:
    """If the claim that was woken for a message has left, another one gets the message."""
    first = scene.claim(scene.one, wait=LONG)
    second = scene.claim(scene.one, wait=LONG)
    scene.after(1.0)
    scene.post()
    first.poll.leave()
    scene.after(POLL_INTERVAL / 5)
    assert second.found
    assert first.poll.tries == 1


def test_looks_are_shared_and_bounded(scene: Scene) -> None:
    """All waiting claims of a partition share one poll, and the polls a second are bounded over all partitions."""
    for _ in range(200):
        scene.claim(scene.one, wait=LONG)
    scene.after(2.0)
    before = WakeableStore.reads
    scene.after(100 * POLL_INTERVAL)
    assert 90 <= WakeableStore.reads - before <= 105
    for number in range(2, 601):
        queue = Queue(application="acme", name=f"q{number}", uid=number, qid=number)
        scene.claim(scene.one, wait=LONG, queue=queue)
    scene.after(5.0)
    before = WakeableStore.reads
    scene.after(10.0)
    assert 0.7 * MAX_POLLS <= (WakeableStore.reads - before) / 10 <= 1.1 * MAX_POLLS
