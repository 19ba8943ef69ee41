"""Bulk loads: many messages with given ids, in batches of one Cassandra partition each, some on the way at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from queuey.errors import StoreUnavailable
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Message
from queuey.storage.cassandra import bucketing, message_codec
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.catalogue.queue_cache import Row
from queuey.storage.cassandra.consistency_levels import InForce
from queuey.storage.cassandra.driver import Driver, Rows
from queuey.storage.cassandra.ids.clock import Clock
from queuey.storage.cassandra.ids.id_generator import Stamps
from queuey.storage.cassandra.read.bucket_index import BucketIndex

LOADED_AT_ONCE = 5000
"""Messages that are divided among buckets together."""
WIDE_ROWS = 200_000
WIDE_BYTES = 64_000_000
"""What a wide bucket of loaded messages may hold: more than others, because the next narrower ones are so much
narrower, and many small buckets cost a reader more than a few large ones."""
BATCH_ROWS = 100
BATCH_BYTES = 128 << 10
FLYING = 8
"""Batches on the way; one with a long body counts as several, by its length. The driver refuses requests for a
connection while one that does not fit in the socket's buffer is on its way."""
_NO_META = b"\0"

Placed = dict[tuple[int, Bucket], list[Message]]
"""Messages by partition and bucket."""


class Loader:
    """Loads messages into one queue.

    Args:
        driver: The way to Cassandra.
        bucket index: The record of buckets.
        row: The queue's.
        level: The queue's.
        clock: What has expired by it is left out.
        stamps: Of writes.
    """

    def __init__(
        self, driver: Driver, bucket_index: BucketIndex, row: Row, level: InForce, clock: Clock, stamps: Stamps
    ) -> None:
        self._driver = driver
        self._bucket_index = bucket_index
        self._row = row
        self._level = level
        self._clock = clock
        self._stamps = stamps

    def write(self, messages: Sequence[Message]) -> int:
        """Writes messages; returns how many, without those that have expired.

        Raises:
            StoreUnavailable: Some may be written and some not.
        """
        now = self._clock.now()
        placed = self.placed(messages, now)
        self.record(placed)
        return self.send(placed, now, self._stamps.above)

    def placed(self, messages: Sequence[Message], now: int) -> Placed:
        """Returns where messages go, by partition and bucket, without those that have expired by ``now`` (ticks)."""
        alive = [message for message in messages if message.expires > now]
        found: Placed = {}
        level = _width_for(alive)
        for message in alive:
            lifetime = (message.expires - min(now, message.ticks)) / TICKS_PER_SECOND
            kind = max(self._row.home_class, bucketing.class_of(lifetime))
            time_bucket = bucketing.bucket_of(message.ticks, kind, level)
            found.setdefault((message.partition, time_bucket), []).append(message)
        return found

    def record(self, placed: Placed) -> None:
        """Records the buckets, so that readers find them."""
        by_partition: dict[int, list[Bucket]] = {}
        for partition, time_bucket in placed:
            by_partition.setdefault(partition, []).append(time_bucket)
        for partition, time_buckets in by_partition.items():
            self._bucket_index.record(self._row.queue.qid, partition, time_buckets, consistency=self._level.writes)

    def send(self, placed: Placed, now: int, stamp: Callable[[int], int]) -> int:
        """Writes messages to their buckets, which are recorded; returns how many.

        Args:
            placed: The messages.
            now: Ticks; TTLs are counted from it.
            stamp: Gives the timestamp for writing the id with these ticks.

        Raises:
            StoreUnavailable: Some may be written and some not.
        """
        room = threading.Semaphore(FLYING)
        errors: list[StoreUnavailable] = []

        def done(weight: int, _rows: Rows | None, error: StoreUnavailable | None) -> None:
            if error is not None:
                errors.append(error)
            room.release(weight)

        for (partition, time_bucket), messages in placed.items():
            where = (self._row.queue.qid, partition, time_bucket.bucket)
            key = message_codec.key_of(*where)
            for batch in _batches(messages):
                weight = _weight(batch)
                for _ in range(weight):
                    room.acquire()
                if errors:
                    room.release(weight)
                    break
                self._driver.begin_rows(
                    message_codec.INSERT[time_bucket.kind],
                    [_encoded(key, message, now, stamp(message.ticks)) for message in batch],
                    message_codec.INSERTED,
                    routing_key=message_codec.routing_of(*where),
                    consistency=self._level.writes,
                    timeout=self._level.deadline,
                    done=partial(done, weight),
                )
        for _ in range(FLYING):
            room.acquire()
        if errors:
            raise errors[0]
        return sum(map(len, placed.values()))


def _encoded(key: bytes, message: Message, now: int, stamp: int) -> bytes:
    body, meta = message_codec.encode(message.body, message.meta)
    kept = meta if isinstance(meta, bytes) else _NO_META  # Nothing must be left of a message that was there.
    lives = -((now - message.expires) // TICKS_PER_SECOND) + 1
    ttl = max(1, min(lives, bucketing.longest_ttl(now)))
    return message_codec.encoded_insert(key, message.position, body, message.expires, kept, stamp, ttl)


def _width_for(messages: Sequence[Message]) -> int:
    """Returns narrow enough a level for messages that lie as densely, and are as long, as these."""
    if not messages:
        return bucketing.LOAD
    times = [message.ticks for message in messages]
    # A job that loads a few messages with ids close together loads the next few soon after.
    span = max(max(times) - min(times) + 1, bucketing.width(0, bucketing.DENSE_LOAD))
    fill = max(len(messages) / WIDE_ROWS, sum(len(message.body) for message in messages) / WIDE_BYTES)
    full = fill * bucketing.width(0, bucketing.LOAD) / span > 1
    return bucketing.DENSE_LOAD if full else bucketing.LOAD


def _weight(batch: Sequence[Message]) -> int:
    """Returns how many batches of the usual size a batch counts for."""
    return max(1, min(FLYING, sum(len(message.body) for message in batch) // BATCH_BYTES))


def _batches(messages: Sequence[Message]) -> list[list[Message]]:
    batches: list[list[Message]] = []
    size = BATCH_BYTES
    for message in messages:
        if size >= BATCH_BYTES or len(batches[-1]) >= BATCH_ROWS:
            batches.append([])
            size = 0
        batches[-1].append(message)
        size += len(message.body)
    return batches
