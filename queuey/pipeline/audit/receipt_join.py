"""Joins receipts with messages and classifies every id, in Spark alone.

Queue, partition and id identify a message. A receipt *promises* a message if the service answered that it was accepted.
A receipt of unknown outcome means that the message *may* exist, and has an id only if the client chose the id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from queuey.model.ids import EPOCH_TICKS
from queuey.pipeline.audit import receipt_columns
from queuey.pipeline.audit.body_hashes import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE_COLUMNS = ["queue", "partition", "id"]
QUEUES_SCHEMA = "queue string not null, default_ttl double not null, horizon long not null, delay double not null"
"""Columns of a queue: TTL in seconds; horizon in ticks, below which every message was read; delay in seconds after
which readers may have passed an id."""
FLAGS = ("accepted", "present", "archived", "missing", "expired", "ahead", "differs", "twice", "late", "maybe", "found")
"""Flags of :func:`classify_ids`, 0 or 1 for each id."""
BUCKETS_SCHEMA = "queue string not null, start long not null, sealed double not null"
"""Columns of archived buckets: start in ticks since 1970, and when it was archived in seconds since 1970."""
OFFSETS_SCHEMA = "queue string not null, partition int not null, position string not null"


def find_promised(receipts: DataFrame, about: DataFrame) -> DataFrame:
    """Returns a row for each id in receipts.

    Columns: ``PLACE_COLUMNS``, ``must`` (a receipt promises the message), ``bodies`` (several if the message was put
    several times; any of them may be stored), ``until`` (expiry of the last one, in seconds since 1970), ``at``
    (when it was accepted), ``put`` (it was written at an id that the client chose), ``horizon``, ``delay``, and
    ``sealed``, which is null; see :func:`add_sealed`.
    """
    from pyspark.sql import functions as f

    identified = receipts.where("id IS NOT NULL").join(f.broadcast(about), "queue", "left")
    # The TTL counts from the id's time; for a put, from the write if that is later.
    begin = f.when(f.col("put"), f.greatest("at", receipt_columns.seconds("id"))).otherwise(
        receipt_columns.seconds("id")
    )
    lives = f.coalesce(f.col("ttl").cast("double"), "default_ttl")
    return (
        identified.withColumn("until", begin + lives)
        .groupBy(*PLACE_COLUMNS)
        .agg(
            (~f.bool_and("unknown")).alias("must"),
            f.collect_set(f.struct("hash", "size")).alias("bodies"),
            f.max_by("until", "at").alias("until"),
            f.max("at").alias("at"),
            f.bool_or("put").alias("put"),
            f.max("horizon").alias("horizon"),
            f.max("delay").alias("delay"),
        )
        .withColumn("sealed", f.lit(None).cast("double"))
    )


def add_sealed(promised_messages: DataFrame, buckets: DataFrame, width: int) -> DataFrame:
    """Sets ``sealed``: when the bucket of each message was archived, if the message existed by then.

    Args:
        promised_messages: The result of :func:`find_promised`.
        buckets: The archived buckets, with the columns ``BUCKETS_SCHEMA``.
        width: Width of buckets, in ticks.
    """
    from pyspark.sql import functions as f

    since = f.greatest(receipt_columns.id_to_ticks("id") - EPOCH_TICKS, f.lit(0))
    rows = promised_messages.drop("sealed").withColumn("start", since - since % width)
    with_buckets = rows.join(f.broadcast(buckets), ["queue", "start"], "left").drop("start")
    return with_buckets.withColumn("sealed", f.when(f.col("at") <= f.col("sealed"), f.col("sealed")))


def join_present(stored: DataFrame | None, archived: DataFrame | None) -> DataFrame:
    """Returns existing messages with ``stored`` and ``kept`` (counts in store and archive) and ``seen`` (bodies)."""
    from pyspark.sql import functions as f

    columns = [field.name for field in SCHEMA]
    frames = [
        frame.select(*columns, f.lit(mark).alias("place"))
        for frame, mark in ((stored, "store"), (archived, "archive"))
        if frame is not None
    ]
    return (
        reduce(lambda union, frame: union.unionByName(frame), frames)
        .groupBy(*PLACE_COLUMNS)
        .agg(
            f.count_if(f.col("place") == "store").alias("stored"),
            f.count_if(f.col("place") == "archive").alias("kept"),
            f.collect_set(f.struct("hash", "size")).alias("seen"),
        )
    )


def select_archived(messages: DataFrame, starts: DataFrame) -> DataFrame:
    """Returns messages of an archive with the same columns as a scan of the store.

    Args:
        messages: Messages of the archive.
        starts: The ``lowest`` position to read in each ``queue``, as text.
    """
    from pyspark.sql import functions as f

    return (
        messages.join(f.broadcast(starts), "queue")
        .where("position >= lowest")
        .select(
            *PLACE_COLUMNS,
            receipt_columns.digest("value").alias("hash"),
            f.octet_length("value").cast("long").alias("size"),
        )
    )


def classify_ids(
    promised_messages: DataFrame,
    present_messages: DataFrame,
    offsets: Sequence[DataFrame],
    *,
    now: float,
    late: float | None,
    margin: float,
) -> DataFrame:
    """Classifies every id.

    Args:
        promised_messages: The result of :func:`find_promised` or :func:`add_sealed`. A message that was still
            alive when its bucket was archived has to be in the archive, even if its TTL is over now.
        present_messages: The result of :func:`join_present`.
        offsets: The offsets of each group, with the columns ``OFFSETS_SCHEMA``. The group has not begun partitions
            without an offset.
        now: Seconds since 1970.
        late: Min seconds between the id's time and a late receipt; the read delay if None.
        margin: Seconds before its expiry in which a message may be missing.

    Returns:
        ``PLACE_COLUMNS``, ``at``, ``hash`` and ``size`` (of the stored body, else of the promised one), ``stray``
        (without a receipt), the ``FLAGS``, and ``passed_0``, ``passed_1``, … for the groups.
    """
    from pyspark.sql import functions as f

    joined = promised_messages.join(present_messages, PLACE_COLUMNS, "full_outer")
    must = f.coalesce("must", f.lit(col=False))
    here = f.coalesce(f.col("stored") + f.col("kept"), f.lit(0)) > 0
    ahead = must & ~here & (receipt_columns.id_to_ticks("id") >= f.coalesce("horizon", f.lit(0)))
    gone = must & ~here & ~ahead
    expired = gone & (f.coalesce("until", f.lit(0.0)) <= f.coalesce("sealed", f.lit(now)) + margin)
    waited = f.col("at") - receipt_columns.seconds("id")
    flags: dict[str, Column] = {
        "accepted": must,
        "present": must & here,
        "archived": must & (f.coalesce("kept", f.lit(0)) > 0),
        "missing": gone & ~expired,
        "expired": expired,
        "ahead": ahead,
        "differs": must & here & (f.size(f.array_except("seen", "bodies")) > 0),
        "twice": here & (f.greatest("stored", "kept") > 1),
        "late": must & ~f.col("put") & (waited > (f.col("delay") if late is None else late)),
        "maybe": f.col("must").isNotNull() & ~must,
        "found": f.col("must").isNotNull() & ~must & here,
    }
    body = f.coalesce(f.try_element_at("seen", f.lit(1)), f.try_element_at("bodies", f.lit(1)))
    rows = joined.select(
        *PLACE_COLUMNS,
        "at",
        body["hash"].alias("hash"),
        body["size"].alias("size"),
        f.col("must").isNull().alias("stray"),
        *(f.coalesce(flag, f.lit(col=False)).cast("int").alias(name) for name, flag in flags.items()),
    )
    for number, frame in enumerate(offsets):
        stands = f.broadcast(frame.withColumnRenamed("position", "_stands"))
        rows = rows.join(stands, ["queue", "partition"], "left")
        passed = (f.col("accepted") == 1) & (receipt_columns.id_to_position("id") <= f.col("_stands"))
        rows = rows.withColumn(f"passed_{number}", f.coalesce(passed, f.lit(col=False)).cast("int")).drop("_stands")
    return rows


def find_copies(rows: DataFrame, receipts: DataFrame) -> DataFrame:
    """Finds copies among messages without a receipt.

    A message with the same body as an accepted one in its queue is a ``copy``: the producer has the receipt of the
    accepted one. If only sends of unknown outcome have that body, the messages with the lowest ids match these
    (``answer``), one for each send, and the rest are copies. All others come from producers without receipts.

    Returns:
        ``PLACE_COLUMNS``, ``hash``, and ``copy`` and ``answer``, which are 0 or 1.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    body = ["queue", "hash", "size"]
    sent = receipts.groupBy(*body).agg(
        f.count_if(~f.col("unknown")).alias("accepted"),
        f.count_if(f.col("unknown") & f.col("id").isNull()).alias("doubtful"),
    )
    alike = rows.where("stray").select(*PLACE_COLUMNS, "hash", "size").join(sent, body)
    order = Window.partitionBy(*body).orderBy(receipt_columns.id_to_position("id"), "partition")
    rank = f.row_number().over(order)
    answers = (f.col("accepted") == 0) & (rank <= f.col("doubtful"))
    return alike.select(
        *PLACE_COLUMNS, "hash", (~answers).cast("int").alias("copy"), answers.cast("int").alias("answer")
    )
