"""Archive as a stream: messages are written as soon as they can be read, and buckets are completed when they close.

For queues whose TTL is shorter than a bucket, for which the batch job would come too late. Each micro-batch writes its
messages under ``_incoming`` (:mod:`queuey.pipeline.archive.stream_parts`). Beside the stream, every closed bucket is
completed as in the batch job: its messages in the store and under ``_incoming`` are merged, checked against the store
and sealed by a manifest.

All steps are idempotent: a micro-batch that runs again was written already, and a bucket that is completed again does
not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import msgspec

from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Queue
from queuey.model.texts import format_count
from queuey.pipeline.archive import buckets, directory, find_buckets, stream_parts
from queuey.pipeline.archive.archive_job import ArchiveRun, FailedBucket, ReportProgress, make_failures
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.archive.directory import ArchiveDirectory
from queuey.pipeline.archive.hadoop_files import HadoopFiles
from queuey.pipeline.archive.lease import ArchiveBusy, ArchiveLease
from queuey.pipeline.archive.manifest import Archive, Key
from queuey.pipeline.archive.stream_parts import StreamParts
from queuey.pipeline.archive.work_units import PART_OPENING_WEIGHT, make_bucket_units
from queuey.pipeline.options import ArchiveOptions
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign
from queuey.storage import Store, bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_QUERY_PROPERTY = "sql.streaming.queryId"
GRACE_BATCHES = 2
"""Number of batches between the end of a bucket and its completion, so that the stream has read all of it."""


class StreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a stream.

    Attributes:
        to: URL of the archive.
        batches: Number of micro-batches that were written.
        closed: Number of buckets that were completed.
        messages: Number of messages in completed buckets.
        failed: Buckets that are not complete because the store changed while they were merged.
        open: Number of buckets that have messages and are not complete.
    """

    to: str
    batches: int
    closed: int
    messages: int
    failed: tuple[FailedBucket, ...]
    open: int


def archive_stream(
    spark: SparkSession,
    options: ArchiveOptions,
    checkpoint: str,
    report_progress: ReportProgress,
    *,
    every: float = 10.0,
    once: bool = False,
) -> StreamReport:
    """Archives messages of queues until it is interrupted; completes closed buckets meanwhile and at the end.

    Args:
        spark: The session.
        options: The queues and the archive.
        checkpoint: A directory for this stream alone, in which Spark records its progress.
        report_progress: Called with the progress.
        every: Seconds between micro-batches.
        once: End when all messages that were readable at the start are archived.

    Raises:
        OptionError: The directory holds other files, the checkpoint belongs to another archive, or the selection
            names partitions.
        QueueNotFound: A named queue does not exist.
        ArchiveBusy: Another run writes to the archive when the stream starts.
        StreamingQueryException: The stream failed.
    """
    if isinstance(options.selection, Assign):
        raise OptionError("an archive holds whole queues, but assign names partitions")
    store = open_stores.opened(options.store)
    about = Archive(application=open_stores.application(store, options.store), seconds=options.seconds)
    lease = ArchiveLease(store.ledger, HadoopFiles(spark, options.to).root)
    with lease:
        opened = directory.open_to_write(spark, options.to, about, write=True)
    _check_checkpoint(HadoopFiles(spark, checkpoint), opened.files)
    closing = BucketCloser(
        spark, options, opened, store, report_progress, lease, grace=0.0 if once else GRACE_BATCHES * every
    )
    query = _start_query(spark, options, checkpoint, closing.write_batch, every=None if once else every)
    try:
        while not query.awaitTermination(max(1, round(every))):
            closing.complete_closed()
    except KeyboardInterrupt:
        report_progress("ending")
    finally:
        query.stop()
    closing.complete_closed()
    return closing.make_report()


class BucketCloser:
    """Writes micro-batches and completes closed buckets. A lock keeps both from running at the same time.

    ``grace`` is the time between the end of a bucket and its completion, in seconds.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: ArchiveOptions,
        directory: ArchiveDirectory,
        store: Store,
        report_progress: ReportProgress,
        lease: ArchiveLease,
        *,
        grace: float,
    ) -> None:
        self._lease = lease
        self._spark = spark
        self._options = options
        self._archive = directory
        self._store = store
        self._report_progress = report_progress
        self._grace = round(grace * TICKS_PER_SECOND)
        self._lock = Lock()
        # Listed only once, because the number of micro-batches grows.
        self._parts = StreamParts(directory.files)
        self._batches = 0
        self._closed: dict[Key, int] = {}
        self._failed: dict[Key, FailedBucket] = {}

    def write_batch(self, messages: DataFrame, batch: int) -> None:
        """Writes a micro-batch, unless it was written before, and removes earlier ones that are complete.

        Raises:
            OptionError: Spark does not name the stream.
        """
        query = messages.sparkSession.sparkContext.getLocalProperty(_QUERY_PROPERTY)
        if not query:
            raise OptionError("Spark does not name the stream, so its batches cannot be identified")
        with self._lock:
            self._parts.write(messages, query, batch, self._options.seconds)
            self._parts.remove_complete(query, batch)
            self._batches += 1

    def complete_closed(self) -> None:
        """Completes all closed buckets; while another run holds the lease, leaves them for a later call."""
        with self._lock:
            # A ping advances the horizon of stores that advance it only on activity.
            bridge.run(self._store.ping())
            queues = self._find_queues({key[0] for key in self._parts.incomplete_keys})
            over = {key for key in self._parts.incomplete_keys if self._is_closed(queues[key[0]], self._bucket_of(key))}
            if not over:
                return
            try:
                with self._lease:
                    self._complete(over, queues)
            except ArchiveBusy as busy:
                self._report_progress(f"{format_count(len(over), 'bucket')} to be completed later. {busy}")

    def make_report(self) -> StreamReport:
        return StreamReport(
            to=self._archive.files.root,
            batches=self._batches,
            closed=len(self._closed),
            messages=sum(self._closed.values()),
            failed=tuple(self._failed.values()),
            open=len(self._parts.incomplete_keys),
        )

    def _complete(self, closed: Collection[Key], queues: Mapping[str, Queue]) -> None:
        """Archives closed buckets. Buckets that changed before the second scan stay open and count as failed."""
        self._report_progress(f"completing {format_count(len(closed), 'bucket')}")
        run = ArchiveRun(self._spark, self._options, self._archive, queues, self._report_progress, self._lease)
        units = [
            unit
            for key in sorted(closed)
            for unit in make_bucket_units(queues[key[0]], self._bucket_of(key), PART_OPENING_WEIGHT)
        ]
        also = self._parts.read(self._spark, closed)
        lost: list[str] = []
        self._archive.forget_listings()
        manifests, differing = run.archive_wave(closed, units, lost, also)
        for text in lost:
            self._report_progress(f"Lost from the archive: {text}")
        self._parts.mark_complete(bucket.key for bucket in manifests)
        for completed in manifests:
            self._closed[completed.key] = completed.summary.count
            self._failed.pop(completed.key, None)
        self._failed.update({(bucket.queue, bucket.bucket): bucket for bucket in make_failures(differing)})

    def _bucket_of(self, key: Key) -> ArchiveBucket:
        return buckets.parse_bucket(key[1], self._options.seconds)

    def _is_closed(self, queue: Queue, bucket: ArchiveBucket) -> bool:
        """Returns whether the horizon is past the bucket's end and the grace; always true for a deleted queue."""
        if not queue.partitions:
            return True
        return bucket.upper[0] + self._grace <= bridge.run(self._store.bulk.horizon(queue))

    def _find_queues(self, names: Collection[str]) -> dict[str, Queue]:
        """Returns queues. A deleted queue has no partitions, so nothing is scanned."""
        owner = open_stores.application(self._store, self._options.store)
        gone = partial(Queue, application=owner, uid=0, qid=0, partitions=0)
        return {
            name: open_stores.find_existing_queue(self._store, self._options.store, name) or gone(name=name)
            for name in names
        }


def _check_checkpoint(checkpoint: HadoopFiles, archive: HadoopFiles) -> None:
    """Checks that the archive has the stream's earlier micro-batches.

    Raises:
        OptionError: The checkpoint belongs to another archive.
    """
    text = checkpoint.read("metadata")
    if text is None or not checkpoint.list("commits"):
        return
    query = msgspec.json.decode(text, type=dict[str, str])["id"]
    # The last micro-batch of a stream is never removed.
    if not archive.exists(f"{stream_parts.INCOMING_DIRECTORY}/{query}"):
        raise OptionError(
            f"the checkpoint {checkpoint.root} belongs to another archive than {archive.root}: use a new checkpoint"
        )


def _start_query(
    spark: SparkSession,
    options: ArchiveOptions,
    checkpoint: str,
    keep: Callable[[DataFrame, int], None],
    *,
    every: float | None,
) -> StreamingQuery:
    """Starts the stream at the beginning of the queues. If ``every`` is None, it ends when it has read everything."""
    selection = find_buckets.make_subscribe_options(options.selection)
    reading = {
        **find_buckets.make_option_texts(options.store),
        **selection,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    # Messages that expired before they were read are missing in the archive; the stream continues after them.
    messages = spark.readStream.format("queuey").options(**reading, failOnDataLoss="false").load()
    writer = messages.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    trigger = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=f"{every} seconds")
    return trigger.start()
