"""Tests of listing queues from sixteen shards."""

from __future__ import annotations

from queuey.storage.cassandra.catalogue.queue_index import SHARDS, shard_of


def test_names_spread() -> None:
    """Names that differ only by a number, as most do, use all shards about equally."""
    counts = [0] * SHARDS
    for n in range(16_000):
        counts[shard_of(f"queue-{n}")] += 1
    assert min(counts) > 800
    assert max(counts) < 1200
