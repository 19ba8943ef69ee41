"""The messages that purges and deletes leave, recorded for garbage collection before the queue changes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from queuey import ids
from queuey.storage.cassandra.catalogue.queue_cache import Row
from queuey.storage.cassandra.driver import Driver, Statement
from queuey.storage.cassandra.message_codec import uuid_of
from queuey.storage.cassandra.options import CassandraOptions

SHARDS = 16
_PAGE = 100

_DIG = Statement(
    "INSERT INTO pending_deletes (shard, deleted_at, qid, uid, partitions, home_class, longest_ttl, application, name) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OLDEST = Statement(
    "SELECT deleted_at, qid, uid, partitions, home_class, longest_ttl, application, name FROM pending_deletes "
    "WHERE shard = ? AND deleted_at > ? AND deleted_at < ? LIMIT ?"
)
_LEVEL = Statement("DELETE FROM pending_deletes WHERE shard = ? AND deleted_at = ?")


class PendingDelete(msgspec.Struct, frozen=True):
    """Messages to be removed, if their qid is not that of the queue any more.

    Attributes:
        buried: When, as an id's position.
        uid: Of a queue that was to be deleted; its offsets go as well. None: a purge.
        partitions, home_class, longest_ttl: Of the queue then; they say where its messages are.
    """

    buried: ids.Position
    qid: int
    uid: int | None
    partitions: int
    home_class: int
    longest_ttl: int
    application: str
    name: str


class PendingDeletes:
    def __init__(self, driver: Driver, options: CassandraOptions) -> None:
        self._driver = driver
        self._options = options

    def dig(self, row: Row, now: int, *, deleted: bool) -> PendingDelete:
        """Notes down what is about to be left by a purge or delete."""
        queue, uid = row.queue, row.queue.uid if deleted else None
        numbers = queue.qid, uid, queue.partitions, row.home_class, row.longest_ttl
        pending = PendingDelete((now, ids.random_low()), *numbers, queue.application, queue.name)
        _, *columns = msgspec.structs.astuple(pending)
        values = pending.qid % SHARDS, uuid_of(pending.buried), *columns
        self._driver.run(_DIG, values, consistency=self._options.catalogue_write)
        return pending

    def older(self, ticks: int) -> Iterator[PendingDelete]:
        for shard in range(SHARDS):
            after, limit = ids.FIRST, (ticks, ids.LOW_MIN)
            while True:
                values = shard, uuid_of(after), uuid_of(limit), _PAGE
                found = self._driver.run(_OLDEST, values, consistency=self._options.catalogue_read)
                for buried, *columns in found:
                    after = ids.parse_position(buried.hex)
                    if columns[0] is not None:  # Else only what came late of a pending delete that is gone.
                        yield PendingDelete(after, *columns)
                if len(found) < _PAGE:
                    break

    def level(self, pending: PendingDelete) -> None:
        values = pending.qid % SHARDS, uuid_of(pending.buried)
        self._driver.run(_LEVEL, values, consistency=self._options.catalogue_write)
