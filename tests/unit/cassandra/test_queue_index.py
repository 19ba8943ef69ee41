"""Tests of listing queues from sixteen shards."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from queuey.storage.cassandra.catalogue.queue_index import SHARDS, IndexEntry, QueueIndex, Scan, shard_of
from tests.unit.cassandra.simulated import FaultlessDriver


class Shards:
    """Entries in memory, read as the index is."""

    def __init__(self, names: Sequence[str]) -> None:
        self.driver = FaultlessDriver()
        self.entries = sorted(IndexEntry(name, number + 1) for number, name in enumerate(names))

    async def read_slices(
        self, application: str, after: Sequence[tuple[int, IndexEntry]], limit: int
    ) -> list[list[IndexEntry]]:
        assert application == "app"
        entries = []
        for shard, entry in after:
            mine = [one for one in self.entries if shard_of(one.name) == shard]
            entries.append(mine[bisect.bisect_right(mine, entry) :][:limit])
        return entries

    def scan(self, start: str = "") -> Scan:
        return Scan(cast("QueueIndex", self), "app", start)


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(["a", "b"]), max_size=120),
    st.lists(st.integers(1, 60), min_size=1),
    st.text(max_size=2),
)
def test_merged_in_order(names: list[str], sizes: list[int], start: str) -> None:
    """Pages of any size give every entry from the start on, once, in the order of names."""
    shards = Shards(names)
    scan = shards.scan(start)
    entries: list[IndexEntry] = []
    expected = [entry for entry in shards.entries if entry.name >= start]
    for size in [*sizes, len(names) + 1, 1]:
        took = shards.driver.calls.run(scan.take(size))
        assert len(took) == min(size, len(expected) - len(entries))
        entries += took
    assert entries == expected


def test_names_spread() -> None:
    """Names that differ only by a number, as most do, use all shards about equally."""
    counts = [0] * SHARDS
    for n in range(16_000):
        counts[shard_of(f"queue-{n}")] += 1
    assert min(counts) > 800
    assert max(counts) < 1200
