"""The coalescing writer: messages that wait for one queue partition are sent together and get their ids at that moment.

Each partition has a buffer. A full batch is sent at once, a partial one when no batch of the same buffer is in flight:
a single message never waits, and a busy buffer sends full batches (Nagle's algorithm). The thread of the store's loop
makes ids, sends requests and receives answers. Messages that arrive in one turn of the loop are sent in the next one.

A caller that gives up stops waiting; a request that was sent is not cancelled.

An operation is the messages that one call appends, perhaps to several partitions. Its states and transitions::

    waiting ──(flush: ids made, sent)──► sent ──(all written within W of their ids)──► acknowledged
       │                                   │   (the clock is checked after the last answer)
       │                                   └──(any late or failed)──► failing ──► undo writes ──► none | unknown
       └──(caller gives up)──► withdrawn: none
    any ──(store closed, time ran out)──► refused: none if no message was sent, else unknown

While the queue's row is older than C, or a bucket that is needed is not recorded yet, the operation is not sent and
returns to the front of its partition buffer.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from queuey.model.errors import Outcome, QueueChanged, QueueNotFound, StoreClosed, StoreUnavailable, WriteUndone
from queuey.model.ids import Position
from queuey.model.messages import NewMessage, Queue
from queuey.storage.cassandra.catalogue.queue_cache import CachedQueue, QueueCache, make_covering_row
from queuey.storage.cassandra.cluster import Driver, Encoded, InDoubt, Rows
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.read.bucket_index import BucketIndex
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.statements.consistency_levels import ConsistencyLevels, ResolvedLevel
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import BucketWidths
from queuey.storage.cassandra.time.clock import DelayedIds, IdGenerator, SteadyClock
from queuey.storage.cassandra.time.clock_watch import ClockWatch
from queuey.storage.cassandra.time.timing_in_force import Tails, TimingInForce
from queuey.storage.cassandra.write.undo_writes import Undo, UndoWriter
from queuey.storage.cassandra.write.write_batches import (
    FLUSH_ROWS,
    AppendOperation,
    BatchRun,
    Done,
    InFlightBatch,
    OperationPart,
    PartitionBuffer,
    PartitionBuffers,
    divide_into_batches,
)
from queuey.storage.deadlines import GIVEN_UP_MESSAGE

log = logging.getLogger(__name__)


Preparation = Callable[[], Coroutine[Any, Any, object]]
"""Work that must be awaited before messages can be sent."""
FULL_ROWS = 50
FULL_BYTES = 64 << 10
"""Min bytes (or rows) of a batch that is sent although another one is in flight."""
Ended = Callable[[object, Exception | None], object]
_time_bucket_of = attrgetter("time_bucket")


class MessageWriter:
    """Writes the messages of one store in one process."""

    def __init__(  # noqa: PLR0913 - the parts of a store, named
        self,
        driver: Driver,
        options: CassandraOptions,
        clock: SteadyClock,
        *,
        generator: IdGenerator,
        queue_rows: QueueCache,
        bucket_index: BucketIndex,
        watch: ClockWatch,
        levels: ConsistencyLevels,
        timing: TimingInForce,
        tails: Tails,
    ) -> None:
        self._driver = driver
        self._loop = driver.loop
        self._options = options
        self._clock = clock
        self._generator = generator
        self._rows = queue_rows
        self._bucket_index = bucket_index
        self._watch = watch
        self._levels = levels
        self._timing = timing
        self._tails = tails
        self.undo_writer = UndoWriter(driver, clock, note=tails.undo.record)
        self._buffers = PartitionBuffers()
        self._ready: deque[PartitionBuffer] = deque()
        """Buffers that are flushed in the next turn of the loop."""
        self._is_woken = False
        self._lock = threading.Lock()
        """Guards ``_operations`` and ``pending``."""
        self._closed = False
        self._idle = threading.Event()
        self._operations: set[AppendOperation] = set()
        """Operations that are not answered yet."""
        self.pending = 0
        """Messages of the operations that are not answered yet."""
        self.appended = 0
        self.batches = 0
        self.late = 0
        """Batches that were acknowledged after their deadline."""

    # In the caller's thread

    def begin(self, queue: Queue, items: Sequence[NewMessage], done: Done, after: Position | None) -> AppendOperation:
        """Starts an operation; see :meth:`~queuey.storage.Messages.append`. Never blocks; ``done`` gets the result.

        Raises StoreUnavailable instead if the operation would only wait in vain.
        """
        operation = AppendOperation(queue, [None] * len(items), after, done)
        operation.divide(items)
        self._accept(operation, partial(self._enqueue, operation))
        return operation

    def _accept(self, operation: AppendOperation, go: Callable[[], None]) -> None:
        """Makes an operation pending. Calls ``go`` in the loop's thread once the messages may be written.

        They may once the queue's row is current and covers them, and the clock is sound. Raises InvalidRequest if
        ``after`` is too far ahead, and StoreUnavailable without effect if the operation is refused.
        """
        queue, count = operation.queue, operation.remaining
        self._check_acceptance(count)
        if operation.after is not None:
            self._generator.check_after(operation.after)
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            self.pending += count
            self._operations.add(operation)
        row = self._rows.get(queue.application, queue.name)
        if (
            not count
            or row is None
            or row.queue.version != queue.version
            or make_covering_row(row, operation.row_ttls, operation.longest) is not row
            or not self._watch.sound()
        ):
            ended: Ended = lambda _, error: go() if error is None else self._answer(operation, None, error)  # noqa: E731 - short
            self._begin_call(self._prepare_append(operation), ended)
        else:
            self._loop.call(go)

    def _check_acceptance(self, count: int) -> None:
        if (problem := self._driver.problem()) is not None and not self._closed:
            raise StoreUnavailable(problem)
        if self._watch.clock_check.refusing:
            raise self._watch.refusal()
        if self.pending and self.pending + count > self._options.max_pending:
            raise StoreUnavailable("too many messages wait for Cassandra already")

    def _begin_call(self, work: Coroutine[Any, Any, object], ended: Ended) -> None:
        try:
            self._driver.calls.begin(work, ended)
        except StoreClosed as error:
            ended(None, error)

    async def _prepare_append(self, operation: AppendOperation) -> None:
        await self._watch.require_sound()
        row = await self._rows.find_current(operation.queue)
        if make_covering_row(row, operation.row_ttls, operation.longest) is not row:
            with self._driver.calls.deadline.preparing():
                await self._rows.cover(row, operation.row_ttls, operation.longest)

    # In the loop's thread

    def _enqueue(self, operation: AppendOperation) -> None:
        if not operation.parts:
            self._answer(operation, [], None)
        for partition, part in operation.parts.items():
            buffer = self._buffers.acquire(operation.queue.qid, partition)
            buffer.put([part])
            self._schedule(buffer)

    def _schedule(self, buffer: PartitionBuffer) -> None:
        is_due = not buffer.flying or buffer.rows >= FULL_ROWS or buffer.size >= FULL_BYTES
        if buffer.parts and is_due and not buffer.scheduled:
            buffer.scheduled = True
            self._ready.append(buffer)
            if not self._is_woken:
                self._is_woken = True
                self._loop.soon(self._flush_ready)

    def _flush_ready(self) -> None:
        """Flushes queued buffers until ``FLUSH_ROWS`` rows were sent; leaves the rest to the next turn.

        A buffer whose parts need a preparation gets them back afterwards. After another error they fail.
        """
        self._is_woken, rows = False, 0
        while self._ready and rows < FLUSH_ROWS:
            buffer = self._ready.popleft()
            buffer.scheduled = False
            rows += buffer.rows
            parts = buffer.take()
            rows -= buffer.rows
            buffer.flying += 1
            try:
                preparation = self._flush(buffer, parts)
            except Exception as error:
                log.exception("Messages could not be sent.")
                self._fail_parts(parts, StoreUnavailable(f"messages could not be sent: {error}"))
            else:
                if preparation is not None:
                    self._begin_call(prepare(preparation), partial(self._put_back, buffer, parts))
                    continue
            self._end_flight(buffer)
        if self._ready and not self._is_woken:
            self._is_woken = True
            self._loop.soon(self._flush_ready)

    def _flush(self, buffer: PartitionBuffer, parts: list[OperationPart]) -> Preparation | None:
        """Makes ids and sends parts of one buffer. Sends nothing if it returns a preparation, which must come first.

        Parts that cannot be sent any more are failed and removed from ``parts``.
        """
        queue = parts[0].operation.queue
        row = self._rows.get(queue.application, queue.name)
        if row is None:
            return partial(self._rows.read_young, queue.application, queue.name)
        self._fail_unsendable(parts, row)
        if not parts:
            return None
        now, id_boottime = self._clock.now_and_boottime()
        runs, bucket_widths = self._make_runs(buffer, parts, row, now)
        preparation = self._find_unrecorded(buffer, row, runs) or self._find_outdated(row)
        if preparation is not None:
            return preparation
        level = self._levels.resolve(row.queue)  # Read after the ids were made and W was found unchanged.
        rows = size = 0
        for part in tuple(parts):
            if part.operation.begin():
                part.operation.level = level
                rows += len(part.items)
                size += part.size
            else:  # The caller gave up meanwhile.
                parts.remove(part)
                runs = [run for run in runs if run.part is not part]
                self._end_part(part, StoreUnavailable(GIVEN_UP_MESSAGE), stored=False)
        in_flights = divide_into_batches(buffer, runs, now, id_boottime)
        bucket_widths.add(rows, size)
        for in_flight in in_flights:
            in_flight.mark_sent()
        for in_flight in in_flights:
            self._send(in_flight, level)
        return None

    def _fail_unsendable(self, parts: list[OperationPart], row: CachedQueue) -> None:
        for part in tuple(parts):
            operation = part.operation
            if operation.queue.version != row.queue.version:
                parts.remove(part)
                self._end_part(part, QueueChanged(operation.queue.name), stored=False)
            elif operation.withdrawn and not operation.sent:
                parts.remove(part)
                self._end_part(part, StoreUnavailable(GIVEN_UP_MESSAGE), stored=False)

    def _put_back(
        self, buffer: PartitionBuffer, parts: list[OperationPart], _: object, failure: Exception | None
    ) -> None:
        if failure is None:
            buffer.put(parts, first=True)
        else:
            self._fail_parts(parts, failure)
        self._end_flight(buffer)

    def _make_runs(
        self, buffer: PartitionBuffer, parts: Sequence[OperationPart], row: CachedQueue, now: int
    ) -> tuple[list[BatchRun], BucketWidths]:
        bucket_widths = buffer.bucket_widths
        if bucket_widths is None:
            bucket_widths = buffer.bucket_widths = BucketWidths(row.home_class)
        width_index = bucket_widths.width_at(self._generator.next_time())
        runs: list[BatchRun] = []
        for part in parts:
            runs += self._generate(part, row, width_index, now)
        return runs, bucket_widths

    def _find_unrecorded(
        self, buffer: PartitionBuffer, row: CachedQueue, runs: Iterable[BatchRun]
    ) -> Preparation | None:
        missing = [
            time_bucket
            for time_bucket in set(map(_time_bucket_of, runs))
            if bucketing.is_indexed(time_bucket, row.home_class)
            and not self._bucket_index.is_recorded(buffer.qid, buffer.partition, time_bucket)
        ]
        if not missing:
            return None
        writes = self._levels.resolve(row.queue).writes
        return partial(self._bucket_index.record, buffer.qid, buffer.partition, missing, consistency=writes)

    def _find_outdated(self, row: CachedQueue) -> Preparation | None:
        # The machine may have been suspended since, for up to ``more`` seconds without a check that shows it.
        now, more = self._clock.boottime(), 2 * self._watch.clock_check.error
        if now - row.read_at + more > self._timing.stored.kept.row_age or row.read_at < self._watch.wrong_until:
            return partial(self._rows.read_young, row.queue.application, row.queue.name)
        if not self._timing.is_fresh(now):
            return self._watch.require_sound
        return None

    def _generate(self, part: OperationPart, row: CachedQueue, width_index: int, now: int) -> list[BatchRun]:
        items, low = part.items, self._generator.low
        if part.alike:
            ticks = self._generator.generate(len(items), part.operation.after)
            time_bucket = bucketing.bucket_of(ticks, items[0].choose_class(row.home_class), width_index)
            if ticks + len(items) <= time_bucket.end:
                return [BatchRun(part, items, time_bucket, ticks, low)]
        else:
            prompt = sum(not item.delay for item in items)
            ticks = self._generator.generate(prompt, part.operation.after) if prompt else 0
        late = DelayedIds(now, self._generator.next_time())
        runs = []
        for item in items:
            position = late.generate(item.delay) if item.delay else (ticks, low)
            ticks += not item.delay
            time_bucket = bucketing.bucket_of(position[0], item.choose_class(row.home_class), width_index)
            runs.append(BatchRun(part, [item], time_bucket, *position))
        return runs

    def _send(self, in_flight: InFlightBatch, level: ResolvedLevel) -> None:
        in_flight.buffer.flying += 1
        self.batches += 1
        buffer, time_bucket = in_flight.buffer, in_flight.time_bucket
        try:
            request = Encoded(
                message_codec.INSERT[time_bucket.ttl_class],
                message_codec.INSERT_VALUE_COUNT,
                in_flight.rows,
                message_codec.routing_of(buffer.qid, buffer.partition, time_bucket.code),
                level.writes,
                timeout=level.deadline,
            )
            self._driver.send(request, partial(self._on_answer, in_flight, level))
        except Exception as error:
            log.exception("Messages could not be sent.")
            self._on_answer(in_flight, level, None, InDoubt(f"messages could not be sent: {error}"))

    def _on_answer(
        self, in_flight: InFlightBatch, level: ResolvedLevel, rows: Rows | None, error: StoreUnavailable | None
    ) -> None:
        """Receives the answer of a request. A write acknowledged after its deadline counts as failed, in doubt."""
        # The answer may have arrived earlier in this turn of the loop; the check of the clock begins in the next one.
        arrived = rows[0][0] if rows else self._clock.boottime()
        self._tails.write.record(arrived - in_flight.id_boottime)
        if error is None and arrived - in_flight.id_boottime > level.deadline:
            self.late += 1
            error = InDoubt("Cassandra wrote the message too late; the write is undone")
        self._end_batch(in_flight, error)
        self._end_flight(in_flight.buffer)

    def _end_batch(self, in_flight: InFlightBatch, error: StoreUnavailable | None) -> None:
        stored = error is None or error.outcome == "unknown"
        for operation, written in in_flight.written:
            if operation.count_down(written.number, error, stored=stored):
                self._conclude(operation)

    def _end_flight(self, buffer: PartitionBuffer) -> None:
        buffer.flying -= 1
        if buffer.parts:
            self._schedule(buffer)
        elif not buffer.flying:
            self._buffers.release(buffer)

    # Outcomes

    def _conclude(self, operation: AppendOperation) -> None:
        if operation.error is None:
            self._watch.confirm_soon(partial(self._acknowledge, operation))
        else:
            self._fail_whole(operation, operation.error)

    def _acknowledge(self, operation: AppendOperation, refused: StoreUnavailable | None) -> None:
        if refused is not None:
            self._fail_whole(operation, InDoubt(str(refused)))
        elif not self._watch.is_timed_correctly_since(operation.id_boottime):
            self._fail_whole(operation, InDoubt("the clock was wrong during the write; the write is undone"))
        else:
            self.appended += len(operation.positions)
            self._answer(operation, operation.positions, None)

    def _fail_whole(self, operation: AppendOperation, error: Exception) -> None:
        """Answers an operation with an error. Messages that may be stored are undone first, or in doubt if reserved."""
        if not operation.doubt:
            self._answer(operation, None, error)
        elif operation.reserved:
            self._answer(operation, None, InDoubt(str(error)))
        else:
            self._undo(operation, error)

    def _fail_parts(self, parts: Iterable[OperationPart], error: Exception) -> None:
        for part in parts:
            self._end_part(part, error, stored=bool(part.operation.written))

    def _end_part(self, part: OperationPart, error: Exception, *, stored: bool) -> None:
        if part.operation.count_down(len(part.items), error, stored=stored):
            self._conclude(part.operation)

    def _undo(self, operation: AppendOperation, error: Exception) -> None:
        """Undoes all messages of an operation that may be stored, then answers with the error and the outcome.

        The error is WriteUndone if the write was in doubt and nothing of it remains.
        """
        level = operation.level
        deadline = operation.id_boottime + level.undone_within

        def settled(outcome: Outcome) -> None:
            if outcome == "none" and isinstance(error, QueueChanged):
                self._answer(operation, None, error)
                return
            # A refusal may mean overload although other parts were written, so the caller must not repeat it at once.
            kind = WriteUndone if outcome == "none" and isinstance(error, InDoubt) else StoreUnavailable
            failed = kind(str(error), outcome=outcome)
            failed.__cause__ = error
            self._answer(operation, None, failed)

        answer = partial(self._confirm_outcome, operation.id_boottime, settled)
        self.undo_writer.undo(Undo(operation.written, level, deadline, answer))

    def _confirm_outcome(self, id_boottime: float, answer: Callable[[Outcome], object], outcome: Outcome) -> None:
        """Answers ``none`` if a later check of the clock shows that the times were right, otherwise ``unknown``."""

        def checked(error: StoreUnavailable | None) -> None:
            answer("none" if error is None and self._watch.is_timed_correctly_since(id_boottime) else "unknown")

        if outcome == "none":
            self._watch.confirm_soon(checked)
        else:
            answer(outcome)

    def _answer(self, operation: AppendOperation, positions: list[Position] | None, error: Exception | None) -> None:
        with self._lock:
            if operation not in self._operations:
                return
            self._operations.remove(operation)
            self.pending -= len(operation.positions)
            done = operation.done
            if self._closed and not self._operations:
                self._idle.set()
        try:
            done(positions, error)
        except Exception:
            log.exception("The result of a write could not be delivered.")

    def close(self, timeout: float) -> None:
        """Waits up to ``timeout`` seconds for accepted operations and undo writes, then refuses the others. Idempotent.

        Waits for nothing in the loop's thread.
        """
        with self._lock:
            self._closed = True
            if not self._operations:
                self._idle.set()
        if not self._loop.is_here:  # The loop would wait for itself.
            until = self._clock.boottime() + timeout
            self._idle.wait(timeout)
            self.undo_writer.close(max(0.0, until - self._clock.boottime()))
        with self._lock:
            unanswered = list(self._operations)
        for operation in unanswered:
            refused = StoreClosed("the store was closed before the write ended", outcome=operation.give_up())
            self._answer(operation, None, refused)


async def prepare(work: Preparation) -> None:
    """Awaits the work that must precede ids. A queue that does not exist any more counts as changed."""
    try:
        await work()
    except QueueNotFound as error:
        raise QueueChanged(str(error)) from error
