"""Writes whose ids are made before the caller decides whether to send them, for posts with idempotency keys.

The ids are made in the thread of the store's loop, by the rules of every other write. W runs from then on; messages
that are not sent within W are never sent. States of a reservation::

    waiting ──(ids made)──► reserved ──(write)──► sent ──► stored | failed, to be undone by the caller
                               └─────(drop)─────► dropped
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from queuey.model.errors import Outcome, QueueChanged, StoreClosed, StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import NewMessage, Queue
from queuey.storage.cassandra.cluster import InDoubt
from queuey.storage.cassandra.statements.consistency_levels import ResolvedLevel
from queuey.storage.cassandra.write.undo_writes import Undo
from queuey.storage.cassandra.write.write_batches import (
    AppendOperation,
    BatchRun,
    Done,
    InFlightBatch,
    Written,
    divide_into_batches,
    ignore_result,
)
from queuey.storage.cassandra.write.writer import MessageWriter, Preparation, prepare

log = logging.getLogger(__name__)

Reserved = Callable[["Reservation | None", Exception | None], object]


class Reservation:
    """An operation whose ids are made, in buckets that are recorded for readers, and that is not sent yet."""

    __slots__ = ("batches", "done", "made_at", "operation", "runs")

    def __init__(self, operation: AppendOperation, done: Reserved) -> None:
        self.done = done
        self.operation = operation
        self.made_at = 0
        """The time at which the ids were made (ticks)."""
        self.runs: list[tuple[int, BatchRun]] = []
        """Runs with their partitions."""
        self.batches: list[InFlightBatch] = []


class ReservingWriter(MessageWriter):
    def reserve(self, queue: Queue, items: Sequence[NewMessage], done: Reserved, after: Position | None) -> None:
        """Makes the ids of messages; :meth:`write` then writes all of them or none. Never blocks.

        ``done`` gets the reservation or the error. Raises StoreUnavailable if the store refuses at once.
        """
        refused: Done = lambda _, error: done(None, error)  # noqa: E731 - short
        operation = AppendOperation(queue, [None] * len(items), after, refused, reserved=True)
        operation.divide(items)
        self._accept(operation, partial(self._make_ids, Reservation(operation, done)))

    def write(self, reservation: Reservation, done: Done) -> None:
        """Sends a reservation, from any thread; ``done`` is called once, in any thread. Never blocks.

        Failed writes are not undone: see :meth:`undo`. ``operation.written`` has the messages that were sent.
        """
        self._loop.call(self._write, reservation, done)

    def _write(self, reservation: Reservation, done: Done) -> None:
        operation, level = reservation.operation, reservation.operation.level
        with self._lock:
            is_open = operation in self._operations
            if is_open:
                operation.done = done
        if not is_open:
            done(None, StoreClosed("the store is closed"))
            return
        if not operation.begin():
            self._answer(operation, None, StoreClosed("the store is closed"))
            return
        if self._clock.boottime() - operation.id_boottime > level.deadline:
            self._answer(operation, None, InDoubt("the store took too long before it could write"))
            return
        for in_flight in reservation.batches:
            # The buffer in which the ids were made may have been dropped since.
            in_flight.buffer = self._buffers.acquire(in_flight.buffer.qid, in_flight.buffer.partition)
            in_flight.buffer.flying += 1
        for in_flight in reservation.batches:
            in_flight.mark_sent()
        for in_flight in reservation.batches:
            self._send(in_flight, level)
            self._end_flight(in_flight.buffer)

    def drop(self, reservation: Reservation) -> None:
        reservation.operation.withdraw()
        self._answer(reservation.operation, None, None)

    def undo(
        self,
        written: Iterable[Written],
        level: ResolvedLevel,
        until: float,
        answer: Callable[[Outcome], object],
        *,
        id_boottime: float = math.inf,
    ) -> None:
        """Undoes messages that may be written. The outcome is ``none`` if they are undone by boot time ``until``.

        ``id_boottime``: boot time of the first id, if no reader may have seen the messages. The outcome is then
        ``none`` only if a later check shows that the clock was right, else ``unknown``.
        """
        if id_boottime < math.inf:
            answer = partial(self._confirm_outcome, id_boottime, answer)
        self.undo_writer.undo(Undo(written, level, until, answer))

    def _make_ids(self, reservation: Reservation) -> None:
        operation = reservation.operation
        try:
            preparation = self._fill_reservation(reservation)
        except QueueChanged as error:
            self._answer(operation, None, error)
        except Exception as error:
            log.exception("Ids could not be made.")
            self._answer(operation, None, StoreUnavailable(f"ids could not be made: {error}"))
        else:
            if preparation is not None:
                self._begin_call(prepare(preparation), partial(self._make_prepared_ids, reservation))
                return
            operation.done = ignore_result
            reservation.done(reservation, None)

    def _make_prepared_ids(self, reservation: Reservation, _: object, failure: Exception | None) -> None:
        if failure is None:
            self._make_ids(reservation)
        else:
            self._answer(reservation.operation, None, failure)

    def _fill_reservation(self, reservation: Reservation) -> Preparation | None:
        operation, queue = reservation.operation, reservation.operation.queue
        row = self._rows.get(queue.application, queue.name)
        if row is None:
            return partial(self._rows.read_young, queue.application, queue.name)
        if operation.queue.version != row.queue.version:
            raise QueueChanged(operation.queue.name)
        now, id_boottime = self._clock.now_and_boottime()
        runs, batches, counted = [], [], []
        for partition, part in operation.parts.items():
            buffer = self._buffers.acquire(queue.qid, partition)
            if not (buffer.parts or buffer.flying):
                self._buffers.release(buffer)
            own, bucket_widths = self._make_runs(buffer, [part], row, now)
            if (preparation := self._find_unrecorded(buffer, row, own)) is not None:
                return preparation
            batches += divide_into_batches(buffer, own, now, id_boottime)
            counted.append((bucket_widths, part))
            runs += [(partition, run) for run in own]
        if (preparation := self._find_outdated(row)) is not None:
            return preparation
        operation.level = self._levels.resolve(row.queue)
        operation.id_boottime = id_boottime
        reservation.made_at, reservation.runs, reservation.batches = now, runs, batches
        for bucket_widths, part in counted:
            bucket_widths.add(len(part.items), part.size)
        return None
