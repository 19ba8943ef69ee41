"""Counts messages in a range with too many buckets for two lookups."""

from __future__ import annotations

import pytest

from queuey.model.ids import FIRST, LOW_MIN
from queuey.storage.cassandra.read.slice_reads import Extent
from queuey.storage.cassandra.tables import counting
from queuey.storage.cassandra.time import bucketing
from tests.storage.cassandra.read.partitions import ALIVE, DEAD, NOW, START, Partition, driver_holding

SIZE = bucketing.width(1, 3)
NARROW = [bucketing.bucket_of(START + number * SIZE, 1, 3) for number in range(200)]


def test_many_narrow_buckets_are_estimated() -> None:
    """Eight of two hundred buckets are counted; the others are assumed to have as many messages."""
    partition = Partition()
    for bucket in NARROW:
        for number in range(20):
            partition.add(bucket, (bucket.start + number, 0), "x")
    extent = Extent([*map(partition.source, NARROW)], FIRST, counting.END, complete=True)
    driver = driver_holding(partition)
    work = counting.Estimate(driver, (7, 1), "QUORUM", NOW, {}).count(extent, extent)
    counts = driver.run_to_end(work)
    assert (counts.size, counts.exact) == (4000, False)


def test_rows_of_ended_messages_are_not_counted() -> None:
    """Cassandra counts rows of kept messages like live ones, so counts of them need reads of kept messages."""
    partition, home = Partition(), bucketing.bucket_of(START, 1, bucketing.HOME_WIDTH)
    for number in range(3000):
        partition.add(home, (START + number, 0), "x", DEAD if number < 900 else ALIVE)
    extent = Extent([partition.source(home)], FIRST, counting.END, complete=True)
    driver = driver_holding(partition)
    estimate = counting.Estimate(driver, (7, 1), "QUORUM", NOW, {1: (START + 900, LOW_MIN)})
    assert driver.run_to_end(estimate.count(extent, extent)).size == 2100
    measure = driver.run_to_end(estimate.measure(extent))
    assert measure is not None
    assert (measure.count, measure.exact) == (2100, False)


def test_what_lies_between_two_looks_is_estimated() -> None:
    """Between two lookups that do not meet, the density is assumed to be that of the counted parts."""
    narrow = [*map(Partition().source, NARROW)]
    up = Extent(narrow[:20], FIRST, (narrow[20].time_bucket.start, LOW_MIN), complete=False)
    down = Extent(narrow[-20:], (narrow[-20].time_bucket.start, LOW_MIN), counting.END, complete=False)
    assert counting._estimate_between(40 * 300, up, down) == pytest.approx(160 * 300, rel=0.05)
