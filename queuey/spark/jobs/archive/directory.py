"""An archive, opened: its directory, what kind it is, and its manifests."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

from queuey.errors import QueueNotFound
from queuey.spark.errors import OptionError
from queuey.spark.jobs.archive import buckets, manifest, storage
from queuey.spark.jobs.archive.checksums import Key
from queuey.spark.jobs.archive.hadoop_files import HadoopFiles
from queuey.spark.jobs.archive.manifest import Archive, ArchiveDamaged, Manifest
from queuey.spark.jobs.archive.storage import ArchiveStorage
from queuey.spark.options import Assign, Pattern, Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT = "archive.json"
MANIFESTS = "manifests"
FEW = 200
"""Small files that are read one after another; more are read by a job."""


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
        self.storage: ArchiveStorage = storage.open_storage(spark, files, about.data)

    def queues(self) -> list[str]:
        """Lists the queues of which something was archived."""
        found = [entry.name for entry in self.files.list(MANIFESTS) if entry.directory]
        return sorted(unquote(name.removeprefix("queue=")) for name in found if name.startswith("queue="))

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
        found = self.files.list(f"{MANIFESTS}/{manifest.queue_path(queue)}")
        names = [name for entry in found if (name := manifest.bucket_of(entry.name)) is not None]
        return [name for name in names if buckets.is_name(name, self.about.seconds)]

    def unsealed(self, queues: Collection[str]) -> set[Key]:
        """Returns the buckets of queues that hold messages and have no manifest: a run was killed before that."""
        sealed = {(name, bucket) for name in queues for bucket in self.bucket_names(name)}
        found = self.storage.buckets(queues) - sealed
        return {(name, bucket) for name, bucket in found if buckets.is_name(bucket, self.about.seconds)}

    def manifests(self, keys: Collection[Key], damaged: list[str] | None = None) -> list[Manifest]:
        """Reads manifests, by queue and bucket.

        Args:
            keys: Queues and buckets.
            damaged: What is wrong with those that cannot be used is added here, and they are left out.

        Raises:
            ArchiveDamaged: One cannot be used, and ``damaged`` is not given.
        """
        ordered = sorted(keys)
        texts = self._texts([manifest.manifest_path(*key) for key in ordered])
        found = []
        for key, text in zip(ordered, texts, strict=True):
            try:
                found.append(self._decoded(key, text))
            except ArchiveDamaged as error:
                if damaged is None:
                    raise
                damaged.append(str(error))
        return found

    def record(self, found: Manifest) -> None:
        """Writes a manifest, which makes its bucket complete."""
        self.files.write(manifest.manifest_path(*found.key), manifest.encode(found))

    def forget(self, keys: Iterable[Key]) -> None:
        """Removes manifests, before the messages of their buckets are replaced."""
        for key in keys:
            self.files.delete(manifest.manifest_path(*key))

    def _texts(self, paths: Sequence[str]) -> list[str]:
        if len(paths) <= self._few:
            return [self.files.read(path) or "" for path in paths]
        rows = self.spark.read.text([self.files.path(path) for path in paths], wholetext=True).collect()
        found = {}
        for row in rows:
            # They come back in any order and say themselves what they are of; what does not is found to be missing.
            with suppress(ArchiveDamaged):
                found[manifest.manifest_path(*manifest.decode(row.value, MANIFESTS).key)] = row.value
        return [found.get(path, "") for path in paths]

    def _decoded(self, key: Key, text: str) -> Manifest:
        path = self.files.path(manifest.manifest_path(*key))
        found = manifest.decode(text, path)
        if (*found.key, found.seconds) != (*key, self.about.seconds):
            raise ArchiveDamaged(f"{path}: this is the manifest of another bucket")
        return found


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
        opened.storage.recover()
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
