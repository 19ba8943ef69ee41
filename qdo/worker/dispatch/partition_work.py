"""The work of this worker on one partition, from its first message until it is handed back or lost.

::

    open ──close (handed back, drained)──► closed ──void (lost, out of time)──► void
      └────────────────────void───────────────────────────────────────────────────▲

Closed: what is in hand is finished and counts; then only what lies before something that is done, so that this need
not be done again elsewhere. Void: it may still run, for nobody can stop a thread, but what comes of it counts for
nothing, and the partition takes no other messages here until it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from qdo.partitions import Partition
from qdo.worker.dispatch.crash_suspicion import CrashSuspicion
from qdo.worker.dispatch.partition_queue import MessageRun, OrderedQueue, PartitionQueue
from qdo.worker.executors.run_handler import RunControl
from queuey.client import Message


class PartitionWork:
    """What goes on for one partition.

    Args:
        partition: The partition.
        partition_queue: Its messages.
        ended: Called when it is void and nothing of it is in hand any more.
        suspicion: Of messages that were in hand when a session was lost; None: there is none.

    Attributes:
        closed: Nothing new begins, but for what fills gaps.
        filling: Before messages that are done there are some that are not, and those are handled yet.
        void: Nothing counts.
        queued: It is in the line of those that have something to do.
    """

    def __init__(
        self,
        partition: Partition,
        partition_queue: PartitionQueue,
        ended: Callable[[PartitionWork], None],
        suspicion: CrashSuspicion | None = None,
    ) -> None:
        self.partition = partition
        self.partition_queue = partition_queue
        self.suspicion = suspicion
        self.closed = False
        self.filling = False
        self.void = False
        self.queued = False
        self.recorded: str | None = None
        """The partition queue's end when it was last noted."""
        self.runs: dict[RunControl, MessageRun] = {}
        """What is running."""
        self._ended = ended
        self._timers: set[asyncio.TimerHandle] = set()
        self._dead_letters: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def open(self) -> bool:
        """Whether anything of it may begin."""
        return not self.void and (self.filling or not self.closed)

    @property
    def quiet(self) -> bool:
        """Whether nothing is in hand."""
        return self._quiet.is_set()

    @property
    def suspect(self) -> Message | None:
        """Its next message, if no other suspect is to be in hand beside it."""
        first = self.partition_queue.first if isinstance(self.partition_queue, OrderedQueue) else None
        return first if first is not None and self.suspicion is not None and self.suspicion.narrowed(first) else None

    def charge(self, suspect: Message) -> None:
        """Counts the attempts of its next message that ended with their session; a guilty one is still at the last."""
        assert self.suspicion is not None  # noqa: S101 - there is a suspect
        assert isinstance(self.partition_queue, OrderedQueue)  # noqa: S101 - likewise
        if lost := self.suspicion.lost(suspect):
            self.partition_queue.charge(lost - self.suspicion.guilty(suspect))

    def begin(self, control: RunControl, run: MessageRun) -> None:
        """A run begins."""
        self.runs[control] = run
        self._quiet.clear()

    def ended(self, control: RunControl) -> None:
        """A run has ended."""
        self.runs.pop(control, None)
        self._settle()

    def later(self, timer: asyncio.TimerHandle) -> None:
        """Something is to be tried again then."""
        self._timers.add(timer)

    def came(self, timer: asyncio.TimerHandle) -> None:
        """That time has come."""
        self._timers.discard(timer)

    def dead_letter(self, task: asyncio.Task[None]) -> None:
        """A dead letter is being published, which counts as in hand."""
        self._dead_letters.add(task)
        self._quiet.clear()
        task.add_done_callback(self._buried)

    def halt(self) -> None:
        """Runs end after their message in hand."""
        for control in self.runs:
            control.stop()

    def close(self) -> None:
        """Nothing new begins."""
        self.closed = True
        self._closing.set()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.halt()

    def fill(self) -> bool:
        """Lets the gaps be filled, if there are any; until then it is not quiet.

        To be called when it was quiet; somebody else who waited for that may have called it since.
        """
        if self.quiet:
            self.filling = not self.void and self.partition_queue.narrow()
            if self.filling:
                self._quiet.clear()
        return self.filling

    def cancel(self) -> None:
        """Nothing counts from now on."""
        self.close()
        self.void = True
        for task in self._dead_letters:
            task.cancel()
        self._settle()

    async def until_quiet(self) -> None:
        """Waits until nothing is in hand."""
        await self._quiet.wait()

    async def pause(self, seconds: float) -> bool:
        """Waits; returns False, and at once, if it is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return True
        return False

    def _buried(self, task: asyncio.Task[None]) -> None:
        self._dead_letters.discard(task)
        self._settle()

    def _settle(self) -> None:
        if self.filling and not self.void and self.partition_queue.waiting:
            return
        if not self.runs and not self._dead_letters:
            self._quiet.set()
            if self.void:
                self._ended(self)
