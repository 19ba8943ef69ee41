"""Runs the messages of a group's partitions in handlers, and records the results."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import CoordinationLost, InvalidArgument, QdoError
from qdo.group.callbacks import PartitionListener
from qdo.group.offsets import PartitionOwnership
from qdo.group.records import HandlingNote
from qdo.loops import wait_for_event
from qdo.partitions import Partition
from qdo.settings import key_by
from qdo.worker.crash_suspicion import CrashSuspicion, HungAttempts
from qdo.worker.failure import (
    DeadLetterIt,
    ExitCode,
    Failure,
    RetryLater,
    RunResult,
    SkipMessage,
    StopTheWorker,
    WorkerLost,
)
from qdo.worker.partition_work import FailedMessage, KeyedQueue, OrderedQueue, PartitionWork
from qdo.worker.rights import require_rights
from qdo.worker.runs import BatchSize, Delivery, MessageRun, RunTracker, fail_overdue
from qdo.worker.sources import REFUSED_PAUSE_SECONDS, Handling, OwnershipReports, end_if_refused
from queuey.client import ClientError, Message

logger = logging.getLogger("qdo.worker")

_MAX_HELD_BATCHES = 5
"""Max batches held in memory. Beyond that only one message per free handler is fetched."""
_PAUSE_SECONDS = 0.5
"""Interval before a partition continues after a handling note could not be recorded, in seconds."""
_NOTING_SECONDS = 2.0
"""Timeout to record the handling notes before partitions are released, in seconds."""
_FINISHING_RATIO = 0.8
"""Ratio of ``revoke_timeout`` for finishing running messages; the rest is for the commit."""
_RECORDING_SECONDS = 5.0
"""Timeout to record progress when the worker ends, after the time for finishing messages, in seconds."""
_LEEWAY_SECONDS = 1.0
"""Min seconds beyond both timeouts, so that the worker releases the partitions before the consumer gives up."""


class Dispatcher(PartitionListener):
    """A :class:`qdo.worker.sources.Source` that runs the messages of a consumer's partitions, round-robin.

    It commits the offset before the first unfinished message of each partition.
    """

    def __init__(self, consumer: AsyncConsumer, handling: Handling) -> None:
        if consumer.settings.commit_every is not None:
            raise InvalidArgument(
                "a worker commits handled messages, so its consumer must not commit by itself: leave out commit_every"
            )
        self.busy: set[Partition] = set()
        """Partitions that must not be polled now; see :meth:`_update_busy`."""
        settings = handling.settings
        self._runner = handling.runner
        self._settings = settings
        self._handling = handling
        self._metrics = handling.metrics
        self._consumer = consumer
        self._changed = handling.changed
        self._end = handling.end
        self._key = key_by(settings.by) if settings.by is not None else None
        self._batch_size = BatchSize(settings.slice, settings.batch)
        self._tracker: RunTracker[PartitionWork] = RunTracker(
            handling, self._batch_size, self._settle_run, self._wait_again, self._handle_overdue
        )
        self._works: dict[Partition, PartitionWork] = {}
        """The work on each partition. Discarded work stays until its partition accepts messages again."""
        self._hung = HungAttempts()
        self._runnable: deque[PartitionWork] = deque()
        self._exclusive: PartitionWork | None = None
        """The work whose running message is at its last attempt; no other message may run at the same time."""
        self._held = 0
        self._halted = False
        self._drained: float | None = None
        """Deadline for the messages in flight, by the loop's clock. None until the worker drains."""
        self._finished = True
        """False after a loss of messages in flight or of offsets, until partitions are assigned again."""
        self._joined = False
        self._ownership_reports = OwnershipReports(handling.metrics, lambda: len(consumer.assignment))
        consumer.attach(self, settings.commit_messages, settings.commit_seconds)
        if not settings.processes:
            consumer.coordinator.outlast = settings.stalled_after

    # The worker's source

    async def start(self) -> None:
        await self._consumer.start(partial(require_rights, self._consumer, self._settings))
        self._joined = True
        logger.info("joined the group as %s", self._consumer.member, extra={"member": self._consumer.member})

    async def take(self) -> bool:
        self.dispatch()
        most = self.capacity
        if not most:
            return False
        try:
            batches = await self._consumer.poll(most, None, skip=self.busy)
        except ClientError as error:
            logger.error("the service refuses reads, retrying: %s", error)  # noqa: TRY400 - the message is enough
            await wait_for_event(self._handling.stop_requested, REFUSED_PAUSE_SECONDS)
            return True
        for partition, messages in batches:
            self.feed(partition, messages)
        if self._consumer.closing:
            self._handling.stop(ExitCode.ENDED)
        return True

    def wake(self) -> None:
        self._consumer.wake()

    def background_tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._watch_runs(), self._measure_lag()] if self._handling.lag_shown else [self._watch_runs()]

    async def drain(self, patience: float) -> bool:
        self._drained = asyncio.get_running_loop().time() + patience
        self._close_works(self._find_undiscarded_works())  # revoke follows for each
        await self._consumer.close(patience + _RECORDING_SECONDS + _LEEWAY_SECONDS)
        return self._finished

    async def close(self) -> None:
        await self._consumer.close()
        if self._joined:
            logger.info("left the group", extra={"member": self._consumer.member})

    async def close_all(self) -> None:
        await self._consumer.coordinator.close()
        await self._consumer.client.close()

    async def _watch_runs(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_seconds)
            self._tracker.check()
            self._record_progress()
            self._metrics.owned = len(self._consumer.assignment)
            self._metrics.unseen = len(self._consumer.unseen)
            end_if_refused(self._handling, self._consumer.refused)

    async def _measure_lag(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lag_seconds)
            try:
                self._metrics.lag = await self._consumer.lag()
            except Exception as error:  # noqa: BLE001 - a failed measurement must not end the worker
                logger.warning("the lag could not be measured: %s", error)

    # The life of partitions

    async def assigned(self, rows: Collection[PartitionOwnership]) -> None:
        self._finished = self._finished or self._drained is None
        self._report_ownership_change("assigned", rows)

    async def revoke(self, row: PartitionOwnership) -> None:
        begun, seconds = asyncio.get_running_loop().time(), self._consumer.settings.revoke_timeout
        finishing, recording = begun + seconds * _FINISHING_RATIO, begun + seconds * (1 + _FINISHING_RATIO) / 2
        if self._drained is not None:
            finishing, recording = self._drained, max(begun, self._drained) + _RECORDING_SECONDS
        if not await self.finish([row], finishing):
            self._mark_unfinished_if_draining()
        try:
            if row.pending_offset is not None:
                async with asyncio.timeout_at(recording):
                    await self._consumer.ownership.flush([row], recording)
        except (TimeoutError, QdoError):
            logger.error("offsets could not be committed in time; some messages will be handled again")  # noqa: TRY400 - expected
            self._mark_unfinished_if_draining()
        self._report_ownership_change("revoked", [row])

    async def lost(self, rows: Collection[PartitionOwnership]) -> None:
        if self.discard(rows) or any(row.pending_offset is not None for row in rows):
            self._finished = False
        self._report_ownership_change("lost", rows)

    def suspended(self) -> None:
        logger.warning("the coordination service cannot be reached: no more messages are started")
        self._halted = True
        for work in self._works.values():
            work.halt()

    def resumed(self) -> None:
        logger.info("the coordination service can be reached again")
        self._halted = False
        self.dispatch()
        self._changed()

    def recorded(self, offsets: Mapping[Partition, tuple[str, bool]]) -> None:  # noqa: ARG002 - the fact counts
        self._metrics.increment("commits")

    def not_recorded(self, error: Exception) -> None:
        self._metrics.increment("commit_failures")
        if not isinstance(error, CoordinationLost):
            self._mark_unfinished_if_draining()

    def _mark_unfinished_if_draining(self) -> None:
        if self._drained is not None:
            self._finished = False

    def _report_ownership_change(self, change: str, rows: Collection[PartitionOwnership]) -> None:
        level = logging.INFO if self._drained is None else logging.DEBUG  # That the worker ends has its own lines.
        self._ownership_reports.add(change, (row.partition for row in rows), level)

    @property
    def capacity(self) -> int:
        """Number of messages to fetch now, at least one per free handler; 0 if work waits or starts are suspended."""
        free = self._tracker.free_slots
        if free <= 0 or self._halted or self._runnable:
            return 0
        return max(
            free, min(self._batch_size.max_messages * free, _MAX_HELD_BATCHES * self._settings.batch - self._held)
        )

    def feed(self, partition: Partition, messages: Sequence[Message]) -> None:
        """Queues fetched messages of a partition for handling; ignores them if the partition is not owned."""
        work = self._works.get(partition)
        if work is None:
            row, settings = self._consumer.ownership.held_row(partition), self._settings
            if row is None:
                return
            offset = self._hung.take_over(partition, row.claimed)
            suspicion = CrashSuspicion(offset, messages[0], settings.commit_messages, settings.retry.attempts)
            work = PartitionWork(row, OrderedQueue(), self._on_handlers_end, None if suspicion.is_over else suspicion)
            self._works[partition] = work
        if self._key is not None and work.suspicion is None and not work.partition_queue.count:
            work.partition_queue = KeyedQueue(self._key, self._settings.parallel, self._settings.window)
        work.partition_queue.add(messages)
        self._held += len(messages)
        self._enqueue(work)

    def dispatch(self) -> None:
        """Starts runs while handlers are free and the ownership of partitions is certain."""
        while self._runnable and self._tracker.free_slots > 0 and not self._halted and self._consumer.connected:
            if self._exclusive is not None:
                return
            work = self._runnable[0]
            if work.must_run_alone:
                if any(other.runs for other in self._find_undiscarded_works()):
                    return  # nothing else starts until this work can run alone
                self._exclusive = work
            self._runnable.popleft()
            work.queued = False
            run = work.take(self._batch_size.max_messages)
            if run is not None:
                self._start_run(work, run)
                self._enqueue(work)

    def _record_progress(self) -> None:
        """Records the progress of active runs before they end. With keys, it is recorded only at the end of a run."""
        if self._key is not None:
            return
        for run, work in self._tracker.runs.items():
            if run.handled and not work.is_discarded:
                self._record_new_offset(work, run.messages[run.handled - 1].id, 0)

    def _handle_overdue(self, work: PartitionWork, run: MessageRun) -> None:
        """Hands the partition of a handler that hangs over to another worker.

        The attempt counts as failed also if the handler can be stopped. If the partition is being released or was lost,
        other messages may start in its place, also those of this partition if it is assigned again.
        """
        if work.is_discarded or run.hangs:
            self._count_hung(work, run)
        if not run.hangs:
            return
        if work.state == "open":
            work.close()
            work.handing_over = asyncio.get_running_loop().create_task(self._hand_over(work))
            return
        self._readmit_lost(work)
        self.dispatch()
        self._changed()

    def _count_hung(self, work: PartitionWork, run: MessageRun) -> None:
        message, place = run.messages[run.handled], Delivery(work.partition, run.attempt)
        if not self._hung.add(work.partition, HandlingNote(message.id, run.attempt, last=True)):
            return
        failure = fail_overdue(self._settings.stalled_after)
        text = "cannot be stopped in time, and its partition goes to others or has gone to them: %s"
        self._handling.report(logging.ERROR, place, message, failure, text)
        self._handling.record_failed_attempt(place, message, failure)

    async def _hand_over(self, work: PartitionWork) -> None:
        """Records the progress and the hanging attempt; rejoins the group unless the partition was lost meanwhile."""
        attempt = self._hung.notes[work.partition]
        self._settle_active_runs(work)
        try:
            await self._consumer.ownership.record_note(work.row, attempt)
        except QdoError as error:
            logger.warning("the running messages of %s could not be recorded: %s", work.partition, error)
        if not work.is_discarded:  # otherwise the partition has moved, and this may be another session
            self._remove([work])
            self._consumer.rejoin()

    async def finish(self, rows: Collection[PartitionOwnership], deadline: float) -> bool:
        """Closes partitions and finishes their messages in flight until a deadline by the loop's clock.

        Results after that are discarded. Returns False if some messages will be handled again.
        """
        works = self._find_undiscarded_works(rows)
        self._close_works(works)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(self._finish(work, deadline) for work in works))
        for work in works:
            if not work.is_quiet and not work.is_discarded:
                self._settle_active_runs(work)
        unfinished = [str(work.partition) for work in works if work.has_unfinished and not work.is_discarded]
        if unfinished:
            text = "messages were not finished in time, so some will be handled again: %s"
            logger.warning(text, ", ".join(unfinished), extra={"partitions": unfinished})
        await self._remove_own_attempts(works)
        self._remove(works)
        self._readmit(rows)
        return not unfinished

    async def wait_until_ended(self, deadline: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for work in {*self._works.values(), *self._tracker.runs.values()}:
                    await work.wait_until_quiet()
        for run, work in self._tracker.runs.items():
            for message in run.messages[run.handled :][:1]:
                logger.warning("a handler has not finished message %s of %s", message.id, work.partition)

    def discard(self, rows: Collection[PartitionOwnership]) -> bool:
        """Discards the results of partitions from now on. Returns whether messages will be handled again."""
        works = self._find_undiscarded_works(rows)
        unfinished = any(work.has_unfinished for work in works)
        self._remove(works)
        self._readmit(rows)
        return unfinished

    def _readmit(self, rows: Collection[PartitionOwnership]) -> None:
        """Turns handed-over partitions into lost ones, which can accept messages again."""
        for row in rows:
            work = self._works.get(row.partition)
            if work is not None and work.row is row and work.state == "handed over":
                work.state = "lost"
                self._readmit_lost(work)

    def _readmit_lost(self, work: PartitionWork) -> None:
        """Accepts messages of a lost partition again if only handlers that cannot be stopped are running."""
        if work.state == "lost" and self._works.get(work.partition) is work and all(run.hangs for run in work.runs):
            self._forget(work)

    def _close_works(self, works: Iterable[PartitionWork]) -> None:
        for work in works:
            work.close()
            self._update_busy(work.partition)

    async def _finish(self, work: PartitionWork, deadline: float) -> None:
        """Waits for the messages in flight, then handles those in the gaps before handled ones.

        Does not stop at ``deadline``, which only limits the gaps that are filled: the caller cancels it.
        """
        await work.wait_until_quiet()
        before = work.partition_queue.count
        has_gaps = not self._halted and work.start_filling_gaps(deadline)
        self._held -= before - work.partition_queue.count  # without the dropped messages
        if has_gaps:
            self._enqueue(work)
            self.dispatch()
            await work.wait_until_quiet()

    def _settle_active_runs(self, work: PartitionWork) -> None:
        """Records the progress of active runs. Their later results are discarded, and no other run starts."""
        before = work.partition_queue.count
        work.settle_active_runs()
        self._lower_held_and_record_offset(work, before)

    def _remove(self, works: Collection[PartitionWork]) -> None:
        """Discards results of partitions from now on. Partitions with messages in flight stay busy until these end."""
        for work in works:
            if work.is_discarded:
                continue
            self._held -= work.partition_queue.count
            work.discard()
            if self._exclusive is work:
                self._exclusive = None
            self._update_busy(work.partition)
            self._readmit_lost(work)
        if works:
            # Discarded work must not stay runnable: while any work is, nothing is fetched.
            self._runnable = deque(work for work in self._runnable if not work.is_discarded)
            # Other partitions may have waited for the messages in flight of these partitions.
            self.dispatch()
            self._changed()

    def _on_handlers_end(self, work: PartitionWork) -> None:
        """Accepts messages of a lost partition again. A handed-over one has to be assigned again first."""
        if work.state == "lost" and self._works.get(work.partition) is work:
            self._forget(work)

    def _forget(self, work: PartitionWork) -> None:
        del self._works[work.partition]
        self._update_busy(work.partition)
        self._changed()

    def _find_undiscarded_works(self, rows: Collection[PartitionOwnership] | None = None) -> list[PartitionWork]:
        chosen = None if rows is None else set(rows)
        works = self._works.values()
        return [work for work in works if not work.is_discarded and (chosen is None or work.row in chosen)]

    def _update_busy(self, partition: Partition) -> None:
        work = self._works.get(partition)
        if work is None or work.wants_more:
            self.busy.discard(partition)
        else:
            self.busy.add(partition)

    def _enqueue(self, work: PartitionWork) -> None:
        if work.may_start_run and not work.queued:
            work.queued = True
            self._runnable.append(work)
        self._update_busy(work.partition)

    def _resume(self, work: PartitionWork) -> None:
        self._enqueue(work)
        self.dispatch()
        self._changed()

    def _start_run(self, work: PartitionWork, run: MessageRun) -> None:
        noted = None if work.suspicion is None else self._run_noted(work, work.suspicion, run)
        self._tracker.start(work, run, Delivery(work.partition, run.attempt), noted)
        if run.keys:
            self._tracker.watch(run)

    def _wait_again(self, work: PartitionWork, run: MessageRun, messages: Sequence[Message]) -> None:
        work.wait_again(run, messages)
        self._resume(work)

    async def _run_noted(self, work: PartitionWork, suspicion: CrashSuspicion, run: MessageRun) -> RunResult:
        """Runs messages after it has noted them. Fails the first one if workers were lost in all its attempts."""
        if run.attempt <= (
            lost := suspicion.count_lost_attempts(run.messages[0])
        ):  # the message has had its last attempt
            return RunResult(0, Failure.of(WorkerLost(f"workers lost while they handled this message: {lost}")))
        note, ran = suspicion.begin_run(run.messages), RunResult(0)
        try:
            await self._consumer.ownership.record_note(work.row, note)
            if not work.is_discarded:
                ran = await self._runner.start(run, Delivery(work.partition, run.attempt))
                run.begun = False
                suspicion.record_handled(ran.handled)
            if (note.last or suspicion.is_over) and not work.is_discarded:
                if ran.handled:
                    self._record_new_offset(work, run.messages[ran.handled - 1].id, 0)
                await self._consumer.ownership.record_note(work.row, suspicion.make_final_note())
        except QdoError as error:
            logger.warning("the running messages of %s cannot be recorded: %s", work.partition, error)
            # Usually another member owns the partition by now, and this worker will be notified.
            await work.pause(_PAUSE_SECONDS)
        if suspicion.is_over:
            work.suspicion = None
        return ran

    async def _remove_own_attempts(self, works: Iterable[PartitionWork]) -> None:
        """Removes this owner's attempts from the notes, except hung ones: a hand-over is not a failed attempt."""
        hung = self._hung.notes
        writes = [
            self._consumer.ownership.record_note(work.row, hung.get(work.partition) or work.note_without_own_attempt)
            for work in works
            if not work.is_discarded and (work.suspicion is not None or work.partition in hung)
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTING_SECONDS):
                for result in await asyncio.gather(*writes, return_exceptions=True):
                    if isinstance(result, Exception):
                        logger.warning("the running messages could not be recorded: %s", result)

    def _settle_run(self, work: PartitionWork, run: MessageRun, ran: RunResult) -> None:
        """Settles a run and handles its failure, which ends the worker if it is fatal and belongs to no message."""
        if self._exclusive is work:
            self._exclusive = None
        failure = ran.failure
        failed = failure is not None and ran.handled < len(run.messages)
        before = work.partition_queue.count
        held = work.settle(run, ran.handled, failed=failed)
        if work.is_discarded:
            self._readmit_lost(work)
        else:
            self._lower_held_and_record_offset(work, before)
            if failure is not None and held is not None:
                self._handle_failure(work, held, failure)
            elif failure is not None and failure.effect == "exit":
                # The failure belongs to no message. If a child died after the last message, the effect is "fail".
                self._end(StopTheWorker("error"), failure)
            self._enqueue(work)
        work.update_quiet()
        self.dispatch()
        self._changed()

    def _lower_held_and_record_offset(self, work: PartitionWork, count_before: int) -> None:
        done = count_before - work.partition_queue.count
        self._held -= done
        if work.partition_queue.end is not None:
            self._record_new_offset(work, work.partition_queue.end, done)

    def _record_new_offset(self, work: PartitionWork, end: str, done: int) -> None:
        if end != work.recorded:
            work.recorded = end
            self._consumer.ownership.schedule_commit(work.row, end, done)

    def _handle_failure(self, work: PartitionWork, held: FailedMessage, failure: Failure) -> None:
        place = Delivery(work.partition, held.attempt)
        decision = self._handling.decide_failure(self._settings, place, held.message, failure)
        match decision:
            case StopTheWorker():
                work.leave(held)
                self._end(decision, failure)
            case RetryLater(seconds):
                self._handling.record_retry(place, held.message, failure, seconds)
                text = "attempt %d failed, the next in %.1f s: %s"
                self._handling.report(logging.WARNING, place, held.message, failure, text, held.attempt, seconds)
                work.retry_later(held, seconds, self._resume)
            case SkipMessage():
                self._give_up_message(work, held, failure, "skipped")
            case DeadLetterIt():
                publishing = self._publish_dead_letter(work, held, failure)
                work.add_dead_letter_task(asyncio.get_running_loop().create_task(publishing))

    async def _publish_dead_letter(self, work: PartitionWork, held: FailedMessage, failure: Failure) -> None:
        if await work.publish_dead_letter(self._consumer.client, self._handling, held, failure):
            self._give_up_message(work, held, failure, "dead")
            self._resume(work)
        else:
            work.leave(held)

    def _give_up_message(
        self, work: PartitionWork, held: FailedMessage, failure: Failure, outcome: Literal["dead", "skipped"]
    ) -> None:
        self._handling.record_given_up(Delivery(work.partition, held.attempt), held.message, failure, outcome)
        before = work.partition_queue.count
        work.partition_queue.finish(held)
        self._lower_held_and_record_offset(work, before)
