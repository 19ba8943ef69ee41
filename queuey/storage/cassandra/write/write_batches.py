"""Messages on their way into Cassandra: operations, their parts, partition buffers and batches.

An operation is the messages that one call appends, perhaps to several partitions. A part is its messages for one of
them. A partition buffer holds the parts that wait for one queue partition. A batch in flight is a request with rows of
one Cassandra partition, perhaps of many operations.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from queuey.model.errors import Outcome
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.messages import KEPT_SECONDS, NewMessage, Queue
from queuey.storage.cassandra.cluster import InDoubt
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.statements.consistency_levels import ResolvedLevel
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import Bucket, BucketWidths
from queuey.storage.cassandra.time.clock import stamp_of

MAX_ROWS = 100
MAX_BYTES = 256 << 10
"""Max bytes (or rows) of a request to Cassandra, unless a single body is larger."""
TTL_MARGIN = 2
"""Number of seconds that a row outlives its message: Cassandra's TTLs have whole seconds, and our clock decides."""
MAX_BUFFERS = 20_000
FLUSH_ROWS = 2000
FLUSH_BYTES = 4 << 20
"""Max rows and bytes after which one flush of a buffer takes no further part, because other buffers wait meanwhile."""

Done = Callable[[list[Position] | None, Exception | None], object]


class Written(NamedTuple):
    """Messages that were sent to Cassandra in one bucket; their ids have consecutive ticks.

    ``kind`` is the class of the bucket and ``bucket`` its code; ``number`` is the number of messages.
    """

    kind: int
    qid: int
    partition: int
    bucket: int
    ticks: int
    low: int
    number: int

    @property
    def positions(self) -> list[Position]:
        return [(self.ticks + number, self.low) for number in range(self.number)]


class BatchedMessage:
    """A message on its way: its serialized columns, and the index of its id in the answer."""

    __slots__ = ("body", "delay", "index", "meta", "row_ttl", "ttl")

    def __init__(self, message: NewMessage, index: int) -> None:
        self.body, self.meta = message_codec.encode(message.body, message.meta)
        self.ttl = message.ttl
        self.row_ttl = message.ttl + KEPT_SECONDS if message.kept else message.ttl
        """Seconds from the message's id until its row expires."""
        self.delay = message.delay
        self.index = index

    def choose_class(self, home_class: int) -> int:
        return max(home_class, bucketing.class_of(self.row_ttl + self.delay))


@dataclass(slots=True, eq=False)
class AppendOperation:
    """The messages that one call appends; :mod:`.writer` describes the states.

    Attributes:
        positions: The ids in the call's order.
        level: The queue's level when the ids were made.
        row_ttls: The seconds for which rows live, of all messages.
        doubt: True if a message is stored or may be stored.
        id_boottime: Boot time of the earliest id.
        written: The messages that were given to the driver.
        reserved: True if the ids are made before the caller decides whether to write. The caller then undoes failures.
        sent: True if a request was sent or is about to be sent.
        withdrawn: True if the caller has given up.
    """

    queue: Queue
    positions: list[Any]
    after: Position | None
    done: Done
    reserved: bool = False
    level: ResolvedLevel = field(init=False)
    parts: dict[int, OperationPart] = field(default_factory=dict)
    row_ttls: set[int] = field(default_factory=set)
    longest: int = 0
    remaining: int = 0
    error: Exception | None = None
    doubt: bool = False
    id_boottime: float = math.inf
    written: list[Written] = field(default_factory=list)
    sent: bool = False
    withdrawn: bool = False

    def withdraw(self) -> Outcome:
        """Gives up, from any thread; afterwards no callback is called. Returns the outcome."""
        self.done = ignore_result
        return self.give_up()

    def give_up(self) -> Outcome:
        """Prevents all requests of the operation, unless one was sent already. Returns the outcome."""
        self.withdrawn = True
        return "unknown" if self.sent else "none"

    def divide(self, messages: Sequence[NewMessage]) -> None:
        for index, message in enumerate(messages):
            item = BatchedMessage(message, index)
            own = self.parts.get(message.partition)
            if own is None:
                own = self.parts[message.partition] = OperationPart(self)
            own.items.append(item)
            first = own.items[0]
            if item.delay or item.ttl != first.ttl or item.row_ttl != first.row_ttl:
                own.alike = False
            own.size += len(item.body)
            self.row_ttls.add(item.row_ttl)
            self.longest = max(self.longest, message_codec.row_size(item.body, item.meta))
        self.remaining = len(messages)

    def begin(self) -> bool:
        if not self.sent:
            # Write first, then read, as a caller that gives up in another thread at the same time does.
            self.sent = True
            self.sent = not self.withdrawn
        return self.sent

    def count_down(self, messages: int, error: Exception | None, *, stored: bool) -> bool:
        """Records the end of some messages; an error in doubt replaces another. Returns whether they were the last."""
        if error is not None and (self.error is None or isinstance(error, InDoubt)):
            self.error = error
        self.doubt = self.doubt or stored
        self.remaining -= messages
        return not self.remaining


class OperationPart:
    """An operation's messages for one partition."""

    __slots__ = ("alike", "items", "operation", "size")

    def __init__(self, operation: AppendOperation) -> None:
        self.operation = operation
        self.items: list[BatchedMessage] = []
        self.size = 0
        self.alike = True
        """True if no item has a delay, and all have the same TTL and row TTL: then their ids are consecutive."""


class PartitionBuffer:
    """Messages that wait for one queue partition. ``flying`` counts requests in flight and flushes in progress."""

    __slots__ = ("bucket_widths", "flying", "partition", "parts", "qid", "rows", "scheduled", "size")

    def __init__(self, qid: int, partition: int) -> None:
        self.qid = qid
        self.partition = partition
        self.parts: deque[OperationPart] = deque()
        self.rows = 0
        self.size = 0
        self.flying = 0
        self.scheduled = False
        self.bucket_widths: BucketWidths | None = None

    def put(self, parts: Iterable[OperationPart], *, first: bool = False) -> None:
        added = list(parts)
        if first:
            self.parts.extendleft(reversed(added))
        else:
            self.parts.extend(added)
        for part in added:
            self.rows += len(part.items)
            self.size += part.size

    def take(self) -> list[OperationPart]:
        taken: list[OperationPart] = []
        row_count = size = 0
        while self.parts and row_count < FLUSH_ROWS and size < FLUSH_BYTES:
            part = self.parts.popleft()
            taken.append(part)
            row_count += len(part.items)
            size += part.size
        self.rows -= row_count
        self.size -= size
        return taken


class PartitionBuffers(dict[tuple[int, int], PartitionBuffer]):
    """Buffers by qid and partition. Empty buffers are kept for their bucket widths until there are too many buffers."""

    def __init__(self, most: int = MAX_BUFFERS) -> None:
        super().__init__()
        self._most = most
        self._empty: OrderedDict[tuple[int, int], PartitionBuffer] = OrderedDict()
        """Empty buffers, the longest unused first."""

    def acquire(self, qid: int, partition: int) -> PartitionBuffer:
        key = qid, partition
        self._empty.pop(key, None)
        buffer = self.get(key)
        if buffer is None:
            buffer = self[key] = PartitionBuffer(qid, partition)
        return buffer

    def release(self, buffer: PartitionBuffer) -> None:
        self._empty[buffer.qid, buffer.partition] = buffer
        while self._empty and len(self) > self._most:
            key, _ = self._empty.popitem(last=False)
            del self[key]


class BatchRun(NamedTuple):
    """Messages of a part with consecutive ids in one bucket. They differ only in body and metadata."""

    part: OperationPart
    items: Sequence[BatchedMessage]
    time_bucket: Bucket
    ticks: int
    low: int

    def encode_rows(self, key: bytes, now: int) -> list[bytes]:
        first = self.items[0]
        lifetime = first.ttl * TICKS_PER_SECOND
        ttl = min(first.row_ttl + math.ceil(first.delay) + TTL_MARGIN, bucketing.max_cassandra_ttl(now))
        ticks, low, encoded = self.ticks, self.low, message_codec.encode_insert
        rows = []
        for item in self.items:
            stamp = stamp_of(now if first.delay else ticks)
            rows.append(encoded(key, (ticks, low), item.body, ticks + lifetime, item.meta, stamp, ttl))
            ticks += 1
        return rows


class InFlightBatch:
    """A request in flight: rows of one Cassandra partition, and in ``written`` whose messages they are.

    It has at most ``MAX_ROWS`` rows and ``MAX_BYTES`` bytes; a longer row fits only if it is the first.
    """

    __slots__ = ("buffer", "id_boottime", "rows", "size", "time_bucket", "written")

    def __init__(self, buffer: PartitionBuffer, time_bucket: Bucket, id_boottime: float) -> None:
        self.buffer = buffer
        self.time_bucket = time_bucket
        self.id_boottime = id_boottime
        self.rows: list[bytes] = []
        self.size = 0
        self.written: list[tuple[AppendOperation, Written]] = []

    def mark_sent(self) -> None:
        for operation, written in self.written:
            operation.written.append(written)
            operation.id_boottime = min(operation.id_boottime, self.id_boottime)

    def add(self, run: BatchRun, encoded: Sequence[bytes], first: int) -> int:
        fitting = encoded[first : first + MAX_ROWS - len(self.rows)]
        size = sum(map(len, fitting))
        if self.size + size > MAX_BYTES:
            fitting, size = self._fitting_rows(fitting)
        if not fitting:
            return 0
        operation = run.part.operation
        self.rows += fitting
        self.size += size
        buffer, ticks = self.buffer, run.ticks + first
        time_bucket = (self.time_bucket.ttl_class, buffer.qid, buffer.partition, self.time_bucket.code)
        self.written.append((operation, Written(*time_bucket, ticks, run.low, len(fitting))))
        return len(fitting)

    def _fitting_rows(self, encoded: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
        size = 0
        for number, row in enumerate(encoded):
            if self.size + size + len(row) > MAX_BYTES and (number or self.rows):
                return encoded[:number], size
            size += len(row)
        return encoded, size


def divide_into_batches(
    buffer: PartitionBuffer, runs: Iterable[BatchRun], now: int, id_boottime: float
) -> list[InFlightBatch]:
    open_flights: dict[Bucket, InFlightBatch] = {}
    in_flights: list[InFlightBatch] = []
    for run in runs:
        for number, item in enumerate(run.items):
            run.part.operation.positions[item.index] = run.ticks + number, run.low
        rows = run.encode_rows(message_codec.key_of(buffer.qid, buffer.partition, run.time_bucket.code), now)
        first = 0
        while first < len(rows):
            in_flight = open_flights.get(run.time_bucket)
            taken = 0 if in_flight is None else in_flight.add(run, rows, first)
            if not taken:
                in_flight = open_flights[run.time_bucket] = InFlightBatch(buffer, run.time_bucket, id_boottime)
                in_flights.append(in_flight)
                taken = in_flight.add(run, rows, first)
            first += taken
    return in_flights


def ignore_result(_positions: list[Position] | None, _error: Exception | None) -> None: ...
