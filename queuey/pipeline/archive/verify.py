"""Checks of an archive: compares its messages with its manifests, and with the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import msgspec

from queuey.model.texts import format_count
from queuey.model.titles import titled
from queuey.pipeline.archive import checksums, directory, find_buckets, storage
from queuey.pipeline.archive.directory import ArchiveDirectory
from queuey.pipeline.archive.manifest import Key, Manifest, Summary
from queuey.pipeline.archive.work_units import BucketSearch, divide_large_units, group_units
from queuey.spark import open_stores
from queuey.spark.options import Selection, StoreOptions
from queuey.spark.slices import divide_into_groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ReportProgress = Callable[[str], None]
TASKS_PER_CORE = 3


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a check.

    Attributes:
        archive: Directory of the archive.
        against_store: Compare with the store as well.
    """

    store: StoreOptions
    selection: Selection
    archive: str
    against_store: bool = True


class Damage(msgspec.Struct, frozen=True, order=True):
    """An error in a bucket; ``text`` describes it."""

    queue: str
    bucket: str
    text: str


class UnarchivedBucket(msgspec.Struct, frozen=True, order=True):
    """A closed bucket of the store that is not archived, and the minimum number of its messages."""

    queue: str
    bucket: str
    count: Annotated[int, titled("not archived yet")]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check.

    Attributes:
        archive: URL of the archive.
        buckets: Number of manifests.
        messages: Number of messages according to the manifests.
        damaged: Buckets that differ from their manifest, or lack messages of the store.
        unreadable: Manifests that cannot be decoded.
        waiting: Closed buckets of the store without a manifest.
    """

    archive: str
    buckets: int
    messages: int
    damaged: tuple[Damage, ...]
    unreadable: tuple[str, ...] = ()
    waiting: tuple[UnarchivedBucket, ...] = ()

    @property
    def ok(self) -> bool:
        """True if all buckets match their manifests. Buckets that are not archived yet do not count."""
        return not (self.damaged or self.unreadable)


def check(spark: SparkSession, options: CheckOptions, report_progress: ReportProgress) -> CheckReport:
    """Compares the messages of all manifests with the manifests and with closed buckets of the store.

    Raises:
        ArchiveDamaged: There is no archive.
        QueueNotFound: The archive has no messages of a named queue.
    """
    opened = directory.open_existing(spark, options.archive)
    names = opened.select_queues(options.selection)
    unreadable: list[str] = []
    manifests = opened.read_manifests(
        {(name, bucket) for name in names for bucket in opened.list_bucket_names(name)}, unreadable
    )
    report_progress(f"checking {format_count(len(manifests), 'bucket')}")
    lengths = {path: opened.files.find_length(path) for bucket in manifests for path in bucket.data_paths}
    present = {bucket.key: [path for path in bucket.data_paths if lengths[path] is not None] for bucket in manifests}
    summaries = checksums.summarize_buckets(
        storage.read_paths(spark, opened.files, chain.from_iterable(present.values()))
    )
    damaged = [damage for bucket in manifests for damage in compare_summary(bucket, summaries.get(bucket.key))]
    damaged += [damage for bucket in manifests for damage in _find_damaged_files(bucket, lengths)]
    waiting: list[UnarchivedBucket] = []
    if options.against_store:
        report_progress("comparing with the store")
        lacking, waiting = _compare_with_store(spark, options, opened, names, present)
        damaged += lacking
    return CheckReport(
        archive=opened.files.root,
        buckets=len(manifests),
        messages=sum(bucket.summary.count for bucket in manifests),
        damaged=tuple(sorted(damaged)),
        unreadable=tuple(unreadable),
        waiting=tuple(sorted(waiting)),
    )


def compare_summary(bucket: Manifest, actual: Summary | None) -> list[Damage]:
    expected = bucket.summary
    if actual is None:
        return [Damage(*bucket.key, f"its {expected.count} messages are missing")]
    if expected.count != actual.count:
        return [Damage(*bucket.key, f"it holds {actual.count} messages and not {expected.count}")]
    if not expected.has_same_messages(actual):
        return [Damage(*bucket.key, "its messages have changed since it was archived")]
    if expected.partitions != actual.partitions:
        return [Damage(*bucket.key, "its first and last messages differ from its manifest")]
    return []


def _find_damaged_files(bucket: Manifest, lengths: Mapping[str, int | None]) -> list[Damage]:
    damaged = []
    for path, file in zip(bucket.data_paths, bucket.files, strict=True):
        if lengths[path] is None:
            damaged.append(Damage(*bucket.key, f"the file {file.name} of {file.bytes} bytes is missing"))
        elif lengths[path] != file.bytes:
            damaged.append(Damage(*bucket.key, f"the file {file.name} has {lengths[path]} bytes and not {file.bytes}"))
    return damaged


def _compare_with_store(
    spark: SparkSession,
    options: CheckOptions,
    archive: ArchiveDirectory,
    names: Iterable[str],
    present: Mapping[Key, Sequence[str]],
) -> tuple[list[Damage], list[UnarchivedBucket]]:
    """Returns archived buckets that lack or alter messages of the store, and closed buckets not archived yet.

    Skips queues that were deleted. ``present`` has the existing data files of each archived bucket.
    """
    store = open_stores.opened(options.store)
    seconds = archive.about.seconds
    # A deleted queue does not make its archived buckets invalid.
    live = [queue for name in names if (queue := open_stores.find_existing_queue(store, options.store, name))]
    tasks = spark.sparkContext.defaultParallelism * TASKS_PER_CORE
    searches = [BucketSearch(queue.name, queue.qid, seconds) for queue in live]
    units = find_buckets.find_units(spark, options.store, divide_into_groups(searches, tasks))
    archived = [unit for unit in units if unit.key in present]
    counts: dict[Key, int] = {}
    for unit in units:
        if unit.key not in present:
            counts[unit.key] = counts.get(unit.key, 0) + unit.weight
    waiting = [UnarchivedBucket(*key, count) for key, count in counts.items()]
    if not archived:
        return [], waiting
    stored = find_buckets.scan_messages(spark, options.store, group_units(divide_large_units(archived), tasks))
    paths = [path for key in {unit.key for unit in archived} for path in present[key]]
    theirs = storage.read_paths(spark, archive.files, paths)
    differences = checksums.count_differences(stored, theirs)
    return [Damage(*key, _difference_text(difference)) for key, difference in differences.items()], waiting


def _difference_text(difference: checksums.Difference) -> str:
    parts = [f"it lacks {difference.missing} messages of the store"] if difference.missing else []
    parts += [f"{difference.changed} messages differ in the store"] if difference.changed else []
    return " and ".join(parts)
