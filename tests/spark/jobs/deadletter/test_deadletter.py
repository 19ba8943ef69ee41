"""Dead letters over several queues: sorted, listed and sent back by tasks of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuey.deadletters import Cause, DeadLetter, DeadLetterFilter
from queuey.errors import QueueNotFound
from queuey.spark.jobs.deadletter import deadletter_job
from queuey.spark.jobs.deadletter.redrive import RedriveOrder
from queuey.spark.jobs.deadletter.selection import OTHERS, Classes
from tests.spark.jobs.deadletter.stored_dead_letters import bury, everything, grave
from tests.spark.kept import Kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def late(number: int, at: float = 0.0) -> Cause:
    """One of a kind of causes."""
    return Cause(attempts=number, error="acme.Late", text=f"order {number} is late", at=1_795_000_000.0 + at)


def letter(cause: Cause) -> DeadLetter:
    """Some letter."""
    return DeadLetter(
        lies_in="orders.dead",
        queue="orders",
        partition=1,
        id="0" * 32,
        body="x",
        json=False,
        content_type=None,
        headers={},
        lost=0,
        cause=cause,
    )


def silent(_: str) -> None:
    """Says nothing."""


def test_classes_are_merged() -> None:
    """Counting in parts gives what counting in one does: counts, ends, most attempts and the newest samples."""
    causes = [late(number, at) for number, at in ((1, 5.0), (2, 3.0), (3, 9.0), (4, 1.0))]
    whole, parts = Classes(2), [Classes(2), Classes(2)]
    for number, cause in enumerate(causes):
        whole.add(letter(cause))
        parts[number % 2].add(letter(cause))
    merged = Classes(2)
    for part in parts:
        for one in part.found():
            merged.merge(one)
    assert merged.found() == whole.found()
    [one] = merged.found()
    assert (one.text, one.count, one.attempts, one.last - one.first) == ("order <n> is late", 4, 4, 8.0)
    assert [sample.text for sample in one.samples] == ["order 3 is late", "order 1 is late"]


def test_wild_texts_do_not_fill_memory() -> None:
    """Beyond so many classes letters are counted by queue and error alone."""
    found = Classes(1, most=2)
    for word in ("one", "two", "three", "four"):
        found.add(letter(Cause(attempts=1, error="E", text=word, at=1.0)))
    assert [(one.text, one.count) for one in found.found()] == [(OTHERS, 2), ("one", 1), ("two", 1)]


def test_over_several_queues(spark: SparkSession, embedded: Kept) -> None:
    """Tasks find the letters of all queues that match, sort them as one does, and send back those that are meant."""
    store, options = embedded.store, embedded.named
    graves = [grave(store, name) for name in ("crash-1", "crash-2", "other")]
    for each in graves:
        bury(store, each.dead, each.queue.name, [late(number) for number in range(1, 4)])
        bury(store, each.dead, each.queue.name, [Cause(attempts=1, error="ValueError", at=1_795_000_000.0)])
    crashes = DeadLetterFilter(patterns=("crash-*",))
    found = deadletter_job.classes(spark, options, crashes, samples=1, say=silent)
    assert found.dead_letters == 8
    assert [(one.queue, one.error, one.text, one.count) for one in found.classes] == [
        (name, error, text, count)
        for error, text, count in (("acme.Late", "order <n> is late", 3), ("ValueError", "", 1))
        for name in ("crash-1", "crash-2")
    ]
    listed = list(deadletter_job.each(spark, options, DeadLetterFilter(queues=("crash-2", "never")), silent))
    assert [(one.lies_in, one.body, one.cause.attempts) for one in listed] == [
        ("crash-2.dead", f"body {number}", attempts) for number, attempts in ((0, 1), (2, 3), (0, 1), (1, 2))
    ]
    late_ones = DeadLetterFilter(patterns=("crash-*",), error="Late")
    for dry_run, left in ((True, 4), (False, 1), (False, 1)):
        order = RedriveOrder(run="again", wanted=late_ones, dry_run=dry_run)
        outcome = deadletter_job.redrive(spark, options, order, silent)
        assert outcome.sent == {"crash-1": 3, "crash-2": 3}
        assert [len(everything(store, each.dead)) for each in graves] == [left, left, 4]


def test_a_queue_of_letters_that_is_not_there(spark: SparkSession, embedded: Kept) -> None:
    """Whoever names where the letters lie is told that it is not there; the job does not just find nothing."""
    wanted = DeadLetterFilter(queues=("orders",), dead_queue="crypt")
    with pytest.raises(QueueNotFound):
        deadletter_job.classes(spark, embedded.named, wanted, say=silent)
