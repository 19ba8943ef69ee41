"""The messages for an audit, from a store, an archive, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from queuey.model import ids
from queuey.model.errors import GroupNotFound, QueueChanged
from queuey.model.ids import LOW_MIN, TICKS_MAX, TICKS_PER_SECOND, Position
from queuey.model.messages import DEFAULT_TTL, Queue
from queuey.pipeline import tasks
from queuey.pipeline.archive import buckets, directory, storage
from queuey.pipeline.archive.manifest import Manifest
from queuey.pipeline.audit import body_hashes, receipt_columns, receipt_join
from queuey.spark import open_stores
from queuey.spark.options import SourceOptions, StoreOptions, Subscribe
from queuey.spark.slices import divide_into_groups
from queuey.spark.source import batch_reader, columns
from queuey.spark.start_and_end import LATEST, At, Bound, Bounds
from queuey.storage import Store, bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_RECEIPT_DELAY = 120.0
"""Max time between a message and its receipt of unknown outcome, in seconds."""
DEFAULT_LATE_SECONDS = 5.0
"""Default delay after which a receipt is late, in seconds, if the read delay is zero or unknown."""


class ReceiptSpan(msgspec.Struct, frozen=True):
    """A queue with receipts, and the position at which to begin reading it."""

    queue: str
    lower: Position


def find_spans(receipts: DataFrame) -> list[ReceiptSpan]:
    """Returns the queues in receipts, each from the lowest id that a receipt has or may stand for."""
    from pyspark.sql import functions as f

    rows = receipts.groupBy("queue").agg(
        f.min(receipt_columns.id_to_position("id")).alias("lowest"),
        f.min(f.when(f.col("unknown"), f.col("at"))).alias("since"),
    )
    result = []
    for row in rows.collect():
        lowest = [] if row.lowest is None else [columns.parse_position(row.lowest)]
        if row.since is not None:
            lowest.append((max(0, ids.seconds_to_ticks(row.since - MAX_RECEIPT_DELAY)), LOW_MIN))
        result.append(ReceiptSpan(row.queue, min(lowest)))
    return sorted(result, key=lambda span: span.queue)


class MessageSources:
    """The store and the archive from which an audit reads messages.

    Args:
        spark: The session.
        options: The store.
        archive: Directory of the archive; None if no archive is read.
        only_archive: Do not read the store.
        groups: Consumer groups with offsets in the store.

    Raises:
        OptionError, StoreUnavailable: The store cannot be opened.
        ArchiveDamaged: The directory is not an archive.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: StoreOptions,
        *,
        archive: str | None,
        only_archive: bool,
        groups: Sequence[str],
    ) -> None:
        self._spark = spark
        self._options = options
        self._groups = groups
        self._archive = None if archive is None else directory.open_existing(spark, archive)
        self._cached_manifests: list[Manifest] | None = None
        self._store: Store | None = None
        self._queues: dict[str, Queue | None] = {}
        if only_archive:
            assert self._archive is not None  # noqa: S101 - one of both is needed
            self.application = self._archive.about.application
            self.now = ids.ticks_to_seconds(ids.now_ticks())
        else:
            self._store = open_stores.opened(options)
            self.application = open_stores.application(self._store, options)
            self.now = ids.ticks_to_seconds(bridge.run(self._store.ledger.now()))

    def describe_queues(self, spans: Sequence[ReceiptSpan]) -> list[tuple[str, float, int, float]]:
        """Returns name, TTL in seconds, horizon in ticks and read delay in seconds of each queue."""
        return [(span.queue, *self._describe_queue(span.queue)) for span in spans]

    def read_stored(self, spans: Sequence[ReceiptSpan]) -> DataFrame | None:
        """Returns the messages in the store with hashes instead of bodies, or None if no store is read.

        Skips queues that do not exist.
        """
        if self._store is None:
            return None
        spans = [span for span in spans if self._find_queue(span.queue) is not None]
        parts = batch_reader.plan_slices(self._source_options(spans)) if spans else []
        payloads = [
            body_hashes.encode_slices(group)
            for group in divide_into_groups(parts, batch_reader.DEFAULT_TASKS, batch_reader.weight)
        ]
        return tasks.run_for_rows(self._spark, "digests", body_hashes.SCHEMA, self._options, payloads)

    def read_archived(self, spans: Sequence[ReceiptSpan]) -> DataFrame | None:
        """As :meth:`read_stored`, for archived messages; skips missing files. None without an archive."""
        if self._archive is None:
            return None
        lowest = [(span.queue, columns.position_text(span.lower)) for span in spans]
        starts = self._spark.createDataFrame(lowest, "queue string not null, lowest string not null")
        # Missing files are skipped, so that the audit reports their messages as missing.
        paths = [
            path for bucket in self._read_manifests(spans) for path in self._archive.find_present_files(bucket, [])
        ]
        return receipt_join.select_archived(storage.read_paths(self._spark, self._archive.files, paths), starts)

    def add_sealed(self, promised_messages: DataFrame, spans: Sequence[ReceiptSpan]) -> DataFrame:
        """Adds ``sealed``: when a message's bucket was archived. Without an archive, changes nothing."""
        if self._archive is None:
            return promised_messages
        rows = [
            (bucket.queue, bucket.span.start * TICKS_PER_SECOND, datetime.fromisoformat(bucket.archived).timestamp())
            for bucket in self._read_manifests(spans)
        ]
        width = self._archive.about.seconds * TICKS_PER_SECOND
        return receipt_join.add_sealed(
            promised_messages, self._spark.createDataFrame(rows, receipt_join.BUCKETS_SCHEMA), width
        )

    def read_offsets(self, spans: Sequence[ReceiptSpan]) -> dict[str, Mapping[str, Mapping[int, Position]]]:
        names = [span.queue for span in spans]
        return {group: {name: self._read_offsets(name, group) for name in names} for group in self._groups}

    def _read_manifests(self, spans: Sequence[ReceiptSpan]) -> list[Manifest]:
        """Returns the manifests of buckets that reach above the starts of the spans; cached by the first call."""
        assert self._archive is not None  # noqa: S101 - called only with an archive
        if self._cached_manifests is None:
            seconds = self._archive.about.seconds
            keys = [
                (span.queue, name)
                for span in spans
                for name in self._archive.list_bucket_names(span.queue)
                if buckets.parse_bucket(name, seconds).upper > span.lower
            ]
            self._cached_manifests = self._archive.read_manifests(keys)
        return self._cached_manifests

    def _describe_queue(self, name: str) -> tuple[float, int, float]:
        if self._store is None:
            return self._describe_archived_queue(name)
        default = float(open_stores.read_settings(self._options).default_ttl)
        queue = self._find_queue(name)
        if queue is None:
            # The queue was deleted with all its messages.
            return default, TICKS_MAX, DEFAULT_LATE_SECONDS
        try:
            horizon = bridge.run(self._store.bulk.horizon(queue))
        except QueueChanged:
            horizon = TICKS_MAX
        return float(queue.ttl or default), horizon, self._store.read_delay(queue) or DEFAULT_LATE_SECONDS

    def _describe_archived_queue(self, name: str) -> tuple[float, int, float]:
        assert self._archive is not None  # noqa: S101 - otherwise there is a store
        manifests = self._archive.read_manifests(
            [(name, bucket) for bucket in self._archive.list_bucket_names(name)[-1:]]
        )
        if not manifests:
            return float(DEFAULT_TTL), 0, DEFAULT_LATE_SECONDS
        return float(manifests[0].source.ttl or DEFAULT_TTL), manifests[0].span.upper[0], DEFAULT_LATE_SECONDS

    def _find_queue(self, name: str) -> Queue | None:
        if name not in self._queues:
            assert self._store is not None  # noqa: S101 - called only with a store
            self._queues[name] = open_stores.find_existing_queue(self._store, self._options, name)
        return self._queues[name]

    def _source_options(self, spans: Sequence[ReceiptSpan]) -> SourceOptions:
        bounds: dict[str, dict[int, Bound]] = {}
        for span in spans:
            queue = self._find_queue(span.queue)
            assert queue is not None  # noqa: S101 - others were left out
            bounds[span.queue] = dict.fromkeys(range(1, queue.partitions + 1), At(span.lower))
        return SourceOptions(
            store=self._options,
            selection=Subscribe(tuple(bounds)),
            starting=Bounds("startingOffsets", each=bounds),
            ending=Bounds("endingOffsets", LATEST),
            fail_on_data_loss=False,
        )

    def _read_offsets(self, name: str, group: str) -> Mapping[int, Position]:
        queue = self._find_queue(name)
        if queue is None or self._store is None:
            return {}
        try:
            return {
                offset.partition: offset.position
                for offset in bridge.run(self._store.offsets.group_offsets(queue, group))
            }
        except GroupNotFound:
            return {}
