"""Counts the requests of a post, and tests the outcomes of cancelled ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from queuey.model.errors import Outcome
from queuey.model.ids import Position
from queuey.model.messages import NewMessage, Queue, QueueSpec
from queuey.storage.cassandra.cluster import Encoded, StatementRequest
from queuey.storage.cassandra.statements.message_codec import DELETE, INSERT
from queuey.storage.cassandra.time.clock_watch import SELECT_NOW
from tests.sim.cassandra.cluster import Cluster, NetworkFaults
from tests.sim.cassandra.messages import Site
from tests.sim.world import World

PARTITIONS = 4
KINDS = {SELECT_NOW: "checks"} | dict.fromkeys(INSERT, "writes") | dict.fromkeys(DELETE, "undo writes")


class CountedCluster(Cluster):
    """One node that counts the requests of each kind."""

    def __init__(self, world: World) -> None:
        super().__init__(world, NetworkFaults(), nodes=1)
        self.counts: Counter[str] = Counter()

    def note_append(self, request: StatementRequest | Encoded, count: int) -> None:
        """Counts what a driver receives: a node gets rounds of the clock as it gets checks."""
        if count == 1 and isinstance(request, Encoded) and request.statement in KINDS:
            self.counts[KINDS[request.statement]] += 1
        super().note_append(request, count)


class Posting:
    """A process that posts."""

    def __init__(self) -> None:
        self.world = World(1)
        self.cluster = CountedCluster(self.world)
        self.site = Site(self.world, self.cluster)
        self.ended: list[Any] = []
        queues: list[Queue] = []

        async def create() -> None:
            store = self.site.store
            await self.site.call(store.applications.create_application("a"))
            spec = QueueSpec(ttl=3600, partitions=PARTITIONS)
            queue, _ = await self.site.call(store.catalogue.create_queue("a", "q", spec))
            queues.append(queue)

        self.site.begin(create())
        self.world.run(self.world.now + 5.0)
        [self.queue] = queues
        self.post(range(1, PARTITIONS + 1))
        self.world.run(self.world.now + 1.0)
        assert len(self.ended) == 1
        self.ended.clear()
        self.cluster.counts.clear()

    def post(self, partitions: range, each: int = 1) -> Callable[[], Outcome]:
        """Begins to append messages; returns a function that cancels it. ``ended`` gets their number, or the error."""
        items = [NewMessage("x", partition, 3600) for partition in partitions for _ in range(each)]

        def done(positions: list[Position] | None, error: Exception | None) -> None:
            self.ended.append(error if positions is None else len(positions))

        return self.site.store._writer.begin(self.queue, items, done, None).withdraw


@pytest.fixture
def posting() -> Posting:
    """A process whose queue and buckets are in memory."""
    return Posting()


def test_a_post_has_one_check(posting: Posting) -> None:
    """A hundred messages of four partitions are four writes and one check of the clock."""
    posting.post(range(1, PARTITIONS + 1), 25)
    posting.world.run(posting.world.now + 0.2)
    assert posting.ended == [100]
    assert posting.cluster.counts == {"writes": PARTITIONS, "checks": 1}


def test_posts_of_one_turn_go_together(posting: Posting) -> None:
    """Posts begun in one turn of the loop are one write, with one check, each post with its own answer."""
    for _ in range(10):
        posting.post(range(1, 2))
    posting.world.run(posting.world.now + 0.2)
    assert posting.ended == [1] * 10
    assert posting.cluster.counts == {"writes": 1, "checks": 1}


def test_whoever_gives_up_before_anything_is_sent(posting: Posting) -> None:
    """A post that is cancelled before anything is sent sends nothing, and has the outcome "none"."""
    assert posting.post(range(1, 2))() == "none"
    posting.world.run(posting.world.now + 1.0)
    assert posting.ended == []
    assert posting.cluster.counts == {}
