"""Covers in Cassandra: one row for each digest of a queue partition, in a few Cassandra partitions.

Each number is written with itself as the write's timestamp. So the highest number stays, in whatever order the writes
arrive, and a removal of all numbers up to a bound leaves higher ones.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from queuey.model.ids import EPOCH_TICKS
from queuey.model.messages import MAX_TTL, Queue
from queuey.storage.cassandra.cluster import Encoded, Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.contracts.covers import Covers
from queuey.storage.new_messages import check_partition

SHARDS = 16
"""Number of Cassandra partitions of one queue partition."""
TTL = MAX_TTL + 86_400
"""Max seconds that a row is kept: a day longer than the max TTL of a message."""
_ALL_SHARDS = ", ".join(map(str, range(SHARDS)))
_WHERE_SHARD = "WHERE qid = ? AND partition = ? AND shard = ?"
_WHERE_ALL_SHARDS = f"WHERE qid = ? AND partition = ? AND shard IN ({_ALL_SHARDS})"
_WRITE_COVER = Statement(
    f"INSERT INTO covers (qid, partition, shard, digest, until) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL {TTL}"
)
_SELECT_COVERS = Statement(f"SELECT digest, until FROM covers {_WHERE_SHARD} AND digest IN ?")
_DELETE_COVERS = Statement(f"DELETE FROM covers USING TIMESTAMP ? {_WHERE_ALL_SHARDS}")
DELETE_ALL_COVERS = Statement(f"DELETE FROM covers {_WHERE_ALL_SHARDS}")
_MAX_REQUEST_ROWS = 100
"""Max rows of one request."""
_TICKS_PER_MICROSECOND = 10
_WRITE_VALUE_COUNT, _READ_VALUE_COUNT = 6, 4
"""Number of values of the statements."""

_pack_key = struct.Struct(">iqiiii").pack
_pack_rest = struct.Struct(">iqiq").pack
_pack_routing = struct.Struct(">HqBHiBHiB").pack
_pack_size = struct.Struct(">i").pack
_unpack_size = struct.Struct(">i").unpack_from
_unpack_number = struct.Struct(">q").unpack_from
T = TypeVar("T")


class CassandraCovers(Covers):
    """The contract of covers on Cassandra. At consistency levels that allow claims, reads find all writes."""

    def __init__(self, parts: StoreParts) -> None:
        self._driver = parts.driver
        self._levels = parts.levels
        self._rows = parts.rows

    @store_call()
    async def write_covers(self, queue: Queue, partition: int, covers: Collection[tuple[bytes, int]]) -> None:
        check_partition(queue, partition)
        await self._rows.find_current(queue)
        level = self._levels.resolve(queue)
        writes = []
        for shard, chunk in _divide_by_shard(covers, lambda cover: cover[0]):
            key = _pack_key(8, queue.qid, 4, partition, 4, shard)
            rows = [
                b"".join((key, _prefix_size(digest), _pack_rest(8, until, 8, _stamp(until)))) for digest, until in chunk
            ]
            key = _make_routing_key(queue, partition, shard)
            writes.append(Encoded(_WRITE_COVER, _WRITE_VALUE_COUNT, rows, key, level.writes))
        await self._driver.ask_all(writes)

    @store_call()
    async def read_covers(self, queue: Queue, partition: int, digests: Iterable[bytes]) -> dict[bytes, int]:
        check_partition(queue, partition)
        await self._rows.find_current(queue)
        reads, level = [], self._levels.resolve(queue).reads
        for shard, chunk in _divide_by_shard(digests, lambda digest: digest):
            digest_list = struct.pack(">i", len(chunk)) + b"".join(map(_prefix_size, chunk))
            values = _pack_key(8, queue.qid, 4, partition, 4, shard) + _prefix_size(digest_list)
            reads.append(
                Encoded(
                    _SELECT_COVERS,
                    _READ_VALUE_COUNT,
                    [values],
                    _make_routing_key(queue, partition, shard),
                    level,
                    _decode,
                )
            )
        return {digest: until for rows in await self._driver.ask_all(reads) for digest, until in rows}

    @store_call()
    async def forget_covers(self, queue: Queue, partition: int, until: int) -> None:
        # A microsecond less, because a delete wins over a write of the same one: some covers near the bound may stay.
        check_partition(queue, partition)
        await self._rows.find_current(queue)
        values = _stamp(until) - 1, queue.qid, partition
        await self._driver.ask(StatementRequest(_DELETE_COVERS, values, self._levels.resolve(queue).writes))


def _divide_by_shard(items: Iterable[T], digest_of: Callable[[T], bytes]) -> Iterator[tuple[int, list[T]]]:
    """Yields each Cassandra partition with chunks of its items, at most ``_MAX_REQUEST_ROWS`` at a time.

    The last byte of a digest chooses the Cassandra partition; the first bytes choose the partition of the queue.
    """
    shards: defaultdict[int, list[T]] = defaultdict(list)
    for item in items:
        shards[digest_of(item)[-1] % SHARDS].append(item)
    for shard, shard_items in shards.items():
        for first in range(0, len(shard_items), _MAX_REQUEST_ROWS):
            yield shard, shard_items[first : first + _MAX_REQUEST_ROWS]


def _make_routing_key(queue: Queue, partition: int, shard: int) -> bytes:
    return _pack_routing(8, queue.qid, 0, 4, partition, 0, 4, shard, 0)


def _prefix_size(value: bytes) -> bytes:
    return _pack_size(len(value)) + value


def _decode(body: bytes) -> Rows:
    (count,) = _unpack_size(body, 12)
    offset = 16
    rows: Rows = []
    for _ in range(count):
        (size,) = _unpack_size(body, offset)
        end = offset + 4 + size
        rows.append((body[offset + 4 : end], _unpack_number(body, end + 4)[0]))
        offset = end + 12
    return rows


def _stamp(until: int) -> int:
    return (until - EPOCH_TICKS) // _TICKS_PER_MICROSECOND
