"""Messages that a stream has written before their buckets were complete.

::

    DIR/_incoming/<query>/<batch>.json                                       the files that a micro-batch has written
    DIR/_incoming/<query>/<batch>-<attempt>/queue=<name>/bucket=<start>/*.parquet

A micro-batch that runs again finds its files and leaves them as they are: some of its messages may have expired since.
Spark does not see these directories when it reads an archive.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from queuey.pipeline.archive import find_buckets, manifest, storage
from queuey.pipeline.archive.hadoop_files import HadoopFiles
from queuey.pipeline.archive.manifest import Key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

INCOMING_DIRECTORY = "_incoming"


class MicroBatch(msgspec.Struct, frozen=True):
    """Files of a micro-batch.

    Attributes:
        place: Its directory, relative to the archive.
        files: The files of each bucket, relative to ``place``.
    """

    place: str
    files: tuple[tuple[Key, tuple[str, ...]], ...]


_decode = msgspec.json.Decoder(MicroBatch).decode


class StreamParts:
    """The micro-batches of streams, and their buckets that are not complete yet.

    Args:
        files: The archive's files. Micro-batches that its listings lack are found with the next micro-batch.
    """

    def __init__(self, files: HadoopFiles) -> None:
        self._files = files
        self._batches: dict[str, MicroBatch] = {}
        self._incomplete: dict[Key, set[str]] = {}
        for query in files.list(INCOMING_DIRECTORY):
            names = {
                entry.name.partition(".")[0].partition("-")[0]
                for entry in files.list(f"{INCOMING_DIRECTORY}/{query.name}")
            }
            for name in names:
                self._load(f"{INCOMING_DIRECTORY}/{query.name}/{name}")

    @property
    def incomplete_keys(self) -> Collection[Key]:
        return self._incomplete.keys()

    def write(self, messages: DataFrame, query: str, batch: int, seconds: int) -> None:
        """Writes a micro-batch, unless it was written before. Also loads preceding ones that listings lacked.

        Args:
            messages: Messages with all columns of a read, including headers.
            query: The stream's id, which stays the same across restarts from its checkpoint.
            batch: The number of the micro-batch.
            seconds: Width of the buckets.
        """
        base = f"{INCOMING_DIRECTORY}/{query}/{batch}"
        if not self._load(base):
            place = f"{base}-{secrets.token_hex(4)}"
            named = messages.withColumn("bucket", bucket_name(messages["timestamp"], seconds))
            count = storage.write_messages(named.select(*find_buckets.schema().names), self._files, place)
            _, files = storage.read_back(messages.sparkSession, self._files, place, count)
            paths = [(key, tuple(f"{manifest.bucket_path(*key)}/{file.name}" for file in files[key])) for key in files]
            self._files.write(f"{base}.json", msgspec.json.encode(MicroBatch(place, tuple(paths))).decode())
            self._load(base)
        # Listings may have lacked the preceding micro-batches when this process began.
        earlier = batch - 1
        while f"{INCOMING_DIRECTORY}/{query}/{earlier}" not in self._batches and self._load(
            f"{INCOMING_DIRECTORY}/{query}/{earlier}"
        ):
            earlier -= 1

    def read(self, spark: SparkSession, keys: Collection[Key]) -> DataFrame:
        """Returns the messages of buckets, without the duplicates that a stream with a new checkpoint writes."""
        bases = sorted({base for key in keys for base in self._incomplete[key]})
        batches = [self._batches[base] for base in bases]
        paths = [
            f"{written.place}/{path}"
            for written in batches
            for key, files in written.files
            if key in keys
            for path in files
        ]
        return storage.read_paths(spark, self._files, paths).dropDuplicates(["queue", "bucket", "partition", "id"])

    def mark_complete(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._incomplete.pop(key, None)

    def remove_complete(self, query: str, batch: int) -> None:
        """Removes earlier micro-batches whose buckets are all complete.

        Also removes attempts that were never committed. The last micro-batch stays, because it may run again.

        Args:
            query: The stream's id.
            batch: The number of the last micro-batch.
        """
        held = set().union(*self._incomplete.values())
        for entry in self._files.list(f"{INCOMING_DIRECTORY}/{query}"):
            number = entry.name.partition("-")[0]
            base = f"{INCOMING_DIRECTORY}/{query}/{number}"
            if not (entry.directory and number.isdecimal() and int(number) < batch) or base in held:
                continue
            if base in self._batches or not self._load(base):
                # The index goes first, so that nothing refers to deleted files.
                self._files.delete(f"{base}.json")
                self._files.delete(f"{INCOMING_DIRECTORY}/{query}/{entry.name}")
                self._batches.pop(base, None)

    def _load(self, base: str) -> bool:
        """Loads a micro-batch, whose buckets then count as incomplete; returns False if it was not written."""
        text = self._files.read(f"{base}.json")
        if text is None:
            return False
        micro_batch = self._batches[base] = _decode(text)
        for key, _ in micro_batch.files:
            self._incomplete.setdefault(key, set()).add(base)
        return True


def bucket_name(timestamp: Column, seconds: int) -> Column:
    from pyspark.sql import functions as f

    since = f.greatest(f.lit(0), f.unix_seconds(timestamp))
    start = since - since % seconds
    day = f.replace(f.date_from_unix_date((start / 86_400).cast("int")).cast("string"), f.lit("-"), f.lit(""))
    in_day = start % 86_400
    parts = [(in_day / 3600).cast("int"), (in_day % 3600 / 60).cast("int"), (in_day % 60).cast("int")]
    return f.format_string("%sT%02d%02d%02dZ", day, *parts)
