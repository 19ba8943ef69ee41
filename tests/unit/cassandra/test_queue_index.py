"""Listing queues from sixteen shards."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import cast

from queuey.storage.cassandra.catalogue.queue_index import SHARDS, IndexEntry, QueueIndex, Scan, shard_of


class Shards:
    """Entries in memory, read as the index is, and how they were read."""

    def __init__(self, names: Sequence[str]) -> None:
        self.entries = sorted(IndexEntry(name, number + 1) for number, name in enumerate(names))
        self.rounds = 0
        self.read = 0

    def slices(self, application: str, after: Sequence[tuple[int, IndexEntry]], limit: int) -> list[list[IndexEntry]]:
        """The next entries of some shards."""
        assert application == "app"
        self.rounds += 1
        found = []
        for shard, entry in after:
            mine = [one for one in self.entries if shard_of(one.name) == shard]
            found.append(mine[bisect.bisect_right(mine, entry) :][:limit])
        self.read += sum(map(len, found))
        return found

    def scan(self, start: str = "") -> Scan:
        """A listing of them."""
        return Scan(cast("QueueIndex", self), "app", start)


def test_reads_no_further_than_asked_for() -> None:
    """A page of 100 of 5,000 names takes a round or two and reads a few times as many entries, not all."""
    shards = Shards([f"queue-{n}" for n in range(5000)])
    assert len(shards.scan("queue-2").take(100)) == 100
    assert shards.rounds <= 3
    assert shards.read <= 4 * 100


def test_names_spread() -> None:
    """Names that differ by a number only, as most do, use all shards about equally."""
    counts = [0] * SHARDS
    for n in range(16_000):
        counts[shard_of(f"queue-{n}")] += 1
    assert min(counts) > 800
    assert max(counts) < 1200
