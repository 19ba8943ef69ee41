"""The cost of consumer groups on Cassandra in reads, plain writes and transactions, counted as they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest

from queuey import ids
from queuey.ids import EPOCH_TICKS
from queuey.messages import OffsetChange
from queuey.service import Service
from queuey.storage import bridge
from tests.cassandra.interposed import CLOCKS, QUEUES
from tests.cassandra.scene import Process, Scene, World
from tests.contract.groups.group import SESSION, Group, HandCore, Member, places_of
from tests.contract.samples import run_call

THIRD = SESSION / 3


class Sent(NamedTuple):
    """Counts of what a call sends, without clock checks and reads of queue rows."""

    reads: int
    writes: int
    transactions: int


def sent_by(process: Process, call: Callable[[], object]) -> Sent:
    """Returns the reads, plain writes and transactions that a call sends, without those for clocks and queues."""
    log = process.wire.log
    log.clear()
    call()
    sent = [statement for statement in log.statements if statement not in {*CLOCKS, *QUEUES}]
    reads = sum(statement.reads for statement in sent)
    transactions = sum(" IF " in statement.cql for statement in sent)
    return Sent(reads, len(sent) - reads - transactions, transactions)


class WorldClock:
    """The world's time in ticks. Advancing it compares the clock, as a process does several times a second."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def __call__(self) -> int:
        return self._world() // 100 + EPOCH_TICKS

    def advance(self, seconds: float) -> None:
        self._world.advance(seconds)
        assert self._process.check_clock()


class Crew:
    """A group of one process, and its queue."""

    def __init__(self, scene: Scene, partitions: int) -> None:
        self.process = scene.start()
        self.queue = scene.queue(self.process, partitions=partitions).name
        self.places = places_of(self.queue, partitions)
        clock = WorldClock(scene.world, self.process)
        self.service = Service(self.process.store, core=HandCore(clock))
        self.group = Group([self.service], clock, "group", scene.application)

    def join_evenly(self, count: int) -> list[Member]:
        members: list[Member] = [self.group.join(self.queue) for _ in range(count)]
        self.group.settle(self.places, *members)
        self.group.pass_time_with_heartbeats(12, *members)  # so that a plan is due at once
        return members


@pytest.fixture
def make_crew(scene: Scene) -> Iterator[Callable[[int], Crew]]:
    """Returns a function that makes a crew with a number of partitions; the groups end after the test."""
    made: list[Crew] = []

    def make(partitions: int) -> Crew:
        made.append(Crew(scene, partitions))
        return made[-1]

    yield make
    for crew in made:
        crew.service.core.run(crew.service.groups.end())


def test_a_queue_without_members(scene: Scene) -> None:
    """Commits, offset reads and forgets of a queue without members send the same as before groups existed (O8)."""
    process = scene.start()
    store, queue = process.store, scene.queue(process, partitions=3)
    changes = [OffsetChange(number, (ids.EPOCH_TICKS, number)) for number in (1, 2)]
    calls: tuple[tuple[Callable[[], object], Sent], ...] = (
        (partial(run_call, store.offsets.set_offsets, queue, "g", changes), Sent(1, 0, 1)),
        (partial(run_call, store.offsets.group_offsets, queue, "g"), Sent(1, 0, 0)),
        (partial(run_call, store.offsets.groups, queue), Sent(2, 0, 0)),
        (partial(run_call, store.offsets.delete_group, queue, "g"), Sent(1, 0, 1)),
    )
    for call, sent in calls:
        bridge.run(store.offsets.set_offsets(queue, "g", changes))
        call()  # prepares its statements
        bridge.run(store.offsets.set_offsets(queue, "g", changes))
        assert sent_by(process, call) == sent


def test_heartbeats(make_crew: Callable[[int], Crew]) -> None:
    """Any number of heartbeats is one plain write per third of a session, and no transaction."""
    crew = make_crew(4)
    [member] = crew.join_evenly(1)

    def beat() -> None:
        for _ in range(45):
            crew.group.pass_time(SESSION / 15)
            member.send_heartbeat()

    sent = sent_by(crew.process, beat)
    assert sent.transactions == 0
    # Queues are searched every 15 s.
    assert sent.writes <= 3 * 3 + 1 + 2
    # The head is also read as often as its age demands, and all sessions every third.
    assert sent.reads <= 45 + 3 * 3 + 2 * 3 + 9
