"""The streaming read: decides where each micro-batch ends, and plans its tasks.

Spark keeps one reader in a Python process beside the driver. For each batch it calls ``latestOffset`` (the end of the
batch), writes the answer to the checkpoint, calls ``partitions`` (the tasks), and ``commit`` when the next batch
begins. Tasks call ``read`` on copies of the reader.

* A batch never ends above the horizon, so messages stored later are never below the end of an earlier batch.
* Spark calls ``initialOffset`` again whenever the first batch is repeated, also after a crash. A start at "latest"
  would have moved by then. So the first batch of such a stream is empty, and only writes the start to the checkpoint.
* The positions of partitions without new messages do not move, and a stream without new messages runs no batches. But
  an old position is advanced eventually, because otherwise messages above it would seem to have expired unread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from queuey.app import opening
from queuey.model import ids
from queuey.model.errors import QueueChanged, QueueNotFound, QueueyError, StoreUnavailable
from queuey.model.ids import FIRST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.model.messages import Lag, Queue, Slice
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import SourceOptions, read_options
from queuey.spark.slices import QueuePartition, QueueSlice
from queuey.spark.source import columns, stream_offsets
from queuey.spark.source.group_offsets import GroupOffsets
from queuey.spark.source.latest_offsets import MAX_TRIES, QueueHorizon, read_queue_horizons
from queuey.spark.source.read_task import MAX_BATCH_ROWS, READ_TIMEOUT, report_loss, scan_rows
from queuey.spark.source.stream_offsets import ScannedTo, StreamOffset
from queuey.spark.start_and_end import EARLIEST, LATEST, At
from queuey.storage import Store, bridge

REQUEST_INTERVAL = 10.0
IDLE_INTERVAL = 0.1
"""Interval before an empty answer, in seconds: without a trigger interval Spark would call again after 10 ms."""
IDLE_FRACTION = 4
"""Max age of an idle position: the queue's TTL divided by this number."""
_MAX_SHOWN = 3


class StreamLag:
    """Measures the lag of a stream.

    Queries the store only while messages remain, and at most every ``REQUEST_INTERVAL`` seconds. Between requests, and
    after a failed one, it repeats the last result.

    Args:
        clock: A monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requested_at: float | None = None
        self._last = Lag(0, exact=True, seconds=0.0)

    def measure(self, store: Store, batch_ends: Mapping[Queue, Mapping[int, Position]]) -> dict[str, Any]:
        """Returns the number of remaining messages, whether it is exact, and the age of the oldest one in seconds.

        Args:
            store: The store of the queues.
            batch_ends: Queue -> partition -> end of the batch, for partitions that may have messages above it.
        """
        now = self._clock()
        if not batch_ends:
            self._requested_at, self._last = None, Lag(0, exact=True, seconds=0.0)
        elif self._requested_at is None or now >= self._requested_at + REQUEST_INTERVAL:
            self._requested_at = now
            # If the queue has changed or the store does not answer, the next batch raises the error.
            with contextlib.suppress(QueueyError):
                self._last = _measure_total(store, batch_ends)
        return {"messages": self._last.count, "exact": self._last.exact, "seconds": round(self._last.seconds, 3)}


def _measure_total(store: Store, batch_ends: Mapping[Queue, Mapping[int, Position]]) -> Lag:
    lags = [
        lag
        for queue, ends in batch_ends.items()
        for lag in bridge.run(
            store.messages.lag(
                queue, [(number, None if end == FIRST else ids.preceding(end)) for number, end in ends.items()]
            )
        )
    ]
    return Lag(sum(lag.count for lag in lags), all(lag.exact for lag in lags), max(lag.seconds for lag in lags))


class FailingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises an error of the constructor later, because Spark would replace an error raised there.

    Args:
        error: The error to raise.
    """

    def __init__(self, error: QueueyError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002 - it always raises
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002 - it always raises
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - it always raises
        raise self._error


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Returns the reader of a stream. Never raises, because Spark would replace the error."""
    try:
        return QueueyStreamReader(read_options(options, streaming=True), schema)
    except QueueyError as error:
        return FailingReader(error)


class QueueyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Holds nothing that cannot be pickled."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        idle_pause: float = IDLE_INTERVAL,
        rows: int = MAX_BATCH_ROWS,
    ) -> None:
        """Checks the options and the schema.

        Args:
            options: Options of the read.
            schema: The requested columns.
            idle_pause: Seconds to wait before an answer without new messages.
            rows: Max rows of a record batch.

        Raises:
            OptionError: The schema has other columns than a read, or an option is not for streams.
        """
        columns.check_schema(schema, headers=options.headers)
        if options.max_records is not None:
            raise OptionError("Option maxRecordsPerPartition is for batch reads; streams have maxOffsetsPerTrigger.")
        self._options = options
        self._schema = columns.arrow_schema(schema)
        self._idle_pause = idle_pause
        self._rows = rows
        self._group_offsets = None if options.group is None else GroupOffsets(options.store, options.group)
        self._default_ttl: int | None = None
        self._initial: StreamOffset | None = None
        self._is_start_unsaved = False
        """The start is "latest", and no batch has written its position to the checkpoint yet."""
        self._run_ends: dict[QueuePartition, Position] | None = None
        """Ends of a run that only reads what exists at its start; None if the stream goes on."""
        self._newest_horizons: StreamOffset | None = None
        self._lag = StreamLag()
        self._remaining: dict[Queue, dict[int, Position]] = {}
        """The end of the last batch in partitions that may have more messages."""
        self._last_answer: dict[str, Any] | None = None
        """The last answer of ``latestOffset``."""
        self._empty_ranges: dict[QueuePartition, tuple[Position, Position]] = {}
        """Ranges known to be empty. New messages are above them."""

    def initialOffset(self) -> dict[str, Any]:
        """Returns the start of a stream without a checkpoint: resolved at the first call, then kept by this reader.

        Raises:
            QueueNotFound: A named queue does not exist.
            OptionError: The options for the start do not match the queues.
        """
        if self._initial is None:
            fronts = self._read_horizons(skip_missing=False)
            starting = self._options.starting
            starting.check({front.queue.name: front.queue.partitions for front in fronts})
            queue_partitions = {
                queue_partition: front.horizon for front in fronts for queue_partition in front.queue_partitions()
            }
            bounds = {queue_partition: starting.find_bound(*queue_partition) for queue_partition in queue_partitions}
            self._is_start_unsaved = LATEST in bounds.values()
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
        self._run_ends = {
            queue_partition: front.horizon
            for front in self._read_horizons()
            for queue_partition in front.queue_partitions()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next batch, or ``start`` itself, after a pause, if there are no new messages.

        Also returns ``start`` at once for the first batch of a stream that starts at "latest". Otherwise records
        ``start`` as offsets of the group in the options, if there is one.

        Raises:
            DataLoss: Messages above ``start`` may have expired unread, or their queue was deleted.
            StoreUnavailable: The store did not answer for ``READ_TIMEOUT`` seconds.
        """
        begin = stream_offsets.parse(start)
        if self._is_start_unsaved and begin == self._initial:
            self._is_start_unsaved = False
            self._last_answer = start
            return start
        if self._group_offsets is not None:
            self._group_offsets.record(begin)
        end = opening.retry_until_available(lambda: self._find_end(begin, limit), READ_TIMEOUT)
        if end == begin:
            time.sleep(self._idle_pause)
            self._last_answer = start
        else:
            self._last_answer = end.to_json()
        return self._last_answer

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the horizons at the last call of ``latestOffset``, None before it, and measures the present lag."""
        if self._newest_horizons is None:
            return None
        return {
            **self._newest_horizons.to_json(),
            "lag": self._lag.measure(open_stores.opened(self._options.store), self._remaining),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the tasks of a batch, which depend only on the two offsets and the options.

        Raises:
            DataLoss: The batch was planned before a restart of the query, and messages may have expired meanwhile.
        """
        first, last = stream_offsets.parse(start), stream_offsets.parse(end)
        if end != self._last_answer:
            self._check_data_loss(stream_offsets.find_ranges(first, last))
        tasks = stream_offsets.plan_tasks(first, last, min_tasks=self._options.min_partitions)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return scan_rows(self._options, partition.value, self._schema, rows=self._rows)

    def commit(self, end: dict[str, Any]) -> None:
        if self._group_offsets is not None:
            self._group_offsets.record(stream_offsets.parse(end))

    def _find_end(self, start: StreamOffset, limit: ReadLimit, tries: int = MAX_TRIES) -> StreamOffset:
        try:
            return self._find_end_once(start, limit)
        except QueueChanged:
            if tries == 1:
                raise
            return self._find_end(start, limit, tries - 1)

    def _find_end_once(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Returns the end of the next batch; keeps the horizons and remaining messages for the reported lag.

        Positions that are idle for too long advance over empty ranges.

        Raises:
            DataLoss: Messages after ``start`` have expired, and the options do not allow that.
        """
        store = open_stores.opened(self._options.store)
        fronts = {front.queue.name: front for front in self._read_horizons()}
        horizons = {
            queue_partition: front.horizon for front in fronts.values() for queue_partition in front.queue_partitions()
        }
        self._newest_horizons = StreamOffset(horizons)
        gone = start.positions.keys() - horizons.keys()
        if gone:
            names = sorted({queue for queue, _ in gone})
            self._report_loss(
                f"Queue {names[0]!r} or a partition of it was deleted, or is not read any more.", names[1:]
            )
        uppers = self._limit_to_run_ends(horizons)
        waiting = stream_offsets.find_ranges(start, StreamOffset(uppers))
        self._check_age(waiting, {name: front.queue for name, front in fronts.items()}, bridge.run(store.ledger.now()))
        unseen = list(self._skip_empty_ranges(waiting))
        ends, empty = self._choose_ends(store, fronts, unseen, limit)
        known_empty = {part.queue_partition for part in waiting} - {part.queue_partition for part in unseen}
        kept = {queue_partition: self._empty_ranges[queue_partition] for queue_partition in known_empty}
        self._empty_ranges = kept | {
            queue_partition: (start.position_of(queue_partition), uppers[queue_partition]) for queue_partition in empty
        }
        for queue_partition in self._empty_ranges:
            queue = fronts[queue_partition[0]].queue
            # A position at the beginning of a partition is as old as the queue.
            since = max(start.position_of(queue_partition)[0], ids.seconds_to_ticks(queue.created))
            if since < uppers[queue_partition][0] - self._max_idle_ticks(queue):
                ends[queue_partition] = uppers[queue_partition]
        end = start.with_changes(ends, gone)
        self._remaining = {}
        for queue_partition, upper in uppers.items():
            name, number = queue_partition
            if end.position_of(queue_partition) < upper != self._empty_ranges.get(queue_partition, (None, None))[1]:
                self._remaining.setdefault(fronts[name].queue, {})[number] = end.position_of(queue_partition)
        return end

    def _read_horizons(self, *, skip_missing: bool = True) -> list[QueueHorizon]:
        """Returns the queues' horizons, and makes sure that they are recent.

        Without writes the clock of an embedded store does not advance; a ping advances it.
        """
        store = open_stores.opened(self._options.store)
        fronts = read_queue_horizons(self._options, skip_missing=skip_missing)
        now = bridge.run(store.ledger.now())
        for queue, _, horizon in fronts:
            delay = int(store.read_delay(queue) * TICKS_PER_SECOND)
            if horizon[0] < now - delay - self._max_idle_ticks(queue):
                with contextlib.suppress(StoreUnavailable):
                    bridge.run(store.ping())
                return read_queue_horizons(self._options, skip_missing=skip_missing)
        return fronts

    def _limit_to_run_ends(self, horizons: Mapping[QueuePartition, Position]) -> dict[QueuePartition, Position]:
        if self._run_ends is None:
            return dict(horizons)
        return {
            queue_partition: min(horizons[queue_partition], target)
            for queue_partition, target in self._run_ends.items()
            if queue_partition in horizons
        }

    def _skip_empty_ranges(self, waiting: Sequence[QueueSlice]) -> Iterator[QueueSlice]:
        for queue_slice in waiting:
            lower, upper = self._empty_ranges.get(queue_slice.queue_partition, (None, queue_slice.lower))
            since = upper if lower == queue_slice.lower else queue_slice.lower
            if since < queue_slice.upper:
                yield msgspec.structs.replace(queue_slice, lower=since)

    def _choose_ends(
        self, store: Store, horizons: Mapping[str, QueueHorizon], waiting: Sequence[QueueSlice], limit: ReadLimit
    ) -> tuple[dict[QueuePartition, Position], set[QueuePartition]]:
        def extent(queue_slice: QueueSlice, limit: int) -> ScannedTo:
            limited = Slice(queue_slice.partition, queue_slice.lower, queue_slice.upper, limit=limit)
            return ScannedTo(*bridge.run(store.bulk.extent(horizons[queue_slice.queue].queue, limited)))

        if isinstance(limit, ReadMaxRows):
            return stream_offsets.share_messages(waiting, limit.max_rows, extent)
        return stream_offsets.find_occupied(waiting, extent)

    def _check_data_loss(self, planned: Sequence[QueueSlice]) -> None:
        if not planned:
            return
        store = open_stores.opened(self._options.store)
        owner = open_stores.application(store, self._options.store)
        queues: dict[str, Queue] = {}
        for name in sorted({part.queue for part in planned}):
            try:
                queues[name] = bridge.run(store.catalogue.queue(owner, name, fresh=True))
            except QueueNotFound:
                self._report_loss(f"Queue {name!r} was deleted.")
        self._check_age([part for part in planned if part.queue in queues], queues, bridge.run(store.ledger.now()))

    def _check_age(self, waiting: Sequence[QueueSlice], queues: Mapping[str, Queue], now: int) -> None:
        lost = []
        for queue_slice in waiting:
            expired = now - self._ttl_seconds(queues[queue_slice.queue]) * TICKS_PER_SECOND
            if FIRST[0] < queue_slice.lower[0] < expired and not self._starts_at_requested_time(queue_slice):
                lost.append(queue_slice)
        if lost:
            queue, number = lost[0].queue_partition
            others = [f"{queue_slice.queue} {queue_slice.partition}" for queue_slice in lost[1:]]
            since_text = ids.timestamp_text(lost[0].lower[0])
            self._report_loss(
                f"Messages of queue {queue!r}, partition {number}, may have expired before they were read: the "
                f"stream's position is {since_text} s since 1970, longer ago than the queue's TTL.",
                others,
            )

    def _starts_at_requested_time(self, part: QueueSlice) -> bool:
        named = self._options.starting.each.get(part.queue, {}).get(part.partition, self._options.starting.everywhere)
        return named == At(part.lower) and part.lower[1] == LOW_MIN

    def _report_loss(self, what: str, others: Sequence[str] = ()) -> None:
        if others:
            shown = ", ".join(others[:_MAX_SHOWN]) + (", …" if len(others) > _MAX_SHOWN else "")
            what = f"{what} The same holds for {len(others)} more: {shown}."
        report_loss(self._options, what)

    def _max_idle_ticks(self, queue: Queue) -> int:
        return self._ttl_seconds(queue) * TICKS_PER_SECOND // IDLE_FRACTION

    def _ttl_seconds(self, queue: Queue) -> int:
        if queue.ttl is not None:
            return queue.ttl
        if self._default_ttl is None:
            self._default_ttl = open_stores.read_settings(self._options.store).default_ttl
        return self._default_ttl
