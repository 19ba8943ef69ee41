"""Covers in Cassandra: one row for each digest of a partition, in a few Cassandra partitions.

A number is written with itself as the write's timestamp. So the highest stays, in whatever order several come, and a
removal of all up to a number leaves those that are higher.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from queuey.ids import EPOCH_TICKS
from queuey.messages import MAX_TTL, Queue
from queuey.storage import items as items_of
from queuey.storage.cassandra.driver import Encoded, Request, Rows, Statement
from queuey.storage.cassandra.driver.store_loop import store_call
from queuey.storage.cassandra.store.connected import StoreParts
from queuey.storage.contracts.covers import Covers

SHARDS = 16
"""Number of Cassandra partitions of a queue's partition."""
TTL = MAX_TTL + 86_400
"""Max seconds that a row is kept: longer than any message waits."""
_ALL = ", ".join(map(str, range(SHARDS)))
_OF_SHARD = "WHERE qid = ? AND partition = ? AND shard = ?"
_OF_ALL = f"WHERE qid = ? AND partition = ? AND shard IN ({_ALL})"
_WRITE = Statement(
    f"INSERT INTO covers (qid, partition, shard, digest, until) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL {TTL}"
)
_READ = Statement(f"SELECT digest, until FROM covers {_OF_SHARD} AND digest IN ?")
_FORGET = Statement(f"DELETE FROM covers USING TIMESTAMP ? {_OF_ALL}")
FORGET_ALL = Statement(f"DELETE FROM covers {_OF_ALL}")
_ROWS = 100
"""Max rows of one request."""
_TICKS_PER_MICROSECOND = 10
_WRITTEN, _ASKED = 6, 4
"""How many values the statements take."""

_pack_key = struct.Struct(">iqiiii").pack
_pack_rest = struct.Struct(">iqiq").pack
_pack_routing = struct.Struct(">HqBHiBHiB").pack
_pack_size = struct.Struct(">i").pack
_size_at = struct.Struct(">i").unpack_from
_number_at = struct.Struct(">q").unpack_from
T = TypeVar("T")


class CassandraCovers(Covers):
    """The contract of covers on Cassandra. Levels at which claims are allowed read what was written."""

    def __init__(self, parts: StoreParts) -> None:
        self._driver = parts.driver
        self._levels = parts.levels
        self._rows = parts.rows

    @store_call()
    async def write_covers(self, queue: Queue, partition: int, covers: Collection[tuple[bytes, int]]) -> None:
        items_of.check_partition(queue, partition)
        await self._rows.current(queue)
        level = self._levels.of(queue)
        writes = []
        for shard, some in _by_shard(covers, lambda cover: cover[0]):
            key = _pack_key(8, queue.qid, 4, partition, 4, shard)
            rows = [b"".join((key, _sized(digest), _pack_rest(8, until, 8, _stamp(until)))) for digest, until in some]
            key = _routing(queue, partition, shard)
            writes.append(Encoded(_WRITE, _WRITTEN, rows, key, level.writes))
        await self._driver.ask_all(writes)

    @store_call()
    async def read_covers(self, queue: Queue, partition: int, digests: Iterable[bytes]) -> dict[bytes, int]:
        items_of.check_partition(queue, partition)
        await self._rows.current(queue)
        reads, level = [], self._levels.of(queue).reads
        for shard, some in _by_shard(digests, lambda digest: digest):
            wanted = struct.pack(">i", len(some)) + b"".join(map(_sized, some))
            values = _pack_key(8, queue.qid, 4, partition, 4, shard) + _sized(wanted)
            reads.append(Encoded(_READ, _ASKED, [values], _routing(queue, partition, shard), level, _decode))
        return {digest: until for rows in await self._driver.ask_all(reads) for digest, until in rows}

    @store_call()
    async def forget_covers(self, queue: Queue, partition: int, until: int) -> None:
        # Those of the last microsecond stay: others of it may be higher.
        items_of.check_partition(queue, partition)
        await self._rows.current(queue)
        values = _stamp(until) - 1, queue.qid, partition
        await self._driver.ask(Request(_FORGET, values, self._levels.of(queue).writes))


def _by_shard(some: Iterable[T], digest_of: Callable[[T], bytes]) -> Iterator[tuple[int, list[T]]]:
    """Yields Cassandra partitions with some of what goes there, no more than a request may have.

    The last byte of a digest chooses it: the first ones say in which partition of the queue it is.
    """
    shards: defaultdict[int, list[T]] = defaultdict(list)
    for one in some:
        shards[digest_of(one)[-1] % SHARDS].append(one)
    for shard, found in shards.items():
        for at in range(0, len(found), _ROWS):
            yield shard, found[at : at + _ROWS]


def _routing(queue: Queue, partition: int, shard: int) -> bytes:
    return _pack_routing(8, queue.qid, 0, 4, partition, 0, 4, shard, 0)


def _sized(value: bytes) -> bytes:
    return _pack_size(len(value)) + value


def _decode(body: bytes) -> Rows:
    """Returns the rows of an answer (see ``driver.cql.protocol.ROWS``): digests and numbers."""
    (count,) = _size_at(body, 12)
    at = 16
    found: Rows = []
    for _ in range(count):
        (size,) = _size_at(body, at)
        end = at + 4 + size
        found.append((body[at + 4 : end], _number_at(body, end + 4)[0]))
        at = end + 12
    return found


def _stamp(until: int) -> int:
    return (until - EPOCH_TICKS) // _TICKS_PER_MICROSECOND
