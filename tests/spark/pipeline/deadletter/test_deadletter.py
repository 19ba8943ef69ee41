"""Dead letters: grouped and sent back by Spark tasks; each goes back exactly once, wherever an attempt ends."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from queuey.app.service import Service
from queuey.model import ids
from queuey.model.deadletters import Cause, DeadLetterFilter, Redriven, make_headers
from queuey.model.errors import QueueNotFound
from queuey.model.messages import Message, Meta, NewMessage, Queue, QueueSpec, Slice
from queuey.pipeline.deadletter import deadletter_job
from queuey.pipeline.deadletter.selection import DeadLetterUnit
from queuey.runtime.limits import Limits
from queuey.spark.options import StoreOptions
from queuey.storage import KeyedPosts, Messages, Store, bridge
from tests.backends import APP, Clock
from tests.spark.attempts import Killed, Mortal
from tests.spark.kept import Kept, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TTL = 3600
AGE = 600 * ids.TICKS_PER_SECOND
"""Partitions of the messages that have died."""


class Grave(NamedTuple):
    """A queue and its queue of dead letters."""

    queue: Queue
    dead: Queue


def grave(store: Store, name: str, partitions: int = 2) -> Grave:
    made = [
        bridge.run(store.catalogue.create_queue(APP, each, QueueSpec(partitions=partitions)))[0]
        for each in (name, f"{name}.dead")
    ]
    return Grave(*made)


def bury(store: Store, dead: Queue, name: str, causes: list[Cause], *, json: bool = False) -> list[Message]:
    """Stores one dead letter of queue `name` for each cause, and returns them as read."""
    dead_letters = []
    for number, cause in enumerate(causes):
        position = ids.now_ticks() - AGE + number, 7
        partition = number % dead.partitions + 1
        kind = "application/json" if json else None
        headers = {"trace": f"t{number}"}
        place = name, partition, ids.to_hex(position)
        body = f'{{"n":{number}}}' if json else f"body {number}"
        meta = Meta(kind, tuple(make_headers(place, kind, headers, cause).items()), json)
        bridge.run(store.messages.put(dead, [(partition, position)], NewMessage(body, partition, TTL, meta)))
        dead_letters += bridge.run(store.messages.fetch(dead, [(partition, position)]))
    return dead_letters


def read_all(store: Store, queue: Queue) -> list[Message]:
    queue = bridge.run(store.catalogue.queue(queue.application, queue.name, fresh=True))
    return [
        message
        for number in range(1, queue.partitions + 1)
        for page in bridge.iterate(store.bulk.scan(queue, Slice(number)))
        for message in page
    ]


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
        ("acme.Late", "order … is late", 4),
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
        for error, text, count in (("acme.Late", "order … is late", 3), ("ValueError", "", 1))
        for name in ("crash-1", "crash-2")
    ]
    late_ones = DeadLetterFilter(patterns=("crash-*",), error="Late")
    both = {"crash-1": 3, "crash-2": 3}
    for dry_run, sent, expected_left in ((True, both, 4), (False, both, 1), (False, {}, 1)):
        assert deadletter_job.redrive(spark, options, late_ones, quiet, dry_run=dry_run).sent == sent
        assert [len(read_all(store, queue_pair.dead)) for queue_pair in graves] == [expected_left, expected_left, 4]


@pytest.mark.parametrize("wanted", [{"queues": ("orders",)}, {"patterns": ("order?",)}])
def test_where_the_queue_says(spark: SparkSession, embedded: Kept, wanted: dict[str, Any]) -> None:
    """Letters are found in the queue that ``dead_letter`` names, and in the default one beside it."""
    store, dead = embedded.store, grave(embedded.store, "orders")
    graveyard, _ = bridge.run(store.catalogue.create_queue(APP, "graveyard", QueueSpec()))
    bridge.run(store.catalogue.update_queue(dead.queue, QueueSpec(dead_letter=graveyard.name)))
    for lies_in, name in ((dead.dead, "orders"), (graveyard, "orders"), (graveyard, "others")):
        bury(store, lies_in, name, [late(1)])
    selection = DeadLetterFilter(**wanted)
    assert deadletter_job.redrive(spark, embedded.store_options, selection, quiet, dry_run=True).sent == {"orders": 2}


def test_a_queue_of_letters_that_is_not_there(spark: SparkSession, embedded: Kept) -> None:
    """If the named queue of dead letters does not exist, the job fails instead of finding nothing."""
    selection = DeadLetterFilter(queues=("orders",), dead_queue="crypt")
    with pytest.raises(QueueNotFound):
        deadletter_job.classify_dead_letters(spark, embedded.store_options, selection, report_progress=quiet)


CAUSE = Cause(attempts=3, error="acme.Late", text="late", at=1_795_145_194.0)
ALL = DeadLetterFilter(queues=("orders",))
CHANGES = (KeyedPosts.append_once, Messages.delete)
"""The calls of an attempt that change anything."""


def mortal(store: Store, calls: int, *, after: bool) -> Store:
    return Mortal(store, calls - 1, "after" if after else "before", steps=CHANGES).store


@pytest.fixture
def orders(store: Store) -> Grave:
    return grave(store, "orders")


def run_redrive(
    store: Store,
    at: Grave,
    *,
    wanted: DeadLetterFilter = ALL,
    **options: Any,  # noqa: ANN401 - those of the redrive
) -> Redriven:
    """Runs a redrive on all partitions. Returns the sums."""
    numbers = range(1, at.dead.partitions + 1)
    groups = [tuple(numbers)] if wanted.limit is not None else [(number,) for number in numbers]
    units = [DeadLetterUnit(at.dead.name, at.dead.qid, partitions) for partitions in groups]
    service = Service(store, Limits(default_ttl=TTL))
    outcomes = deadletter_job.redrive_units(service, StoreOptions(application=APP), wanted, units, **options)
    return sum(outcomes, start=Redriven())


def compared_fields(messages: list[Message]) -> list[tuple[int, str | bytes]]:
    return sorted((message.partition, message.body) for message in messages)


def test_letters_become_what_they_were(store: Store, orders: Grave) -> None:
    """A letter goes to the end of its partition with its original body, type and headers, and the queue's TTL."""
    dead_letters = bury(store, orders.dead, "orders", [CAUSE] * 9, json=True)
    assert run_redrive(store, orders) == Redriven(sent={"orders": 9})
    assert read_all(store, orders.dead) == []
    back = read_all(store, orders.queue)
    assert compared_fields(back) == compared_fields(dead_letters)
    assert all(message.meta is not None and message.meta.json for message in back)
    assert {message.meta.headers for message in back if message.meta} == {
        (("trace", f"t{number}"),) for number in range(9)
    }
    assert {message.expires - message.ticks for message in back} == {TTL * ids.TICKS_PER_SECOND}
    for number in (1, 2):
        order = [message.body for message in dead_letters if message.partition == number]
        assert [message.body for message in back if message.partition == number] == order


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_attempt_may_end_anywhere(store: Store, orders: Grave, clock: Clock, after: bool) -> None:  # noqa: FBT001 - a parameter
    """Killed before or after each change, a repeated redrive sends each letter exactly once."""
    for calls in range(1, 40):
        dead_letters = bury(store, orders.dead, "orders", [CAUSE] * 5)
        lived = False
        with suppress(Killed):
            lived = run_redrive(mortal(store, calls, after=after), orders).error is None
        outcome = run_redrive(store, orders)
        assert (outcome.left, outcome.error) == ({}, None)
        assert read_all(store, orders.dead) == []
        clock.advance(100)
        back = read_all(store, orders.queue)
        assert compared_fields(back) == compared_fields(dead_letters)
        bridge.run(store.messages.delete(orders.queue, [(one.partition, one.position) for one in back]))
        if lived:
            assert calls > 5
            return
    pytest.fail("no attempt lived")


def test_only_what_is_meant(store: Store, orders: Grave) -> None:
    """Filters and the limit select as for workers; messages that are not letters stay."""
    other = Cause(attempts=1, error="acme.Broken", text="", at=CAUSE.at + 10)
    bury(store, orders.dead, "orders", [CAUSE, other, CAUSE, other, CAUSE])
    bridge.run(store.messages.append(orders.dead, [NewMessage("no letter", 1, TTL)]))
    assert run_redrive(store, orders, wanted=DeadLetterFilter(queues=("other",))).sent == {}
    few = DeadLetterFilter(patterns=("ord*",), error="Late", limit=2)
    assert run_redrive(store, orders, wanted=few).sent == {"orders": 2}
    late = DeadLetterFilter(queues=("orders",), since=CAUSE.at + 5)
    assert run_redrive(store, orders, wanted=late).sent == {"orders": 2}
    assert run_redrive(store, orders).sent == {"orders": 1}
    assert [one.body for one in read_all(store, orders.dead)] == ["no letter"]


def test_what_cannot_go_back_stays(store: Store, orders: Grave) -> None:
    """Letters whose queue is gone, or has fewer partitions now, stay and are reported with the reason."""
    bury(store, orders.dead, "orders", [CAUSE] * 2)
    bury(store, orders.dead, "gone", [CAUSE])
    bridge.run(store.catalogue.delete_queue(orders.queue))
    bridge.run(store.catalogue.create_queue(APP, "orders", QueueSpec(partitions=1)))
    both = DeadLetterFilter(queues=("orders", "gone"))
    planned = run_redrive(store, orders, wanted=both, dry_run=True)
    done = run_redrive(store, orders, wanted=both)
    assert planned == done
    assert done.sent == {"orders": 1}
    reasons = ["Queue 'gone' does not exist. Create it: queuey queue create gone", "queue orders has only 1 partitions"]
    assert done.left == dict.fromkeys(reasons, 1)
    assert {one.reason for one in done.samples} == done.left.keys()
    assert len(read_all(store, orders.dead)) == 2


def test_a_letter_is_believed_only_where_those_of_its_queue_lie(store: Store, orders: Grave, clock: Clock) -> None:
    """A sender to a queue of dead letters cannot redirect messages to another queue, unless the operator names it."""
    payroll = grave(store, "payroll")
    bury(store, orders.dead, "payroll", [CAUSE])
    selection = DeadLetterFilter(patterns=("*",))
    reason = "dead letters of payroll do not go to orders.dead: check them, then name --dead-queue"
    for dry_run in (True, False):
        done = run_redrive(store, orders, wanted=selection, dry_run=dry_run)
        assert (done.sent, done.left) == ({}, {reason: 1})
    assert len(read_all(store, orders.dead)) == 1
    bridge.run(store.catalogue.update_queue(payroll.queue, QueueSpec(dead_letter="orders.dead")))
    assert run_redrive(store, orders, wanted=selection).sent == {"payroll": 1}
    changed = bridge.run(store.catalogue.queue(APP, "payroll", fresh=True))
    bridge.run(store.catalogue.update_queue(changed, QueueSpec(), clear=["dead_letter"]))
    bury(store, orders.dead, "payroll", [CAUSE])
    named = DeadLetterFilter(queues=("payroll",), dead_queue="orders.dead")
    assert run_redrive(store, orders, wanted=named).sent == {"payroll": 1}
