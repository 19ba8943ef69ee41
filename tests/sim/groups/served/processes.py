"""Processes of the service, and clocks that stop with their machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tests.sim.groups.loop import MemberLoop
from tests.sim.world import Process, SimulatedCore, World

T = TypeVar("T")
CHECKED = 0.3
"""Max seconds until a process notices that its clock is wrong."""


class Machine(Process):
    """A process on a machine of its own.

    Args:
        world: The simulated world.
        offset: Seconds by which its clock is ahead of the true time.

    Attributes:
        known: The offset as the process knows it.
        was_set: When the clock was last set (true time).
    """

    def __init__(self, world: World, offset: float) -> None:
        super().__init__(world, offset)
        self.known = self._usual = offset
        self.was_set = 0.0

    def stand(self, seconds: float) -> None:
        """Stops together with its clock, which is set some time later."""
        self.pause(seconds)
        self.offset -= seconds
        rng = self.world.rng
        self.world.after(seconds + rng.random() * CHECKED, self._learn_offset)
        self.world.after(seconds + 2 * CHECKED + self.world.random_time(1.0), self._reset)

    def _learn_offset(self) -> None:
        self.known = self.offset

    def _reset(self) -> None:
        self.offset, self.was_set = self._usual, self.world.now
        self.world.after(self.world.rng.random() * CHECKED, self._learn_offset)


class GroupCore(SimulatedCore):
    """The core of one life of a process.

    Args:
        process: The process of the core.
    """

    loops = MemberLoop

    def __init__(self, process: Machine) -> None:
        super().__init__(process, 0.0)

    async def run_in_pool(self, work: Callable[[], T]) -> T:
        """Does the work in a later turn of the loop."""
        await asyncio.sleep(0)
        return work()
