"""How an archive keeps its messages: Parquet files, or a table of Delta or Iceberg."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from queuey.spark.errors import OptionError
from queuey.spark.jobs import manifest, scans
from queuey.spark.jobs.contents import Key
from queuey.spark.jobs.files import Files
from queuey.spark.jobs.manifest import File, Kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = "messages"
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


class Keeper(ABC):
    """The messages of an archive's buckets."""

    @abstractmethod
    def present(self, keys: Collection[Key]) -> set[Key]:
        """Returns which of these buckets hold messages, with a manifest or without."""

    @abstractmethod
    def read(self, keys: Collection[Key]) -> DataFrame:
        """Returns the messages of buckets that are present, with the columns of :func:`scans.schema`."""

    @abstractmethod
    def replace(self, staged: str, keys: Collection[Key]) -> None:
        """Replaces buckets as a whole by what was staged at a place."""

    @abstractmethod
    def files(self, key: Key) -> tuple[File, ...]:
        """Lists a bucket's files by name; nothing where a table keeps them."""


class ParquetKeeper(Keeper):
    """Directories of files, one for each bucket; a staged bucket takes its place by a rename."""

    def __init__(self, spark: SparkSession, files: Files) -> None:
        self._spark = spark
        self._files = files

    def present(self, keys: Collection[Key]) -> set[Key]:
        """See the contract."""
        return {key for key in keys if self._files.exists(manifest.messages_place(*key))}

    def read(self, keys: Collection[Key]) -> DataFrame:
        """See the contract."""
        places = [self._files.place(manifest.messages_place(*key)) for key in sorted(keys)]
        reader = self._spark.read.schema(scans.schema()).option("basePath", self._files.place(MESSAGES))
        found = reader.parquet(*places) if places else self._spark.createDataFrame([], scans.schema())
        return found.select(*scans.schema().names)

    def replace(self, staged: str, keys: Collection[Key]) -> None:
        """See the contract."""
        for key in sorted(keys):
            self._files.move(f"{staged}/{manifest.part_place(*key)}", manifest.messages_place(*key))

    def files(self, key: Key) -> tuple[File, ...]:
        """See the contract."""
        return data_files(self._files, manifest.messages_place(*key))


class TableKeeper(Keeper):
    """A table partitioned by queue and bucket, whose format replaces partitions in one step."""

    def __init__(self, spark: SparkSession, files: Files, kind: Kept) -> None:
        self._spark = spark
        self._files = files
        self._kind = kind
        if kind == "iceberg":
            spark.conf.set(f"spark.sql.catalog.{_CATALOG}", PACKAGES[kind].present)
            spark.conf.set(f"spark.sql.catalog.{_CATALOG}.type", "hadoop")
            spark.conf.set(f"spark.sql.catalog.{_CATALOG}.warehouse", files.root)

    def present(self, keys: Collection[Key]) -> set[Key]:
        """See the contract."""
        if not self._begun():
            return set()
        return {(row.queue, row.bucket) for row in self.read(keys).select("queue", "bucket").distinct().collect()}

    def read(self, keys: Collection[Key]) -> DataFrame:
        """See the contract."""
        from pyspark.sql.functions import broadcast

        if not self._begun():
            return self._spark.createDataFrame([], scans.schema())
        if self._kind == "delta":
            table = self._spark.read.format("delta").load(self._files.place(MESSAGES))
        else:
            table = self._spark.table(self._table)
        wanted = self._spark.createDataFrame(sorted(keys), "queue string, bucket string")
        return table.join(broadcast(wanted), ["queue", "bucket"], "left_semi").select(*scans.schema().names)

    def replace(self, staged: str, keys: Collection[Key]) -> None:
        """See the contract."""
        wanted = self._spark.createDataFrame(sorted(keys), "queue string, bucket string")
        rows = read_staged(self._spark, self._files, staged).join(wanted, ["queue", "bucket"], "left_semi")
        rows = rows.select(*scans.schema().names).sortWithinPartitions(*_ORDER)
        if self._kind == "delta":
            writer = rows.write.format("delta").mode("overwrite").partitionBy("queue", "bucket")
            writer.option("partitionOverwriteMode", "dynamic").save(self._files.place(MESSAGES))
        elif self._begun():
            rows.writeTo(self._table).overwritePartitions()
        else:
            rows.writeTo(self._table).using("iceberg").partitionedBy(rows["queue"], rows["bucket"]).create()

    def files(self, key: Key) -> tuple[File, ...]:  # noqa: ARG002 - the table knows them
        """See the contract."""
        return ()

    def _begun(self) -> bool:
        return bool(self._files.list(MESSAGES))

    @property
    def _table(self) -> str:
        return f"{_CATALOG}.{MESSAGES}"


def keeper(spark: SparkSession, files: Files, kind: Kept) -> Keeper:
    """Returns what keeps messages in a format.

    Raises:
        OptionError: Its package is not on the classpath of this session, or the session is not set up for it.
    """
    if kind == "parquet":
        return ParquetKeeper(spark, files)
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
    return TableKeeper(spark, files, kind)


def stage(messages: DataFrame, files: Files, place: str) -> None:
    """Writes messages as Parquet, sorted, in a directory for each bucket."""
    writer = messages.sortWithinPartitions(*_ORDER).write.mode("overwrite").partitionBy("queue", "bucket")
    writer.option("maxRecordsPerFile", MOST_ROWS).parquet(files.place(place))


def read_staged(spark: SparkSession, files: Files, place: str) -> DataFrame:
    """Returns what was staged."""
    return spark.read.schema(scans.schema()).parquet(files.place(place)).select(*scans.schema().names)


def data_files(files: Files, place: str) -> tuple[File, ...]:
    """Lists the files of a directory that Spark reads."""
    found = files.list(place)
    return tuple(File(entry.name, entry.bytes) for entry in found if not entry.directory and entry.name[0] not in "._")


def _on_classpath(spark: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - only Java knows its classpath
    try:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())  # noqa: FBT003
    except Py4JJavaError:
        return False
    return True
