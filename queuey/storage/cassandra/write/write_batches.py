"""Messages on their way into Cassandra: operations, their parts, the partition buffers they wait in, and requests.

An operation is what one call appends, perhaps to several partitions; a part is what of it goes to one. A partition
buffer holds the parts that wait for one queue partition. A batch in flight is a request: rows of one Cassandra
partition, perhaps of many operations.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from queuey.errors import Outcome
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import KEPT_SECONDS, NewMessage, Queue
from queuey.storage.cassandra import bucketing, message_codec
from queuey.storage.cassandra.bucketing import Bucket, BucketWidths
from queuey.storage.cassandra.clocks.clock import stamp_of
from queuey.storage.cassandra.consistency_levels import InForce
from queuey.storage.cassandra.driver import UNSET, InDoubt

FULL_ROWS = 50
FULL_BYTES = 64 << 10
"""Min bytes (or rows) of a batch that is sent at once."""
MOST_ROWS = 100
MOST_BYTES = 256 << 10
"""Max bytes (or rows) of a request to Cassandra, unless a single body is larger."""
TTL_MARGIN = 2
"""Number of seconds that Cassandra keeps a row beyond its end: its clock ticks in seconds, and ours decides."""
MOST_BUFFERS = 20_000
FLUSH_ROWS = 2000
FLUSH_BYTES = 4 << 20
"""Max rows and bytes of one flush of a buffer, after which it takes no further part: the other buffers wait
meanwhile."""

Done = Callable[[list[Position] | None, Exception | None], object]


class Written(NamedTuple):
    """Messages that were given to Cassandra: where, and their ids, which follow each other tick by tick."""

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


class Item:
    """A message on its way: its serialized columns, and where in the answer its id goes."""

    __slots__ = ("body", "delay", "index", "meta", "row_ttl", "ttl")

    def __init__(self, message: NewMessage, index: int) -> None:
        self.body, self.meta = message_codec.encode(message.body, message.meta)
        self.ttl = message.ttl
        self.row_ttl = message.ttl + KEPT_SECONDS if message.kept else message.ttl
        """Seconds from the message's id until its row goes."""
        self.delay = message.delay
        self.index = index

    def kind(self, home_class: int) -> int:
        """The class that its row is stored in: the queue's own unless it stays longer."""
        return max(home_class, bucketing.class_of(self.row_ttl + self.delay))


@dataclass(slots=True, eq=False)
class AppendOperation:
    """The messages that one call appends, through the states of :mod:`.writer`.

    Attributes:
        positions: In the call's order.
        left: Parts that are not sent yet, and requests on their way.
        doubt: Some of it is or may be stored.
        minted: Boot time of its earliest id.
        written: The messages that were given to the driver.
        reserved: Its ids are made before its caller decides whether they are written; its caller undoes what fails.
        sent: Some of it was sent, or is about to be.
        withdrawn: Its caller has given up.
    """

    queue: Queue
    level: InForce
    positions: list[Any]
    after: Position | None
    done: Done
    reserved: bool = False
    left: int = 0
    error: Exception | None = None
    doubt: bool = False
    minted: float = math.inf
    written: list[Written] = field(default_factory=list)
    sent: bool = False
    withdrawn: bool = False

    def withdraw(self) -> Outcome:
        """Gives up, in any thread; afterwards no callback is called. Returns what may become of the messages."""
        self.done = nobody
        return self.give_up()

    def give_up(self) -> Outcome:
        """Makes sure that nothing of it is sent unless some was. Returns what may become of the messages."""
        self.withdrawn = True
        return "unknown" if self.sent else "none"

    @property
    def given_up(self) -> bool:
        return self.withdrawn and not self.sent

    def begin(self) -> bool:
        """Claims it for sending, at the last moment before; False if its caller has given up."""
        if not self.sent:
            # In this order: whoever gives up in another thread meanwhile writes before it reads, as this does.
            self.sent = True
            self.sent = not self.withdrawn
        return self.sent

    def count_down(self, error: Exception | None, *, stored: bool) -> bool:
        if error is not None and (self.error is None or isinstance(error, InDoubt)):
            self.error = error
        self.doubt = self.doubt or stored
        self.left -= 1
        return not self.left


class OperationPart:
    __slots__ = ("alike", "items", "operation", "size")

    def __init__(self, operation: AppendOperation) -> None:
        self.operation = operation
        self.items: list[Item] = []
        self.size = 0
        self.alike = True
        """All have one TTL and no delay, and all or none are kept, so they follow each other."""

    def add(self, item: Item) -> None:
        items = self.items
        if item.delay or (items and (item.ttl != items[0].ttl or item.row_ttl != items[0].row_ttl)):
            self.alike = False
        items.append(item)
        self.size += len(item.body)

    @property
    def longest(self) -> int:
        metas = {item.meta for item in self.items if item.meta is not UNSET}
        return message_codec.ROW + max([len(item.body) for item in self.items]) + max(map(len, metas), default=0)


class PartitionBuffer:
    """Messages that wait for one queue partition. ``flying`` counts its requests on the way and flushes under work."""

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

    @property
    def due(self) -> bool:
        return bool(self.parts) and (not self.flying or self.rows >= FULL_ROWS or self.size >= FULL_BYTES)

    def put(self, parts: Iterable[OperationPart], *, first: bool = False) -> None:
        given = list(parts)
        if first:
            self.parts.extendleft(reversed(given))
        else:
            self.parts.extend(given)
        for part in given:
            self.rows += len(part.items)
            self.size += part.size

    def take(self) -> list[OperationPart]:
        """Removes and returns parts, up to two bounds, which the last one may pass."""
        taken: list[OperationPart] = []
        count = size = 0
        while self.parts and count < FLUSH_ROWS and size < FLUSH_BYTES:
            part = self.parts.popleft()
            taken.append(part)
            count += len(part.items)
            size += part.size
        self.rows -= count
        self.size -= size
        return taken


class PartitionBuffers(dict[tuple[int, int], PartitionBuffer]):
    """Buffers by qid and partition. Empty ones are kept for their bucket widths, until there are too many."""

    def __init__(self, most: int = MOST_BUFFERS) -> None:
        super().__init__()
        self._most = most
        self._empty: OrderedDict[tuple[int, int], PartitionBuffer] = OrderedDict()
        """In the order in which they were left, so that one to remove is found at once."""

    def take(self, qid: int, partition: int) -> PartitionBuffer:
        key = qid, partition
        self._empty.pop(key, None)
        buffer = self.get(key)
        if buffer is None:
            buffer = self[key] = PartitionBuffer(qid, partition)
        return buffer

    def leave(self, buffer: PartitionBuffer) -> None:
        self._empty[buffer.qid, buffer.partition] = buffer
        while self._empty and len(self) > self._most:
            key, _ = self._empty.popitem(last=False)
            del self[key]


class BatchRun(NamedTuple):
    """Messages of a part that go to one bucket under ids that follow each other tick by tick; alike but for bodies."""

    part: OperationPart
    items: Sequence[Item]
    time_bucket: Bucket
    ticks: int
    low: int

    def encoded(self, key: bytes, now: int) -> list[bytes]:
        """Returns the rows, as the encoded values of :data:`message_codec.INSERT`."""
        first = self.items[0]
        lifetime = first.ttl * TICKS_PER_SECOND
        ttl = min(first.row_ttl + math.ceil(first.delay) + TTL_MARGIN, bucketing.longest_ttl(now))
        ticks, low, encoded = self.ticks, self.low, message_codec.encoded_insert
        found = []
        for item in self.items:
            stamp = stamp_of(now if first.delay else ticks)
            found.append(encoded(key, (ticks, low), item.body, ticks + lifetime, item.meta, stamp, ttl))
            ticks += 1
        return found


class InFlightBatch:
    """A request on its way: rows of one Cassandra partition, and whose they are."""

    __slots__ = ("_taken", "buffer", "minted", "operations", "rows", "size", "time_bucket")

    def __init__(self, buffer: PartitionBuffer, time_bucket: Bucket, minted: float) -> None:
        self.buffer = buffer
        self.time_bucket = time_bucket
        self.minted = minted
        self.rows: list[bytes] = []
        self.size = 0
        self.operations: list[AppendOperation] = []
        self._taken: list[tuple[AppendOperation, Written]] = []

    def depart(self) -> None:
        for operation, taken in self._taken:
            operation.written.append(taken)
        for operation in self.operations:
            operation.left += 1
            operation.minted = min(operation.minted, self.minted)

    def take(self, run: BatchRun, given: Sequence[bytes], at: int) -> int:
        """Adds as many rows of a run as fit, from the ``at``-th on; returns how many."""
        taken = given[at : at + MOST_ROWS - len(self.rows)]
        size = sum(map(len, taken))
        if self.size + size > MOST_BYTES:
            taken, size = self._fitting(taken)
        if not taken:
            return 0
        operation = run.part.operation
        self.rows += taken
        self.size += size
        buffer, ticks = self.buffer, run.ticks + at
        time_bucket = (self.time_bucket.ttl_class, buffer.qid, buffer.partition, self.time_bucket.bucket)
        self._taken.append((operation, Written(*time_bucket, ticks, run.low, len(taken))))
        if not self.operations or self.operations[-1] is not operation:
            self.operations.append(operation)
        return len(taken)

    def _fitting(self, given: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
        """Returns the first rows that fit in: at least one, however large, if there is none yet."""
        size = 0
        for number, row in enumerate(given):
            if self.size + size + len(row) > MOST_BYTES and (number or self.rows):
                return given[:number], size
            size += len(row)
        return given, size


def batches_of(buffer: PartitionBuffer, runs: Iterable[BatchRun], now: int, minted: float) -> list[InFlightBatch]:
    """Serializes what is to be sent and divides it into requests."""
    open_flights: dict[Bucket, InFlightBatch] = {}
    in_flights: list[InFlightBatch] = []
    for run in runs:
        given = run.encoded(message_codec.key_of(buffer.qid, buffer.partition, run.time_bucket.bucket), now)
        at = 0
        while at < len(given):
            in_flight = open_flights.get(run.time_bucket)
            taken = 0 if in_flight is None else in_flight.take(run, given, at)
            if not taken:
                in_flight = open_flights[run.time_bucket] = InFlightBatch(buffer, run.time_bucket, minted)
                in_flights.append(in_flight)
                taken = in_flight.take(run, given, at)
            at += taken
    return in_flights


def slices_of(operation: AppendOperation, items: Sequence[NewMessage]) -> dict[int, OperationPart]:
    """Returns the parts of an operation by partition, the messages of each in the order given."""
    parts: dict[int, OperationPart] = {}
    for index, message in enumerate(items):
        part = parts.get(message.partition)
        if part is None:
            part = parts[message.partition] = OperationPart(operation)
        part.add(Item(message, index))
    return parts


def nobody(_positions: list[Position] | None, _error: Exception | None) -> None: ...
