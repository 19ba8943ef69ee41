"""The messages of an archive: Parquet files, written once into new directories and read by their names."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from queuey.pipeline.archive import directory, find_buckets, manifest
from queuey.pipeline.archive.hadoop_files import FilesUnavailable, HadoopFiles
from queuey.pipeline.archive.manifest import MESSAGES, ArchiveDamaged, DataFile, Key, Manifest
from queuey.spark.options import Pattern, Subscribe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_FILE_ROWS = 5_000_000
"""Max messages in one file."""
WAITS = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds to wait, one after another, until a listing has the files that were just written."""
_ORDER = ("queue", "bucket", "partition", "position")


def write(messages: DataFrame, files: HadoopFiles, path: str) -> int:
    """Writes messages as Parquet, sorted, in a directory for each bucket; returns how many they are.

    Args:
        messages: With the columns of an archive.
        files: The archive's.
        path: A directory that is not there yet.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counted = Observation()
    rows = messages.observe(counted, f.count(f.lit(1)).alias("count")).sortWithinPartitions(*_ORDER)
    rows.write.partitionBy("queue", "bucket").option("maxRecordsPerFile", MAX_FILE_ROWS).parquet(files.path(path))
    return int(counted.get.get("count", 0))


def written(
    spark: SparkSession, files: HadoopFiles, path: str, count: int, *, waits: Sequence[float] = WAITS
) -> tuple[DataFrame, dict[Key, tuple[DataFile, ...]]]:
    """Returns the messages that were written to a directory, and its files.

    Args:
        spark: The session.
        files: The archive's.
        path: The directory.
        count: How many messages were written.
        waits: Seconds between listings while some are missing.

    Raises:
        FilesUnavailable: The listing lacks some, or has others.
    """
    read = 0
    for wait in waits:
        time.sleep(wait)
        found = files.tree(path)
        named = [(key, name, size) for name, size in found.items() if (key := manifest.bucket_in(name))]
        rows = read_files(spark, files, path, [f"{path}/{name}" for _, name, _ in named])
        read = rows.count()
        if read == count:
            by_bucket: dict[Key, tuple[DataFile, ...]] = {}
            for key, name, size in named:
                by_bucket[key] = (*by_bucket.get(key, ()), DataFile(name.rpartition("/")[2], size))
            return rows, by_bucket
    raise FilesUnavailable(
        f"{files.path(path)}: {count} messages were written, and its listing shows files of {read}. Repeat the run."
    )


def archived(spark: SparkSession, archive: str, *queues: str) -> DataFrame:
    """Returns the messages of an archive: what its manifests list, also while a run writes to it.

    The columns are those of a read with headers, and ``bucket``.

    Args:
        spark: The session.
        archive: Its directory or URL.
        queues: Of these; none: of all.

    Raises:
        ArchiveDamaged: There is no archive, or one of its manifests cannot be used, or a file is not there.
        QueueNotFound: The archive has nothing of a queue that is named.
    """
    there = directory.open_existing(spark, archive)
    names = there.selected(Subscribe(queues) if queues else Pattern(".*"))
    return read(
        spark, there.files, there.manifests({(name, one) for name in names for one in there.bucket_names(name)})
    )


def read(spark: SparkSession, files: HadoopFiles, manifests: Iterable[Manifest]) -> DataFrame:
    """Returns the messages of buckets, with the columns of ``schema``.

    Raises:
        ArchiveDamaged: A file is not there.
    """
    return read_paths(spark, files, [path for one in manifests for path in one.data_paths])


def read_paths(spark: SparkSession, files: HadoopFiles, paths: Iterable[str]) -> DataFrame:
    """Returns the messages of data files, named from the archive's directory.

    Raises:
        ArchiveDamaged: One is not there.
    """
    # Spark takes the names of directories for values of columns, and wants them alike in all paths.
    alike: dict[tuple[int, str], list[str]] = {}
    for path in paths:
        base = path.partition("/queue=")[0].partition("/run=")[0]
        alike.setdefault((path.count("/"), base), []).append(path)
    found = [read_files(spark, files, base, some) for (_, base), some in sorted(alike.items())]
    if not found:
        return read_files(spark, files, MESSAGES, [])
    first, *others = found
    for one in others:
        first = first.unionByName(one)
    return first


def read_files(spark: SparkSession, files: HadoopFiles, base: str, paths: Sequence[str]) -> DataFrame:
    """Returns the messages of data files below one directory, in directories that are named alike.

    Raises:
        ArchiveDamaged: One is not there.
    """
    from pyspark.errors import AnalysisException

    schema = find_buckets.schema()
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", files.path(base))
    try:
        return reader.parquet(*map(files.path, paths)).select(*schema.names)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        lost = (error.getMessageParameters() or {}).get("path", files.path(base))
        raise ArchiveDamaged(
            f"{lost} is not there, and a manifest lists it. queuey pipeline archive --check says what else is missing."
        ) from error
