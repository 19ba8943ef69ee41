"""An archive, opened: its directory, what kind it is, its manifests, and the runs that write them.

What is here needs little of a file system, so that object stores will do: files appear as a whole when they were
written, a file is found by its name as soon as it was written, and a listing may lack what was written within a day.
Nothing is renamed.

What a run does::

    begin ──▶ write files ──▶ announce ──▶ record, a manifest for each bucket ──▶ (begin, a day later: clear)
      │            │             │            │
      killed: nothing refers    killed: the next run records what was announced; until then a check says so,
      to its files              and each bucket is what its last manifest says

Runs are kept apart by a lease. Should two of them write one bucket after all, because one stood still for longer than
its lease, then both manifests stand, and neither hides the other: readers refuse the bucket, and the next run puts
both together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from queuey.errors import QueueNotFound
from queuey.spark.errors import OptionError
from queuey.spark.jobs.archive import buckets, manifest
from queuey.spark.jobs.archive.hadoop_files import HadoopFiles
from queuey.spark.jobs.archive.manifest import (
    MANIFESTS,
    Archive,
    ArchiveDamaged,
    Begun,
    Key,
    Manifest,
    Publication,
    Runs,
)
from queuey.spark.options import Assign, Pattern, Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT = "archive.json"
RUNS = "runs"
STAGING = "_staging"
KEPT = 86_400.0
"""Seconds for which files stay that nothing refers to any more, and for which listings may be old."""
FEW = 200
"""Small files that are read one after another; more are read by a job."""


class Older(NamedTuple):
    """What an archive has of a bucket that is to be written again.

    Attributes:
        runs: Of all its manifests, also of those that cannot be used.
        paths: Its data files.
    """

    runs: tuple[str, ...]
    paths: tuple[str, ...]


class ArchiveDirectory:
    """An archive.

    Args:
        spark: The session.
        files: Its directory.
        about: What it is.
        few: Up to so many small files are read one after another.
    """

    def __init__(self, spark: SparkSession, files: HadoopFiles, about: Archive, *, few: int = FEW) -> None:
        self.spark = spark
        self.files = files
        self.about = about
        self._few = few
        self._found: dict[str, dict[str, set[str]]] = {}
        self._announced: dict[str, list[Manifest]] | None = None

    def queues(self) -> list[str]:
        """Lists the queues of which something was archived."""
        found = {entry.name for entry in self.files.list(MANIFESTS) if entry.directory}
        names = {manifest.queue_of(name) for name in found if name.startswith("queue=")}
        return sorted(names | {queue for queue in self._recent() if self._versions(queue)})

    def selected(self, selection: Selection) -> list[str]:
        """Returns the archived queues that are meant.

        Raises:
            QueueNotFound: Nothing was archived of one that is named.
        """
        there = self.queues()
        if isinstance(selection, Pattern):
            return [name for name in there if re.fullmatch(selection.regex, name)]
        names = [name for name, _ in selection.partitions] if isinstance(selection, Assign) else selection.names
        for name in names:
            if name not in there:
                raise QueueNotFound(name, f"The archive {self.files.root} has nothing of a queue {name!r}.")
        return sorted(names)

    def bucket_names(self, queue: str) -> list[str]:
        """Lists the buckets of a queue that have manifests, ascending."""
        return sorted(self._versions(queue))

    def unsealed(self, queues: Collection[str]) -> set[Key]:
        """Returns buckets of queues that a killed run has written and whose manifest is not there."""
        return {one.key for queue in queues for one in self._unrecorded(queue)}

    def manifests(self, keys: Collection[Key], damaged: list[str] | None = None) -> list[Manifest]:
        """Reads manifests, by queue and bucket.

        Args:
            keys: Queues and buckets.
            damaged: What is wrong with those that cannot be used is added here, and they are left out.

        Raises:
            ArchiveDamaged: One cannot be used, and ``damaged`` is not given.
        """
        found, wrong = self._read(keys)
        for key in sorted(found.keys() - wrong.keys()):
            if len(found[key]) > 1:
                runs = " and ".join(sorted(one.run for one in found[key]))
                place = self.files.path(found[key][0].path)
                wrong[key] = [f"{place}: runs {runs} overlapped; archive it with --again, which puts both together"]
        texts = [text for _, some in sorted(wrong.items()) for text in some]
        if damaged is not None:
            damaged += texts
        elif texts:
            raise ArchiveDamaged(texts[0])
        return [some[0] for key, some in sorted(found.items()) if key not in wrong]

    def older(self, keys: Collection[Key], damaged: list[str]) -> dict[Key, Older]:
        """Returns what the archive has of buckets that are to be written again; only of those of which it has any.

        Args:
            keys: Queues and buckets.
            damaged: Files that are lost are added here.
        """
        found, wrong = self._read(keys)
        older = {}
        for key in sorted(keys):
            runs = tuple(sorted(self._versions(key[0]).get(key[1], ())))
            paths = [path for one in found.get(key, ()) for path in self.present(one, damaged)]
            if key in wrong:
                # What cannot be read has its messages where its name says.
                read = {one.run for one in found.get(key, ())}
                places = [manifest.messages_path(*key, run) for run in runs if run not in read]
                paths += [path for place in places for path in self._data(place)]
            if runs:
                older[key] = Older(runs, tuple(paths))
        return older

    def present(self, one: Manifest, damaged: list[str]) -> Iterator[str]:
        """Returns the files of a bucket, named from the archive's directory; lost ones are added to ``damaged``."""
        for path in one.data_paths:
            if self.files.exists(path):
                yield path
            else:
                damaged.append(f"{self.files.path(path)} is not there")

    def begin(self, run: str, now: float) -> None:
        """Notes that a run begins, before it writes anything; removes what runs left that began over a day ago.

        Those are files in no manifest, and in manifests that were replaced.
        """
        runs = self._runs().runs
        old = [one for one in runs if one.at < now - KEPT]
        if old:
            self.look_again()
            self.recover()  # else what a killed run has announced would be forgotten
        for one in old:  # in their order: what a run has replaced goes before the run itself is replaced
            self._clear(one.run)
        recent = (one for one in runs if one not in old)
        self.files.write(f"{RUNS}.json", manifest.encode(Runs(runs=(*recent, Begun(run, now)))))
        for one in old:
            self.files.delete(f"{RUNS}/{one.run}.json")
        if old:
            self.look_again()

    def announce(self, run: str, manifests: Iterable[Manifest]) -> None:
        """Notes what a run is about to record: others find it there, and record it if the run is killed."""
        self.files.write(f"{RUNS}/{run}.json", manifest.encode(Publication(run=run, manifests=tuple(manifests))))

    def record(self, found: Manifest) -> None:
        """Writes a manifest: from then on the bucket is what it lists."""
        self.files.write(found.path, manifest.encode(found))
        self._versions(found.queue).setdefault(found.bucket, set()).add(found.run)

    def recover(self) -> None:
        """Records what runs have announced that were killed before they had recorded all of it."""
        for queue in self._recent():
            for one in self._unrecorded(queue):
                self.record(one)

    def look_again(self) -> None:
        """Forgets what was listed: others may have written since."""
        self._found.clear()
        self._announced = None

    def _clear(self, run: str) -> None:
        published = self._publication(run)
        if published is None:
            self.files.delete(manifest.run_path(run))
        for one in published.manifests if published else ():
            for older in one.replaces:
                self.files.delete(manifest.messages_path(*one.key, older))
                self.files.delete(manifest.manifest_path(*one.key, older))
        self.files.delete(f"{STAGING}/{run}")

    def _versions(self, queue: str) -> dict[str, set[str]]:
        """Returns the runs that have written a manifest of each bucket."""
        if queue not in self._found:
            found: dict[str, set[str]] = defaultdict(set)
            for entry in self.files.list(f"{MANIFESTS}/{manifest.queue_path(queue)}"):
                version = manifest.version_of(entry.name)
                if version is not None and buckets.is_name(version[0], self.about.seconds):
                    found[version[0]].add(version[1])
            for one in self._recent().get(queue, ()):
                # Not listed yet, or not written.
                if one.run not in found[one.bucket] and self.files.exists(one.path):
                    found[one.bucket].add(one.run)
            self._found[queue] = {bucket: runs for bucket, runs in found.items() if runs}
        return self._found[queue]

    def _recent(self) -> dict[str, list[Manifest]]:
        """Returns what runs of the last day have announced, by queue."""
        if self._announced is None:
            self._announced = defaultdict(list)
            for begun in self._runs().runs:
                published = self._publication(begun.run)
                for one in published.manifests if published else ():
                    self._announced[one.queue].append(one)
        return self._announced

    def _unrecorded(self, queue: str) -> list[Manifest]:
        """Returns what was announced of a queue and neither recorded nor replaced."""
        versions, announced = self._versions(queue), self._recent().get(queue, [])
        replaced = {(one.bucket, run) for one in announced for run in one.replaces}
        return [
            one
            for one in announced
            if one.run not in versions.get(one.bucket, ()) and (one.bucket, one.run) not in replaced
        ]

    def _runs(self) -> Runs:
        text = self.files.read(f"{RUNS}.json")
        return Runs() if text is None else manifest.decode_runs(text, self.files.path(f"{RUNS}.json"))

    def _publication(self, run: str) -> Publication | None:
        path = f"{RUNS}/{run}.json"
        text = self.files.read(path)
        return None if text is None else manifest.decode_publication(text, self.files.path(path))

    def _read(self, keys: Collection[Key]) -> tuple[dict[Key, list[Manifest]], dict[Key, list[str]]]:
        """Returns the manifests that stand, by bucket, and what is wrong with those that cannot be used."""
        ordered = [(key, run) for key in sorted(keys) for run in sorted(self._versions(key[0]).get(key[1], ()))]
        texts = self._texts([manifest.manifest_path(*key, run) for key, run in ordered])
        found: dict[Key, list[Manifest]] = defaultdict(list)
        wrong: dict[Key, list[str]] = defaultdict(list)
        for (key, run), text in zip(ordered, texts, strict=True):
            try:
                found[key].append(self._decoded(key, run, text))
            except ArchiveDamaged as error:
                wrong[key].append(str(error))
        return {key: manifest.standing(some) for key, some in found.items()}, dict(wrong)

    def _texts(self, paths: Sequence[str]) -> list[str]:
        if len(paths) <= self._few:
            return [self.files.read(path) or "" for path in paths]
        rows = self.spark.read.text([self.files.path(path) for path in paths], wholetext=True).collect()
        found = {}
        for row in rows:
            # They come back in any order and say themselves what they are of; what does not is found to be missing.
            with suppress(ArchiveDamaged):
                found[manifest.decode(row.value, MANIFESTS).path] = row.value
        return [found.get(path, "") for path in paths]

    def _decoded(self, key: Key, run: str, text: str) -> Manifest:
        path = self.files.path(manifest.manifest_path(*key, run))
        found = manifest.decode(text, path)
        if (*found.key, found.run, found.seconds) != (*key, run, self.about.seconds):
            raise ArchiveDamaged(f"{path}: this is the manifest of another bucket")
        return found

    def _data(self, place: str) -> list[str]:
        return [f"{place}/{path}" for path in self.files.tree(place) if path[0] not in "._" and "/" not in path]


def open_to_write(spark: SparkSession, directory: str, wanted: Archive, *, write: bool) -> ArchiveDirectory:
    """Opens an archive to add to it, or begins one.

    Args:
        spark: The session.
        directory: Where.
        wanted: What kind it has to be.
        write: Write down what kind it is if it is new.

    Raises:
        OptionError: There is one of another kind, or other files.
    """
    files = HadoopFiles(spark, directory)
    text = files.read(ABOUT)
    if text is None:
        if [entry.name for entry in files.list("") if not entry.name.startswith((".", "_"))]:
            raise OptionError(f"{files.root} holds other files and no archive: name an empty or a new directory")
        opened = ArchiveDirectory(spark, files, wanted)
        if write:
            files.write(ABOUT, manifest.encode(wanted))
        return opened
    about = manifest.decode_archive(text, files.path(ABOUT))
    if differing := about.differing(wanted):
        raise OptionError(f"{files.root} is an archive of another kind: {'; '.join(differing)}")
    opened = ArchiveDirectory(spark, files, about)
    if write:
        opened.recover()
    return opened


def open_existing(spark: SparkSession, directory: str) -> ArchiveDirectory:
    """Opens an archive to read it.

    Raises:
        ArchiveDamaged: There is none.
    """
    files = HadoopFiles(spark, directory)
    text = files.read(ABOUT)
    if text is None:
        raise ArchiveDamaged(f"{files.root} is no archive: it has no {ABOUT}")
    about = manifest.decode_archive(text, files.path(ABOUT))
    buckets.width(about.seconds)
    return ArchiveDirectory(spark, files, about)
