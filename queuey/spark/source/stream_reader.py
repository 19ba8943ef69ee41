"""The streaming read: where the next micro-batch ends, and what it holds.

Spark keeps one reader in a Python process beside the driver and asks it, in a circle: ``latestOffset`` (where shall
the next batch end?), then, having written the answer to the checkpoint, ``partitions`` (which tasks is that?), and
``commit`` when the batch after it begins. Tasks call ``read`` on copies of the reader.

* A batch never ends above the horizon, so what is stored later is never below the end of a batch before.
* ``initialOffset`` is asked for again whenever the first batch is run again, after a crash too. A start at "latest" is
  another one then. So the first batch of such a stream is empty: it writes the start down.
* Partitions without new messages stay where they are, and a stream without new messages runs no batches. An old
  position is moved on nevertheless; otherwise it would seem one day that messages above it had expired unread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from queuey import ids
from queuey.errors import QueueChanged, QueueNotFound, QueueyError, StoreUnavailable
from queuey.ids import FIRST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import Queue, Slice
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import SourceOptions, read_options
from queuey.spark.slices import QueuePartition, QueueSlice
from queuey.spark.source import columns, stream_offsets
from queuey.spark.source.failing_reader import FailingReader
from queuey.spark.source.group_offsets import GroupOffsets
from queuey.spark.source.latest_offsets import TRIES, QueueHorizon, queue_horizons
from queuey.spark.source.read_task import BATCH_ROWS, READ_TIMEOUT, lose, scanned
from queuey.spark.source.stream_lag import StreamLag
from queuey.spark.source.stream_offsets import ScannedTo, StreamOffset
from queuey.spark.start_and_end import EARLIEST, LATEST, At
from queuey.storage import Store, bridge, opening

IDLE_INTERVAL = 0.1
"""Interval before an empty answer, in seconds: without a trigger Spark asks again after 10 ms."""
IDLE_FRACTION = 4
"""Max age of an idle position: the queue's TTL divided by this number."""
_SHOWN = 3
"""Max names in an error."""


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Makes the reader of a stream. Never raises: Spark would show another error instead."""
    try:
        return QueueyStreamReader(read_options(options, streaming=True), schema)
    except QueueyError as error:
        return FailingReader(error)


class QueueyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream over some queues. Holds nothing that cannot be pickled."""

    def __init__(
        self, options: SourceOptions, schema: StructType, *, idle_pause: float = IDLE_INTERVAL, rows: int = BATCH_ROWS
    ) -> None:
        """Checks what the stream was asked for.

        Args:
            options: What to read.
            schema: The columns wanted.
            idle_pause: Seconds before an answer that there is nothing new.
            rows: Of a record batch at most.

        Raises:
            OptionError: The schema asks for other columns, or an option is not for streams.
        """
        columns.check_schema(schema, headers=options.headers)
        if options.max_records is not None:
            raise OptionError("Option maxRecordsPerPartition is for batch reads; streams have maxOffsetsPerTrigger.")
        self._options = options
        self._schema = columns.arrow_schema(schema)
        self._idle_pause = idle_pause
        self._rows = rows
        self._progress = None if options.group is None else GroupOffsets(options.store, options.group)
        self._default_ttl: int | None = None
        self._initial: StreamOffset | None = None
        self._to_be_kept = False
        """The start is one that would be another the next time, and no batch has written it down yet."""
        self._targets: dict[QueuePartition, Position] | None = None
        self._newest: StreamOffset | None = None
        self._lag = StreamLag()
        self._left: dict[Queue, dict[int, Position]] = {}
        """Where the last batch ends, in partitions that may have more."""
        self._given: dict[str, Any] | None = None
        """The last answer of ``latestOffset``."""
        self._vacant: dict[QueuePartition, tuple[Position, Position]] = {}
        """Ranges that were seen to hold nothing; what comes now lies above them."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a stream without a checkpoint starts; the same at every call.

        Raises:
            QueueNotFound: A queue that is named does not exist.
            OptionError: The options that say where to start do not fit the queues.
        """
        if self._initial is None:
            found = self._fronts(missing=False)
            starting = self._options.starting
            starting.check({front.queue.name: front.queue.partitions for front in found})
            queue_partitions = {
                queue_partition: front.horizon for front in found for queue_partition in front.queue_partitions()
            }
            bounds = {queue_partition: starting.of(*queue_partition) for queue_partition in queue_partitions}
            self._to_be_kept = LATEST in bounds.values()
            self._initial = StreamOffset(
                {
                    queue_partition: bound.position
                    if isinstance(bound, At)
                    else FIRST
                    if bound == EARLIEST
                    else queue_partitions[queue_partition]
                    for queue_partition, bound in bounds.items()
                }
            )
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes how far this run goes: to the horizons of now, in the partitions that there are."""
        self._targets = {
            queue_partition: front.horizon for front in self._fronts() for queue_partition in front.queue_partitions()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself if there is nothing new.

        Raises:
            DataLoss: What lies above ``start`` may have expired unread, or its queue is gone.
            StoreUnavailable: The store did not answer for a while.
        """
        begin = stream_offsets.parse(start)
        if self._to_be_kept and begin == self._initial:
            self._to_be_kept = False
            self._given = start
            return start
        if self._progress is not None:
            self._progress.record(begin)
        end = opening.patiently(lambda: self._end(begin, limit), READ_TIMEOUT)
        if end == begin:
            time.sleep(self._idle_pause)
            self._given = start
        else:
            self._given = end.to_json()
        return self._given

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the last call of ``latestOffset`` could have gone, and what it left, for the query's progress."""
        if self._newest is None:
            return None
        return {**self._newest.to_json(), "lag": self._lag.after(open_stores.opened(self._options.store), self._left)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch: they follow from the two ends and the options alone.

        Raises:
            DataLoss: The batch was planned before the query was started again, and may have expired meanwhile.
        """
        first, last = stream_offsets.parse(start), stream_offsets.parse(end)
        if end != self._given:
            self._check_again(stream_offsets.ranges(first, last))
        tasks = stream_offsets.plan(first, last, least=self._options.min_partitions)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return scanned(self._options, partition.value, self._schema, rows=self._rows)

    def commit(self, end: dict[str, Any]) -> None:
        if self._progress is not None:
            self._progress.record(stream_offsets.parse(end))

    def _end(self, begin: StreamOffset, limit: ReadLimit, tries: int = TRIES) -> StreamOffset:
        """Chooses where the next batch ends."""
        try:
            return self._chosen_end(begin, limit)
        except QueueChanged:
            if tries == 1:
                raise
            return self._end(begin, limit, tries - 1)

    def _chosen_end(self, begin: StreamOffset, limit: ReadLimit) -> StreamOffset:
        store = open_stores.opened(self._options.store)
        found = {front.queue.name: front for front in self._fronts()}
        there = {
            queue_partition: front.horizon for front in found.values() for queue_partition in front.queue_partitions()
        }
        self._newest = StreamOffset(there)
        gone = begin.positions.keys() - there.keys()
        if gone:
            names = sorted({queue for queue, _ in gone})
            self._lose(f"Queue {names[0]!r} or a partition of it is gone, or is not read any more.", names[1:])
        uppers = self._within_targets(there)
        waiting = stream_offsets.ranges(begin, StreamOffset(uppers))
        self._check_age(waiting, {name: front.queue for name, front in found.items()}, bridge.run(store.ledger.now()))
        unseen = list(self._unseen(waiting))
        ends, empty = self._chosen(store, found, unseen, limit)
        known = {one.queue_partition for one in waiting} - {one.queue_partition for one in unseen}
        kept = {queue_partition: self._vacant[queue_partition] for queue_partition in known}
        self._vacant = kept | {
            queue_partition: (begin.of(queue_partition), uppers[queue_partition]) for queue_partition in empty
        }
        for queue_partition in self._vacant:
            queue = found[queue_partition[0]].queue
            # At its beginning a partition stands where its queue was made.
            since = max(begin.of(queue_partition)[0], ids.seconds_to_ticks(queue.created))
            if since < uppers[queue_partition][0] - self._while(queue):
                ends[queue_partition] = uppers[queue_partition]
        end = begin.moved(ends, gone)
        self._left = {}
        for queue_partition, upper in uppers.items():
            name, number = queue_partition
            if end.of(queue_partition) < upper != self._vacant.get(queue_partition, (None, None))[1]:
                self._left.setdefault(found[name].queue, {})[number] = end.of(queue_partition)
        return end

    def _fronts(self, *, missing: bool = True) -> list[QueueHorizon]:
        """Reads the queues' horizons, and makes sure that they are recent.

        Without writes the clock of an embedded store stands still; a ping advances it.
        """
        store = open_stores.opened(self._options.store)
        found = queue_horizons(self._options, missing=missing)
        now = bridge.run(store.ledger.now())
        for queue, _, horizon in found:
            delay = int(store.read_delay(queue) * TICKS_PER_SECOND)
            if horizon[0] < now - delay - self._while(queue):
                with contextlib.suppress(StoreUnavailable):
                    bridge.run(store.ping())
                return queue_horizons(self._options, missing=missing)
        return found

    def _within_targets(self, there: Mapping[QueuePartition, Position]) -> dict[QueuePartition, Position]:
        """Returns the horizons, or how far a run with a given end goes."""
        if self._targets is None:
            return dict(there)
        return {
            queue_partition: min(there[queue_partition], target)
            for queue_partition, target in self._targets.items()
            if queue_partition in there
        }

    def _unseen(self, waiting: Sequence[QueueSlice]) -> Iterator[QueueSlice]:
        """Gives what is left of ranges of which a part was seen to hold nothing."""
        for one in waiting:
            lower, upper = self._vacant.get(one.queue_partition, (None, one.lower))
            since = upper if lower == one.lower else one.lower
            if since < one.upper:
                yield msgspec.structs.replace(one, lower=since)

    def _chosen(
        self, store: Store, found: Mapping[str, QueueHorizon], waiting: Sequence[QueueSlice], limit: ReadLimit
    ) -> tuple[dict[QueuePartition, Position], set[QueuePartition]]:
        def extent(one: QueueSlice, most: int) -> ScannedTo:
            part = Slice(one.partition, one.lower, one.upper, limit=most)
            return ScannedTo(*bridge.run(store.bulk.extent(found[one.queue].queue, part)))

        if isinstance(limit, ReadMaxRows):
            return stream_offsets.share(waiting, limit.max_rows, extent)
        return stream_offsets.occupied(waiting, extent)

    def _check_again(self, planned: Sequence[QueueSlice]) -> None:
        """Checks a batch that was planned by an earlier run."""
        if not planned:
            return
        store = open_stores.opened(self._options.store)
        owner = open_stores.application(store, self._options.store)
        queues: dict[str, Queue] = {}
        for name in sorted({one.queue for one in planned}):
            try:
                queues[name] = bridge.run(store.catalogue.queue(owner, name, fresh=True))
            except QueueNotFound:
                self._lose(f"Queue {name!r} is gone.")
        self._check_age([one for one in planned if one.queue in queues], queues, bridge.run(store.ledger.now()))

    def _check_age(self, waiting: Sequence[QueueSlice], queues: Mapping[str, Queue], now: int) -> None:
        """Makes sure that nothing can have expired between the start of a range and now."""
        lost = []
        for one in waiting:
            expired = now - self._ttl(queues[one.queue]) * TICKS_PER_SECOND
            if FIRST[0] < one.lower[0] < expired and not self._is_instant(one):
                lost.append(one)
        if lost:
            queue, number = lost[0].queue_partition
            others = [f"{one.queue} {one.partition}" for one in lost[1:]]
            since_text = ids.timestamp_text(lost[0].lower[0])
            self._lose(
                f"Messages of queue {queue!r}, partition {number}, may have expired before they were read: the stream "
                f"stands at {since_text} s since 1970, longer ago than the queue's TTL.",
                others,
            )

    def _is_instant(self, one: QueueSlice) -> bool:
        """Returns whether a range starts at an instant that the options name, which may be as early as one likes."""
        named = self._options.starting.each.get(one.queue, {}).get(one.partition, self._options.starting.everywhere)
        return named == At(one.lower) and one.lower[1] == LOW_MIN

    def _lose(self, what: str, others: Sequence[str] = ()) -> None:
        if others:
            shown = ", ".join(others[:_SHOWN]) + (", …" if len(others) > _SHOWN else "")
            what = f"{what} The same holds for {len(others)} more: {shown}."
        lose(self._options, what)

    def _while(self, queue: Queue) -> int:
        """Returns how old a position without new messages may get (ticks)."""
        return self._ttl(queue) * TICKS_PER_SECOND // IDLE_FRACTION

    def _ttl(self, queue: Queue) -> int:
        """Returns the TTL of a queue's messages without their own TTL (s)."""
        if queue.ttl is not None:
            return queue.ttl
        if self._default_ttl is None:
            self._default_ttl = open_stores.settings_of(self._options.store).default_ttl
        return self._default_ttl
