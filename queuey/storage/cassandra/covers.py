"""Covers in Cassandra: one row for each digest of a partition, in a few Cassandra partitions.

A number is written with itself as the write's timestamp. So the highest stays, in whatever order several come, and a
removal of all up to a number leaves those that are higher.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from queuey.ids import EPOCH_TICKS
from queuey.messages import MAX_TTL, Queue
from queuey.storage import items as items_of
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache
from queuey.storage.cassandra.consistency_levels import ConsistencyLevels
from queuey.storage.cassandra.driver import Driver, Statement
from queuey.storage.contracts.covers import Covers

SHARDS = 16
"""Cassandra partitions of a queue's partition."""
TTL = MAX_TTL + 86_400
"""Seconds. Longer than any message waits."""
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
"""Of one batch."""
_TICKS_PER_MICROSECOND = 10


class CassandraCovers(Covers):
    """The contract of covers on Cassandra. Levels at which claims are allowed read what was written."""

    ids_follow_clocks = True

    _driver: Driver
    _rows: QueueCache
    _levels: ConsistencyLevels

    def write_covers(self, queue: Queue, partition: int, covers: Collection[tuple[bytes, int]]) -> None:
        """See the contract."""
        items_of.check_partition(queue, partition)
        self._rows.current(queue)
        consistency = self._levels.of(queue).writes
        shards: defaultdict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for digest, until in covers:
            shards[_shard(digest)].append((digest, until))
        for shard, rows in shards.items():
            key = (queue.qid, partition, shard)
            calls = [(_WRITE, (*key, digest, until, _stamp(until))) for digest, until in rows]
            for at in range(0, len(calls), _ROWS):
                self._driver.batch(calls[at : at + _ROWS], consistency=consistency)

    def read_covers(self, queue: Queue, partition: int, digests: Iterable[bytes]) -> dict[bytes, int]:
        """See the contract."""
        items_of.check_partition(queue, partition)
        self._rows.current(queue)
        shards: defaultdict[int, list[bytes]] = defaultdict(list)
        for digest in digests:
            shards[_shard(digest)].append(digest)
        calls = [
            (_READ, (queue.qid, partition, shard, some[at : at + _ROWS]))
            for shard, some in shards.items()
            for at in range(0, len(some), _ROWS)
        ]
        found = self._driver.run_all(calls, consistency=self._levels.of(queue).reads)
        return {digest: until for rows in found for digest, until in rows}

    def forget_covers(self, queue: Queue, partition: int, until: int) -> None:
        """See the contract. Those of the last microsecond stay: others of it may be higher."""
        items_of.check_partition(queue, partition)
        self._rows.current(queue)
        self._driver.run(_FORGET, (_stamp(until) - 1, queue.qid, partition), consistency=self._levels.of(queue).writes)


def _shard(digest: bytes) -> int:
    """Returns the Cassandra partition of a digest. Its first bytes say in which partition of the queue it is."""
    return digest[-1] % SHARDS


def _stamp(until: int) -> int:
    return (until - EPOCH_TICKS) // _TICKS_PER_MICROSECOND
