"""The work of this worker on one partition, from its first message until it is handed back or lost.

::

    open ──close──► closed ◄──fill──► filling
      │               │                  │
      └───────────────┴──────cancel──────┴──► lost, or handed over

closed       Messages in flight are finished and count; no other begins.
filling      Messages before a done one are handled, so that the done one need not be repeated elsewhere. One that
             failed is tried again if its time comes soon enough.
lost         Results do not count. A thread cannot be stopped: the partition takes no messages here until it has ended,
             or its message has failed because it takes too long.
handed over  Likewise, because a handler does not end, and until the partition has gone; then it is lost.

**Suspicion.** A message that crashes its worker, or holds it up until its session ends, leaves no error. So that it
does not end every worker in turn, the offset's record says whether the owner before released the partition. This costs
nothing while no session is lost::

    ordinary ──lost──► watched ──lost with a run──► suspected ──lost, and again──► last attempt ──lost──► given up
        ▲                │  ▲                           │                              │
        └─enough handled─┘  └───────────ended───────────┴──────────────────────────────┘

ordinary      Only offsets are recorded.
watched       One write before each run records the offset, the last message of the run, and how many sessions are lost
              if this one is, too. Runs are as long as ever. It ends after as many messages as could be in flight.
suspected     The messages of a run that was lost are handled one by one, other partitions beside them. The note is then
              about a single message: another loss is an attempt at it, together with those before.
last attempt  The worker handles nothing else, and the note says so. When the message has ended, that is recorded before
              another one begins.

Several partitions of a worker may have a suspected message, and one of them is the cause: a message is given up only if
it is lost when it is the only one. An owner that hands the partition back records the note without its own attempt. The
next owner goes on from there: being handed over costs no attempt, and does not end the watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from qdo.coordination import CommittedOffset, HandlingNote
from qdo.partitions import Partition
from qdo.tasks import happens
from qdo.worker.partition_queue import FailedMessage, PartitionQueue
from qdo.worker.runs import MessageRun
from queuey.client import Message, order_of


class CrashSuspicion:
    """The suspicion about one partition while one worker owns it. Pure: it decides and does nothing.

    Args:
        found: The offset when the partition was taken.
        first: The message behind that offset.
        watch: Number of messages that are watched.
        attempts: Max attempts at a message; 0: no limit.
    """

    def __init__(self, found: CommittedOffset, first: Message, watch: int, attempts: int) -> None:
        self._found = found.note
        self._single = found.note is not None and (found.note.last or found.note.until == first.id)
        self._left = watch if found.held or found.note is not None else 0
        self._attempts = attempts
        self._begun: Sequence[Message] = ()

    @property
    def over(self) -> bool:
        return self._left <= 0

    def suspected(self, message: Message) -> bool:
        """Returns True for a message that may have been in flight when a session was lost that had noted it."""
        found = self._found
        return found is not None and found.lost > 0 and order_of(message.id) <= order_of(found.until)

    def lost(self, message: Message) -> int:
        """Returns how many attempts at a message have ended with their worker, as far as known."""
        found = self._found
        return found.lost if found is not None and self._single and found.until == message.id else 0

    def attempt(self, message: Message) -> int:
        """Returns the number of the next attempt, or of the last one if the message is given up."""
        lost = self.lost(message)
        given_up = self._found is not None and self._found.last and 0 < self._attempts <= lost
        return lost if given_up else lost + 1

    def last(self, message: Message) -> bool:
        """Returns True if the worker may handle nothing else beside this message."""
        return self.suspected(message) and 0 < self._attempts <= self._lost_before(message) + 1

    def begin(self, messages: Sequence[Message]) -> HandlingNote:
        """Returns the note to record before these messages begin."""
        self._begun = messages
        return HandlingNote(messages[-1].id, self._lost_before(messages[0]) + 1, self.last(messages[0]))

    def handled(self, messages: int) -> None:
        self._left -= messages

    def ended(self) -> HandlingNote | None:
        """Returns the note to record when no message is being handled."""
        if self.over:
            return None
        if not self._begun or self.suspected(self._begun[0]):
            return self._found
        return HandlingNote(self._begun[-1].id, 0)

    def _lost_before(self, message: Message) -> int:
        """Returns the number of lost sessions, the one that caused the watch included."""
        return self._found.lost if self._found is not None and self.suspected(message) else 1


WorkState = Literal["open", "closed", "filling", "lost", "handed over"]


class PartitionWork:
    """The work on one partition; its states are those of the module.

    Args:
        partition: The partition.
        partition_queue: Its messages.
        ended: Called, perhaps twice, when its results do not count and none of its messages is in flight any more.
        suspicion: None: the partition is not watched.

    Attributes:
        queued: It waits for a handler.
        handing_over: Releases the partition because of a handler that cannot be stopped; None: nothing does.
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
        self.state: WorkState = "open"
        self.queued = False
        self.handing_over: asyncio.Task[None] | None = None
        self.recorded: str | None = None
        """The partition queue's end when it was last noted."""
        self.runs: dict[MessageRun, None] = {}
        self._ended = ended
        self._timers: dict[asyncio.TimerHandle, FailedMessage] = {}
        self._deadline = float("inf")
        self._dead_letters: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def open(self) -> bool:
        """Messages may begin."""
        return self.state in {"open", "filling"}

    @property
    def discarded(self) -> bool:
        """Results do not count."""
        return self.state in {"lost", "handed over"}

    @property
    def wants_more(self) -> bool:
        return self.state == "open" and not self.partition_queue.full

    @property
    def quiet(self) -> bool:
        """No message is in flight."""
        return self._quiet.is_set()

    @property
    def unfinished(self) -> bool:
        """Messages that were handled, or are in flight, will be handled again if the work ends now."""
        return not self.quiet or self.partition_queue.done_behind

    @property
    def alone(self) -> bool:
        """No other message may be handled beside the next one."""
        first = None if self.suspicion is None else self.partition_queue.first
        return self.suspicion is not None and first is not None and self.open and self.suspicion.last(first)

    def take(self, most: int) -> MessageRun | None:
        suspicion = self.suspicion
        if suspicion is not None and (first := self.partition_queue.first) is not None:
            most = 1 if suspicion.suspected(first) else most
        run = self.partition_queue.take(most) if self.open else None
        if run is not None:
            if suspicion is not None:
                run.attempt = max(run.attempt, suspicion.attempt(run.messages[0]))
            self.runs[run] = None
            self._quiet.clear()
        return run

    def settle(self, run: MessageRun, handled: int, *, failed: bool) -> FailedMessage | None:
        """Records how a run ended; :meth:`update_quiet` follows when its failure has been dealt with."""
        self.runs.pop(run, None)
        if self.discarded or run.settled:
            return None
        return self.partition_queue.settle(run, handled, failed=failed)

    def add_timer(self, timer: asyncio.TimerHandle, held: FailedMessage) -> None:
        """Holds a failed message until a timer fires; leaves it if that is too late."""
        self._timers[timer] = held
        if self.state == "filling":
            self._keep_gap_fillers()

    def timer_fired(self, timer: asyncio.TimerHandle) -> None:
        del self._timers[timer]

    def leave(self, held: FailedMessage) -> None:
        self.partition_queue.leave(held)
        if self.state == "filling":
            self._keep_gap_fillers()

    def dead_letter(self, task: asyncio.Task[None]) -> None:
        """A dead letter is being published; its message counts as in flight."""
        self._dead_letters.add(task)
        self._quiet.clear()
        task.add_done_callback(self._buried)

    def halt(self) -> None:
        for run in self.runs:
            run.stop()

    def close(self) -> None:
        """Nothing new begins."""
        if self.state == "open":
            self.state = "closed"
        self._closing.set()
        self.halt()

    def fill(self, deadline: float) -> bool:
        """Handles the gaps; returns False if there are none. Until the gaps are filled, it is not quiet.

        Called when it was quiet; another task that waited for that may have called it since. Messages that would be
        tried again after the deadline (of the loop's clock) are left.
        """
        if self.quiet and not self.discarded:
            self._deadline = deadline
            self.state = "filling" if self._keep_gap_fillers() else "closed"
            if self.state == "filling":
                self._quiet.clear()
        return self.state == "filling"

    def _keep_gap_fillers(self) -> bool:
        """Drops messages outside the gaps, and those whose retry is after the deadline; returns whether any is left."""
        for timer, held in self._timers.items():
            if timer.when() > self._deadline:
                self.partition_queue.leave(held)
        gaps = self.partition_queue.keep_gap_fillers()
        for timer in [timer for timer, held in self._timers.items() if held.message.id not in gaps]:
            timer.cancel()
            del self._timers[timer]
        return self.partition_queue.waiting or bool(self._timers)

    def cancel(self) -> None:
        """Nothing counts from now on."""
        self.close()
        self.state = "lost" if self.handing_over is None else "handed over"
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for task in self._dead_letters:
            task.cancel()
        self.update_quiet()

    async def until_quiet(self) -> None:
        await self._quiet.wait()

    async def pause(self, seconds: float) -> bool:
        """Waits; returns False, at once, when the work is closed."""
        return not await happens(self._closing, seconds)

    def _buried(self, task: asyncio.Task[None]) -> None:
        self._dead_letters.discard(task)
        self.update_quiet()

    def update_quiet(self) -> None:
        if self.state == "filling" and (self.partition_queue.waiting or self._timers):
            return
        if not self.runs and not self._dead_letters:
            self._quiet.set()
            if self.discarded:
                self._ended(self)
