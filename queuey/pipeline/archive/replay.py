"""Replay: messages of an archive into queues, each once however often it is run.

By default messages keep their ids, so that writing one again changes nothing. With fresh ids each message gets a number
by its place in the archive, and the ledger of the writer knows which numbers are done.

What a run is, is noted in the store's ledger under its name before anything is written: which messages, filtered how,
to which queues. So a name stands for one replay, a run that was ended goes on where it was, and one that made its
target queue finds it to be its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from queuey import ids
from queuey.errors import QueueExists, QueueNotFound
from queuey.ids import FIRST, LAST
from queuey.messages import Queue, QueueSpec
from queuey.pipeline.archive import buckets, directory, find_buckets, manifest, storage
from queuey.pipeline.archive.directory import ArchiveDirectory
from queuey.pipeline.archive.manifest import ArchiveDamaged, ArchivedQueue, Manifest
from queuey.pipeline.options import ReplayOptions
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.sink import write_reports
from queuey.spark.source import columns
from queuey.storage import Store, bridge
from queuey.terminal.texts import plural
from queuey.titles import titled

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Say = Callable[[str], None]
_WRITTEN = ("value", "queue", "partition", "valueType", "contentType", "headers")


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay for one target queue.

    Attributes:
        sources: Archived queues.
        target: The queue.
        created: It was, or would be, made.
        count: Messages that are there now because of this replay, whichever of its runs wrote them.
    """

    sources: Annotated[tuple[str, ...], titled("archived")]
    target: Annotated[str, titled("queue")]
    created: Annotated[bool, titled("new")]
    count: Annotated[int, titled("messages")]


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay.

    Attributes:
        archive: As a URL.
        run: Its name.
        queues: By target.
        buckets: How many were read.
        expired: Messages left out because they had expired.
        written: Messages that this run itself wrote.
        moved: Such that could not be written before readers may have passed their ids, and got later ones.
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
        """Messages that were selected and had not expired."""
        return sum(one.count for one in self.queues)


class ReplayNote(msgspec.Struct, frozen=True, array_like=True):
    """Entry of the ledger for a replay.

    Attributes:
        content: What it is.
        made: The queues that it made (``uid``; empty: about to be).
        partitions: How many each target had when messages were first divided among them, which stays so.
    """

    content: str
    made: dict[str, str]
    partitions: dict[str, int] = {}


def replay(spark: SparkSession, options: ReplayOptions, say: Say) -> ReplayReport:
    """Writes messages of an archive into queues.

    Raises:
        OptionError: A target exists, or cannot take the messages; the run's name stands for another replay.
        ArchiveDamaged: The archive does not hold what its manifests say. Nothing was written.
        QueueNotFound: The archive has nothing of a queue that is named.
    """
    there = directory.open_existing(spark, options.archive)
    manifests = chosen(there, options)
    targets = targets_of(manifests, options)
    say(f"looking through {plural(len(manifests), 'bucket')}")
    _check_partitions(manifests, options)
    store = open_stores.opened(options.store)
    scene = ReplayRun(spark, options, there, store, manifests, targets)
    standing = scene.standing()
    counts, expired = scene.counted()
    if options.dry_run:
        return scene.report(counts, {name for name in targets.values() if name not in standing}, expired=expired)
    created = scene.prepare(standing)
    count = plural(sum(counts.values()), "message")
    say(f"writing {count} to {plural(len(set(targets.values())), 'queue')}")
    return scene.carried_out(counts, created, expired)


def chosen(there: ArchiveDirectory, options: ReplayOptions) -> list[Manifest]:
    """Returns the manifests of the buckets that the replay may need.

    Raises:
        QueueNotFound: The archive has nothing of a queue that is named.
        ArchiveDamaged: A manifest cannot be used.
    """
    seconds = there.about.seconds
    keys = {
        (name, bucket)
        for name in there.selected(options.selection)
        for bucket in there.bucket_names(name)
        if _overlaps(bucket, seconds, options)
    }
    return there.manifests(keys)


def targets_of(manifests: Iterable[Manifest], options: ReplayOptions) -> dict[str, str]:
    """Returns the target of each archived queue.

    Raises:
        OptionError: Several queues are to go into one with their old ids, which might be the same.
    """
    sources = sorted({one.queue for one in manifests})
    if options.into is not None and len(sources) > 1 and not options.fresh:
        raise OptionError(f"{len(sources)} queues can go into one only with fresh ids")
    return {name: options.into or name for name in sources}


def content_of(manifests: Iterable[Manifest], targets: Mapping[str, str], options: ReplayOptions) -> str:
    """Returns what a replay is: equal for those that write the same messages to the same queues."""
    kind = (options.fresh, options.ttl, options.keep_expiry, options.partitions, options.lower, options.upper)
    parts = (manifest.identity(manifests), sorted(targets.items()), options.where, kind)
    return blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()


class ReplayRun:
    def __init__(
        self,
        spark: SparkSession,
        options: ReplayOptions,
        there: ArchiveDirectory,
        store: Store,
        manifests: Sequence[Manifest],
        targets: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self._options = options
        self._there = there
        self._store = store
        self._manifests = manifests
        self._targets = targets
        self._owner = open_stores.application(store, options.store)
        self._content = content_of(manifests, targets, options)
        self.run = options.run or self._content
        self._partitions: Mapping[str, int] = {}
        self._work = f"replay/{blake2b(f'{self._owner}/{self.run}'.encode(), digest_size=16).hexdigest()}"

    def standing(self) -> dict[str, Queue]:
        """Returns the targets that exist and may be written to, by name.

        Raises:
            OptionError: One exists and is neither allowed to nor made by this replay; one has too few partitions.
        """
        note = self._progress_note()
        found = {}
        for name in sorted(set(self._targets.values())):
            with suppress(QueueNotFound):
                found[name] = bridge.run(self._store.catalogue.queue(self._owner, name, fresh=True))
        for name, queue in found.items():
            if not (self._options.existing or self._own(queue, note)):
                raise OptionError(f"queue {name!r} exists: name another one, or allow it with --existing")
            if queue.partitions < self._needed(name) and not self._options.fresh:
                raise OptionError(
                    f"queue {name!r} has {queue.partitions} partitions, the archived one {self._needed(name)}: "
                    "messages can go to fewer only with fresh ids"
                )
        return found

    def counted(self) -> tuple[dict[str, int], int]:
        """Counts what is to be written, by archived queue, and what has expired; finds out if anything is missing.

        Raises:
            ArchiveDamaged: A bucket does not hold as many messages as its manifest says.
            OptionError: The condition chooses others each time.
        """
        from pyspark.sql import functions as f

        if not self._manifests:
            return {}, 0
        whole = self._archived()
        chosen = self._wanted(whole)
        _check_repeatable(chosen, fresh=self._options.fresh)
        wanted = chosen.select("queue", "bucket", "id", "partition", self._expired().alias("expired"))
        sizes = {(row.queue, row.bucket): row["count"] for row in whole.groupBy("queue", "bucket").count().collect()}
        for one in self._manifests:
            if sizes.get(one.key, 0) != one.summary.count:
                place = manifest.messages_path(*one.key, one.run)
                raise ArchiveDamaged(f"{place} holds {sizes.get(one.key, 0)} messages and not {one.summary.count}")
        live = f.count_if(~f.col("expired")).alias("live")
        rows = wanted.groupBy("queue").agg(live, f.count_if("expired").alias("expired")).collect()
        return {row.queue: row.live for row in rows}, sum(row.expired for row in rows)

    def prepare(self, standing: Mapping[str, Queue]) -> set[str]:
        """Notes what this run is, and makes the queues that are not there. Returns the names of those.

        Raises:
            OptionError: The run's name stands for another replay; the service could not take a new queue's name.
        """
        note = self._progress_note()
        lacking = sorted(set(self._targets.values()) - standing.keys())
        made = {**(note.made if note else {}), **dict.fromkeys(lacking, "")}
        noted = note.partitions if note else {}
        partitions = {name: noted.get(name, queue.partitions) for name, queue in standing.items()}
        self._enter(note, planned := ReplayNote(self._content, made, partitions))
        for name in lacking:
            try:
                queue, _ = bridge.run(self._store.catalogue.create_queue(self._owner, name, self._spec(name)))
            except QueueExists as error:
                raise OptionError(f"queue {name!r} was created by another program meanwhile") from error
            made = {**made, name: f"{queue.uid:x}"}
            partitions = {**partitions, name: queue.partitions}
        if lacking:
            self._enter(planned, ReplayNote(self._content, made, partitions))
        self._partitions = partitions
        return set(lacking)

    def carried_out(self, counts: Mapping[str, int], created: set[str], expired: int) -> ReplayReport:
        if not any(counts.values()):
            return self.report(counts, created, expired=expired)
        queues = [
            bridge.run(self._store.catalogue.queue(self._owner, name, fresh=True))
            for name in sorted(set(self._targets.values()))
        ]
        # A queue that was purged has lost what was written, so its next replay is another write.
        run = blake2b("/".join([self.run, *(f"{queue.qid:x}" for queue in queues)]).encode(), digest_size=16)
        writer = self._rows().write.format("queuey").mode("append")
        options = find_buckets.texts_of(self._options.store) | {"application": self._owner, "run": run.hexdigest()}
        options["lead"] = str(self._options.lead)
        if self._options.ttl is not None:
            options["ttl"] = str(self._options.ttl)
        if self._options.rate:
            options["rate"] = str(self._options.rate)
        writer.options(**options).save()
        done = write_reports.report(self._store, self._owner, run.hexdigest())
        written, moved = (done.written, done.moved) if done is not None else (0, 0)
        return self.report(counts, created, expired=expired, written=written, moved=moved)

    def report(
        self, counts: Mapping[str, int], created: set[str], *, expired: int, written: int = 0, moved: int = 0
    ) -> ReplayReport:
        sources: dict[str, list[str]] = {}
        for source, target in self._targets.items():
            sources.setdefault(target, []).append(source)
        return ReplayReport(
            archive=self._there.files.root,
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

    def _archived(self) -> DataFrame:
        return storage.read(self._spark, self._there.files, self._manifests)

    def _wanted(self, messages: DataFrame) -> DataFrame:
        chosen = messages
        if self._options.lower > FIRST:
            chosen = chosen.where(chosen["position"] >= columns.text_of(self._options.lower))
        if self._options.upper < LAST:
            chosen = chosen.where(chosen["position"] < columns.text_of(self._options.upper))
        return chosen if self._options.where is None else chosen.where(self._options.where)

    def _expired(self) -> Column:
        from pyspark.sql import functions as f

        if not self._options.keep_expiry:
            return f.lit(False)  # noqa: FBT003 - Spark's
        now = ids.ticks_to_seconds(bridge.run(self._store.ledger.now()))
        return f.col("expires") <= f.timestamp_micros(f.lit(round(now * 1_000_000)))

    def _rows(self) -> DataFrame:
        from pyspark.sql import functions as f

        found = self._wanted(self._archived())
        names = f.create_map(*(f.lit(text) for pair in self._targets.items() for text in pair))
        found = found.withColumn("source", f.col("queue")).withColumn("queue", names[f.col("queue")])
        written = [*_WRITTEN, "expires"] if self._options.keep_expiry else [*_WRITTEN]
        if not self._options.fresh:
            return found.select(*written, "id")
        counts = f.create_map(*(f.lit(value) for pair in self._partitions.items() for value in pair))
        places = (f.col("partition") - 1) % counts[f.col("queue")] + 1
        found = found.withColumn("origin", f.col("partition")).withColumn("partition", places.cast("int"))
        return _numbered(found, written)

    def _progress_note(self) -> ReplayNote | None:
        """Returns what the ledger knows of this run.

        Raises:
            OptionError: Its name stands for another replay.
        """
        raw = bridge.run(self._store.ledger.entry(self._work, 0))
        note = None if raw is None else msgspec.msgpack.decode(raw, type=ReplayNote)
        if note is not None and note.content != self._content:
            raise OptionError(
                f"run {self.run!r} was another replay: of other messages, to other queues, or with other options"
            )
        return note

    def _enter(self, before: ReplayNote | None, after: ReplayNote) -> None:
        expected = None if before is None else msgspec.msgpack.encode(before)
        value = msgspec.msgpack.encode(after)
        if bridge.run(self._store.ledger.enter(self._work, 0, value, expected=expected)) != value:
            raise OptionError(f"run {self.run!r} is being replayed by another program")

    def _own(self, queue: Queue, note: ReplayNote | None) -> bool:
        if note is None or queue.name not in note.made:
            return False
        uid = note.made[queue.name]
        if uid:
            return uid == f"{queue.uid:x}"
        # The run ended between making the queue and noting it; nothing was written to it by then.
        return not any(bridge.iterate(self._store.bulk.measure([queue])))

    def _needed(self, target: str) -> int:
        """Returns how many partitions a target needs for the messages to keep theirs."""
        return max(_partitions(one) for one in self._manifests if self._targets[one.queue] == target)

    def _spec(self, target: str) -> QueueSpec:
        """Returns the options of a new queue: those that the archived one had last."""
        last = max((one for one in self._manifests if self._targets[one.queue] == target), key=lambda one: one.bucket)
        source: ArchivedQueue = last.source
        return QueueSpec(
            partitions=self._options.partitions or self._needed(target),
            consistency=source.consistency,
            ttl=source.ttl,
        )


def _numbered(rows: DataFrame, written: Sequence[str]) -> DataFrame:
    """Numbers rows by queue and partition in the order of their old ids, each partition in one task."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = Window.partitionBy("queue", "partition").orderBy("position", "source", "origin")
    numbered = rows.withColumn("sequence", f.row_number().over(place) - 1)
    # Spark has put each partition in one task for the numbers already; this keeps it so, and in order.
    return numbered.select(*written, f.col("sequence").cast("long")).sortWithinPartitions(
        "queue", "partition", "sequence"
    )


def _check_repeatable(chosen: DataFrame, *, fresh: bool) -> None:
    """Refuses conditions that choose other messages when a replay is run again.

    Args:
        chosen: The messages that are chosen.
        fresh: They are numbered, so that it matters if some are chosen no more.

    Raises:
        OptionError: See above.
    """
    plan = chosen._jdf.queryExecution().analyzed()  # noqa: SLF001 - there is no public way
    trees: Any = chosen.sparkSession.sparkContext._jvm.org.apache.spark.sql.catalyst.trees  # type: ignore[union-attr]  # noqa: SLF001
    clock = fresh and plan.containsPattern(trees.TreePattern.CURRENT_LIKE())
    if clock or not plan.deterministic():
        what = "the clock" if clock else "chance"
        raise OptionError(f"the condition depends on {what}: a replay that is run again would choose other messages")


def _overlaps(bucket: str, seconds: int, options: ReplayOptions) -> bool:
    span = buckets.named(bucket, seconds)
    return (span.lower < options.upper or span.start == 0) and span.upper > options.lower


def _check_partitions(manifests: Sequence[Manifest], options: ReplayOptions) -> None:
    """Refuses fewer partitions than the archived ids belong to."""
    most = max(map(_partitions, manifests), default=1)
    if options.partitions is not None and options.partitions < most and not options.fresh:
        raise OptionError(f"an archived queue had {most} partitions: messages can go to fewer only with fresh ids")


def _partitions(one: Manifest) -> int:
    """Returns a queue's partitions when it was archived; 0 if it was deleted by then."""
    return max(one.source.partitions, *one.summary.partitions)
