"""The messages of an archive: Parquet files, written once to new directories and read by name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from queuey.pipeline.archive import directory, find_buckets, manifest
from queuey.pipeline.archive.hadoop_files import FilesUnavailable, HadoopFiles
from queuey.pipeline.archive.manifest import MESSAGES_DIRECTORY, ArchiveDamaged, DataFile, Key, Manifest
from queuey.spark.options import Pattern, Subscribe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_FILE_ROWS = 5_000_000
LISTING_WAITS = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Successive waits, in seconds, for a listing to show the files that were just written."""
_SORT_COLUMNS = ("queue", "bucket", "partition", "position")


def write_messages(messages: DataFrame, files: HadoopFiles, path: str) -> int:
    """Writes messages as sorted Parquet files, in a directory for each bucket; returns their number.

    Args:
        messages: Messages with the columns of an archive.
        files: The archive's files.
        path: A directory that does not exist yet.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counted = Observation()
    rows = messages.observe(counted, f.count(f.lit(1)).alias("count")).sortWithinPartitions(*_SORT_COLUMNS)
    rows.write.partitionBy("queue", "bucket").option("maxRecordsPerFile", MAX_FILE_ROWS).parquet(files.path(path))
    return int(counted.get.get("count", 0))


def read_back(
    spark: SparkSession, files: HadoopFiles, path: str, count: int, *, waits: Sequence[float] = LISTING_WAITS
) -> tuple[DataFrame, dict[Key, tuple[DataFile, ...]]]:
    """Reads back the messages that were written to a directory, and lists its files.

    Args:
        spark: The session.
        files: The archive's files.
        path: The directory.
        count: Number of messages that were written.
        waits: Seconds before each listing, while files are missing.

    Raises:
        FilesUnavailable: The files in the last listing do not have the right number of messages.
    """
    read = 0
    for wait in waits:
        time.sleep(wait)
        lengths = files.list_tree(path)
        named = [(key, name, size) for name, size in lengths.items() if (key := manifest.parse_data_path(name))]
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
    """Returns the messages of an archive. You may call it while a run writes to the archive.

    The columns are the columns of a read with headers, and ``bucket``.

    Args:
        spark: The session.
        archive: Directory or URL of the archive.
        queues: Names of queues; all queues if empty.

    Raises:
        ArchiveDamaged: There is no archive, a manifest is unusable, or a file is missing.
        QueueNotFound: The archive has no messages of a named queue.
    """
    opened = directory.open_existing(spark, archive)
    names = opened.select_queues(Subscribe(queues) if queues else Pattern(".*"))
    return read_buckets(
        spark,
        opened.files,
        opened.read_manifests({(queue, name) for queue in names for name in opened.list_bucket_names(queue)}),
    )


def read_buckets(spark: SparkSession, files: HadoopFiles, manifests: Iterable[Manifest]) -> DataFrame:
    """Returns the messages of buckets.

    Raises:
        ArchiveDamaged: A file is missing.
    """
    return read_paths(spark, files, [path for bucket in manifests for path in bucket.data_paths])


def read_paths(spark: SparkSession, files: HadoopFiles, paths: Iterable[str]) -> DataFrame:
    """Returns the messages of data files, with paths relative to the archive.

    Raises:
        ArchiveDamaged: A file is missing.
    """
    # Spark reads columns from the names of directories, so all paths of one read need the same columns.
    alike: dict[tuple[int, str], list[str]] = {}
    for path in paths:
        base = path.partition("/queue=")[0].partition("/run=")[0]
        alike.setdefault((path.count("/"), base), []).append(path)
    frames = [read_files(spark, files, base, group) for (_, base), group in sorted(alike.items())]
    if not frames:
        return read_files(spark, files, MESSAGES_DIRECTORY, [])
    union, *others = frames
    for frame in others:
        union = union.unionByName(frame)
    return union


def read_files(spark: SparkSession, files: HadoopFiles, base: str, paths: Sequence[str]) -> DataFrame:
    """Returns the messages of data files below ``base``, whose directories have the same partition columns.

    Raises:
        ArchiveDamaged: A file is missing.
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
            f"{lost} is missing, and a manifest lists it. Find all missing files: queuey pipeline archive --check."
        ) from error
