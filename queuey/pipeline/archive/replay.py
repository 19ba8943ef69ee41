"""The job ``replay``: writes messages of an archive to queues, each exactly once, however often it runs.

By default messages keep their ids, so writing a message again changes nothing. With fresh ids each message gets a
number by its place in the archive, and the writer's ledger records which numbers are done.

Before anything is written, the store's ledger records under the run's name what the run is: its messages, filters and
target queues. So a name identifies one replay, an interrupted run continues, and a run recognizes a target queue that
it created itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from queuey.model import ids
from queuey.model.errors import QueueExists, QueueNotFound
from queuey.model.ids import FIRST, LAST
from queuey.model.messages import Queue, QueueSpec
from queuey.model.texts import format_count
from queuey.model.titles import titled
from queuey.pipeline.archive import buckets, directory, find_buckets, manifest, storage
from queuey.pipeline.archive.directory import ArchiveDirectory
from queuey.pipeline.archive.manifest import ArchiveDamaged, ArchivedQueue, Manifest
from queuey.pipeline.options import ReplayOptions
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.sink import write_reports
from queuey.spark.source import columns
from queuey.storage import Store, bridge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ReportProgress = Callable[[str], None]
_WRITTEN_COLUMNS = ("value", "queue", "partition", "valueType", "contentType", "headers")


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay for one target queue.

    Attributes:
        sources: Archived queues.
        target: The target queue.
        created: True if the queue was created, or with ``dry_run`` would be.
        count: Number of messages of this replay in the queue, including messages that earlier attempts wrote.
    """

    sources: Annotated[tuple[str, ...], titled("archived")]
    target: Annotated[str, titled("queue")]
    created: Annotated[bool, titled("new")]
    count: Annotated[int, titled("messages")]


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay.

    Attributes:
        archive: URL of the archive.
        run: Name of the run.
        queues: Results by target queue.
        buckets: Number of buckets that were read.
        expired: Number of messages left out because they had expired.
        written: Number of messages that this attempt wrote.
        moved: Number of messages that got later ids, because readers may have passed the reserved ones.
    """

    archive: str
    run: str
    queues: tuple[Replayed, ...]
    buckets: int
    expired: int = 0
    written: int = 0
    moved: int = 0
    dry_run: bool = False

    @property
    def messages(self) -> int:
        return sum(queue.count for queue in self.queues)


class ReplayNote(msgspec.Struct, frozen=True, array_like=True):
    """Ledger entry of a replay.

    Attributes:
        content: Digest of the replay, as :func:`digest_replay` returns it.
        made: Name -> ``uid`` of queues that the replay has created; empty if it is about to create the queue.
        partitions: Target -> number of partitions among which all attempts divide its messages.
    """

    content: str
    made: dict[str, str]
    partitions: dict[str, int] = {}


def replay(spark: SparkSession, options: ReplayOptions, report_progress: ReportProgress) -> ReplayReport:
    """Writes messages of an archive to queues. A dry run only checks and counts them.

    Raises:
        OptionError: A target exists, or cannot hold the messages; or another replay has used the run's name.
        ArchiveDamaged: The archive does not match its manifests. Nothing was written.
        QueueNotFound: The archive has no messages of a named queue.
    """
    opened = directory.open_existing(spark, options.archive)
    manifests = select_manifests(opened, options)
    targets = find_targets(manifests, options)
    report_progress(f"reading {format_count(len(manifests), 'bucket')}")
    _require_enough_partitions(manifests, options)
    store = open_stores.opened(options.store)
    replay_run = ReplayRun(spark, options, opened, store, manifests, targets)
    existing = replay_run.find_existing_targets()
    counts, expired = replay_run.count_messages()
    if options.dry_run:
        return replay_run.make_report(
            counts, {name for name in targets.values() if name not in existing}, expired=expired
        )
    created = replay_run.prepare_targets(existing)
    count = format_count(sum(counts.values()), "message")
    report_progress(f"writing {count} to {format_count(len(set(targets.values())), 'queue')}")
    return replay_run.write_messages(counts, created, expired)


def select_manifests(archive: ArchiveDirectory, options: ReplayOptions) -> list[Manifest]:
    """Returns the manifests of the buckets that the replay may need.

    Raises:
        QueueNotFound: The archive has no messages of a named queue.
        ArchiveDamaged: A manifest is unusable.
    """
    seconds = archive.about.seconds
    keys = {
        (name, bucket)
        for name in archive.select_queues(options.selection)
        for bucket in archive.list_bucket_names(name)
        if _overlaps(bucket, seconds, options)
    }
    return archive.read_manifests(keys)


def find_targets(manifests: Iterable[Manifest], options: ReplayOptions) -> dict[str, str]:
    """Returns the target of each archived queue.

    Raises:
        OptionError: Several queues would be written to one with their old ids, which may collide.
    """
    sources = sorted({bucket.queue for bucket in manifests})
    if options.into is not None and len(sources) > 1 and not options.fresh:
        raise OptionError(f"{len(sources)} queues can be written to one only with fresh ids")
    return {name: options.into or name for name in sources}


def digest_replay(manifests: Iterable[Manifest], targets: Mapping[str, str], options: ReplayOptions) -> str:
    kind = (options.fresh, options.ttl, options.keep_expiry, options.partitions, options.lower, options.upper)
    parts = (manifest.digest_manifests(manifests), sorted(targets.items()), options.where, kind)
    return blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()


class ReplayRun:
    """One attempt at a replay."""

    def __init__(
        self,
        spark: SparkSession,
        options: ReplayOptions,
        directory: ArchiveDirectory,
        store: Store,
        manifests: Sequence[Manifest],
        targets: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self._options = options
        self._archive = directory
        self._store = store
        self._manifests = manifests
        self._targets = targets
        self._owner = open_stores.application(store, options.store)
        self._content = digest_replay(manifests, targets, options)
        self.run = options.run or self._content
        self._partitions: Mapping[str, int] = {}
        self._work = f"replay/{blake2b(f'{self._owner}/{self.run}'.encode(), digest_size=16).hexdigest()}"

    def find_existing_targets(self) -> dict[str, Queue]:
        """Returns the existing targets by name.

        Raises:
            OptionError: A target exists without permission and was not created by this replay, or it has too few
                partitions.
        """
        note = self._read_note()
        existing = {}
        for name in sorted(set(self._targets.values())):
            with suppress(QueueNotFound):
                existing[name] = bridge.run(self._store.catalogue.queue(self._owner, name, fresh=True))
        for name, queue in existing.items():
            if not (self._options.existing or self._has_created(queue, note)):
                raise OptionError(f"queue {name!r} exists: use another one, or allow it with --existing")
            if queue.partitions < self._min_partitions(name) and not self._options.fresh:
                raise OptionError(
                    f"queue {name!r} has {queue.partitions} partitions, the archived one {self._min_partitions(name)}: "
                    "fewer partitions need fresh ids"
                )
        return existing

    def count_messages(self) -> tuple[dict[str, int], int]:
        """Counts the messages to write, by archived queue, and the expired ones.

        Without ``keep_expiry``, no message counts as expired.

        Raises:
            ArchiveDamaged: The number of messages in a bucket differs from its manifest.
            OptionError: The condition is not deterministic.
        """
        from pyspark.sql import functions as f

        if not self._manifests:
            return {}, 0
        whole = self._read_archived()
        chosen = self._select_messages(whole)
        _check_repeatable(chosen, fresh=self._options.fresh)
        selected = chosen.select("queue", "bucket", "id", "partition", self._expired_column().alias("expired"))
        sizes = {(row.queue, row.bucket): row["count"] for row in whole.groupBy("queue", "bucket").count().collect()}
        for bucket in self._manifests:
            if sizes.get(bucket.key, 0) != bucket.summary.count:
                place = manifest.messages_path(*bucket.key, bucket.run)
                raise ArchiveDamaged(
                    f"{place} holds {sizes.get(bucket.key, 0)} messages and not {bucket.summary.count}"
                )
        live = f.count_if(~f.col("expired")).alias("live")
        rows = selected.groupBy("queue").agg(live, f.count_if("expired").alias("expired")).collect()
        return {row.queue: row.live for row in rows}, sum(row.expired for row in rows)

    def prepare_targets(self, existing: Mapping[str, Queue]) -> set[str]:
        """Records the run, and creates missing queues; returns the names of created queues.

        Raises:
            OptionError: Another replay has used the run's name, or another program has created a queue meanwhile.
        """
        note = self._read_note()
        lacking = sorted(set(self._targets.values()) - existing.keys())
        made = {**(note.made if note else {}), **dict.fromkeys(lacking, "")}
        noted = note.partitions if note else {}
        partitions = {name: noted.get(name, queue.partitions) for name, queue in existing.items()}
        self._record_note(note, planned := ReplayNote(self._content, made, partitions))
        for name in lacking:
            try:
                queue, _ = bridge.run(
                    self._store.catalogue.create_queue(self._owner, name, self._make_queue_spec(name))
                )
            except QueueExists as error:
                raise OptionError(f"queue {name!r} was created by another program meanwhile") from error
            made = {**made, name: f"{queue.uid:x}"}
            partitions = {**partitions, name: queue.partitions}
        if lacking:
            self._record_note(planned, ReplayNote(self._content, made, partitions))
        self._partitions = partitions
        return set(lacking)

    def write_messages(self, counts: Mapping[str, int], created: set[str], expired: int) -> ReplayReport:
        """Writes each message once under the run's name; a target purged since gets all of them again."""
        if not any(counts.values()):
            return self.make_report(counts, created, expired=expired)
        queues = [
            bridge.run(self._store.catalogue.queue(self._owner, name, fresh=True))
            for name in sorted(set(self._targets.values()))
        ]
        # A queue that was purged has lost the written messages, so the next replay has to write them again.
        run = blake2b("/".join([self.run, *(f"{queue.qid:x}" for queue in queues)]).encode(), digest_size=16)
        writer = self._rows_to_write().write.format("queuey").mode("append")
        options = find_buckets.make_option_texts(self._options.store) | {
            "application": self._owner,
            "run": run.hexdigest(),
        }
        options["lead"] = str(self._options.lead)
        if self._options.ttl is not None:
            options["ttl"] = str(self._options.ttl)
        if self._options.rate:
            options["rate"] = str(self._options.rate)
        writer.options(**options).save()
        counts_of_run = write_reports.report(self._store, self._owner, run.hexdigest())
        written, moved = (counts_of_run.written, counts_of_run.moved) if counts_of_run is not None else (0, 0)
        return self.make_report(counts, created, expired=expired, written=written, moved=moved)

    def make_report(
        self, counts: Mapping[str, int], created: set[str], *, expired: int, written: int = 0, moved: int = 0
    ) -> ReplayReport:
        sources: dict[str, list[str]] = {}
        for source, target in self._targets.items():
            sources.setdefault(target, []).append(source)
        return ReplayReport(
            archive=self._archive.files.root,
            run=self.run,
            queues=tuple(
                Replayed(
                    sources=tuple(names),
                    target=target,
                    created=target in created,
                    count=sum(counts.get(name, 0) for name in names),
                )
                for target, names in sorted(sources.items())
            ),
            buckets=len(self._manifests),
            expired=expired,
            written=written,
            moved=moved,
            dry_run=self._options.dry_run,
        )

    def _read_archived(self) -> DataFrame:
        return storage.read_buckets(self._spark, self._archive.files, self._manifests)

    def _select_messages(self, messages: DataFrame) -> DataFrame:
        chosen = messages
        if self._options.lower > FIRST:
            chosen = chosen.where(chosen["position"] >= columns.position_text(self._options.lower))
        if self._options.upper < LAST:
            chosen = chosen.where(chosen["position"] < columns.position_text(self._options.upper))
        return chosen if self._options.where is None else chosen.where(self._options.where)

    def _expired_column(self) -> Column:
        from pyspark.sql import functions as f

        if not self._options.keep_expiry:
            return f.lit(False)  # noqa: FBT003 - Spark's
        now = ids.ticks_to_seconds(bridge.run(self._store.ledger.now()))
        return f.col("expires") <= f.timestamp_micros(f.lit(round(now * 1_000_000)))

    def _rows_to_write(self) -> DataFrame:
        from pyspark.sql import functions as f

        selected = self._select_messages(self._read_archived())
        names = f.create_map(*(f.lit(text) for pair in self._targets.items() for text in pair))
        selected = selected.withColumn("source", f.col("queue")).withColumn("queue", names[f.col("queue")])
        written = [*_WRITTEN_COLUMNS, "expires"] if self._options.keep_expiry else [*_WRITTEN_COLUMNS]
        if not self._options.fresh:
            return selected.select(*written, "id")
        counts = f.create_map(*(f.lit(value) for pair in self._partitions.items() for value in pair))
        places = (f.col("partition") - 1) % counts[f.col("queue")] + 1
        selected = selected.withColumn("origin", f.col("partition")).withColumn("partition", places.cast("int"))
        return _number_rows(selected, written)

    def _read_note(self) -> ReplayNote | None:
        raw = bridge.run(self._store.ledger.entry(self._work, 0))
        note = None if raw is None else msgspec.msgpack.decode(raw, type=ReplayNote)
        if note is not None and note.content != self._content:
            raise OptionError(
                f"run {self.run!r} was another replay, with other messages, queues or options: use another name"
            )
        return note

    def _record_note(self, before: ReplayNote | None, after: ReplayNote) -> None:
        expected = None if before is None else msgspec.msgpack.encode(before)
        value = msgspec.msgpack.encode(after)
        if bridge.run(self._store.ledger.enter(self._work, 0, value, expected=expected)) != value:
            raise OptionError(f"run {self.run!r} is being replayed by another program")

    def _has_created(self, queue: Queue, recorded: ReplayNote | None) -> bool:
        """Returns whether an earlier attempt of this replay has created the queue.

        True also for an empty queue if its creation was begun but not recorded.
        """
        if recorded is None or queue.name not in recorded.made:
            return False
        uid = recorded.made[queue.name]
        if uid:
            return uid == f"{queue.uid:x}"
        # The run was killed between creating the queue and recording it, before anything was written.
        return not any(bridge.iterate(self._store.bulk.measure([queue])))

    def _min_partitions(self, target: str) -> int:
        return max(_count_partitions(bucket) for bucket in self._manifests if self._targets[bucket.queue] == target)

    def _make_queue_spec(self, target: str) -> QueueSpec:
        last = max(
            (bucket for bucket in self._manifests if self._targets[bucket.queue] == target),
            key=lambda bucket: bucket.bucket,
        )
        source: ArchivedQueue = last.source
        return QueueSpec(
            partitions=self._options.partitions or self._min_partitions(target),
            consistency=source.consistency,
            ttl=source.ttl,
        )


def _number_rows(rows: DataFrame, written: Sequence[str]) -> DataFrame:
    """Returns the columns ``written``, and as ``sequence`` a row's number in its target partition, by old position."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = Window.partitionBy("queue", "partition").orderBy("position", "source", "origin")
    numbered = rows.withColumn("sequence", f.row_number().over(place) - 1)
    # Spark has already put each partition in one task to number it. Sorting keeps that, and the order.
    return numbered.select(*written, f.col("sequence").cast("long")).sortWithinPartitions(
        "queue", "partition", "sequence"
    )


def _check_repeatable(chosen: DataFrame, *, fresh: bool) -> None:
    """Refuses conditions that select other messages when a replay runs again.

    Args:
        chosen: The selected messages.
        fresh: True if messages get numbers. Then a later attempt must not select fewer messages.

    Raises:
        OptionError: The condition depends on chance, or with ``fresh`` on the clock.
    """
    plan = chosen._jdf.queryExecution().analyzed()  # noqa: SLF001 - there is no public way
    trees: Any = chosen.sparkSession.sparkContext._jvm.org.apache.spark.sql.catalyst.trees  # type: ignore[union-attr]  # noqa: SLF001
    clock = fresh and plan.containsPattern(trees.TreePattern.CURRENT_LIKE())
    if clock or not plan.deterministic():
        what = "the clock" if clock else "chance"
        raise OptionError(f"the condition depends on {what}: another attempt would select other messages")


def _overlaps(bucket: str, seconds: int, options: ReplayOptions) -> bool:
    span = buckets.parse_bucket(bucket, seconds)
    return (span.lower < options.upper or span.start == 0) and span.upper > options.lower


def _require_enough_partitions(manifests: Sequence[Manifest], options: ReplayOptions) -> None:
    most = max(map(_count_partitions, manifests), default=1)
    if options.partitions is not None and options.partitions < most and not options.fresh:
        raise OptionError(f"an archived queue had {most} partitions: fewer partitions need fresh ids")


def _count_partitions(bucket: Manifest) -> int:
    return max(bucket.source.partitions, *bucket.summary.partitions)
