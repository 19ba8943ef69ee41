"""Simulated time, and processes in it: clocks that differ, threads that take their time, pauses and crashes."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from queuey.service.claims.runtime import Done, Runtime

Work = Callable[[], None]


class World:
    """The true time, and what happens when.

    Args:
        seed: Of all chance.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        """True seconds since 1970."""
        self._events: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()

    def at(self, seconds: float, work: Work) -> None:
        """Has something happen after so many seconds."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), work))

    def run(self, until: float) -> None:
        """Has everything happen that is to, up to a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, work = heapq.heappop(self._events)
            work()
        self.now = until

    def some(self, mean: float) -> float:
        """Returns a random time: mostly short, seldom very long."""
        return self.rng.expovariate(1 / mean)


class Process:
    """A web process: what it has begun ends with it.

    Args:
        world: Where it runs.
        offset: Seconds that its clock is ahead of the true time.
    """

    def __init__(self, world: World, offset: float) -> None:
        self.world = world
        self.offset = offset
        self.life = 0
        self._paused_until = 0.0

    def clock(self) -> float:
        """Its wall clock (seconds since 1970)."""
        return self.world.now + self.offset

    def soon(self, seconds: float, work: Work, life: int | None = None) -> None:
        """Does something after so many seconds, if it lives then; a pause puts it off.

        Args:
            seconds: Of true time.
            work: What.
            life: Which of its lives has begun this; None: the present one.
        """
        if life is None:
            life = self.life

        def run() -> None:
            if self.life != life:
                return
            if self.world.now < self._paused_until:
                self.world.at(self._paused_until - self.world.now, run)
                return
            work()

        self.world.at(seconds, run)

    def pause(self, seconds: float) -> None:
        """Stands still, as after SIGSTOP."""
        self._paused_until = max(self._paused_until, self.world.now + seconds)

    def crash(self) -> None:
        """Forgets everything that it has begun."""
        self.life += 1


class SimulatedRuntime(Runtime):
    """The runtime of a simulated process."""

    def __init__(self, process: Process, delay: float) -> None:
        self._process = process
        self._delay = delay

    def now(self) -> int:
        """See the base class."""
        return int(self._process.clock() * 1000)

    def boottime(self) -> float:
        """See the base class."""
        return self._process.world.now

    def submit(self, work: Work) -> None:
        """See the base class."""
        self._process.soon(self._process.world.rng.random() * 0.002, work)

    def later(self, seconds: float, work: Work) -> Work:
        """See the base class."""
        pending = [work]

        def run() -> None:
            for one in pending:
                one()

        self._process.soon(seconds, run)
        return pending.clear

    def block(self, work: Callable[[], Any], done: Done) -> None:
        """See the base class. The work is done at one moment on its way."""
        process, life = self._process, self._process.life

        def run() -> None:
            try:
                result, failure = work(), None
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                result, failure = None, error
            process.soon(process.world.some(self._delay), lambda: done(result, failure), life)

        process.soon(process.world.some(self._delay), run)

    def token(self) -> int:
        """See the base class."""
        return self._process.world.rng.getrandbits(63)

    def jitter(self) -> float:
        """See the base class."""
        return self._process.world.rng.random()
