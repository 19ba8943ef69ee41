"""The names of an application's queues, in order, from 16 shards.

A queue is indexed before it exists and until after it is gone, so the entries are only candidates, by name and uid.
"""

from __future__ import annotations

import heapq
import logging
import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.cluster import Driver, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions

log = logging.getLogger(__name__)

SHARDS = 16

_ADD_ENTRY = Statement("INSERT INTO queue_index (application, shard, name, uid) VALUES (?, ?, ?, ?)")
_REMOVE_ENTRY = Statement("DELETE FROM queue_index WHERE application = ? AND shard = ? AND name = ? AND uid = ?")
_SELECT_ENTRIES_AFTER = Statement(
    "SELECT name, uid FROM queue_index WHERE application = ? AND shard = ? AND (name, uid) > (?, ?) LIMIT ?"
)


class IndexEntry(NamedTuple):
    """A queue that may exist. Entries compare like UTF-8 names do in Cassandra, since Python compares by code point."""

    name: str
    uid: int


def shard_of(name: str) -> int:
    return zlib.crc32(name.encode()) % SHARDS


def entries_per_shard(entry_count: int) -> int:
    """Returns how many entries to ask of each shard so that one round nearly always gives the first ones."""
    mean = entry_count / SHARDS
    return math.ceil(mean + 3 * math.sqrt(mean)) + 1


class QueueIndex:
    def __init__(self, driver: Driver, options: CassandraOptions) -> None:
        self._driver = driver
        self._options = options

    async def add(self, application: str, name: str, uid: int) -> None:
        """Adds a queue to the index. Call it before the queue is created."""
        values = application, shard_of(name), name, uid
        await self._driver.ask(StatementRequest(_ADD_ENTRY, values, self._options.catalogue_write))

    async def remove(self, application: str, name: str, uid: int) -> None:
        """Removes a queue from the index. Call it only when the queue's row is gone for good.

        Never fails: an entry that remains is not listed, and the caller must still answer for the queue's removal.
        """
        values = application, shard_of(name), name, uid
        try:
            await self._driver.ask(StatementRequest(_REMOVE_ENTRY, values, self._options.catalogue_write))
        except StoreUnavailable as error:
            log.info("Queue %s of %s could not be removed from the index of names: %s", name, application, error)

    def scan(self, application: str, start: str) -> Scan:
        return Scan(self, application, start)

    async def read_slices(
        self, application: str, after: Sequence[tuple[int, IndexEntry]], limit: int
    ) -> list[list[IndexEntry]]:
        consistency = self._options.catalogue_read
        answers = await self._driver.ask_all(
            [
                StatementRequest(_SELECT_ENTRIES_AFTER, (application, shard, entry.name, entry.uid, limit), consistency)
                for shard, entry in after
            ]
        )
        return [[IndexEntry(*row) for row in rows] for rows in answers]


class Scan:
    """One listing. Merges the shards, which are read concurrently and no further than needed.

    ``take`` returns the next entries in order; fewer than ``wanted`` only at the end.
    """

    def __init__(self, index: QueueIndex, application: str, start: str) -> None:
        self._index = index
        self._application = application
        self._ends = dict.fromkeys(range(SHARDS), IndexEntry(start, 0))
        """By shard that may have more entries, the last entry read."""
        self._heap_counts = [0] * SHARDS
        """By shard, the number of its entries in the heap."""
        self._heap: list[tuple[IndexEntry, int]] = []

    async def take(self, count: int) -> list[IndexEntry]:
        entries: list[IndexEntry] = []
        while len(entries) < count:
            await self._refill(entries_per_shard(count - len(entries)))
            if not self._heap:
                break
            while self._heap and len(entries) < count:
                entry, shard = heapq.heappop(self._heap)
                entries.append(entry)
                self._heap_counts[shard] -= 1
                if not self._heap_counts[shard] and shard in self._ends:
                    break  # The next entry may be in this shard.
        return entries

    async def _refill(self, share: int) -> None:
        empty = [(shard, end) for shard, end in self._ends.items() if not self._heap_counts[shard]]
        slices = await self._index.read_slices(self._application, empty, share)
        for (shard, _), entries in zip(empty, slices, strict=True):
            if len(entries) < share:
                del self._ends[shard]
            else:
                self._ends[shard] = entries[-1]
            self._heap_counts[shard] = len(entries)
            for entry in entries:
                heapq.heappush(self._heap, (entry, shard))
