"""An open archive: its directory, its identity, its manifests, and the runs that write them.

The requirements on the file system are low enough for object stores: files appear as a whole once they are written, a
file is found by its name as soon as it is written, and a listing may lack files written within a day. Nothing is
renamed.

The steps of a run::

    begin ──▶ write files ──▶ write manifests ──▶ commit
      killed before the commit: the run has no effect, and a run that begins a day later removes its files
      committed: all its buckets are valid, and a run that begins a day later removes the files that they replaced

File names contain the run, so no run overwrites a file of another one. A lease excludes concurrent runs. If two runs
write one bucket nevertheless, because one was paused for longer than its lease, both manifests are valid. Then readers
refuse the bucket, and the next run merges both.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from queuey.model.errors import QueueNotFound
from queuey.pipeline.archive import buckets, manifest
from queuey.pipeline.archive.hadoop_files import HadoopFiles
from queuey.pipeline.archive.manifest import (
    MANIFESTS_DIRECTORY,
    Archive,
    ArchiveDamaged,
    BegunRun,
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

IDENTITY_FILE = "archive.json"
RUNS_DIRECTORY = "runs"
STAGING_DIRECTORY = "_staging"
MIN_UNREFERENCED_AGE = 86_400.0
"""Min age of unreferenced files before they are removed, and max age of listings, in seconds."""
MAX_SERIAL_FILES = 200
"""Max small files read one after another; more files are read by a Spark job."""


class PresentVersion(NamedTuple):
    """The present version of a bucket that is to be written again.

    Attributes:
        runs: The runs of all its manifests, including unusable ones.
        paths: Its data files.
    """

    runs: tuple[str, ...]
    paths: tuple[str, ...]


class ArchiveDirectory:
    """An archive.

    Args:
        spark: The session.
        files: The files of its directory.
        about: Its identity.
        max_serial_files: Max small files read one after another.
    """

    def __init__(
        self, spark: SparkSession, files: HadoopFiles, about: Archive, *, max_serial_files: int = MAX_SERIAL_FILES
    ) -> None:
        self.spark = spark
        self.files = files
        self.about = about
        self._max_serial_files = max_serial_files
        self._found: dict[str, dict[str, set[str]]] = {}
        self._committed: set[str] = set()
        self._recent: dict[str, list[Key]] | None = None

    def list_queue_names(self) -> list[str]:
        """Returns the queues with a committed run, including commits of the last day that the listing still lacks."""
        directories = {entry.name for entry in self.files.list(MANIFESTS_DIRECTORY) if entry.directory}
        names = {manifest.parse_queue(name) for name in directories if name.startswith("queue=")}
        return sorted(name for name in names | self._find_recent_commits().keys() if self._list_committed_runs(name))

    def select_queues(self, selection: Selection) -> list[str]:
        """Returns the archived queues of a selection.

        Raises:
            QueueNotFound: The archive has no messages of a named queue.
        """
        if isinstance(selection, Pattern):
            return [name for name in self.list_queue_names() if re.fullmatch(selection.regex, name)]
        names = [name for name, _ in selection.partitions] if isinstance(selection, Assign) else selection.names
        for name in names:
            if not self._list_committed_runs(name):
                raise QueueNotFound(name, f"The archive {self.files.root} has no messages of queue {name!r}.")
        return sorted(names)

    def list_bucket_names(self, queue: str) -> list[str]:
        return sorted(self._list_committed_runs(queue))

    def read_manifests(self, keys: Collection[Key], damaged: list[str] | None = None) -> list[Manifest]:
        """Reads the manifests of buckets. Several valid manifests of one bucket count as unusable.

        Args:
            keys: The buckets.
            damaged: If given, unusable manifests are left out, and their errors are appended here.

        Raises:
            ArchiveDamaged: A manifest is unusable, and ``damaged`` is not given.
        """
        valid, wrong = self._read_manifests(keys)
        for key in sorted(valid.keys() - wrong.keys()):
            if len(valid[key]) > 1:
                runs = " and ".join(sorted(version.run for version in valid[key]))
                place = self.files.path(valid[key][0].path)
                wrong[key] = [f"{place}: runs {runs} overlapped; archive it with --again, which merges both"]
        texts = [text for _, errors in sorted(wrong.items()) for text in errors]
        if damaged is not None:
            damaged += texts
        elif texts:
            raise ArchiveDamaged(texts[0])
        return [manifests[0] for key, manifests in sorted(valid.items()) if key not in wrong]

    def find_present_versions(self, keys: Collection[Key], damaged: list[str]) -> dict[Key, PresentVersion]:
        """Returns the present versions of buckets that are to be written again, for buckets that the archive has.

        Args:
            keys: The buckets.
            damaged: Descriptions of missing files are appended here.
        """
        valid, wrong = self._read_manifests(keys)
        older = {}
        for key in sorted(keys):
            runs = tuple(sorted(self._list_committed_runs(key[0]).get(key[1], ())))
            paths = [path for version in valid.get(key, ()) for path in self.find_present_files(version, damaged)]
            if key in wrong:
                # The file name of an unreadable manifest gives its run, and so the directory of its messages.
                read = {version.run for version in valid.get(key, ())}
                places = [manifest.messages_path(*key, run) for run in runs if run not in read]
                paths += [path for place in places for path in self._list_data_files(place)]
            if runs:
                older[key] = PresentVersion(runs, tuple(paths))
        return older

    def find_present_files(self, bucket: Manifest, damaged: list[str]) -> Iterator[str]:
        """Returns the existing data files of a bucket, relative to the archive; adds missing files to ``damaged``."""
        for path in bucket.data_paths:
            if self.files.exists(path):
                yield path
            else:
                damaged.append(f"{self.files.path(path)} is missing")

    def begin_run(self, run: str, now: float) -> None:
        """Records the beginning of a run, before it writes anything, and cleans up after runs begun over a day ago.

        The cleanup removes the files of killed runs, and the files that committed runs have replaced.
        """
        runs = self._read_runs()
        old = [begun for begun in runs if begun.at < now - MIN_UNREFERENCED_AGE]
        for begun in old:  # the oldest first: files that a run has replaced go before the run's own files
            self._clean_up_after(begun.run)
        recent = (begun for begun in runs if begun not in old)
        self.files.write(f"{RUNS_DIRECTORY}.json", manifest.encode(Runs(runs=(*recent, BegunRun(run, now)))))
        if old:
            self.forget_listings()

    def write_manifests(self, manifests: Iterable[Manifest]) -> None:
        for entry in manifests:
            self.files.write(entry.path, manifest.encode(entry))

    def commit_run(self, run: str, manifests: Sequence[Manifest]) -> None:
        """Writes a run's commit. Only this makes its manifests valid."""
        committed = tuple(CommittedBucket(*bucket.key, bucket.replaces) for bucket in manifests)
        self.files.write(_commit_path(run), manifest.encode(Commit(run=run, buckets=committed)))
        for entry in manifests:
            self._list_committed_runs(entry.queue).setdefault(entry.bucket, set()).add(run)

    def forget_listings(self) -> None:
        self._found.clear()
        self._recent = None

    def _clean_up_after(self, run: str) -> None:
        commit = self._read_commit(run)
        if commit is None:
            # The manifests go first: they are found by the data files.
            files = self.files.list_tree(manifest.run_path(run))
            for key in {key for path in files if (key := manifest.parse_data_path(path))}:
                self.files.delete(manifest.manifest_path(*key, run))
            self.files.delete(manifest.run_path(run))
        for bucket in commit.buckets if commit else ():
            for older in bucket.replaces:
                self.files.delete(manifest.messages_path(bucket.queue, bucket.bucket, older))
                self.files.delete(manifest.manifest_path(bucket.queue, bucket.bucket, older))
        self.files.delete(f"{STAGING_DIRECTORY}/{run}")

    def _list_committed_runs(self, queue: str) -> dict[str, set[str]]:
        if queue not in self._found:
            recent = self._find_recent_commits().get(queue, ())
            versions: dict[str, set[str]] = defaultdict(set)
            for entry in self.files.list(f"{MANIFESTS_DIRECTORY}/{manifest.queue_path(queue)}"):
                bucket, run = manifest.parse_manifest_name(entry.name) or ("", "")
                if run in self._committed and buckets.is_name(bucket, self.about.seconds):
                    versions[bucket].add(run)
            for bucket, run in recent:
                # It is not listed yet, or was replaced and removed.
                if run not in versions[bucket] and self.files.exists(manifest.manifest_path(queue, bucket, run)):
                    versions[bucket].add(run)
            self._found[queue] = {bucket: runs for bucket, runs in versions.items() if runs}
        return self._found[queue]

    def _find_recent_commits(self) -> dict[str, list[Key]]:
        if self._recent is None:
            self._committed = {entry.name.removesuffix(".json") for entry in self.files.list(RUNS_DIRECTORY)}
            self._recent = defaultdict(list)
            for begun in self._read_runs():
                commit = self._read_commit(begun.run)
                for written in commit.buckets if commit else ():
                    self._committed.add(begun.run)
                    self._recent[written.queue].append((written.bucket, begun.run))
        return self._recent

    def _read_runs(self) -> tuple[BegunRun, ...]:
        text = self.files.read(f"{RUNS_DIRECTORY}.json")
        return () if text is None else manifest.decode(text, self.files.path(f"{RUNS_DIRECTORY}.json"), Runs).runs

    def _read_commit(self, run: str) -> Commit | None:
        path = _commit_path(run)
        text = self.files.read(path)
        return None if text is None else manifest.decode(text, self.files.path(path), Commit)

    def _read_manifests(self, keys: Collection[Key]) -> tuple[dict[Key, list[Manifest]], dict[Key, list[str]]]:
        ordered = [
            (key, run) for key in sorted(keys) for run in sorted(self._list_committed_runs(key[0]).get(key[1], ()))
        ]
        texts = self._read_texts([manifest.manifest_path(*key, run) for key, run in ordered])
        manifests: dict[Key, list[Manifest]] = defaultdict(list)
        wrong: dict[Key, list[str]] = defaultdict(list)
        for (key, run), text in zip(ordered, texts, strict=True):
            try:
                manifests[key].append(self._decode_manifest(key, run, text))
            except ArchiveDamaged as error:
                wrong[key].append(str(error))
        return {key: manifest.select_not_replaced(read) for key, read in manifests.items()}, dict(wrong)

    def _read_texts(self, paths: Sequence[str]) -> list[str]:
        if len(paths) <= self._max_serial_files:
            return [self.files.read(path) or "" for path in paths]
        rows = self.spark.read.text([self.files.path(path) for path in paths], wholetext=True).collect()
        texts = {}
        for row in rows:
            # Rows come in any order, and each manifest gives its own path. An unreadable one counts as missing.
            with suppress(ArchiveDamaged):
                texts[manifest.decode(row.value, MANIFESTS_DIRECTORY, Manifest).path] = row.value
        return [texts.get(path, "") for path in paths]

    def _decode_manifest(self, key: Key, run: str, text: str) -> Manifest:
        path = self.files.path(manifest.manifest_path(*key, run))
        decoded = manifest.decode(text, path, Manifest)
        if (*decoded.key, decoded.run, decoded.seconds) != (*key, run, self.about.seconds):
            raise ArchiveDamaged(f"{path}: this is the manifest of another bucket")
        return decoded

    def _list_data_files(self, directory: str) -> list[str]:
        return [
            f"{directory}/{path}" for path in self.files.list_tree(directory) if path[0] not in "._" and "/" not in path
        ]


def open_to_write(spark: SparkSession, directory: str, required: Archive, *, write: bool) -> ArchiveDirectory:
    """Opens an archive for writing, or creates it.

    Args:
        spark: The session.
        directory: Directory or URL of the archive.
        required: The required identity.
        write: Write the identity of a new archive.

    Raises:
        OptionError: The directory holds an archive with another identity, or other files.
    """
    files = HadoopFiles(spark, directory)
    text = files.read(IDENTITY_FILE)
    if text is None:
        if [entry.name for entry in files.list("") if not entry.name.startswith((".", "_"))]:
            raise OptionError(f"{files.root} holds other files and no archive: use an empty or a new directory")
        opened = ArchiveDirectory(spark, files, required)
        if write:
            files.write(IDENTITY_FILE, manifest.encode(required))
        return opened
    about = manifest.decode(text, files.path(IDENTITY_FILE), Archive)
    if differing := about.describe_differences(required):
        raise OptionError(f"{files.root} is an archive of another kind: {'; '.join(differing)}")
    return ArchiveDirectory(spark, files, about)


def open_existing(spark: SparkSession, directory: str) -> ArchiveDirectory:
    """Opens an archive for reading.

    Raises:
        ArchiveDamaged: The directory is not an archive.
    """
    files = HadoopFiles(spark, directory)
    text = files.read(IDENTITY_FILE)
    if text is None:
        raise ArchiveDamaged(f"{files.root} is not an archive: it has no {IDENTITY_FILE}")
    about = manifest.decode(text, files.path(IDENTITY_FILE), Archive)
    check_width(about.seconds)
    return ArchiveDirectory(spark, files, about)


def _commit_path(run: str) -> str:
    return f"{RUNS_DIRECTORY}/{run}.json"
