"""Processes of the service whose threads wait for the store, and clocks that stand still with their machine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from queuey.service.core import LoopCalls
from tests.sim.groups.loop import MemberLoop
from tests.sim.world import Process, SimulatedCore, World

T = TypeVar("T")
CHECKED = 0.3
"""Seconds within which a process finds that its clock is wrong."""


class Machine(Process):
    """A process on a machine of its own.

    Args:
        world: Where it runs.
        offset: Seconds that its clock is ahead of the true time.

    Attributes:
        known: What it knows of that.
        was_set: When it was set last (true time).
        standing: Threads that have not ended.
    """

    def __init__(self, world: World, offset: float) -> None:
        super().__init__(world, offset)
        self.known = self._usual = offset
        self.was_set = 0.0
        self.standing: set[greenlet] = set()

    def stand(self, seconds: float) -> None:
        """Stands still with its clock, which is set some time later."""
        self.pause(seconds)
        self.offset -= seconds
        rng = self.world.rng
        self.world.at(seconds + rng.random() * CHECKED, self._check)
        self.world.at(seconds + 2 * CHECKED + self.world.some(1.0), self._set)

    def _check(self) -> None:
        self.known = self.offset

    def _set(self) -> None:
        self.offset, self.was_set = self._usual, self.world.now
        self.world.at(self.world.rng.random() * CHECKED, self._check)

    def wait(self, seconds: float) -> None:
        """Has the thread that calls this wait."""
        thread = getcurrent()
        assert thread.parent is not None, "an event loop, or the test, would wait"
        self.soon(seconds, thread.switch)
        thread.parent.switch()

    def end(self) -> None:
        """Ends its threads where they stand."""
        for thread in self.standing:
            thread.throw(GreenletExit)
        self.standing.clear()


class GroupCore(SimulatedCore):
    """A core whose threads may wait, each at any call of the store.

    Args:
        process: Whose core this is.
    """

    def __init__(self, process: Machine) -> None:
        self._process: Machine = process
        self._loop = MemberLoop(process)  # type: ignore[abstract]  # much of it is not needed
        self._told = LoopCalls(self._loop)
        self.chance = process.world.rng

    async def in_thread(self, work: Callable[[], T]) -> T:
        """See the base class."""
        process, life = self._process, self._process.life
        ended = self._loop.create_future()

        def run() -> None:
            try:
                value, error = work(), None
            except Exception as raised:  # noqa: BLE001 - whoever waits is told
                value, error = None, raised
            process.standing.discard(thread)
            if process.life == life and not ended.done():
                if error is None:
                    ended.set_result(value)
                else:
                    ended.set_exception(error)

        thread = greenlet(run)
        process.standing.add(thread)
        process.soon(0.0, thread.switch, life)
        result: T = await ended
        return result

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """See the base class."""
        thread = getcurrent()
        assert thread.parent is not None, "an event loop, or the test, would wait"
        with self._loop.running():
            task = self._loop.create_task(work)
        task.add_done_callback(lambda _: self._process.soon(0.0, thread.switch))
        thread.parent.switch()
        result: T = task.result()  # bounded: it has ended
        return result
