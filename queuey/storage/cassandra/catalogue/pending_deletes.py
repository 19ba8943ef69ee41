"""The messages that purges and deletes leave, recorded for garbage collection before the queue changes."""

from __future__ import annotations

import msgspec

from queuey import ids
from queuey.storage.cassandra.catalogue.queue_cache import Row
from queuey.storage.cassandra.driver import Driver, Request, Statement
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

    async def dig(self, row: Row, now: int, *, deleted: bool) -> PendingDelete:
        """Notes down what is about to be left by a purge or delete."""
        queue, uid = row.queue, row.queue.uid if deleted else None
        numbers = queue.qid, uid, queue.partitions, row.home_class, row.longest_ttl
        pending = PendingDelete((now, ids.random_low()), *numbers, queue.application, queue.name)
        _, *columns = msgspec.structs.astuple(pending)
        values = pending.qid % SHARDS, uuid_of(pending.buried), *columns
        await self._driver.ask(Request(_DIG, values, self._options.catalogue_write))
        return pending

    async def older(
        self, ticks: int, shard: int, after: ids.Position
    ) -> tuple[list[PendingDelete], ids.Position | None]:
        """Returns a page of a shard, and its end if there are further pages."""
        values = shard, uuid_of(after), uuid_of((ticks, ids.LOW_MIN)), _PAGE
        answer = await self._driver.ask(Request(_OLDEST, values, self._options.catalogue_read))
        rows = [(ids.parse_position(deleted_at.hex), *columns) for deleted_at, *columns in answer]
        # Without a qid only what came late of a pending delete that is gone is there.
        page = [PendingDelete(*row) for row in rows if row[1] is not None]
        return page, rows[-1][0] if len(rows) == _PAGE else None

    async def level(self, pending: PendingDelete) -> None:
        values = pending.qid % SHARDS, uuid_of(pending.buried)
        await self._driver.ask(Request(_LEVEL, values, self._options.catalogue_write))
