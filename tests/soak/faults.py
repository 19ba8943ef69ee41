"""Kills workers of services, whole services and Qdo workers, and pauses nodes of Cassandra, in an order drawn anew."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from tests.soak.landscape import Landscape

REST = (3.0, 8.0)
"""Seconds between two faults."""
ABSENCE = (0.5, 6.0)
"""Seconds for which something is dead or paused."""


class Faults(threading.Thread):
    """Goes on until it is told to end; everything runs again then."""

    def __init__(self, landscape: Landscape, seed: int) -> None:
        super().__init__(name="faults", daemon=True)
        self.counts = Counter[str]()
        self.failures: list[str] = []
        self._landscape = landscape
        self._rng = random.Random(f"{seed} faults")
        self._ended = threading.Event()

    def run(self) -> None:
        """Performs all faults, in a new order each round."""
        try:
            while True:
                faults = list(self._possible())
                for kind, perform in self._rng.sample(faults, len(faults)):
                    if self._ended.wait(self._rng.uniform(*REST)):
                        return
                    perform()
                    self.counts[kind] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told in the end
            self.failures.append(f"faults ended: {error!r}")

    def end(self) -> None:
        """Waits until the present fault is over."""
        self._ended.set()
        self.join(ABSENCE[1] + 200.0)  # what was killed starts again meanwhile

    def _possible(self) -> Iterator[tuple[str, Callable[[], None]]]:
        found = self._landscape
        for service in found.services:
            yield "worker of a service killed", service.kill_worker
            yield "service killed", self._during(service.kill, service.start)
        for worker in found.workers:
            yield "Qdo worker killed", self._during(worker.kill, worker.start)
        node = self._rng.choice(found.nodes)
        yield "Cassandra node paused", self._during(node.pause, node.resume)

    def _during(self, begin: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
        def perform() -> None:
            begin()
            self._ended.wait(self._rng.uniform(*ABSENCE))
            end()

        return perform
