"""Counts and hashes of archived messages, computed in Spark without moving bodies to Python."""

from __future__ import annotations

from functools import reduce
from itertools import groupby
from operator import add, xor
from typing import TYPE_CHECKING, NamedTuple

from queuey.model import ids
from queuey.pipeline.archive.manifest import Key, MessageSetHash, PartitionEnds, Summary, format_time
from queuey.spark.source import columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_PARTITION_COLUMNS = ("queue", "bucket", "partition")
PLACE_COLUMNS = (*_PARTITION_COLUMNS, "id")
"""Columns that identify a message."""
_MICROSECONDS = 1_000_000


class Difference(NamedTuple):
    """Number of messages that an archived bucket lacks, and of messages that differ from the store's."""

    missing: int
    changed: int


def add_hashes(messages: DataFrame) -> DataFrame:
    return messages.select(
        *PLACE_COLUMNS, "position", "expires", _byte_length("value").alias("size"), _xxhash_of_message().alias("hash")
    )


def summarize_buckets(messages: DataFrame) -> dict[Key, Summary]:
    """Counts and hashes messages by bucket, in one job.

    Args:
        messages: Messages of an archive, or the result of :func:`add_hashes`.
    """
    from pyspark.sql import functions as f

    rows_with_hash = messages if "hash" in messages.columns else add_hashes(messages)
    # A decimal, because a sum of 64-bit hashes does not fit into 64 bits, and Spark does not wrap around.
    rows = (
        rows_with_hash.groupBy(*_PARTITION_COLUMNS)
        .agg(
            f.count("*").alias("count"),
            f.sum("size").alias("size"),
            f.bit_xor("hash").alias("xor"),
            f.sum(f.col("hash").cast("decimal(20,0)")).alias("total"),
            f.min("position").alias("first"),
            f.max("position").alias("last"),
            f.unix_micros(f.min("expires")).alias("expires_first"),
            f.unix_micros(f.max("expires")).alias("expires_last"),
        )
        .collect()
    )
    rows.sort(key=lambda row: (row.queue, row.bucket, row.partition))
    return {key: summarize_rows(list(parts)) for key, parts in groupby(rows, key=lambda row: (row.queue, row.bucket))}


def summarize_rows(rows: list[Row]) -> Summary:
    return Summary(
        count=sum(row["count"] for row in rows),
        bytes=sum(row["size"] for row in rows),
        hash=MessageSetHash.from_xor_and_sum(
            reduce(xor, (row["xor"] for row in rows)), reduce(add, (int(row["total"]) for row in rows))
        ),
        partitions={
            row["partition"]: PartitionEnds(row["count"], _position_to_id(row["first"]), _position_to_id(row["last"]))
            for row in rows
        },
        expires=(
            format_time(min(row["expires_first"] for row in rows) / _MICROSECONDS),
            format_time(max(row["expires_last"] for row in rows) / _MICROSECONDS),
        ),
    )


def count_differences(stored: DataFrame, archived: DataFrame) -> dict[Key, Difference]:
    """Counts messages of the store that an archive lacks or has with other content, by bucket.

    Messages that only the archive has do not count: they have expired, or were deleted. Buckets without differences are
    left out.
    """
    from pyspark.sql import functions as f

    key_columns = list(PLACE_COLUMNS)
    theirs = add_hashes(archived).select(*key_columns, f.col("hash").alias("archived"))
    rows = (
        add_hashes(stored)
        .join(theirs, key_columns, "left")
        .groupBy("queue", "bucket")
        .agg(
            f.count_if(f.col("archived").isNull()).alias("missing"),
            f.count_if(f.col("archived") != f.col("hash")).alias("changed"),
        )
        .where("missing > 0 OR changed > 0")
        .collect()
    )
    return {(row.queue, row.bucket): Difference(row.missing, row.changed) for row in rows}


def merge_messages(newer: DataFrame, older: DataFrame) -> DataFrame:
    key_columns = list(PLACE_COLUMNS)
    return newer.unionByName(older.join(newer.select(*key_columns), key_columns, "left_anti").select(newer.columns))


def _xxhash_of_message() -> Column:
    from pyspark.sql import functions as f

    # xxhash64 skips nulls, so a null and an empty content type need different inputs.
    kind = f.coalesce(f.concat(f.lit("="), "contentType"), f.lit(""))
    return f.xxhash64("partition", "id", "value", "valueType", kind, "headers")


def _byte_length(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.octet_length(name).cast("long")


def _position_to_id(position: str) -> str:
    return ids.to_hex(columns.parse_position(position))
