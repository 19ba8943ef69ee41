"""The messages in hand: gives them to handlers, and sees to what comes of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from random import random
from time import time
from typing import Protocol

from qdo import deadletters
from qdo.coordination import Note, Offset
from qdo.deadletters import Cause
from qdo.errors import QdoError, TimeLimit
from qdo.partitions import Partition
from qdo.worker.deciding import Again, Bury, End, Skip, decide
from qdo.worker.failure import Delivery, Failure, Ran, WorkerLost
from qdo.worker.hooks import Hooks
from qdo.worker.keys import key_by
from qdo.worker.lanes import Held, KeyedLane, Lane, OrderedLane, Run
from qdo.worker.loops import Control
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.pace import Pace
from qdo.worker.progress import Progress
from qdo.worker.reporting import report
from qdo.worker.running import Runner
from qdo.worker.settings import WorkerSettings
from qdo.worker.stays import Stay
from qdo.worker.suspicion import Suspicion
from queuey.client import AsyncClient, Message

logger = logging.getLogger("qdo.worker")

_HELD_RUNS = 5
"""So many times a batch may be held altogether; beyond that only single messages are fetched, for those who hold
none."""
_LONG = 60.0
"""Seconds for which a handler has had a message when the log says so first."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_STOPPING_SECONDS = 5.0
"""For a handler that was cancelled to end."""
_NOTING_SECONDS = 2.0
"""To record that nothing is in hand, before a partition is handed back."""


class Owned(Protocol):
    """What is known of the partitions that are handled; see :class:`qdo.consumer.AsyncConsumer`."""

    client: AsyncClient

    @property
    def connected(self) -> bool:
        """Whether they are surely owned."""

    def found(self, partition: Partition) -> Offset:
        """Returns what was recorded when it was taken."""

    async def note(self, partition: Partition, note: Note | None) -> None:
        """Notes what was begun of it."""

    def rejoin(self) -> None:
        """Hands everything back and joins again."""


class Handling:
    """Runs what is fed to it, as far as there are places, in turn between partitions.

    Args:
        runner: Where handlers run.
        owned: Knows of the partitions, and has the client that stores dead letters.
        progress: Told how far partitions are handled.
        settings: What to do with failures, and how much to take at once.
        hooks: Called when something fails.
        metrics: Counts.
        changed: Called when there may be room again.
        end: Called when the worker is to end, with the reason.
    """

    def __init__(
        self,
        runner: Runner,
        owned: Owned,
        progress: Progress,
        settings: WorkerSettings,
        hooks: Hooks,
        metrics: WorkerMetrics,
        *,
        changed: Callable[[], None],
        end: Callable[[End, Failure], None],
    ) -> None:
        self.busy: set[Partition] = set()
        """Partitions that are to get no more messages now."""
        self._runner = runner
        self._progress = progress
        self._settings = settings
        self._hooks = hooks
        self._metrics = metrics
        self._owned = owned
        self._changed = changed
        self._end = end
        self._key = key_by(settings.by) if settings.by is not None else None
        self._pace = Pace(settings.slice, settings.batch)
        self._stays: dict[Partition, Stay] = {}
        self._ghosts: dict[Stay, None] = {}
        self._line: deque[Stay] = deque()
        self._suspect: Stay | None = None
        """Of its messages one is in hand that nothing else that is suspected may be in hand beside."""
        self._only = False
        """Nothing else at all may be in hand beside it."""
        self._given: dict[Partition, asyncio.Task[None]] = {}
        """Partitions that go to others because a message of them is in hand for too long."""
        self._aside: list[Stay] = []
        """Those that wait for that to end."""
        self._running = 0
        self._held = 0
        self._halted = False

    @property
    def room(self) -> int:
        """How many messages are worth fetching now; 0: everybody has enough to do."""
        free = self._runner.slots - self._running
        if free <= 0 or self._halted or self._line:
            return 0
        return max(free, min(self._pace.messages * free, _HELD_RUNS * self._settings.batch - self._held))

    def feed(self, partition: Partition, messages: Sequence[Message]) -> None:
        """Takes messages that come after those taken before."""
        stay = self._stays.get(partition)
        if stay is None:
            found, settings = self._owned.found(partition), self._settings
            suspicion = Suspicion(found, settings.commit_messages, settings.retry.attempts)
            ordered = OrderedLane() if not suspicion.over else self._new_lane()
            stay = Stay(partition, ordered, self._ghost_ended, None if suspicion.over else suspicion)
            self._stays[partition] = stay
        elif stay.suspicion is not None and stay.suspicion.over and not stay.lane.count:
            stay.suspicion, stay.lane = None, self._new_lane()
        stay.lane.add(messages)
        self._held += len(messages)
        self._queue(stay)

    def dispatch(self) -> None:
        """Begins as many runs as there are places for, as long as the partitions are surely ours."""
        while self._line and self._running < self._runner.slots and not self._halted and self._owned.connected:
            if self._only:
                return
            stay = self._line.popleft()
            suspect = stay.suspect if stay.open else None
            if suspect is not None:
                if self._suspect is not None:
                    self._aside.append(stay)
                    continue
                last = stay.suspicion is not None and stay.suspicion.last(suspect)
                if last and any(each.runs for each in self._stays.values()):
                    self._line.appendleft(stay)  # nothing else begins before it can be the only one
                    return
                self._suspect, self._only = stay, last
                stay.charge(suspect)
            stay.queued = False
            run = stay.lane.take(1 if suspect is not None else self._pace.messages) if stay.open else None
            if run is not None:
                self._begin(stay, run)
                self._queue(stay)

    def halt(self) -> None:
        """Begins nothing more; what runs ends after its message in hand."""
        self._halted = True
        for stay in self._stays.values():
            stay.halt()

    def resume(self) -> None:
        """Goes on."""
        self._halted = False
        self.dispatch()
        self._changed()

    def glance(self) -> None:
        """Notes how far runs have come that go on, so that what they have handled need not wait for their ends.

        Of messages that are told apart by keys that cannot be said while their run goes on. Handlers that do not come
        to an end are named in the log after a minute, and again each time that this has doubled.
        """
        now = asyncio.get_running_loop().time()
        runs = [
            (stay, control, run)
            for stay in (*self._stays.values(), *self._ghosts)
            for control, run in stay.runs.items()
        ]
        ages = [self._age(*each, now) for each in runs]
        self._metrics.oldest = max(ages, default=0.0)
        for (stay, control, run), age in zip(runs, ages, strict=True):
            if age >= self._settings.stalled_after and not control.stray and control.handled < len(run.messages):
                self._stalled(stay, control, run, age)
        if self._key is not None:
            return
        for stay in self._stays.values():
            for control, run in stay.runs.items():
                if control.handled:
                    self._note(stay, run.messages[control.handled - 1].id, 0)

    def stop(self) -> None:
        """Begins nothing new of what it has, but for what fills gaps; :meth:`close` follows for each partition."""
        self._shut(self._stays.values())

    @staticmethod
    def _age(stay: Stay, control: Control, run: Run, now: float) -> float:
        """Returns for how long a run has had its message in hand, as far as one can see; logs it if that is long."""
        if control.handled != control.seen or not control.begun:
            control.seen, control.since, control.told = control.handled, now, 0.0
        age = now - control.since
        if age >= max(_LONG, 2 * control.told) and control.seen < len(run.messages):
            control.told = age
            message = run.messages[control.seen]
            logger.warning(
                "a handler has had message %s of %s in hand for %.0f s",
                message.id,
                stay.partition,
                age,
                extra={
                    "queue": stay.partition.queue.name,
                    "partition": stay.partition.number,
                    "message_id": message.id,
                },
            )
        return age

    def _stalled(self, stay: Stay, control: Control, run: Run, age: float) -> None:
        """A message is in hand for too long: has its handler stopped, or gives its partition to somebody else.

        Of a partition that is being handed back, or is somebody else's by now, it only makes room for other messages.
        """
        again = control.abandoned == control.handled
        if again and age < self._settings.stalled_after + _STOPPING_SECONDS:
            return
        control.abandoned = control.handled
        if self._runner.abandon(control) and not again:
            return
        control.stray = True
        if stay.closed:
            self.dispatch()
            self._changed()
            return
        stay.close()
        task = asyncio.get_running_loop().create_task(self._give_away(stay, control, run))
        self._given[stay.partition] = task

    async def _give_away(self, stay: Stay, control: Control, run: Run) -> None:
        """Notes that a message was in hand for too long, and leaves the group to join again."""
        message, place = run.messages[control.handled], Delivery(stay.partition, run.attempt)
        failure = self._too_long()
        report(logging.ERROR, place, message, failure, "cannot be stopped, so its partition goes to others: %s")
        self._metrics.count("failed", stay.partition.queue.name)
        self._hooks.call("failed", message, place, failure)
        self._settle_begun(stay)
        try:
            await self._owned.note(stay.partition, Note(message.id, run.attempt - 1, alone=True, last=True))
        except QdoError as error:
            logger.warning("what was in hand of %s could not be noted: %s", stay.partition, error)
        if not stay.void:  # else it went to others meanwhile, and this is another session perhaps
            self._remove([stay])
            self._owned.rejoin()

    def _too_long(self) -> Failure:
        return Failure.of(TimeLimit(f"the handler did not come to an end in {self._settings.stalled_after:g} s"))

    async def close(self, partitions: Collection[Partition] | None, deadline: float) -> bool:
        """Finishes what is in hand of some partitions, or of all; they count as handled as far as they came.

        Args:
            partitions: Which; None: all.
            deadline: Of the loop's clock. What is not finished then counts for nothing.

        Returns:
            Whether all of it was finished.
        """
        stays = [stay for stay in self._stays.values() if partitions is None or stay.partition in partitions]
        self._shut(stays)
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(self._finish(stay) for stay in stays))
        except TimeoutError:
            if late := [str(stay.partition) for stay in stays if not stay.quiet]:
                text = "messages in hand were not finished in time: %s"
                logger.warning(text, ", ".join(late), extra={"partitions": late})
        unfinished = [stay for stay in stays if not stay.quiet and not stay.void]
        for stay in unfinished:
            self._settle_begun(stay)
        await self._take_notes_back(stays)
        self._remove(stays)
        self._readmit(partitions)
        return not unfinished

    async def until_ended(self, deadline: float) -> None:
        """Waits for what is still running though it counts for nothing, until a deadline of the loop's clock."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for stay in list(self._ghosts):
                    await stay.until_quiet()

    def void(self, partitions: Collection[Partition]) -> bool:
        """Lets nothing count any more that is in hand of some partitions; returns whether there was anything."""
        stays = [stay for stay in self._stays.values() if stay.partition in partitions]
        in_hand = not all(stay.quiet for stay in stays)
        self._remove(stays)
        self._readmit(partitions)
        return in_hand

    def _readmit(self, partitions: Collection[Partition] | None) -> None:
        """Takes messages again, once they are ours again, of partitions that were given away."""
        for partition in list(self._given):
            if partitions is None or partition in partitions:
                del self._given[partition]
                self.busy.discard(partition)
                self._changed()

    def _shut(self, stays: Iterable[Stay]) -> None:
        for stay in stays:
            stay.close()
            self.busy.add(stay.partition)

    async def _finish(self, stay: Stay) -> None:
        """Waits for what is in hand, then has the gaps filled that it has left."""
        await stay.until_quiet()
        before = stay.lane.count
        more = not self._halted and stay.fill()
        self._held -= before - stay.lane.count  # what was dropped is held no more
        if more:
            self._queue(stay)
            self.dispatch()
            await stay.until_quiet()

    def _settle_begun(self, stay: Stay) -> None:
        """Counts what runs have handled that did not end in time."""
        for control, run in stay.runs.items():
            before = stay.lane.count
            stay.lane.settle(run, control.handled)
            self._grown(stay, before)

    def _remove(self, stays: Collection[Stay]) -> None:
        """Forgets partitions; those of which something is in hand stay busy until that has ended."""
        for stay in stays:
            if self._stays.get(stay.partition) is not stay:
                continue
            del self._stays[stay.partition]
            self._held -= stay.lane.count
            stay.cancel()
            self._cleared(stay)
            if stay.quiet:
                self.busy.discard(stay.partition)
            else:
                self._ghosts[stay] = None
                self.busy.add(stay.partition)
        if stays:
            # Others may have waited for what was in hand of these.
            self.dispatch()
            self._changed()

    def _ghost_ended(self, stay: Stay) -> None:
        """Its partition may get messages again, if it is ours again."""
        if stay in self._ghosts:
            del self._ghosts[stay]
            self.busy.discard(stay.partition)
            self._changed()

    def _new_lane(self) -> Lane:
        if self._key is None:
            return OrderedLane()
        return KeyedLane(self._key, self._settings.parallel, self._settings.window)

    def _queue(self, stay: Stay) -> None:
        """Puts a partition in the line, and says whether it wants more messages."""
        if stay.open and not stay.queued:
            stay.queued = True
            self._line.append(stay)
        if stay.closed or stay.lane.full:
            self.busy.add(stay.partition)
        else:
            self.busy.discard(stay.partition)

    def _begin(self, stay: Stay, run: Run) -> None:
        control = Control()
        control.since = asyncio.get_running_loop().time()
        stay.begin(control, run)
        self._running += 1
        self._metrics.in_flight = self._running
        future: asyncio.Future[Ran]
        if stay.suspicion is None:
            future = self._runner.start(run, Delivery(stay.partition, run.attempt), control)
        else:
            future = asyncio.get_running_loop().create_task(self._run_noted(stay, stay.suspicion, run, control))
        future.add_done_callback(partial(self._ended, stay, run, control))

    async def _run_noted(self, stay: Stay, suspicion: Suspicion, run: Run, control: Control) -> Ran:
        """Runs messages of a partition that was lost before, with a note of them for whoever has it next."""
        if run.attempt <= (lost := suspicion.lost(run.messages[0])):  # a guilty one; see Stay.charge
            return Ran(0, Failure.of(WorkerLost(f"{lost} times a worker was lost that had it in hand")))
        note, ran = suspicion.note(run.messages), Ran(0)
        try:
            await self._owned.note(stay.partition, note)
            if not (stay.void or control.halt):
                ran = await self._runner.start(run, Delivery(stay.partition, run.attempt), control)
                control.begun = False
                suspicion.handled(ran.handled)
            if note.alone and not stay.void:
                end = note.until if ran.handled else None
                await self._owned.note(stay.partition, suspicion.restored(end))
        except QdoError as error:
            logger.warning("what is in hand of %s cannot be noted: %s", stay.partition, error)
        return ran

    def _ended(self, stay: Stay, run: Run, control: Control, future: asyncio.Future[Ran]) -> None:
        """A run has ended; nobody but the worker's log would hear of an error here."""
        try:
            self._take_back(stay, run, control, _outcome(future))
        except Exception as error:
            logger.critical("ends by an error of its own", exc_info=error)
            self._end(End("error"), Failure.of(error))

    def _take_back(self, stay: Stay, run: Run, control: Control, ran: Ran) -> None:
        self._running -= 1
        self._metrics.in_flight = self._running
        self._cleared(stay)
        self._metrics.ran(stay.partition.queue.name, ran)
        self._pace.ran(ran.handled, ran.seconds + sum(ran.slow))
        if control.abandoned == ran.handled and ran.failure is None:
            ran = ran._replace(failure=self._too_long())
        if not stay.void:
            self._settle(stay, run, ran)
        stay.ended(control)
        self.dispatch()
        self._changed()

    def _cleared(self, stay: Stay) -> None:
        """Of a partition nothing is in hand any more that no other suspect may be in hand beside."""
        if self._suspect is stay:
            self._suspect, self._only = None, False
            self._line.extend(self._aside)
            self._aside.clear()

    async def _take_notes_back(self, stays: Iterable[Stay]) -> None:
        """Restores what was noted of partitions that are handed back: being handed over is no fault of a message."""
        left = [
            self._owned.note(stay.partition, stay.suspicion.restored(stay.lane.end))
            for stay in stays
            if stay.suspicion is not None and not stay.void and stay.suspicion.stale(stay.lane.end)
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTING_SECONDS):
                for failed in await asyncio.gather(*left, return_exceptions=True):
                    if isinstance(failed, Exception):
                        logger.warning("what was in hand could not be noted: %s", failed)

    def _settle(self, stay: Stay, run: Run, ran: Ran) -> None:
        failure = ran.failure
        failed = failure is not None and ran.handled < len(run.messages)
        before = stay.lane.count
        held = stay.lane.settle(run, ran.handled, failed=failed)
        self._grown(stay, before)
        if failure is not None and held is not None:
            self._failed(stay, held, failure)
        elif failure is not None and failure.effect == "exit":
            # Of no message: when all of them were handled and their process died then, they count, and another follows.
            self._end(End("error"), failure)
        self._queue(stay)

    def _grown(self, stay: Stay, before: int) -> None:
        """Notes how far a partition is handled, if that is further than it was."""
        done = before - stay.lane.count
        self._held -= done
        if stay.lane.end is not None:
            self._note(stay, stay.lane.end, done)

    def _note(self, stay: Stay, end: str, done: int) -> None:
        if end != stay.recorded:
            stay.recorded = end
            self._progress.note(stay.partition, end, done)

    def _failed(self, stay: Stay, held: Held, failure: Failure) -> None:
        """An attempt has failed: decides what becomes of the message."""
        place = Delivery(stay.partition, held.attempt)
        queue = stay.partition.queue.name
        decision = decide(self._settings, queue, failure, held.attempt, random())  # noqa: S311 - spreads load
        if not isinstance(decision, End) or decision.why == "message":
            self._metrics.count("failed", queue)
            self._hooks.call("failed", held.message, place, failure)
        match decision:
            case End(why):
                if why != "asked":
                    report(logging.CRITICAL, place, held.message, failure, "ends the worker: %s")
                self._end(decision, failure)
            case Again(seconds):
                self._metrics.count("retried", queue)
                self._hooks.call("retrying", held.message, place, failure, seconds)
                text = "attempt %d failed, the next in %.1f s: %s"
                report(logging.WARNING, place, held.message, failure, text, held.attempt, seconds)
                if not stay.closed:
                    self._retry_later(stay, held, seconds)
            case Skip(reason):
                text = "given up after %d attempts and passed over, as %s: %s"
                report(logging.ERROR, place, held.message, failure, text, held.attempt, reason)
                self._gone(stay, held, failure, "skipped")
            case Bury():
                stay.bury(asyncio.get_running_loop().create_task(self._bury(stay, held, failure)))

    def _retry_later(self, stay: Stay, held: Held, seconds: float) -> None:
        def again() -> None:
            stay.came(timer)
            stay.lane.again(held)
            self._queue(stay)
            self.dispatch()
            self._changed()

        timer = asyncio.get_running_loop().call_later(seconds, again)
        stay.later(timer)

    async def _bury(self, stay: Stay, held: Held, failure: Failure) -> None:
        """Publishes a dead letter, until that succeeds or the partition is to be handed back."""
        queue, place = stay.partition.queue.name, Delivery(stay.partition, held.attempt)
        cause = Cause(attempts=held.attempt, error=failure.kind, text=failure.text, at=time())
        dead_queue, ttl = self._settings.dead_queue, self._settings.dead_ttl
        for doublings in count():
            try:
                target = await deadletters.bury(
                    self._owned.client, queue, held.message, cause, dead_queue=dead_queue, ttl=ttl
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, the message must not be lost for it
                self._metrics.note("dead_letter_failures")
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(doublings, 10))
                text = "its dead letter could not be stored (%s), next attempt in %g s: %s"
                report(logging.ERROR, place, held.message, failure, text, error, pause)
                if not await stay.pause(pause):
                    return
            else:
                break
        text = "given up after %d attempts, now in %s: %s"
        report(logging.ERROR, place, held.message, failure, text, held.attempt, target)
        self._gone(stay, held, failure, "dead")
        self._queue(stay)
        self.dispatch()
        self._changed()

    def _gone(self, stay: Stay, held: Held, failure: Failure, how: str) -> None:
        """A message was given up: goes on behind it."""
        self._metrics.count(how, stay.partition.queue.name)
        self._hooks.call("dead", held.message, Delivery(stay.partition, held.attempt), failure)
        before = stay.lane.count
        stay.lane.finish(held)
        self._grown(stay, before)


def _outcome(future: asyncio.Future[Ran]) -> Ran:
    """Returns how a run ended, also if that went wrong: then nothing of it counts."""
    if future.cancelled():
        return Ran(0)
    error = future.exception()
    if error is None:
        return future.result()
    logger.critical("a run ended by an error of the worker's own", exc_info=error)
    failure = Failure.of(error)
    return Ran(0, Failure(failure.kind, failure.text, failure.trace, failure.kinds, "exit"))
