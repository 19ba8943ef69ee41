"""Ranges of buckets in which nothing was found, and nothing ever will be.

Buckets for new ids only gain rows at or above the horizon (see :mod:`..bucketing`), and dead rows stay dead. So a
range below it that a reader found empty need not be read again: of a busy queue that is mostly the wide bucket beside
its narrow ones, half of all queries. That holds only where a read meets all acknowledged writes; elsewhere nothing is
noted (:meth:`..consistency_levels.ConsistencyLevels.empty_below`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from queuey.ids import Position
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.read.reading import BucketSource, Probe

Key = tuple[int, int]
"""qid and partition."""


class EmptyRanges:
    """One range for each bucket, the latest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranges: OrderedDict[tuple[int, int, Bucket], tuple[Position, Position]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, key: Key, probe: Probe, below: Position) -> None:
        """Remembers a probe that found no row; above ``below`` something may still come."""
        low, high = probe.lower, min(probe.upper, below)
        if not probe.time_bucket.new_ids_only or low >= high:
            return
        name = (*key, probe.time_bucket)
        with self._lock:
            known = self._ranges.pop(name, None)
            if known is not None and known[0] <= high and low <= known[1]:
                low, high = min(low, known[0]), max(high, known[1])
            self._ranges[name] = low, high
            while len(self._ranges) > self._size:
                self._ranges.popitem(last=False)

    def shorten(self, key: Key, source: BucketSource, lower: Position) -> BucketSource:
        """Returns a source without what is known to be empty from ``lower`` on."""
        known = self._ranges.get((*key, source.time_bucket))
        start = max(lower, source.lowest)
        if known is not None and known[0] <= start < known[1]:
            return BucketSource(source.time_bucket, known[1])
        return source
