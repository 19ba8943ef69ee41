"""One attempt of a task: writes its rows chunk by chunk to their queues, at a rate shared by all tasks of the write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import chain, pairwise
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np

from queuey.model.errors import QueueNotFound
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Queue, QueueSpec
from queuey.spark.errors import OptionError
from queuey.spark.options import SinkOptions
from queuey.spark.sink.arrow_rows import MAX_CHUNK_ROWS, ColumnLayout, RowChunk, divide_into_chunks
from queuey.spark.sink.exactly_once import NotRepeatable, Reserver, TargetQueue, WriteCounts
from queuey.spark.sink.messages_from_rows import MessageBuilder, Rules, group_by_queue, make_messages, read_sequences
from queuey.storage import Entry, Ledger, Store, bridge
from queuey.storage.arrow_format import Integers

if TYPE_CHECKING:
    import pyarrow as pa


MAX_NAME_BYTES = 200
"""Max bytes of a writer's name in the ledger; longer names are hashed."""


MAX_CONCURRENT_QUEUES = 16
"""Max queues to which a task writes at once: with few rows for each, it mostly waits for the ledger."""


class RateLimit:
    """Paces chunks to a number of rows per second.

    Args:
        ledger: The ledger that tasks share.
        work: Name of the ledger entry.
        rate: Messages a second; 0 means no limit.
        sleep: Sleeps for the given seconds.
    """

    def __init__(self, ledger: Ledger, work: str, rate: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._ledger = ledger
        self._work = work
        self._rate = rate
        self._sleep = sleep

    def chunk_size(self, max_messages: int) -> int:
        return max_messages if not self._rate else max(1, min(max_messages, int(self._rate)))

    def reserve_time(self, count: int) -> None:
        """Reserves time for a number of messages behind the reservations of all tasks, and sleeps until it begins."""
        if not self._rate:
            return
        span = round(count / self._rate * TICKS_PER_SECOND)
        now = start = bridge.run(self._ledger.now())

        def decide(reserved: bytes | None) -> Entry:
            nonlocal start
            start = now if reserved is None else max(now, int(reserved))
            return Entry(b"%d" % (start + span))

        bridge.run(self._ledger.change(self._work, 0, decide))
        if start > now:
            self._sleep((start - now) / TICKS_PER_SECOND)


class TaskIdentity(msgspec.Struct, frozen=True):
    """Identifies a task in the ledger, the same for all its attempts.

    Attributes:
        writer: The run, the query or this single write.
        batch: The micro-batch of a stream, else 0. Names do not contain it: a later micro-batch takes over the entries.
        task: The number of the Spark partition.
    """

    writer: str
    batch: int
    task: int

    @classmethod
    def make(cls, kind: str, application: str, name: str, *, batch: int = 0, task: int = 0) -> TaskIdentity:
        """Returns the identity of a writer of a kind and name that writes to an application's queues.

        Users choose the names of runs. They are hashed, because ``nightly/1`` would else be task 1 of ``nightly``; too
        long names are hashed as well.
        """
        writer = f"{kind}/{application}/{name}"
        if kind == "run" or len(writer.encode()) > MAX_NAME_BYTES:
            writer = f"{kind}/{blake2b(writer.encode(), digest_size=20).hexdigest()}"
        return cls(writer, batch, task)

    def shared_name(self, *parts: str) -> str:
        return "/".join(("spark", self.writer, *parts))

    def task_name(self, *parts: str) -> str:
        return self.shared_name(str(self.task), *parts)

    def finished_name(self, uid: int) -> str:
        """Returns the ledger name of the record that a run has written all rows for a queue."""
        return self.shared_name(f"{uid:x}", "finished")


class WriteLimits(msgspec.Struct, frozen=True):
    """Settings of the service that apply to a write.

    Attributes:
        max_body: Max bytes of a body.
        default_ttl: Default TTL in seconds.
    """

    max_body: int
    default_ttl: int


class TaskWriter:
    """Writes the rows of a task.

    Args:
        store: The store of the queues.
        application: The application that owns the queues.
        options: Options of the write.
        layout: The columns of the rows.
        identity: Identity of the task.
        limits: Limits of messages.
        sleep: Sleeps for the given seconds.
    """

    def __init__(
        self,
        store: Store,
        application: str,
        options: SinkOptions,
        layout: ColumnLayout,
        identity: TaskIdentity,
        limits: WriteLimits,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._application = application
        self._options = options
        self._layout = layout
        self._identity = identity
        self._limits = limits
        self._sleep = sleep
        self._pace = RateLimit(store.ledger, identity.shared_name("rate"), options.rate, sleep=sleep)
        self._targets: dict[str, TargetQueue] = {}
        self._reservers: dict[str, Reserver] = {}
        self._partitions: dict[int, int] = {}
        self._finished: dict[int, bool] = {}
        self._rows = MAX_CHUNK_ROWS

    @property
    def uids(self) -> frozenset[int]:
        return frozenset(target.queue.uid for target in self._targets.values())

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriteCounts:
        """Writes rows. All of them are stored when it returns. Without rows, nothing is looked up or recorded.

        Raises:
            QueueyError: Some rows may be written. Another attempt continues from there.
        """
        total = WriteCounts()
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:  # Without rows, nothing is recorded in the ledger.
            return total
        self._rows = self._chunk_rows()
        for chunk in divide_into_chunks(chain([first], filled), self._layout, rows=self._rows):
            parts = [(target, self._convert(chunk, target.queue, which)) for target, which in self._divide_rows(chunk)]
            total = sum(self._write_parts(chunk, parts), total)
        return total

    def _write_parts(self, chunk: RowChunk, parts: list[tuple[TargetQueue, MessageBuilder]]) -> Iterable[WriteCounts]:
        if len(parts) == 1:
            [(target, drafts)] = parts
            return [self._write_rows(chunk, target, drafts)]
        with ThreadPoolExecutor(min(MAX_CONCURRENT_QUEUES, len(parts))) as pool:
            writing = [pool.submit(self._write_rows, chunk, target, drafts) for target, drafts in parts]
        return [future.result() for future in writing]

    def _chunk_rows(self) -> int:
        """Returns the size of chunks at the first attempt, even if the rate has changed since.

        Numbered rows are divided into pieces of that size, the same for all tasks. Ids of a piece are reserved
        together, so writing a piece must not take long.
        """
        return self._agree_on_number(self._ledger_name("rows"), self._pace.chunk_size(MAX_CHUNK_ROWS))

    def _ledger_name(self, part: str) -> str:
        return self._identity.shared_name(part) if "sequence" in self._layout else self._identity.task_name(part)

    def _agree_on_number(self, work: str, number: int) -> int:
        batch = self._identity.batch
        proposed = b"%d %d" % (batch, number)

        def decide(value: bytes | None) -> Entry | None:
            return Entry(proposed) if value is None or int(value.split()[0]) < batch else None

        value = bridge.run(self._store.ledger.change(work, 0, decide, expects_none=True))
        newest, agreed = map(int, (value or proposed).split())
        if newest > batch:
            raise NotRepeatable(f"Micro-batch {batch} is repeated, but micro-batch {newest} has begun to write.")
        return agreed

    def _divide_rows(self, chunk: RowChunk) -> list[tuple[TargetQueue, Integers]]:
        rows_by_queue = group_by_queue(chunk, self._layout, self._options.queue)
        return [(self._get_target(name), which) for name, which in rows_by_queue.items()]

    def _get_target(self, name: str) -> TargetQueue:
        target = self._targets.get(name)
        if target is None:
            target = self._targets[name] = TargetQueue(self._store, self._look_up_queue(name), sleep=self._sleep)
        return target

    def _look_up_queue(self, name: str) -> Queue:
        """Returns a queue; creates the options' queue if ``create`` is set.

        Refuses queues of kinds that Spark cannot write to.
        """
        try:
            queue = bridge.run(self._store.catalogue.queue(self._application, name, fresh=True))
        except QueueNotFound as error:
            if self._options.create and name == self._options.queue:
                spec = QueueSpec(partitions=self._options.partitions)
                return bridge.run(self._store.catalogue.create_queue(self._application, name, spec))[0]
            raise QueueNotFound(name, f"application {self._application!r} has no queue {name!r}") from error
        if (refusal := queue.traits.refusal("write from Spark", queue)) is not None:
            raise OptionError(refusal)
        return queue

    def _convert(self, chunk: RowChunk, queue: Queue, row_indexes: Integers) -> MessageBuilder:
        ttl = self._options.ttl or queue.ttl or self._limits.default_ttl
        partitions = self._initial_partitions(chunk, queue)
        first = (crc32(self._identity.task_name().encode()) + chunk.number) % partitions + 1
        rules = Rules(
            partitions, queue.partitions, first, ttl, self._limits.max_body, bridge.run(self._store.ledger.now())
        )
        return make_messages(chunk, self._layout, row_indexes, rules)

    def _initial_partitions(self, chunk: RowChunk, queue: Queue) -> int:
        if "partition" in self._layout and not chunk.columns["partition"].null_count:
            return queue.partitions
        if queue.uid not in self._partitions:
            work = self._ledger_name(f"{queue.uid:x}/partitions")
            self._partitions[queue.uid] = self._agree_on_number(work, queue.partitions)
        return self._partitions[queue.uid]

    def _write_rows(self, chunk: RowChunk, target: TargetQueue, drafts: MessageBuilder) -> WriteCounts:
        if drafts.positions is not None:
            return self._bulk_load(target, drafts)
        work = self._ledger_name(f"{target.queue.uid:x}")
        if "sequence" not in self._layout:
            return self._write_piece(work, chunk.number, target, drafts)
        total = WriteCounts()
        for piece, rows in _divide_by_sequence(drafts, read_sequences(chunk, drafts.indexes), self._rows):
            total += self._write_piece(work, piece, target, rows)
        return total

    def _write_piece(self, work: str, piece: int, target: TargetQueue, drafts: MessageBuilder) -> WriteCounts:
        reserver = self._reservers.get(work)
        if reserver is None:
            reserver = Reserver(target, work, lead=self._options.lead, batch=self._identity.batch)
            self._reservers[work] = reserver
        if self._is_finished(target.queue.uid) and not reserver.has_begun(piece):
            raise NotRepeatable(
                f"Run {self._options.run!r} is finished, and its task {self._identity.task} had no chunk {piece}: rows "
                "were added, or are divided into other tasks now. They are not written. Divide them as before, or "
                "number them in a column sequence, and write under another name."
            )
        if self._options.rate and (remaining := reserver.count_undone(piece, drafts.indexes)):
            self._pace.reserve_time(remaining)
        return reserver.write(piece, drafts)

    def _is_finished(self, uid: int) -> bool:
        if self._options.run is None or "sequence" in self._layout:
            return False
        if uid not in self._finished:
            self._finished[uid] = bridge.run(self._store.ledger.entry(self._identity.finished_name(uid), 0)) is not None
        return self._finished[uid]

    def _bulk_load(self, target: TargetQueue, drafts: MessageBuilder) -> WriteCounts:
        self._pace.reserve_time(len(drafts))
        messages = drafts.make_messages_with_own_ids(bridge.run(self._store.ledger.now()))
        written = target.call_with_queue(lambda queue: bridge.run(self._store.bulk.load(queue, messages)))
        return WriteCounts(rows=len(messages), written=written, expired=len(messages) - written)


def _divide_by_sequence(drafts: MessageBuilder, numbers: Integers, size: int) -> Iterator[tuple[int, MessageBuilder]]:
    """Divides numbered rows into pieces of ``size`` numbers; yields each piece's number, ascending, and its rows.

    Rows keep their order in a piece. The index of a row in its piece depends only on its partition and number.

    Raises:
        OptionError: Two rows of one partition have the same number.
    """
    order = np.lexsort((numbers, drafts.partitions))
    again = (np.diff(numbers[order]) == 0) & (np.diff(drafts.partitions[order]) == 0)
    if again.any():
        place = order[np.argmax(again)]
        raise OptionError(
            f"Several rows for partition {drafts.partitions[place]} have the sequence {numbers[place]}: they would be "
            "one message."
        )
    pieces = numbers // size
    indexes = (drafts.partitions - 1) * size + numbers % size
    order = np.argsort(pieces, kind="stable")
    firsts = [0, *(np.flatnonzero(np.diff(pieces[order])) + 1).tolist(), len(order)]
    for first, end in pairwise(firsts):
        chosen = order[first:end]
        yield int(pieces[chosen[0]]), drafts.select_rows(chosen, indexes[chosen], size)
