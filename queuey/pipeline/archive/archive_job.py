"""The job ``archive``: writes closed buckets of queues to files, and checks each bucket against the store.

A run finds buckets that have messages and no matching manifest, then archives them in waves. A wave is a few Spark jobs
for thousands of buckets: scan the store into new files, count and hash the written messages, scan the store once more
and compare, and (in the driver) write the manifests and one commit for all of them.

Archiving again never loses messages: a bucket that is archived already keeps its messages and gets the store's messages
added. So expired messages stay in the archive, and a killed run can simply be repeated.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import msgspec

from queuey.model import ids
from queuey.model.messages import Queue
from queuey.model.texts import format_count
from queuey.model.titles import titled
from queuey.pipeline.archive import buckets, checksums, directory, find_buckets, manifest, storage
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.archive.checksums import Difference
from queuey.pipeline.archive.directory import STAGING_DIRECTORY, ArchiveDirectory, PresentVersion
from queuey.pipeline.archive.hadoop_files import HadoopFiles
from queuey.pipeline.archive.lease import ArchiveLease
from queuey.pipeline.archive.manifest import Archive, ArchivedQueue, DataFile, Key, Manifest, Summary
from queuey.pipeline.archive.work_units import (
    BucketSearch,
    WorkUnit,
    divide_into_waves,
    divide_large_units,
    group_units,
    make_bucket_units,
)
from queuey.pipeline.options import ArchiveOptions
from queuey.spark import open_stores
from queuey.spark.slices import divide_into_groups
from queuey.storage import bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReportProgress = Callable[[str], None]
MAX_WAVE_BUCKETS = 5000
MAX_WAVE_MESSAGES = 20_000_000
TASKS_PER_CORE = 3


class ArchivedBucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket that was archived, or with ``dry_run`` would be (then with a minimum number of messages, without bytes).

    Attributes:
        expiring: True if its messages had begun to expire, so that some may be lost.
    """

    queue: str
    bucket: str
    count: Annotated[int, titled("messages")]
    bytes: int | None = None
    expiring: bool = False


class FailedBucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket that was not archived, because the second scan of the store found messages that the first had not."""

    queue: str
    bucket: str
    missing: int
    changed: int


class ArchiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an archive run.

    Attributes:
        to: URL of the archive.
        queues: Number of queues that were checked.
        archived: Archived buckets, by queue and start.
        failed: Buckets that were not archived.
        vanished: Number of buckets whose messages were gone (deleted, purged, expired) before the scan.
        damaged: Unusable manifests, whose buckets were archived again, and missing files.
    """

    to: str
    queues: int
    archived: tuple[ArchivedBucket, ...]
    failed: tuple[FailedBucket, ...] = ()
    vanished: int = 0
    damaged: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def messages(self) -> int:
        return sum(bucket.count for bucket in self.archived)

    @property
    def ok(self) -> bool:
        return not self.failed


def archive(spark: SparkSession, options: ArchiveOptions, report_progress: ReportProgress) -> ArchiveReport:
    """Archives every closed bucket that has messages and is not archived yet.

    A dry run takes no lease and writes nothing.

    Args:
        spark: The session.
        options: The queues and the archive.
        report_progress: Called with the progress.

    Raises:
        OptionError: The directory holds other files.
        QueueNotFound: A named queue does not exist.
        FilesUnavailable: The file system refused a request.
        ArchiveBusy: Another run writes to the archive.
    """
    store = open_stores.opened(options.store)
    owner = open_stores.application(store, options.store)
    queues = {queue.name: queue for queue in open_stores.find_selected_queues(options.store, options.selection)}
    about = Archive(application=owner, seconds=options.seconds)
    lease = ArchiveLease(store.ledger, HadoopFiles(spark, options.to).root)
    with nullcontext() if options.dry_run else lease:
        opened = directory.open_to_write(spark, options.to, about, write=not options.dry_run)
        return _archive_closed(ArchiveRun(spark, options, opened, queues, report_progress, lease))


def _archive_closed(run: ArchiveRun) -> ArchiveReport:
    options, queues, report_progress = run.options, run.queues, run.report_progress
    report_progress(f"looking for closed buckets of {format_count(len(queues), 'queue')}")
    damaged: list[str] = []
    searches = run.make_searches(damaged)
    units = find_buckets.find_units(run.spark, options.store, divide_into_groups(searches, run.tasks))
    units += run.find_broken_units(units)
    if options.dry_run:
        return run.make_report(run.describe_planned(units), damaged=damaged)
    return run.archive_units(units, damaged)


class ArchiveRun:
    """One run of an archive over some queues; ``report_progress`` is called with the progress."""

    def __init__(
        self,
        spark: SparkSession,
        options: ArchiveOptions,
        directory: ArchiveDirectory,
        queues: Mapping[str, Queue],
        report_progress: ReportProgress,
        lease: ArchiveLease,
    ) -> None:
        self._lease = lease
        self.spark = spark
        self.options = options
        self.directory = directory
        self.queues = queues
        self.report_progress = report_progress
        self.tasks = spark.sparkContext.defaultParallelism * TASKS_PER_CORE
        self._default_ttl = open_stores.read_settings(options.store).default_ttl
        self._store = open_stores.opened(options.store)
        self._unusable: set[Key] = set()

    @property
    def now(self) -> float:
        return ids.ticks_to_seconds(bridge.run(self._store.ledger.now()))

    def make_searches(self, damaged: list[str]) -> list[BucketSearch]:
        """Returns a search for each queue, which skips buckets with matching manifests, unless ``again`` is set.

        Remembers buckets with unusable manifests for :meth:`find_broken_units`.

        Reads only the manifests of buckets that may still have messages in the store by the queue's TTL, because the
        total number of manifests grows forever.

        Args:
            damaged: Descriptions of unreadable manifests are appended here.
        """
        names, seconds, now = self.queues, self.options.seconds, self.now
        archived = {
            name: [buckets.parse_bucket(text, seconds) for text in self.directory.list_bucket_names(name)]
            for name in names
        }
        recent = {
            (name, bucket.name)
            for name, listed in archived.items()
            for bucket in listed
            if self.options.again or bucket.end >= now - self._ttl_seconds(names[name])
        }
        read = {bucket.key: bucket.source.qid for bucket in self.directory.read_manifests(recent, damaged)}
        self._unusable = recent - read.keys()
        if self.options.again:
            return [self._make_search(queue, ()) for queue in names.values()]
        return [
            self._make_search(
                queue,
                (
                    bucket
                    for bucket in archived[name]
                    if (name, bucket.name) not in recent or read.get((name, bucket.name)) == f"{queue.qid:x}"
                ),
            )
            for name, queue in names.items()
        ]

    def find_broken_units(self, units: Iterable[WorkUnit]) -> list[WorkUnit]:
        """Returns units for buckets with unusable manifests and without messages in the store.

        They are archived again from the files that the archive has.

        Args:
            units: The units found in the store.
        """
        keys = sorted(self._unusable - {unit.key for unit in units})
        named = ((self.queues[name], buckets.parse_bucket(bucket, self.options.seconds)) for name, bucket in keys)
        return [unit for queue, bucket in named for unit in make_bucket_units(queue, bucket, 0)]

    def describe_planned(self, units: Iterable[WorkUnit]) -> list[ArchivedBucket]:
        counts: dict[Key, int] = {}
        for unit in units:
            counts[unit.key] = counts.get(unit.key, 0) + unit.weight
        now = self.now
        return [
            ArchivedBucket(queue=key[0], bucket=key[1], count=count, expiring=self.is_expiring(key, now))
            for key, count in sorted(counts.items())
        ]

    def archive_units(self, units: Iterable[WorkUnit], damaged: Sequence[str]) -> ArchiveReport:
        """Archives units in waves, each as one run.

        A bucket with neither a manifest nor a difference counts as vanished.

        Args:
            units: The units, with those of :meth:`find_broken_units`.
            damaged: Descriptions of missing files of the archive that are known already.

        Raises:
            ArchiveBusy: Another run has taken the lease.
        """
        archived: list[ArchivedBucket] = []
        failed: list[FailedBucket] = []
        vanished, lost = 0, [*damaged]
        all_waves = divide_into_waves(units, buckets=MAX_WAVE_BUCKETS, messages=MAX_WAVE_MESSAGES)
        for number, wave in enumerate(all_waves, 1):
            keys = {unit.key for unit in wave}
            self.report_progress(
                f"archiving {format_count(len(keys), 'bucket')} ({number} of {format_count(len(all_waves), 'wave')})"
            )
            manifests, differing = self.archive_wave(keys, wave, lost)
            archived += map(_describe_bucket, manifests)
            failed += make_failures(differing)
            vanished += len(keys) - len(manifests) - len(differing)
        return self.make_report(archived, failed=failed, vanished=vanished, damaged=lost)

    def make_report(
        self,
        archived: Iterable[ArchivedBucket],
        *,
        failed: Iterable[FailedBucket] = (),
        vanished: int = 0,
        damaged: Sequence[str] = (),
    ) -> ArchiveReport:
        return ArchiveReport(
            to=self.directory.files.root,
            queues=len(self.queues),
            archived=tuple(sorted(archived, key=lambda bucket: (bucket.queue, bucket.bucket))),
            failed=tuple(failed),
            vanished=vanished,
            damaged=tuple(damaged),
            dry_run=self.options.dry_run,
        )

    def is_expiring(self, key: Key, now: float) -> bool:
        return buckets.parse_bucket(key[1], self.options.seconds).start + self._ttl_seconds(self.queues[key[0]]) <= now

    def archive_wave(
        self, keys: Collection[Key], units: Sequence[WorkUnit], damaged: list[str]
    ) -> tuple[list[Manifest], dict[Key, Difference]]:
        """Archives buckets as one run, which is committed at the end.

        With the option ``verify``, scans the store again, and leaves out buckets that differ.

        Args:
            keys: The buckets.
            units: The parts of the store to scan.
            damaged: Descriptions of missing files of the archive are appended here.

        Returns:
            The committed manifests, and the differences of buckets that changed before the second scan.

        Raises:
            ArchiveBusy: Another run has taken the lease.
        """
        run = f"r{secrets.token_hex(8)}"
        self._lease.ensure_held()
        self.directory.begin_run(run, self.now)
        older = self.directory.find_present_versions(keys, damaged)
        rows, files = self._write_merged(run, units, older)
        summaries = checksums.summarize_buckets(rows)
        differing = {}
        if self.options.verify:
            count = sum(summary.count for summary in summaries.values())
            self.report_progress(f"checking {format_count(count, 'message')} against the store")
            differing = self._find_differences(units, rows, summaries)
        sealed = summaries.keys() - differing.keys()
        manifests = [
            self._make_manifest(run, key, summaries[key], files[key], older.get(key)) for key in sorted(sealed)
        ]
        for key in differing:
            self.directory.files.delete(manifest.messages_path(*key, run))
        self.directory.write_manifests(manifests)
        self._lease.ensure_held()
        self.directory.commit_run(run, manifests)
        return manifests, differing

    def _write_merged(
        self, run: str, units: Sequence[WorkUnit], older: Mapping[Key, PresentVersion]
    ) -> tuple[DataFrame, dict[Key, tuple[DataFile, ...]]]:
        """Writes the messages of units to new files, merged with older versions; reads them back.

        A scan that is merged is staged first, because a second scan may find less.
        """
        rows = find_buckets.scan_messages(self.spark, self.options.store, self._group_units(units))
        paths = [path for version in older.values() for path in version.paths]
        if not paths:
            return self._write_and_read_back(rows, manifest.run_path(run))
        # The scan is staged first, because a second scan may find less: messages expire.
        staged = f"{STAGING_DIRECTORY}/{run}"
        rows, _ = self._write_and_read_back(rows, staged)
        kept = storage.read_paths(self.spark, self.directory.files, paths)
        if any(len(version.runs) > 1 for version in older.values()):
            kept = kept.dropDuplicates(list(checksums.PLACE_COLUMNS))
        written = self._write_and_read_back(checksums.merge_messages(rows, kept), manifest.run_path(run))
        self.directory.files.delete(staged)
        return written

    def _write_and_read_back(self, rows: DataFrame, path: str) -> tuple[DataFrame, dict[Key, tuple[DataFile, ...]]]:
        files = self.directory.files
        return storage.read_back(self.spark, files, path, storage.write_messages(rows, files, path))

    def _find_differences(
        self, units: Sequence[WorkUnit], archived: DataFrame, summaries: Mapping[Key, Summary]
    ) -> dict[Key, Difference]:
        """Scans the store again; returns the buckets whose messages are missing or changed in the archive.

        Compares single messages only in buckets whose summaries differ.
        """
        stored = checksums.summarize_buckets(
            find_buckets.scan_messages(self.spark, self.options.store, self._group_units(units))
        )
        doubtful = {key for key, summary in stored.items() if not summary.has_same_messages(summaries.get(key))}
        if not doubtful:
            return {}
        # Usually messages have expired in between, which only a comparison of messages shows.
        rescanned = [unit for unit in units if unit.key in doubtful]
        return checksums.count_differences(
            find_buckets.scan_messages(self.spark, self.options.store, self._group_units(rescanned)), archived
        )

    def _make_manifest(
        self, run: str, key: Key, summary: Summary, files: tuple[DataFile, ...], older: PresentVersion | None
    ) -> Manifest:
        now = self.now
        return Manifest(
            run=run,
            replaces=older.runs if older else (),
            queue=key[0],
            bucket=key[1],
            seconds=self.options.seconds,
            source=_describe_queue(self.queues[key[0]]),
            summary=summary,
            files=files,
            archived=manifest.format_time(now),
            verified=self.options.verify,
            expiring=self.is_expiring(key, now),
        )

    def _group_units(self, units: Iterable[WorkUnit]) -> list[tuple[WorkUnit, ...]]:
        return group_units(divide_large_units(units), self.tasks)

    def _make_search(self, queue: Queue, done: Iterable[ArchiveBucket]) -> BucketSearch:
        starts = tuple(bucket.start for bucket in done)
        return BucketSearch(queue.name, queue.qid, self.options.seconds, starts)

    def _ttl_seconds(self, queue: Queue) -> int:
        return queue.ttl or self._default_ttl


def make_failures(differing: Mapping[Key, Difference]) -> list[FailedBucket]:
    return [
        FailedBucket(queue=key[0], bucket=key[1], missing=difference.missing, changed=difference.changed)
        for key, difference in differing.items()
    ]


def _describe_queue(queue: Queue) -> ArchivedQueue:
    return ArchivedQueue(
        uid=f"{queue.uid:x}",
        qid=f"{queue.qid:x}",
        partitions=queue.partitions,
        consistency=queue.consistency,
        ttl=queue.ttl,
    )


def _describe_bucket(bucket: Manifest) -> ArchivedBucket:
    summary = bucket.summary
    return ArchivedBucket(
        queue=bucket.queue, bucket=bucket.bucket, count=summary.count, bytes=summary.bytes, expiring=bucket.expiring
    )
