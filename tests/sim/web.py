"""A simulated process of the service: its claims, and the other workers of its service.

The workers of one service ask each other. Connections between them come and go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from queuey.claims.claims import ClaimUseCases
from queuey.claims.log.partition_log import SnapshotPolicy
from queuey.claims.rules.partition_state import ClaimTiming
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.runtime.waiters import Watchers
from queuey.runtime.workers import LOST_SECONDS, Answer, GiveUp, Topic, WorkerIdentity, Workers
from tests.harness.checking.claims import MAX_CLOCK_DIFFERENCE
from tests.sim.replicas import Faults, ModelStore, Replicas
from tests.sim.world import Process, SimulatedCore, World

UP_PROBABILITY = 0.95
"""Probability that a worker sees its connection to another one as up."""


@dataclass(frozen=True)
class Setup:
    """What is simulated, for tests that take a mechanism out."""

    timing: ClaimTiming = field(default_factory=lambda: ClaimTiming(margin=MAX_CLOCK_DIFFERENCE))
    limits: Limits = field(default_factory=Limits)
    replicas: Callable[[World, Faults], Replicas] = Replicas
    store: Callable[[Replicas, Process], ModelStore] = ModelStore
    core: Callable[[Process, float], SimulatedCore] = SimulatedCore
    kinds: tuple[str, ...] = ("plain", "plain", "dedup")
    failing: float = 0.0
    """Probability that a client's messages fail, half of them for good."""
    cancelling: float = 0.0
    """Probability that an operator cancels a client's message or makes it due at once."""
    unbegun: float = 0.0
    """Probability that a client releases messages before it has begun to work on them."""
    apart: float = MAX_CLOCK_DIFFERENCE
    """Max difference between two clocks, in seconds."""
    per_key: int = 0
    """``max_claimed_per_key`` of the queue."""
    share: int = 0
    """``max_claimed`` of the queue, divided by its partitions. With several partitions, one more for the first."""


class Web:
    """A web process with its claims. It restarts after a crash."""

    def __init__(self, world: World, replicas: Replicas, offset: float, setup: Setup) -> None:
        self.process = Process(world, offset)
        self.identity = WorkerIdentity("", 1)
        self.others: list[Web] = []
        """All workers of its service, including itself."""
        self._replicas = replicas
        self._setup = setup
        self.claims = self._start()

    def _start(self) -> ClaimUseCases:
        self.core = self._setup.core(self.process, self._replicas.faults.slow)
        self.watchers = Watchers()
        self.workers = SimulatedWorkers(self)
        store = self._setup.store(self._replicas, self.process).store
        with self.core.loop.running():
            store.adopt(self.core.loop)
        return ClaimUseCases(
            store,
            self._setup.limits,
            Metrics(),
            watchers=self.watchers,
            core=self.core,
            timing=self._setup.timing,
            upkeep=SnapshotPolicy(entries=6, most_entries=30, kept_entries=3, kept_seconds=1.0),
            workers=self.workers,
        )

    def crash(self) -> None:
        self.process.crash()
        self.claims = self._start()


class SimulatedWorkers(Workers):
    """The workers of one service. Questions and answers take time, and connections are lost.

    Args:
        web: The worker that asks.
    """

    def __init__(self, web: Web) -> None:
        super().__init__()
        self.identity = web.identity
        self._web = web

    def is_up(self, number: int) -> bool:
        return self._web.process.world.rng.random() < UP_PROBABILITY

    def ask(self, number: int, topic: Topic[Any, Any], question: object, answer: Answer[Any]) -> None:
        """Asks a worker. It may do what it is asked to although no answer arrives."""
        asking, asked = self._web.process, self._web.others[number - 1].process
        world, life, handlers = asking.world, asking.life, self._web.others[number - 1].workers._handlers
        content = topic.write(question)
        ended: list[bytes | None] = []
        under_way: list[GiveUp | None] = []

        def end(value: bytes | None) -> None:
            if not ended:
                ended.append(value)
                answer(topic.read(value))

        def answered(value: bytes | None) -> None:
            asking.soon(world.random_time(0.0005), lambda: end(value), life)

        def arrive() -> None:
            if not ended:
                under_way.append(handlers[topic.number](content, answered))

        def lose() -> None:
            if not ended:
                end(None)
                for give_up in filter(None, under_way):
                    asked.soon(world.random_time(0.0005), partial(_call, give_up))

        asked.soon(world.random_time(0.0005), arrive)
        asking.soon(world.rng.choice((0.001, 0.01, *[LOST_SECONDS] * 18)), lose)


def _call(function: Callable[[], object]) -> None:
    function()
