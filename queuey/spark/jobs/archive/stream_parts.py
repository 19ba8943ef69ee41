"""Messages that a stream has kept before their buckets were complete.

::

    DIR/_incoming/<query>/<batch>/queue=<name>/bucket=<start>/*.parquet

A micro-batch that is done again finds that it was written, and is left as it is: some of its messages may have expired
since. Spark does not see these directories when it reads an archive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from queuey.spark.jobs.archive import find_buckets, manifest
from queuey.spark.jobs.archive.checksums import Key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from queuey.spark.jobs.archive.hadoop_files import HadoopFiles

INCOMING = "_incoming"
_DONE = "_SUCCESS"
"""What Spark writes when everything else is in its place."""
_ORDER = ("queue", "bucket", "partition", "position")


def write(files: HadoopFiles, messages: DataFrame, query: str, batch: int, seconds: int) -> None:
    """Writes a micro-batch, unless it was.

    Args:
        files: The archive's.
        messages: With all columns of a read, headers as well.
        query: The stream's id, the same over restarts from its checkpoint.
        batch: The number of the micro-batch.
        seconds: How wide buckets are.
    """
    path = f"{INCOMING}/{query}/{batch}"
    if files.exists(f"{path}/{_DONE}"):
        return
    found = messages.withColumn("bucket", bucket_name(messages["timestamp"], seconds))
    rows = found.select(*find_buckets.schema().names).sortWithinPartitions(*_ORDER)
    rows.write.mode("overwrite").partitionBy("queue", "bucket").parquet(files.path(path))


def kept(files: HadoopFiles) -> dict[Key, list[str]]:
    """Returns where the parts of each bucket are. Cost: a listing of every directory of every micro-batch."""
    found: dict[Key, list[str]] = {}
    for query in _directories(files, INCOMING):
        for batch in _directories(files, f"{INCOMING}/{query}"):
            add(files, found, query, batch)
    return found


def again(files: HadoopFiles, parts: dict[Key, list[str]], query: str, batch: int) -> None:
    """Lists the parts of a written micro-batch again, because an earlier attempt may have left other ones."""
    base = f"{INCOMING}/{query}/{batch}"
    for key in [key for key, bases in parts.items() if base in bases]:
        parts[key].remove(base)
        if not parts[key]:
            del parts[key]
    add(files, parts, query, batch)


def add(files: HadoopFiles, parts: dict[Key, list[str]], query: str, batch: int | str) -> None:
    """Adds the parts of a micro-batch to those that are known."""
    base = f"{INCOMING}/{query}/{batch}"
    for queue in _directories(files, base):
        for bucket in _directories(files, f"{base}/{queue}"):
            key = unquote(queue.removeprefix("queue=")), bucket.removeprefix("bucket=")
            parts.setdefault(key, []).append(base)


def read(
    spark: SparkSession, files: HadoopFiles, parts: Mapping[Key, Sequence[str]], keys: Collection[Key]
) -> DataFrame:
    """Returns what was kept of buckets, each message once.

    A stream that was begun anew has kept some messages a second time.
    """
    found: DataFrame | None = None
    bases = sorted({base for key in keys for base in parts[key]})
    for base in bases:
        paths = [f"{base}/{manifest.bucket_path(*key)}" for key in sorted(keys) if base in parts[key]]
        reader = spark.read.schema(find_buckets.schema()).option("basePath", files.path(base))
        some = reader.parquet(*map(files.path, paths)).select(*find_buckets.schema().names)
        found = some if found is None else found.unionByName(some)
    if found is None:
        return spark.createDataFrame([], find_buckets.schema())
    return found.dropDuplicates(["queue", "bucket", "partition", "id"])


def remove(files: HadoopFiles, parts: Mapping[Key, Sequence[str]], keys: Iterable[Key]) -> None:
    """Removes what was kept of buckets that are complete."""
    for key in keys:
        for base in parts.get(key, ()):
            files.delete(f"{base}/{manifest.bucket_path(*key)}")


def tidy(files: HadoopFiles, parts: Mapping[Key, Sequence[str]], query: str, batch: int) -> None:
    """Removes the directories of earlier micro-batches of which nothing is left.

    The last one stays until it is certain that it is not done again.

    Args:
        files: The archive's.
        parts: What is left of all micro-batches.
        query: The stream's id.
        batch: The number of the last micro-batch.
    """
    held = {base for bases in parts.values() for base in bases}
    for name in _directories(files, f"{INCOMING}/{query}"):
        base = f"{INCOMING}/{query}/{name}"
        if name.isdecimal() and int(name) < batch and base not in held:
            files.delete(base)


def bucket_name(timestamp: Column, seconds: int) -> Column:
    """Returns the names of the buckets of instants, whatever the session's time zone is."""
    from pyspark.sql import functions as f

    since = f.greatest(f.lit(0), f.unix_seconds(timestamp))
    start = since - since % seconds
    day = f.replace(f.date_from_unix_date((start / 86_400).cast("int")).cast("string"), f.lit("-"), f.lit(""))
    in_day = start % 86_400
    parts = [(in_day / 3600).cast("int"), (in_day % 3600 / 60).cast("int"), (in_day % 60).cast("int")]
    return f.format_string("%sT%02d%02d%02dZ", day, *parts)


def _directories(files: HadoopFiles, path: str) -> list[str]:
    return [entry.name for entry in files.list(path) if entry.directory]
