"""Which requests share an entry of a claim log, and which go to different partitions, in simulated time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from queuey.claims.claims import ClaimUseCases
from queuey.claims.log.forwarding import CLAIM_TOPIC, FORWARDING_SECONDS, SETTLE_TOPIC
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules.entries import decode_entry
from queuey.claims.rules.receipts import ReceiptOutcome
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import LogEntry, LogPage, Page, Queue, Slice
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.runtime.waiters import Watchers
from queuey.runtime.workers import Answer, Topic, WorkerIdentity, Workers
from queuey.storage.deadlines import Done
from tests.replacing import replace_in
from tests.sim import world
from tests.sim.replicas import Faults, ModelStore, Replicas
from tests.sim.world import MAX_TURN_SECONDS, Process, SimulatedCore, World, begin

QUEUE = Queue(application="acme", name="orders", uid=1, qid=1)
SOON = 1.0
"""Seconds in which everything finishes that is not blocked."""


class Held(ModelStore):
    """A store whose appends end only when the test says so."""

    appends: list[tuple[LogEntry, Done]]

    def begin_append_entry(
        self, queue: Queue, partition: int, entry: LogEntry, done: Done, **_options: int | None
    ) -> None:
        self.appends.append((entry, done))


class Failing(ModelStore):
    """A store that refuses appends when the test says so."""

    fails = False

    def begin_append_entry(
        self, queue: Queue, partition: int, entry: LogEntry, done: Done, **options: int | None
    ) -> None:
        if self.fails:
            done(None, StoreUnavailable("away", outcome="none"))
        else:
            super().begin_append_entry(queue, partition, entry, done, **options)


class Counting(ModelStore):
    """A store that counts reads of messages, reads of logs, and appends."""

    asked: Counter[str]

    def begin_read(self, queue: Queue, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:
        self.asked["reads"] += 1
        return super().begin_read(queue, part, done)

    def read_log(self, queue: Queue, partition: int, first: int, *, newest: bool = False) -> LogPage:
        self.asked["logs"] += 1
        return super().read_log(queue, partition, first, newest=newest)

    def begin_append_entry(
        self, queue: Queue, partition: int, entry: LogEntry, done: Done, **options: int | None
    ) -> None:
        self.asked["appends"] += 1
        super().begin_append_entry(queue, partition, entry, done, **options)


@dataclass
class Scene:
    """Processes that share one store, and the results of their clients."""

    world: World = field(default_factory=lambda: World(1))
    found: list[ClaimDelivery] = field(default_factory=list)
    settled: list[ReceiptOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replicas = Replicas(self.world, Faults())

    def start(self, kind: type[ModelStore], workers: Workers | None = None) -> tuple[ModelStore, ClaimUseCases]:
        process = Process(self.world, 0.0)
        store, core = kind(self.replicas, process), SimulatedCore(process, 0.001)
        claims = ClaimUseCases(store.store, Limits(), Metrics(), watchers=Watchers(), core=core, workers=workers)
        return store, claims

    def fill(self, partitions: int, each: int) -> None:
        """Posts messages, and waits until every process can see them."""
        process = Process(self.world, 0.0)
        for number in range(partitions * each):
            self.replicas.write(process, 1 + number % partitions, "x", lambda _position: None)
            self.let(0.0001)
        self.let(SOON)

    def let(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def claim(self, claims: ClaimUseCases, queue: Queue, limit: int) -> None:
        begin(claims.core, claims.claim(queue, limit=limit, ttl=60), partial(self.told, self.found))

    def acknowledge(self, claims: ClaimUseCases, one: ClaimDelivery) -> None:
        begin(claims.core, claims.acknowledge(QUEUE, [one.receipt]), partial(self.told, self.settled))

    def told(self, where: list[Any], got: list[Any] | None, error: Exception | None) -> None:
        assert error is None
        where += got or ()


@pytest.fixture(autouse=True)
def _in_order() -> Iterator[None]:
    """Calls whatever is ready at once and in order."""
    with replace_in(world, MAX_TURN_SECONDS, 0.0):
        yield


def claimed_from(clients: int, limit: int) -> Counter[int]:
    scene, queue = Scene(), replace(QUEUE, partitions=8)
    _, claims = scene.start(ModelStore)
    scene.fill(8, 250)
    for _ in range(clients):
        scene.claim(claims, queue, limit)
    scene.let(SOON)
    return Counter(one.receipt.partition for one in scene.found)


def test_small_claims_share_an_entry() -> None:
    """Simultaneous claims of one message begin at the same partition."""
    assert list(claimed_from(32, 1).values()) == [32]


def test_claims_that_get_all_they_want_cost_a_read_and_an_append() -> None:
    """Satisfied claims of one entry cost one read and one append in all; a claim that finds nothing reads the log."""
    scene = Scene()
    store, claims = scene.start(Counting)
    assert isinstance(store, Counting)
    store.asked = Counter()
    scene.fill(1, 200)
    scene.claim(claims, QUEUE, 1)
    scene.let(SOON)
    for clients, limit in ((1, 1), (32, 1), (1, 100), (3, 10)):
        store.asked.clear()
        found_before = len(scene.found)
        for _ in range(clients):
            scene.claim(claims, QUEUE, limit)
        scene.let(SOON / 10)
        assert len(scene.found) - found_before == clients * limit
        # A periodic poll may add a read.
        assert store.asked in [{"reads": 1 + looks, "appends": 1} for looks in (0, 1)]
    scene.claim(claims, QUEUE, 100)
    scene.let(SOON)
    store.asked.clear()
    scene.claim(claims, QUEUE, 1)
    scene.let(SOON / 10)
    assert store.asked in [{"reads": 1 + looks, "logs": 1} for looks in (0, 1)]


def test_large_claims_use_several_partitions() -> None:
    """Claims that each fill an entry do not wait for each other while other partitions are free."""
    assert list(claimed_from(4, 100).values()) == [100] * 4


def test_who_is_refused_takes_in_who_came_meanwhile() -> None:
    """After a refused append, the next attempt includes the claims and receipts that have arrived since."""
    scene = Scene()
    held, slow = scene.start(Held)
    assert isinstance(held, Held)
    held.appends = []
    _, quick = scene.start(ModelStore)
    scene.fill(1, 10)
    scene.claim(quick, QUEUE, 1)
    scene.let(SOON)
    [mine] = scene.found
    scene.claim(slow, QUEUE, 1)
    scene.let(SOON)
    scene.claim(quick, QUEUE, 1)
    scene.claim(slow, QUEUE, 1)
    scene.acknowledge(slow, mine)
    scene.claim(slow, QUEUE, 2)
    scene.let(SOON)
    [(first, refuse)] = held.appends
    assert first.number == 2
    refuse(False, None)  # noqa: FBT003 - as the contract has it
    scene.let(SOON)
    [_, (second, apply)] = held.appends
    entry = decode_entry(second.body)
    assert second.number == 3
    assert sum(len(places) for _, places in entry.claims) == 4
    assert entry.finals == [mine.message.position]
    assert len(scene.found) == 2
    apply(True, None)  # noqa: FBT003 - as the contract has it
    scene.let(SOON)
    assert len({one.message.position for one in scene.found}) == 6
    assert len(scene.settled) == 1


class Silent(Workers):
    """Another worker, which ignores what it is asked until the test answers."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = WorkerIdentity("", 2, 1)
        self.asked: list[tuple[Topic[Any, Any], Answer[Any]]] = []

    def is_up(self, number: int) -> bool:
        return number == 2

    def ask(self, number: int, topic: Topic[Any, Any], question: object, answer: Answer[Any]) -> None:
        self.asked.append((topic, answer))


def claim_in_shared_log(
    scene: Scene, kind: type[ModelStore] = ModelStore
) -> tuple[ModelStore, ClaimUseCases, Silent, ClaimDelivery]:
    """Returns a process that met another one in a log whose home is elsewhere, and what was claimed there."""
    other = Silent()
    store, claims = scene.start(kind, other)
    scene.fill(1, 10)
    for process in (claims, scene.start(ModelStore)[1], claims):
        scene.claim(process, AWAY, 1)
        scene.let(SOON)
    assert len(scene.found) == 3
    return store, claims, other, scene.found[-1]


AWAY = replace(QUEUE, qid=2)
"""A queue whose only partition has its home at the second of two workers."""


def test_the_home_is_asked_by_who_was_refused() -> None:
    """A process that met another one asks the home, and does the work itself without an answer."""
    scene = Scene()
    _, claims, other, mine = claim_in_shared_log(scene)
    scene.claim(claims, AWAY, 1)
    begin(claims.core, claims.acknowledge(AWAY, [mine.receipt]), partial(scene.told, scene.settled))
    scene.let(SOON)
    assert [topic for topic, _ in other.asked] == [CLAIM_TOPIC, SETTLE_TOPIC]
    assert (len(scene.found), len(scene.settled)) == (3, 0)
    for _, answer in other.asked:
        answer(None)
    scene.let(SOON)
    assert (len(scene.found), len(scene.settled)) == (4, 1)
    scene.let(FORWARDING_SECONDS)
    scene.claim(claims, AWAY, 1)
    scene.let(SOON)
    assert (len(scene.found), len(other.asked)) == (5, 2)


def test_silence_is_doubt() -> None:
    """After a home gave no answer, a failure here does not mean that nothing was changed."""
    scene = Scene()
    failing, claims, other, mine = claim_in_shared_log(scene, Failing)
    assert isinstance(failing, Failing)
    errors: list[Exception | None] = []
    begin(claims.core, claims.acknowledge(AWAY, [mine.receipt]), lambda _settled, error: errors.append(error))
    scene.let(SOON)
    [(_, answer)] = other.asked
    failing.fails = True
    answer(None)
    scene.let(SOON)
    [error] = errors
    assert isinstance(error, StoreUnavailable)
    assert error.outcome == "unknown"
    scene.let(FORWARDING_SECONDS)
    begin(claims.core, claims.acknowledge(AWAY, [mine.receipt]), lambda _settled, error: errors.append(error))
    scene.let(SOON)
    assert isinstance(errors[1], StoreUnavailable)
    assert errors[1].outcome == "none"
