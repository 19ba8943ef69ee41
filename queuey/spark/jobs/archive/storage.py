"""How an archive keeps its messages: Parquet files, or a table of Delta or Iceberg."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from queuey.spark.errors import OptionError
from queuey.spark.jobs.archive import find_buckets, manifest
from queuey.spark.jobs.archive.checksums import Key
from queuey.spark.jobs.archive.hadoop_files import HadoopFiles
from queuey.spark.jobs.archive.manifest import DataFile, Kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = "messages"
REPLACED = "_replaced"
"""Where buckets lie while others take their places."""
MOST_ROWS = 5_000_000
"""Messages in one file."""
_CATALOG = "queuey_archive"
_ORDER = ("queue", "bucket", "partition", "position")


class Package(NamedTuple):
    """What a table format needs: a class that is there if it is, its name up to Spark's release, settings of Spark."""

    present: str
    name: str
    settings: tuple[str, ...]


PACKAGES = {
    "delta": Package(
        "org.apache.spark.sql.delta.sources.DeltaDataSource",
        "io.delta:delta-spark_",
        (
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        ),
    ),
    "iceberg": Package("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg:iceberg-spark-runtime-", ()),
}


class ArchiveStorage(ABC):
    """The messages of an archive's buckets."""

    @abstractmethod
    def recover(self) -> None:
        """Undoes what a run that was killed has left half done."""

    @abstractmethod
    def buckets(self, queues: Collection[str]) -> set[Key]:
        """Returns the buckets of queues that hold messages, with a manifest or without."""

    @abstractmethod
    def present(self, keys: Collection[Key]) -> set[Key]:
        """Returns which of these buckets hold messages, with a manifest or without."""

    @abstractmethod
    def read(self, keys: Collection[Key]) -> DataFrame:
        """Returns the messages of buckets, with the columns of ``schema``; none of those that are gone."""

    @abstractmethod
    def replace(self, staged: str, keys: Collection[Key]) -> None:
        """Replaces buckets as a whole by what was staged at a place."""

    @abstractmethod
    def files(self, key: Key) -> tuple[DataFile, ...]:
        """Lists a bucket's files by name; nothing where a table keeps them."""


class ParquetStorage(ArchiveStorage):
    """Directories of files, one for each bucket; a staged bucket takes its place by a rename.

    One that is replaced is moved aside first, because messages that have left the store may be nowhere else.
    """

    def __init__(self, spark: SparkSession, files: HadoopFiles) -> None:
        self._spark = spark
        self._files = files

    def recover(self) -> None:
        """See the contract: what was moved aside comes back unless something has taken its place."""
        for queue in self._files.list(REPLACED):
            for bucket in self._files.list(f"{REPLACED}/{queue.name}"):
                path = f"{queue.name}/{bucket.name}"
                if not self._files.exists(f"{MESSAGES}/{path}"):
                    self._files.move(f"{REPLACED}/{path}", f"{MESSAGES}/{path}")
        self._files.delete(REPLACED)

    def buckets(self, queues: Collection[str]) -> set[Key]:
        """See the contract."""
        found = ((queue, self._files.list(f"{MESSAGES}/{manifest.queue_path(queue)}")) for queue in queues)
        return {(queue, name) for queue, entries in found for one in entries if (name := _bucket(one.name))}

    def present(self, keys: Collection[Key]) -> set[Key]:
        """See the contract."""
        return {key for key in keys if self._files.exists(manifest.messages_path(*key))}

    def read(self, keys: Collection[Key]) -> DataFrame:
        """See the contract."""
        paths = [self._files.path(manifest.messages_path(*key)) for key in sorted(self.present(keys))]
        reader = self._spark.read.schema(find_buckets.schema()).option("basePath", self._files.path(MESSAGES))
        found = reader.parquet(*paths) if paths else self._spark.createDataFrame([], find_buckets.schema())
        return found.select(*find_buckets.schema().names)

    def replace(self, staged: str, keys: Collection[Key]) -> None:
        """See the contract."""
        for key in sorted(keys):
            path = manifest.bucket_path(*key)
            if self._files.exists(f"{MESSAGES}/{path}"):
                self._files.move(f"{MESSAGES}/{path}", f"{REPLACED}/{path}")
            self._files.move(f"{staged}/{path}", f"{MESSAGES}/{path}")
        self._files.delete(REPLACED)

    def files(self, key: Key) -> tuple[DataFile, ...]:
        """See the contract."""
        return data_files(self._files, manifest.messages_path(*key))


class TableStorage(ArchiveStorage):
    """A table partitioned by queue and bucket, whose format replaces partitions in one step."""

    def __init__(self, spark: SparkSession, files: HadoopFiles, kind: Kept) -> None:
        self._spark = spark
        self._files = files
        self._kind = kind
        if kind == "iceberg":
            spark.conf.set(f"spark.sql.catalog.{_CATALOG}", PACKAGES[kind].present)
            spark.conf.set(f"spark.sql.catalog.{_CATALOG}.type", "hadoop")
            spark.conf.set(f"spark.sql.catalog.{_CATALOG}.warehouse", files.root)

    def recover(self) -> None:
        """See the contract: what is written to a table is there as a whole or not at all."""

    def buckets(self, queues: Collection[str]) -> set[Key]:
        """See the contract."""
        if not self._begun():
            return set()
        wanted = self._spark.createDataFrame([(name,) for name in sorted(queues)], "queue string")
        return _keys(_only(self._whole(), wanted))

    def present(self, keys: Collection[Key]) -> set[Key]:
        """See the contract."""
        return _keys(self.read(keys))

    def read(self, keys: Collection[Key]) -> DataFrame:
        """See the contract."""
        if not self._begun():
            return self._spark.createDataFrame([], find_buckets.schema())
        wanted = self._spark.createDataFrame(sorted(keys), "queue string, bucket string")
        return _only(self._whole(), wanted).select(*find_buckets.schema().names)

    def replace(self, staged: str, keys: Collection[Key]) -> None:
        """See the contract."""
        wanted = self._spark.createDataFrame(sorted(keys), "queue string, bucket string")
        rows = _only(read_staged(self._spark, self._files, staged), wanted)
        rows = rows.select(*find_buckets.schema().names).sortWithinPartitions(*_ORDER)
        if self._kind == "delta":
            writer = rows.write.format("delta").mode("overwrite").partitionBy("queue", "bucket")
            writer.option("partitionOverwriteMode", "dynamic").save(self._files.path(MESSAGES))
        elif self._begun():
            rows.writeTo(self._table).overwritePartitions()
        else:
            rows.writeTo(self._table).using("iceberg").partitionedBy(rows["queue"], rows["bucket"]).create()

    def files(self, key: Key) -> tuple[DataFile, ...]:  # noqa: ARG002 - the table knows them
        """See the contract."""
        return ()

    def _whole(self) -> DataFrame:
        if self._kind == "delta":
            return self._spark.read.format("delta").load(self._files.path(MESSAGES))
        return self._spark.table(self._table)

    def _begun(self) -> bool:
        return bool(self._files.list(MESSAGES))

    @property
    def _table(self) -> str:
        return f"{_CATALOG}.{MESSAGES}"


def open_storage(spark: SparkSession, files: HadoopFiles, kind: Kept) -> ArchiveStorage:
    """Returns what keeps messages in a format.

    Raises:
        OptionError: Its package is not on the classpath of this session, or the session is not set up for it.
    """
    if kind == "parquet":
        return ParquetStorage(spark, files)
    package = PACKAGES[kind]
    if not _on_classpath(spark, package.present):
        release = spark.version.rpartition(".")[0]
        conf = "".join(f" --conf {setting}" for setting in package.settings)
        raise OptionError(
            f"format {kind} needs a package that was made for Spark {release}, and it is not on the classpath: "
            f"--conf spark.jars.packages={package.name}{release}_2.13:VERSION{conf}"
        )
    for name, _, value in (setting.partition("=") for setting in package.settings):
        if value not in (spark.conf.get(name, "") or ""):
            raise OptionError(f"format {kind} needs a session with --conf {name}={value}")
    return TableStorage(spark, files, kind)


def stage(messages: DataFrame, files: HadoopFiles, path: str) -> None:
    """Writes messages as Parquet, sorted, in a directory for each bucket."""
    writer = messages.sortWithinPartitions(*_ORDER).write.mode("overwrite").partitionBy("queue", "bucket")
    writer.option("maxRecordsPerFile", MOST_ROWS).parquet(files.path(path))


def read_staged(spark: SparkSession, files: HadoopFiles, path: str) -> DataFrame:
    """Returns what was staged."""
    return spark.read.schema(find_buckets.schema()).parquet(files.path(path)).select(*find_buckets.schema().names)


def data_files(files: HadoopFiles, path: str) -> tuple[DataFile, ...]:
    """Lists the files of a directory that Spark reads."""
    found = files.list(path)
    return tuple(
        DataFile(entry.name, entry.bytes) for entry in found if not entry.directory and entry.name[0] not in "._"
    )


def _only(messages: DataFrame, wanted: DataFrame) -> DataFrame:
    """Chooses messages that agree with a row of a small frame in all its columns."""
    from pyspark.sql.functions import broadcast

    return messages.join(broadcast(wanted), wanted.columns, "left_semi")


def _keys(messages: DataFrame) -> set[Key]:
    return {(row.queue, row.bucket) for row in messages.select("queue", "bucket").distinct().collect()}


def _bucket(directory: str) -> str:
    """Returns the bucket whose messages a directory of this name holds; empty: it is of something else."""
    name, equals, bucket = directory.partition("=")
    return bucket if name == "bucket" and equals else ""


def _on_classpath(spark: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - only Java knows its classpath
    try:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())  # noqa: FBT003
    except Py4JJavaError:
        return False
    return True
