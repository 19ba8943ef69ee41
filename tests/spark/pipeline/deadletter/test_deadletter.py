"""Dead letters of several queues: grouped, listed and sent back by Spark tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuey.deadletters import Cause, DeadLetterFilter
from queuey.errors import QueueNotFound
from queuey.messages import QueueSpec
from queuey.pipeline.deadletter import deadletter_job
from queuey.pipeline.deadletter.redrive import RedriveOrder
from queuey.storage import bridge
from tests.backends import APP
from tests.spark.kept import Kept, quiet
from tests.spark.pipeline.deadletter.stored_dead_letters import bury, grave, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def late(number: int, at: float = 0.0) -> Cause:
    return Cause(attempts=number, error="acme.Late", text=f"order {number} is late", at=1_795_000_000.0 + at)


def test_classes(spark: SparkSession, embedded: Kept) -> None:
    """Each class has its counts, ends, max attempts and newest samples; beyond the limit texts are merged."""
    dead = grave(embedded.store, "orders")
    causes = [late(number, at) for number, at in ((1, 5.0), (2, 3.0), (3, 9.0), (4, 1.0))]
    wild = [Cause(attempts=1, error="E", text=word, at=1_795_000_000.0) for word in ("one", "two", "three", "one")]
    bury(embedded.store, dead.dead, "orders", [*causes, *wild])
    selection = DeadLetterFilter(queues=("orders",))
    groups = deadletter_job.classify_dead_letters(
        spark, embedded.store_options, selection, samples=2, max_classes=2, report_progress=quiet
    )
    assert [(first.error, first.text, first.count) for first in groups.classes] == [
        ("acme.Late", "order <n> is late", 4),
        ("E", "one", 2),
        ("E", deadletter_job.OTHERS_TEXT, 2),
    ]
    first = groups.classes[0]
    assert (groups.dead_letters, first.attempts, first.last - first.first) == (8, 4, 8.0)
    assert [sample.text for sample in first.samples] == ["order 3 is late", "order 1 is late"]
    none = deadletter_job.classify_dead_letters(
        spark, embedded.store_options, selection, samples=0, report_progress=quiet
    )
    assert [first.samples for first in none.classes] == [()] * 4


def test_over_several_queues(spark: SparkSession, embedded: Kept) -> None:
    """Tasks find the letters of all matching queues, group them as one does, and send back the selected ones."""
    store, options = embedded.store, embedded.store_options
    graves = [grave(store, name) for name in ("crash-1", "crash-2", "other")]
    for queue_pair in graves:
        bury(store, queue_pair.dead, queue_pair.queue.name, [late(number) for number in range(1, 4)])
        bury(store, queue_pair.dead, queue_pair.queue.name, [Cause(attempts=1, error="ValueError", at=1_795_000_000.0)])
    crashes = DeadLetterFilter(patterns=("crash-*",))
    groups = deadletter_job.classify_dead_letters(spark, options, crashes, samples=1, report_progress=quiet)
    assert groups.dead_letters == 8
    assert [(one.queue, one.error, one.text, one.count) for one in groups.classes] == [
        (name, error, text, count)
        for error, text, count in (("acme.Late", "order <n> is late", 3), ("ValueError", "", 1))
        for name in ("crash-1", "crash-2")
    ]
    listed = list(
        deadletter_job.list_dead_letters(spark, options, DeadLetterFilter(queues=("crash-2", "never")), quiet)
    )
    assert [(one.lies_in, one.body, one.cause.attempts) for one in listed] == [
        ("crash-2.dead", f"body {number}", attempts) for number, attempts in ((0, 1), (2, 3), (0, 1), (1, 2))
    ]
    late_ones = DeadLetterFilter(patterns=("crash-*",), error="Late")
    for dry_run, expected_left in ((True, 4), (False, 1), (False, 1)):
        order = RedriveOrder(run="again", wanted=late_ones, dry_run=dry_run)
        outcome = deadletter_job.redrive(spark, options, order, quiet)
        assert outcome.sent == {"crash-1": 3, "crash-2": 3}
        assert [len(read_all(store, queue_pair.dead)) for queue_pair in graves] == [expected_left, expected_left, 4]


@pytest.mark.parametrize("wanted", [{"queues": ("orders",)}, {"patterns": ("order?",)}])
def test_where_the_queue_says(spark: SparkSession, embedded: Kept, wanted: dict[str, Any]) -> None:
    """Letters are found in the queue that ``dead_letter`` names, and in the default one beside it."""
    store, dead = embedded.store, grave(embedded.store, "orders")
    graveyard, _ = bridge.run(store.catalogue.create_queue(APP, "graveyard", QueueSpec()))
    bridge.run(store.catalogue.update_queue(dead.queue, QueueSpec(dead_letter=graveyard.name)))
    for lies_in, name in ((dead.dead, "orders"), (graveyard, "orders"), (graveyard, "others")):
        bury(store, lies_in, name, [late(1)])
    listed = deadletter_job.list_dead_letters(spark, embedded.store_options, DeadLetterFilter(**wanted), quiet)
    assert [(one.lies_in, one.queue) for one in listed] == [("graveyard", "orders"), ("orders.dead", "orders")]


def test_a_queue_of_letters_that_is_not_there(spark: SparkSession, embedded: Kept) -> None:
    """If the named queue of dead letters does not exist, the job fails instead of finding nothing."""
    selection = DeadLetterFilter(queues=("orders",), dead_queue="crypt")
    with pytest.raises(QueueNotFound):
        deadletter_job.classify_dead_letters(spark, embedded.store_options, selection, report_progress=quiet)
