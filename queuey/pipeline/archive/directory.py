"""An archive, opened: its directory, what kind it is, its manifests, and the runs that write them.

What is here needs little of a file system, so that object stores will do: files appear as a whole when they were
written, a file is found by its name as soon as it was written, and a listing may lack what was written within a day.
Nothing is renamed.

What a run does::

    begin ──▶ write files ──▶ write manifests ──▶ commit
      killed before the commit: nothing of the run counts, and a run that begins a day later removes its files
      committed: all its buckets count, and a run that begins a day later removes what they replaced

Names are those of the run, so no run overwrites a file of another one. Runs are kept apart by a lease. Should two of
them write one bucket after all, because one stood still for longer than its lease, then both manifests stand, and
neither hides the other: readers refuse the bucket, and the next run puts both together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from queuey.errors import QueueNotFound
from queuey.pipeline.archive import buckets, manifest
from queuey.pipeline.archive.hadoop_files import HadoopFiles
from queuey.pipeline.archive.manifest import (
    MANIFESTS,
    Archive,
    ArchiveDamaged,
    Begun,
    Commit,
    CommittedBucket,
    Key,
    Manifest,
    Runs,
)
from queuey.pipeline.options import check_width
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT = "archive.json"
RUNS = "runs"
STAGING = "_staging"
KEEP_UNREFERENCED = 86_400.0
"""Min age of unreferenced files before they are removed, and Max age of listings, in seconds."""
FEW_FILES = 200
"""Max small files read one after another; more are read by a job."""


class Older(NamedTuple):
    """The archive's present version of a bucket that is to be written again.

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

    def __init__(self, spark: SparkSession, files: HadoopFiles, about: Archive, *, few: int = FEW_FILES) -> None:
        self.spark = spark
        self.files = files
        self.about = about
        self._few = few
        self._found: dict[str, dict[str, set[str]]] = {}
        self._committed: set[str] = set()
        self._recent: dict[str, list[Key]] | None = None

    def queues(self) -> list[str]:
        found = {entry.name for entry in self.files.list(MANIFESTS) if entry.directory}
        names = {manifest.queue_of(name) for name in found if name.startswith("queue=")}
        return sorted(name for name in names | self._commits().keys() if self._versions(name))

    def selected(self, selection: Selection) -> list[str]:
        """Returns the archived queues that are meant.

        Raises:
            QueueNotFound: Nothing was archived of one that is named.
        """
        if isinstance(selection, Pattern):
            return [name for name in self.queues() if re.fullmatch(selection.regex, name)]
        names = [name for name, _ in selection.partitions] if isinstance(selection, Assign) else selection.names
        for name in names:
            if not self._versions(name):
                raise QueueNotFound(name, f"The archive {self.files.root} has nothing of a queue {name!r}.")
        return sorted(names)

    def bucket_names(self, queue: str) -> list[str]:
        """Lists the archived buckets of a queue in ascending order."""
        return sorted(self._versions(queue))

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
                # A manifest that cannot be read still names its run, and so the directory of its messages.
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
        """Notes that a run begins, before it writes anything; removes what is left of runs that began over a day ago.

        Those are the files of killed runs, and the files that committed runs have replaced.
        """
        runs = self._runs()
        old = [one for one in runs if one.at < now - KEEP_UNREFERENCED]
        for one in old:  # in their order: what a run has replaced goes before the run itself is replaced
            self._clear(one.run)
        recent = (one for one in runs if one not in old)
        self.files.write(f"{RUNS}.json", manifest.encode(Runs(runs=(*recent, Begun(run, now)))))
        if old:
            self.look_again()

    def write(self, manifests: Iterable[Manifest]) -> None:
        """Writes the manifests of a run. They count once it is committed."""
        for one in manifests:
            self.files.write(one.path, manifest.encode(one))

    def commit(self, run: str, manifests: Sequence[Manifest]) -> None:
        """Commits a run: from then on each of its buckets has the files that its manifest lists."""
        found = tuple(CommittedBucket(*one.key, one.replaces) for one in manifests)
        self.files.write(_commit_path(run), manifest.encode(Commit(run=run, buckets=found)))
        for one in manifests:
            self._versions(one.queue).setdefault(one.bucket, set()).add(run)

    def look_again(self) -> None:
        """Drops cached listings: others may have written since."""
        self._found.clear()
        self._recent = None

    def _clear(self, run: str) -> None:
        commit = self._commit(run)
        if commit is None:
            # The manifests go first: the files say where they are.
            files = self.files.tree(manifest.run_path(run))
            for key in {key for path in files if (key := manifest.bucket_in(path))}:
                self.files.delete(manifest.manifest_path(*key, run))
            self.files.delete(manifest.run_path(run))
        for one in commit.buckets if commit else ():
            for older in one.replaces:
                self.files.delete(manifest.messages_path(one.queue, one.bucket, older))
                self.files.delete(manifest.manifest_path(one.queue, one.bucket, older))
        self.files.delete(f"{STAGING}/{run}")

    def _versions(self, queue: str) -> dict[str, set[str]]:
        """Returns the committed runs that have written each bucket."""
        if queue not in self._found:
            recent = self._commits().get(queue, ())
            found: dict[str, set[str]] = defaultdict(set)
            for entry in self.files.list(f"{MANIFESTS}/{manifest.queue_path(queue)}"):
                bucket, run = manifest.version_of(entry.name) or ("", "")
                if run in self._committed and buckets.is_name(bucket, self.about.seconds):
                    found[bucket].add(run)
            for bucket, run in recent:
                # Not listed yet, or replaced and removed.
                if run not in found[bucket] and self.files.exists(manifest.manifest_path(queue, bucket, run)):
                    found[bucket].add(run)
            self._found[queue] = {bucket: runs for bucket, runs in found.items() if runs}
        return self._found[queue]

    def _commits(self) -> dict[str, list[Key]]:
        """Finds the committed runs; returns by queue which buckets those of the last day have written."""
        if self._recent is None:
            self._committed = {entry.name.removesuffix(".json") for entry in self.files.list(RUNS)}
            self._recent = defaultdict(list)
            for begun in self._runs():
                commit = self._commit(begun.run)
                for one in commit.buckets if commit else ():
                    self._committed.add(begun.run)
                    self._recent[one.queue].append((one.bucket, begun.run))
        return self._recent

    def _runs(self) -> tuple[Begun, ...]:
        text = self.files.read(f"{RUNS}.json")
        return () if text is None else manifest.decode(text, self.files.path(f"{RUNS}.json"), Runs).runs

    def _commit(self, run: str) -> Commit | None:
        path = _commit_path(run)
        text = self.files.read(path)
        return None if text is None else manifest.decode(text, self.files.path(path), Commit)

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
                found[manifest.decode(row.value, MANIFESTS, Manifest).path] = row.value
        return [found.get(path, "") for path in paths]

    def _decoded(self, key: Key, run: str, text: str) -> Manifest:
        path = self.files.path(manifest.manifest_path(*key, run))
        found = manifest.decode(text, path, Manifest)
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
    about = manifest.decode(text, files.path(ABOUT), Archive)
    if differing := about.differing(wanted):
        raise OptionError(f"{files.root} is an archive of another kind: {'; '.join(differing)}")
    return ArchiveDirectory(spark, files, about)


def open_existing(spark: SparkSession, directory: str) -> ArchiveDirectory:
    """Opens an archive to read it.

    Raises:
        ArchiveDamaged: There is none.
    """
    files = HadoopFiles(spark, directory)
    text = files.read(ABOUT)
    if text is None:
        raise ArchiveDamaged(f"{files.root} is no archive: it has no {ABOUT}")
    about = manifest.decode(text, files.path(ABOUT), Archive)
    check_width(about.seconds)
    return ArchiveDirectory(spark, files, about)


def _commit_path(run: str) -> str:
    return f"{RUNS}/{run}.json"
