"""Checks of an archive: does it still hold what its manifests say, and does it have what the store has?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import msgspec

from queuey.pipeline.archive import checksums, directory, find_buckets, storage
from queuey.pipeline.archive.directory import ArchiveDirectory
from queuey.pipeline.archive.manifest import Key, Manifest, Summary
from queuey.pipeline.archive.work_units import Search, divided, grouped
from queuey.spark import open_stores
from queuey.spark.options import Selection, StoreOptions
from queuey.spark.slices import shared_out
from queuey.terminal.texts import plural
from queuey.titles import titled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
TASKS_PER_CORE = 3


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Archive to check, and how thoroughly.

    Attributes:
        archive: The archive's directory.
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
    """A closed bucket of the store that is not archived, and how many messages it has at least."""

    queue: str
    bucket: str
    count: Annotated[int, titled("not archived yet")]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check.

    Attributes:
        archive: As a URL.
        buckets: How many have manifests.
        messages: How many they hold by these.
        damaged: Buckets whose messages are not those of their manifest, or lack some of the store's.
        unreadable: Manifests that are none.
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
        """Everything that has a manifest is as it says. Buckets that wait to be archived are no damage."""
        return not (self.damaged or self.unreadable)


def check(spark: SparkSession, options: CheckOptions, say: Say) -> CheckReport:
    """Reads the messages of all manifests, and closed buckets of the store, and compares.

    Raises:
        ArchiveDamaged: There is no archive.
        QueueNotFound: The archive has nothing of a queue that is named.
    """
    there = directory.open_existing(spark, options.archive)
    names = there.selected(options.selection)
    unreadable: list[str] = []
    manifests = there.manifests({(name, one) for name in names for one in there.bucket_names(name)}, unreadable)
    say(f"checking {plural(len(manifests), 'bucket')}")
    lengths = {path: there.files.length(path) for one in manifests for path in one.data_paths}
    present = {one.key: [path for path in one.data_paths if lengths[path] is not None] for one in manifests}
    found = checksums.summaries(storage.read_paths(spark, there.files, chain.from_iterable(present.values())))
    damaged = [damage for one in manifests for damage in compared(one, found.get(one.key))]
    damaged += [damage for one in manifests for damage in _files(one, lengths)]
    waiting: list[UnarchivedBucket] = []
    if options.against_store:
        say("comparing with the store")
        lacking, waiting = _against_store(spark, options, there, names, present)
        damaged += lacking
    return CheckReport(
        archive=there.files.root,
        buckets=len(manifests),
        messages=sum(one.summary.count for one in manifests),
        damaged=tuple(sorted(damaged)),
        unreadable=tuple(unreadable),
        waiting=tuple(sorted(waiting)),
    )


def compared(one: Manifest, found: Summary | None) -> list[Damage]:
    """Describes how the messages of a bucket differ from its manifest."""
    said = one.summary
    if found is None:
        return [Damage(*one.key, f"its {said.count} messages are not there")]
    if said.count != found.count:
        return [Damage(*one.key, f"it holds {found.count} messages and not {said.count}")]
    if not said.same(found):
        return [Damage(*one.key, "its messages are others than when it was archived")]
    if said.partitions != found.partitions:
        return [Damage(*one.key, "its first and last messages are others than its manifest says")]
    return []


def _files(one: Manifest, lengths: Mapping[str, int | None]) -> list[Damage]:
    """Names the files that differ from the list in the manifest."""
    damaged = []
    for path, file in zip(one.data_paths, one.files, strict=True):
        if lengths[path] is None:
            damaged.append(Damage(*one.key, f"the file {file.name} of {file.bytes} bytes is not there"))
        elif lengths[path] != file.bytes:
            damaged.append(Damage(*one.key, f"the file {file.name} has {lengths[path]} bytes and not {file.bytes}"))
    return damaged


def _against_store(
    spark: SparkSession,
    options: CheckOptions,
    there: ArchiveDirectory,
    names: Iterable[str],
    present: Mapping[Key, Sequence[str]],
) -> tuple[list[Damage], list[UnarchivedBucket]]:
    """Returns what the archived buckets lack, and the closed buckets that are not archived."""
    store = open_stores.opened(options.store)
    seconds = there.about.seconds
    # That queues were deleted does no harm to what is archived of them.
    live = [queue for name in names if (queue := open_stores.existing(store, options.store, name))]
    tasks = spark.sparkContext.defaultParallelism * TASKS_PER_CORE
    searches = [Search(queue.name, queue.qid, seconds) for queue in live]
    units = find_buckets.find(spark, options.store, shared_out(searches, tasks))
    archived = [unit for unit in units if unit.key in present]
    counts: dict[Key, int] = {}
    for unit in units:
        if unit.key not in present:
            counts[unit.key] = counts.get(unit.key, 0) + unit.weight
    waiting = [UnarchivedBucket(*key, count) for key, count in counts.items()]
    if not archived:
        return [], waiting
    stored = find_buckets.messages(spark, options.store, grouped(divided(archived), tasks))
    paths = [path for key in {unit.key for unit in archived} for path in present[key]]
    theirs = storage.read_paths(spark, there.files, paths)
    found = checksums.differences(stored, theirs)
    return [Damage(*key, _lacks(one)) for key, one in found.items()], waiting


def _lacks(one: checksums.Difference) -> str:
    parts = [f"it lacks {one.missing} messages of the store"] if one.missing else []
    parts += [f"{one.changed} messages are others in the store"] if one.changed else []
    return " and ".join(parts)
