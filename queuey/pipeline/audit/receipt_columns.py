"""The client's receipts as a DataFrame, and SQL expressions over ids and hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from queuey.model.ids import EPOCH_TICKS, TICKS_PER_SECOND
from queuey.pipeline.archive import hadoop_files
from queuey.pipeline.audit.body_hashes import HASH_BYTES
from queuey.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BROKEN_COLUMN = "_broken"
_RECEIPT_SCHEMA = (
    "queue string, app string, partition int, id string, sha256 string, size long, at double, ttl long, put boolean, "
    "outcome string"
)
"""Fields of a receipt as ``queuey.client.receipts`` writes them; neither package imports the other."""
_DIGITS = "0123456789abcdef"
_FLIPPED_DIGITS = _DIGITS[8:] + _DIGITS[:8]
"""The hex digits with their highest bit flipped."""


def read_receipts(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Reads files of receipts.

    Args:
        spark: The session.
        paths: Files, directories or globs, readable for Spark's tasks.

    Returns:
        A row for each line: ``queue``, ``app``, ``partition``, ``id``, ``hash`` (binary), ``size``, ``at``, ``ttl``,
        ``put``, ``unknown`` and ``broken``. If a line is broken, ignore its other columns. An accepted message has a
        partition and an id.

    Raises:
        OptionError: A path does not exist.
        FilesUnavailable: The file system does not exist or does not answer.
    """
    from pyspark.sql import functions as f

    for path in paths:
        if not hadoop_files.has_match(spark, path):
            raise OptionError(f"There are no receipts at {path}.")
    reader = spark.read.schema(f"{_RECEIPT_SCHEMA}, {BROKEN_COLUMN} string").option(
        "columnNameOfCorruptRecord", BROKEN_COLUMN
    )
    lines = reader.option("mode", "PERMISSIVE").json(list(paths))
    name = f.lower(f.regexp_replace("id", "-", ""))
    unknown = f.coalesce("outcome", f.lit("stored")) == "unknown"
    placed = name.rlike("^[0-9a-f]{32}$") & (f.col("partition") >= 1)
    described = (
        f.col("sha256").rlike(f"^[0-9a-f]{{{2 * HASH_BYTES},64}}$") & (f.col("size") >= 0) & f.col("at").isNotNull()
    )
    whole = f.col(BROKEN_COLUMN).isNull() & f.col("queue").isNotNull() & described & (placed | unknown)
    return lines.select(
        "queue",
        "app",
        f.when(placed, f.col("partition")).alias("partition"),
        f.when(placed, name).alias("id"),
        f.unhex(f.substring("sha256", 1, 2 * HASH_BYTES)).alias("hash"),
        "size",
        "at",
        "ttl",
        f.coalesce("put", f.lit(col=False)).alias("put"),
        unknown.alias("unknown"),
        (~f.coalesce(whole, f.lit(col=False))).alias("broken"),
    )


def rename_queues(column: str, names: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as f

    original = f.col(column)
    if not names:
        return original
    table = f.create_map(*(f.lit(word) for pair in names.items() for word in pair))
    return f.coalesce(f.try_element_at(table, original), original)


def digest(body: str) -> Column:
    from pyspark.sql import functions as f

    return f.unhex(f.substring(f.sha2(body, 256), 1, 2 * HASH_BYTES))


def id_to_ticks(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.conv(_time_digits(name), 16, 10).cast("long")


def seconds(name: str) -> Column:
    return (id_to_ticks(name) - EPOCH_TICKS) / TICKS_PER_SECOND


def id_to_position(name: str) -> Column:
    """Returns ids as texts that sort by position; see :func:`queuey.spark.source.columns.position_texts`."""
    from pyspark.sql import functions as f

    # The last eight bytes of an id sort as signed bytes, so their highest bits are flipped.
    low = [
        piece
        for at in range(17, 33, 2)
        for piece in (f.translate(f.substring(name, at, 1), _DIGITS, _FLIPPED_DIGITS), f.substring(name, at + 1, 1))
    ]
    return f.concat(f.lit("0"), _time_digits(name), *low)


def _time_digits(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.concat(f.substring(name, 14, 3), f.substring(name, 9, 4), f.substring(name, 1, 8))
