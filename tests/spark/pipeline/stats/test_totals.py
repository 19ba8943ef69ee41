"""Sums over queues."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queuey.pipeline.stats import stats_job
from queuey.pipeline.stats.totals import MIN_EVEN, ORDERS, QueueFigures, Totals, by_queue, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = datetime(2026, 11, 20, 14, tzinfo=UTC)


def measured(chance: random.Random) -> dict[str, list[tuple[Any, ...]]]:
    """Rows of measures, by queue: some queues hold nothing, some have equal figures."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for number in range(40):
        name, partitions = f"q{number:02}", chance.randint(1, 4)
        rows: list[tuple[Any, ...]] = []
        for part in sorted(chance.sample(range(1, partitions + 1), chance.randint(0, partitions))):
            count, oldest = chance.choice((1, 7, 40, 200)), NOW + timedelta(seconds=chance.randint(0, 50))
            newest = oldest + timedelta(seconds=chance.randint(0, 50))
            rows.append((name, partitions, part, count, count * 7, chance.random() < 0.9, oldest, newest, 1.0))
        found[name] = rows or [(name, partitions, 0, 0, 0, True, None, None, None)]
    return found


def figures(rows: list[tuple[Any, ...]]) -> QueueFigures:
    """Sums up one queue as it is meant."""
    return QueueFigures(
        queue=rows[0][0],
        partitions=rows[0][1],
        messages=sum(row[3] for row in rows),
        bytes=sum(row[4] for row in rows),
        largest=max(row[3] for row in rows),
        exact=all(row[5] for row in rows),
        oldest=min(row[6] for row in rows).timestamp(),
        newest=max(row[7] for row in rows).timestamp(),
    )


def test_sums_and_lists_are_those_of_the_queues(spark: SparkSession) -> None:
    """Every queue counts once, and each list has the greatest of its order, of equal ones the last by name."""
    found = measured(random.Random(7))
    frame = spark.createDataFrame([row for rows in found.values() for row in rows], stats_job._SCHEMA)
    every = [figures(rows) for rows in found.values() if rows[0][2]]
    tops = {}
    for order in ORDERS:
        fit = [
            one
            for one in every
            if order != "skew" or (one.partitions > 1 and one.messages >= MIN_EVEN * one.partitions)
        ]
        tops[order] = tuple(sorted(fit, key=lambda one: (getattr(one, order), one.queue), reverse=True)[:5])
    assert totals(by_queue(frame), 5) == Totals(
        queues=len(found),
        empty=len(found) - len(every),
        partitions=sum(len(rows) for rows in found.values() if rows[0][2]),
        messages=sum(one.messages for one in every),
        bytes=sum(one.bytes for one in every),
        exact=all(one.exact for one in every),
        oldest=min(one.oldest for one in every),
        newest=max(one.newest for one in every),
        top=tops,
    )


def test_rate_and_skew() -> None:
    """The rate is that between the ends, the skew what the fullest partition has beyond its share."""
    found = QueueFigures(
        queue="q", partitions=4, messages=41, bytes=390, largest=30, exact=False, oldest=1e9, newest=1e9 + 20
    )
    assert found.rate == pytest.approx(2.0)
    assert found.skew == pytest.approx(30 / (41 / 4))
