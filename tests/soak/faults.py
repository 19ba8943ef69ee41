"""Kills workers of services, whole services and Qdo workers, and pauses Cassandra nodes, in a random order."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from tests.soak.landscape import Landscape

REST = (3.0, 8.0)
"""Range of seconds between two faults."""
ABSENCE = (0.5, 6.0)
"""Range of seconds for which a process is dead or paused."""


class Faults(threading.Thread):
    """Performs faults until it is told to end. Then everything runs again."""

    def __init__(self, landscape: Landscape, seed: int) -> None:
        super().__init__(name="faults", daemon=True)
        self.counts = Counter[str]()
        self.failures: list[str] = []
        self._landscape = landscape
        self._rng = random.Random(f"{seed} faults")
        self._ended = threading.Event()

    def run(self) -> None:
        """Performs all faults, in a new order each round. An error ends them, and is recorded as a failure."""
        try:
            while True:
                faults = list(self._possible_faults())
                for kind, perform in self._rng.sample(faults, len(faults)):
                    if self._ended.wait(self._rng.uniform(*REST)):
                        return
                    perform()
                    self.counts[kind] += 1
        except Exception as error:  # noqa: BLE001 - it is reported in the end
            self.failures.append(f"faults ended: {error!r}")

    def end(self) -> None:
        self._ended.set()
        self.join(ABSENCE[1] + 200.0)  # includes the restart of a killed process

    def _possible_faults(self) -> Iterator[tuple[str, Callable[[], None]]]:
        landscape = self._landscape
        for service in landscape.services:
            yield "worker of a service killed", service.kill_worker
            yield "service killed", self._make_absence(service.kill, service.start)
        for worker in landscape.workers:
            yield "Qdo worker killed", self._make_absence(worker.kill, worker.start)
        node = self._rng.choice(landscape.nodes)
        yield "Cassandra node paused", self._make_absence(node.pause, node.resume)

    def _make_absence(self, begin: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
        """Returns a function that begins an absence and ends it after a while, or as soon as faults end."""

        def perform() -> None:
            begin()
            self._ended.wait(self._rng.uniform(*ABSENCE))
            end()

        return perform
