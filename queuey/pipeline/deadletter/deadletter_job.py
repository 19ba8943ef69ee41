"""The job ``deadletter``: lists dead letters, classifies them by error, and redrives them in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.model import deadletters
from queuey.model.deadletters import DeadLetter, DeadLetterFilter, Redriven
from queuey.pipeline import tasks
from queuey.pipeline.deadletter import selection
from queuey.pipeline.deadletter.selection import DeadLetterSample, DeadLetterUnit, ErrorClass
from queuey.pipeline.tasks import Batches
from queuey.runtime.limits import Limits
from queuey.settings import select_settings
from queuey.spark import open_stores
from queuey.spark.options import StoreOptions
from queuey.spark.slices import divide_into_groups
from queuey.spark.source.columns import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TASKS = 400
DEFAULT_SAMPLES = 3
MAX_CLASSES = 10_000
OTHERS_TEXT = "…"
"""The text of the class that combines all smaller classes."""
_SCHEMA = StructType(
    [
        *(
            StructField(name, StringType(), nullable=False)
            for name in ("queue", "error", "shape", "lies_in", "id", "text")
        ),
        *(StructField(name, IntegerType(), nullable=False) for name in ("partition", "attempts")),
        StructField("at", DoubleType(), nullable=False),
    ]
)
_ROWS = arrow_schema(_SCHEMA)
_decode = msgspec.msgpack.Decoder(tuple[DeadLetterFilter, list[DeadLetterUnit]]).decode
_decode_units = msgspec.msgpack.Decoder(list[DeadLetterUnit]).decode
ReportProgress = Callable[[str], None]


class DeadLetterClasses(msgspec.Struct, frozen=True):
    """Dead letters by error.

    Attributes:
        dead_letters: Number of dead letters.
        classes: Classes of errors, the largest first.
    """

    dead_letters: int
    classes: tuple[ErrorClass, ...]


def classify_dead_letters(
    spark: SparkSession,
    store: StoreOptions,
    selected: DeadLetterFilter,
    *,
    samples: int = DEFAULT_SAMPLES,
    max_classes: int = MAX_CLASSES,
    report_progress: ReportProgress,
) -> DeadLetterClasses:
    """Classifies dead letters by error.

    Args:
        spark: The session.
        store: The store.
        selected: The dead letters.
        samples: Number of samples of each class, the newest ones.
        max_classes: Max classes. Smaller classes of one queue and error are combined, without text.
        report_progress: Called with the progress.

    Raises:
        QueueNotFound: The given dead-letter queue does not exist.
    """
    from pyspark.sql import functions as f

    units = selection.find_units(store, selected)
    report_progress(_reading_text(units))
    payloads = [msgspec.msgpack.encode((selected, group)) for group in divide_into_groups(units, MAX_TASKS)]
    sample = f.struct(*DeadLetterSample.__struct_fields__)
    grouped = (
        tasks.run_for_rows(spark, "dead_letters", _SCHEMA, store, payloads)
        .groupBy("queue", "error", "shape")
        .agg(
            f.count(sample).alias("count"),
            f.min("at").alias("first"),
            f.max("at").alias("last"),
            f.max("attempts").alias("attempts"),
            f.max_by(sample, sample, max(1, samples)).alias("samples"),
        )
        .persist()
    )
    ordered = grouped.orderBy(f.desc("count"), "queue", "error", "shape")
    less = f.lit(OTHERS_TEXT), f.sum("count"), f.min("first"), f.max("last"), f.max("attempts")
    others = ordered.offset(max_classes).groupBy("queue", "error").agg(*less)
    whole = [_make_error_class(row, samples) for row in [*ordered.limit(max_classes).collect(), *others.collect()]]
    grouped.unpersist()
    return DeadLetterClasses(sum(error_class.count for error_class in whole), tuple(whole))


def _make_error_class(row: Iterable[Any], samples: int) -> ErrorClass:
    queue, error, text, count, first, last, attempts, *kept = row
    newest = sorted(chain(*kept), reverse=True)[:samples]
    return ErrorClass(
        queue, error, text, count, first, last, attempts, tuple(DeadLetterSample(*sample) for sample in newest)
    )


def rows(options: StoreOptions, payload: bytes) -> Batches:
    selected, units = _decode(payload)
    for page in selection.read_pages(open_stores.opened(options), options, units, selected):
        yield pa.RecordBatch.from_pylist([_make_row(letter) for letter in page], schema=_ROWS)


def _make_row(dead_letter: DeadLetter) -> dict[str, object]:
    cause = dead_letter.cause
    names = {name: getattr(dead_letter, name) for name in ("queue", "lies_in", "partition", "id")}
    failure = {name: getattr(cause, name) for name in ("error", "at", "attempts", "text")}
    return {**names, **failure, "shape": deadletters.generalize_error_text(cause.text)}


def redrive(
    spark: SparkSession,
    store: StoreOptions,
    selected: DeadLetterFilter,
    report_progress: ReportProgress,
    *,
    ttl: int | None = None,
    dry_run: bool = False,
) -> Redriven:
    """Sends dead letters back to the ends of their original partitions, and removes them from the dead-letter queues.

    With ``dry_run``, only counts them. See :mod:`queuey.operations.redrive` for what an interruption leaves.

    Raises:
        QueueNotFound: The given dead-letter queue does not exist.
    """
    units = selection.find_units(store, selected)
    report_progress(_reading_text(units))
    payloads = [msgspec.msgpack.encode(group) for group in divide_into_groups(units, MAX_TASKS)]
    packed = tasks.run_for_values(spark, partial(_redrive_in_task, store, selected, ttl, dry_run), payloads)
    return sum((msgspec.msgpack.decode(each, type=Redriven) for each in packed), start=Redriven())


def _reading_text(units: Sequence[DeadLetterUnit]) -> str:
    return f"reading {len({unit.queue for unit in units}):,} queues of dead letters"


def _redrive_in_task(
    options: StoreOptions,
    letter_filter: DeadLetterFilter,
    ttl: int | None,
    dry_run: bool,  # noqa: FBT001 - bound by position
    units: bytes,
) -> Iterator[bytes]:
    limits = select_settings(open_stores.read_settings(options), Limits.__struct_fields__)
    service = Service(open_stores.opened(options), Limits(**limits))
    for outcome in redrive_units(service, options, letter_filter, _decode_units(units), ttl=ttl, dry_run=dry_run):
        yield msgspec.msgpack.encode(outcome)


def redrive_units(
    service: Service,
    options: StoreOptions,
    letter_filter: DeadLetterFilter,
    units: Sequence[DeadLetterUnit],
    *,
    ttl: int | None = None,
    dry_run: bool = False,
) -> Iterator[Redriven]:
    application = open_stores.application(service.store, options)

    async def enter(name: str) -> QueueAccess:
        return service.queues.access_unchecked(await service.find(application, name))

    async def send_back(place: str, letters: Sequence[DeadLetter]) -> Redriven:
        return await service.redriving.send_back(
            await enter(place), letters, enter, ttl=ttl, trusted=letter_filter.dead_queue, dry_run=dry_run
        )

    for unit in units:
        for page in selection.read_pages(service.store, options, [unit], letter_filter):
            yield service.core.run(send_back(unit.queue, page))
