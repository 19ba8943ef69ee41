"""The job ``deadletter``: lists dead letters, sorts them into classes of errors, and sends them back in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from queuey.deadletters import Cause, DeadLetter, DeadLetterFilter, Redriven
from queuey.spark import open_stores
from queuey.spark.jobs.deadletter import selection
from queuey.spark.jobs.deadletter.redrive import Redrive, RedriveOrder
from queuey.spark.jobs.deadletter.selection import Classes, DeadLetterUnit, ErrorClass
from queuey.spark.options import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_TASKS = 400
SAMPLES = 3
Say = Callable[[str], None]
Task = Callable[[Sequence[DeadLetterUnit]], Iterator[bytes]]


class DeadLetterClasses(msgspec.Struct, frozen=True):
    """What went wrong.

    Attributes:
        dead_letters: How many there are.
        classes: Of errors, the largest first.
    """

    dead_letters: int
    classes: tuple[ErrorClass, ...]


def each(spark: SparkSession, store: StoreOptions, wanted: DeadLetterFilter, say: Say) -> Iterator[DeadLetter]:
    """Iterates over dead letters, a partition after the other.

    Raises:
        QueueNotFound: The queue that holds them by option is not there.
    """
    units = selection.units_of(store, wanted)
    say(_looking(units))
    for packed in _on_units(spark, units, partial(_listed, store, wanted)).toLocalIterator():
        yield _unpacked(packed)


def classes(
    spark: SparkSession, store: StoreOptions, wanted: DeadLetterFilter, *, samples: int = SAMPLES, say: Say
) -> DeadLetterClasses:
    """Sorts dead letters by error.

    Only what the classes have in common and their samples leave the tasks.

    Raises:
        QueueNotFound: The queue that holds them by option is not there.
    """
    units = selection.units_of(store, wanted)
    say(_looking(units))
    found = Classes(samples)
    for packed in _on_units(spark, units, partial(_sorted, store, wanted, samples)).collect():
        found.merge(msgspec.msgpack.decode(packed, type=ErrorClass))
    whole = found.found()
    return DeadLetterClasses(sum(one.count for one in whole), tuple(whole))


def redrive(spark: SparkSession, store: StoreOptions, order: RedriveOrder, say: Say) -> Redriven:
    """Sends dead letters back to the ends of the partitions that they came from, and removes them here.

    Each dead letter is removed only after it is certain that it was sent. After an interruption the same order, by the
    same name, goes on where the last attempt ended and sends nothing twice.

    Raises:
        OptionError: A run of this name was begun with another order.
        QueueNotFound: The queue that holds them by option is not there.
    """
    units = selection.units_of(store, order.wanted)
    say(_looking(units))
    outcome = Redriven()
    for packed in _on_units(spark, units, partial(_redriven, store, order)).collect():
        outcome += msgspec.msgpack.decode(packed, type=Redriven)
    return outcome


def _unpacked(packed: bytes) -> DeadLetter:
    """Returns a dead letter as a task packed it. Its body is text or bytes, so it is decoded without a type."""
    values = msgspec.msgpack.decode(packed)
    return DeadLetter(**{**values, "cause": Cause(**values["cause"])})


def _looking(units: Sequence[DeadLetterUnit]) -> str:
    return f"looking into {len({unit.queue for unit in units}):,} queues of dead letters"


def _on_units(spark: SparkSession, units: Sequence[DeadLetterUnit], task: Task) -> Any:  # noqa: ANN401 - an RDD of bytes
    """Returns what a task gives for units, which are dealt out among as many tasks as are worth it.

    Args:
        spark: The session.
        units: In order; tasks get neighbours.
        task: What to do.
    """
    shares = max(1, min(len(units), MOST_TASKS))
    bounds = [share * len(units) // shares for share in range(shares + 1)]
    packed = [msgspec.msgpack.encode(units[first:end]) for first, end in pairwise(bounds)]
    return spark.sparkContext.parallelize(packed, shares).flatMap(partial(_run, task))


def _run(task: Task, packed: bytes) -> Iterator[bytes]:
    return task(msgspec.msgpack.decode(packed, type=list[DeadLetterUnit]))


def _listed(options: StoreOptions, wanted: DeadLetterFilter, units: Sequence[DeadLetterUnit]) -> Iterator[bytes]:
    store = open_stores.opened(options)
    for page in selection.all_pages(store, options, units, wanted):
        yield from (msgspec.msgpack.encode(found.dead_letter) for found in page)


def _sorted(
    options: StoreOptions, wanted: DeadLetterFilter, samples: int, units: Sequence[DeadLetterUnit]
) -> Iterator[bytes]:
    found = Classes(samples)
    for page in selection.all_pages(open_stores.opened(options), options, units, wanted):
        for one in page:
            found.add(one.dead_letter)
    yield from (msgspec.msgpack.encode(one) for one in found.found())


def _redriven(options: StoreOptions, order: RedriveOrder, units: Sequence[DeadLetterUnit]) -> Iterator[bytes]:
    store = open_stores.opened(options)
    usual = open_stores.settings_of(options).default_ttl
    work = Redrive(store, partial(open_stores.queue, store, options), order, usual)
    for unit in units:
        queue = selection.queue_of(store, options, unit)
        if queue is not None:
            yield msgspec.msgpack.encode(work.count(queue, unit) if order.dry_run else work.send(queue, unit))
