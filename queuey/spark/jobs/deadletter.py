"""The job ``deadletter``: lists dead letters, sorts them into classes of errors, and sends them back in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from queuey.deadletters import DeadLetter
from queuey.spark import stores
from queuey.spark.jobs import letters
from queuey.spark.jobs.letters import Classes, ErrorClass, Unit, Wanted
from queuey.spark.jobs.redriving import Order, Outcome, Redrive
from queuey.spark.options import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_TASKS = 400
SAMPLES = 3
_PACKED = pa.schema([pa.field("packed", pa.binary(), nullable=False)])
Say = Callable[[str], None]
Task = Callable[[Sequence[Unit]], Iterator[list[bytes]]]


class Sorted(msgspec.Struct, frozen=True):
    """What went wrong.

    Attributes:
        letters: How many there are.
        classes: Of errors, the largest first.
    """

    letters: int
    classes: tuple[ErrorClass, ...]


def each(spark: SparkSession, store: StoreOptions, wanted: Wanted, say: Say) -> Iterator[DeadLetter]:
    """Iterates over dead letters, a partition after the other.

    Raises:
        QueueNotFound: The queue that holds them by option is not there.
    """
    units = letters.units_of(store, wanted)
    say(_looking(units))
    for row in _on_units(spark, units, partial(_listed, store, wanted), together=False).toLocalIterator():
        yield msgspec.msgpack.decode(row.packed, type=DeadLetter)


def classes(spark: SparkSession, store: StoreOptions, wanted: Wanted, *, samples: int = SAMPLES, say: Say) -> Sorted:
    """Sorts dead letters by what went wrong.

    Only what the classes have in common and their samples leave the tasks.

    Raises:
        QueueNotFound: The queue that holds them by option is not there.
    """
    units = letters.units_of(store, wanted)
    say(_looking(units))
    found = Classes(samples)
    for row in _on_units(spark, units, partial(_sorted, store, wanted, samples)).collect():
        found.merge(msgspec.msgpack.decode(row.packed, type=ErrorClass))
    whole = found.found()
    return Sorted(sum(one.count for one in whole), tuple(whole))


def redrive(spark: SparkSession, store: StoreOptions, order: Order, say: Say) -> Outcome:
    """Sends dead letters back to the ends of the partitions that they came from, and removes them here.

    Each letter is removed only after it is certain that it was sent. After an interruption the same order, by the same
    name, goes on where the last attempt ended and sends nothing twice.

    Raises:
        OptionError: A run of this name was begun with another order.
        QueueNotFound: The queue that holds them by option is not there.
    """
    units = letters.units_of(store, order.wanted)
    say(_looking(units))
    outcome = Outcome()
    for row in _on_units(spark, units, partial(_redriven, store, order)).collect():
        outcome += msgspec.msgpack.decode(row.packed, type=Outcome)
    return outcome


def _looking(units: Sequence[Unit]) -> str:
    return f"looking into {len({unit.queue for unit in units}):,} queues of dead letters"


def _on_units(spark: SparkSession, units: Sequence[Unit], task: Task, *, together: bool = True) -> DataFrame:
    """Runs a task over units, which are dealt out among as many tasks as are worth it.

    Args:
        spark: The session.
        units: In order; tasks get neighbours.
        task: Gives rows in lists.
        together: Tasks may have several units each.
    """
    shares = min(len(units), MOST_TASKS) if together else len(units)
    packed = [
        msgspec.msgpack.encode(units[share * len(units) // shares : (share + 1) * len(units) // shares])
        for share in range(shares)
    ]
    frame = spark.range(0, shares, 1, max(1, shares))
    return frame.mapInArrow(partial(_run, packed, task), "packed binary")


def _run(packed: Sequence[bytes], task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for rows in task(msgspec.msgpack.decode(packed[number], type=list[Unit])):
                yield pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], schema=_PACKED)


def _listed(options: StoreOptions, wanted: Wanted, units: Sequence[Unit]) -> Iterator[list[bytes]]:
    store = stores.opened(options)
    for page in letters.all_pages(store, options, units, wanted):
        yield [msgspec.msgpack.encode(found.letter) for found in page]


def _sorted(options: StoreOptions, wanted: Wanted, samples: int, units: Sequence[Unit]) -> Iterator[list[bytes]]:
    found = Classes(samples)
    for page in letters.all_pages(stores.opened(options), options, units, wanted):
        for one in page:
            found.add(one.letter)
    packed = [msgspec.msgpack.encode(one) for one in found.found()]
    if packed:
        yield packed


def _redriven(options: StoreOptions, order: Order, units: Sequence[Unit]) -> Iterator[list[bytes]]:
    store = stores.opened(options)
    usual = stores.settings_of(options).default_ttl
    work = Redrive(store, partial(stores.queue, store, options), order, usual)
    for unit in units:
        queue = letters.queue_of(store, options, unit)
        if queue is not None:
            yield [msgspec.msgpack.encode(work.count(queue, unit) if order.dry_run else work.send(queue, unit))]
