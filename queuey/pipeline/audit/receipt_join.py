"""Receipts beside messages: which message every one of either belongs to, and what that says. Joins of Spark alone.

A message is named by queue, partition and id. A receipt *promises* it if the service answered that it was accepted;
a receipt of unknown outcome says that it *may* be there, and has an id only if the client chose that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from queuey.ids import EPOCH_TICKS
from queuey.pipeline.audit import receipt_columns
from queuey.pipeline.audit.body_hashes import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE = ["queue", "partition", "id"]
ABOUT = "queue string not null, default_ttl double not null, horizon long not null, delay double not null"
"""Columns of a queue: TTL in seconds; ticks below which every message was read; delay in seconds after which readers
may have passed an id."""
FLAGS = ("accepted", "present", "archived", "missing", "expired", "ahead", "differs", "twice", "late", "maybe", "found")
"""Columns of :func:`matched`, 0 or 1 for each id."""
BUCKETS = "queue string not null, start long not null, sealed double not null"
"""When buckets were archived: the bucket's start in ticks since 1970, and the instant in seconds since 1970."""
OFFSETS = "queue string not null, partition int not null, position string not null"


def promised(receipts: DataFrame, about: DataFrame) -> DataFrame:
    """Returns a row for each id that receipts name.

    Columns: the place, ``must`` (some receipt promises it), ``bodies`` (any of which may be stored: a message that was
    put several times), ``until`` (when the last of them ends, seconds since 1970), ``at``, ``put``, ``horizon``,
    ``delay``, and ``sealed``, which is null; see :func:`sealed`.
    """
    from pyspark.sql import functions as f

    known = receipts.where("id IS NOT NULL").join(f.broadcast(about), "queue", "left")
    # The TTL counts from the id's time; that of a put from when it is written, if that is later.
    begin = f.when(f.col("put"), f.greatest("at", receipt_columns.seconds("id"))).otherwise(
        receipt_columns.seconds("id")
    )
    lives = f.coalesce(f.col("ttl").cast("double"), "default_ttl")
    return (
        known.withColumn("until", begin + lives)
        .groupBy(*PLACE)
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


def sealed(wanted: DataFrame, buckets: DataFrame, width: int) -> DataFrame:
    """Adds the time at which the bucket of each message was archived, if the message existed by then.

    Args:
        wanted: As :func:`promised` gives it.
        buckets: Those of the archive (``BUCKETS``).
        width: Of buckets, in ticks.
    """
    from pyspark.sql import functions as f

    since = f.greatest(receipt_columns.ticks("id") - EPOCH_TICKS, f.lit(0))
    rows = wanted.drop("sealed").withColumn("start", since - since % width)
    known = rows.join(f.broadcast(buckets), ["queue", "start"], "left").drop("start")
    return known.withColumn("sealed", f.when(f.col("at") <= f.col("sealed"), f.col("sealed")))


def present(stored: DataFrame | None, archived: DataFrame | None) -> DataFrame:
    """Returns a row for each message that is anywhere: ``stored`` and ``kept`` (how often), ``seen`` (its bodies)."""
    from pyspark.sql import functions as f

    columns = [field.name for field in SCHEMA]
    frames = [
        frame.select(*columns, f.lit(mark).alias("place"))
        for frame, mark in ((stored, "store"), (archived, "archive"))
        if frame is not None
    ]
    return (
        reduce(lambda one, other: one.unionByName(other), frames)
        .groupBy(*PLACE)
        .agg(
            f.count_if(f.col("place") == "store").alias("stored"),
            f.count_if(f.col("place") == "archive").alias("kept"),
            f.collect_set(f.struct("hash", "size")).alias("seen"),
        )
    )


def archived(messages: DataFrame, starts: DataFrame) -> DataFrame:
    """Returns messages of an archive in the shape of those that a scan of a store gives.

    Args:
        messages: As the archive keeps them.
        starts: For each ``queue`` the ``lowest`` position that is read, as text.
    """
    from pyspark.sql import functions as f

    return (
        messages.join(f.broadcast(starts), "queue")
        .where("position >= lowest")
        .select(
            *PLACE, receipt_columns.digest("value").alias("hash"), f.octet_length("value").cast("long").alias("size")
        )
    )


def matched(
    wanted: DataFrame, there: DataFrame, offsets: Sequence[DataFrame], *, now: float, late: float | None, margin: float
) -> DataFrame:
    """Classifies every id.

    Args:
        wanted: As :func:`promised` gives it, or :func:`sealed`. What was to live on when its bucket was archived has to
            be in the archive, however long ago its TTL was over.
        there: As :func:`present` gives it.
        offsets: For each group where it stands (``OFFSETS``); partitions that are not named it has not begun.
        now: Seconds since 1970.
        late: Seconds from the id's time to the receipt from which on it counts as late; None: the read delay.
        margin: Seconds before its end from which on a message may be gone.

    Returns:
        The place, ``at``, ``hash`` and ``size`` (of what is stored, else of what was promised), ``stray`` (it has no
        receipt), the ``FLAGS``, and ``passed_0`` … for the groups.
    """
    from pyspark.sql import functions as f

    joined = wanted.join(there, PLACE, "full_outer")
    must = f.coalesce("must", f.lit(col=False))
    here = f.coalesce(f.col("stored") + f.col("kept"), f.lit(0)) > 0
    ahead = must & ~here & (receipt_columns.ticks("id") >= f.coalesce("horizon", f.lit(0)))
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
        *PLACE,
        "at",
        body["hash"].alias("hash"),
        body["size"].alias("size"),
        f.col("must").isNull().alias("stray"),
        *(f.coalesce(flag, f.lit(col=False)).cast("int").alias(name) for name, flag in flags.items()),
    )
    for number, frame in enumerate(offsets):
        stands = f.broadcast(frame.withColumnRenamed("position", "_stands"))
        rows = rows.join(stands, ["queue", "partition"], "left")
        passed = (f.col("accepted") == 1) & (receipt_columns.position("id") <= f.col("_stands"))
        rows = rows.withColumn(f"passed_{number}", f.coalesce(passed, f.lit(col=False)).cast("int")).drop("_stands")
    return rows


def strays(rows: DataFrame, receipts: DataFrame) -> DataFrame:
    """Classifies messages without a receipt as copies of others.

    One whose body equals an accepted one in the same queue is a ``copy``: the producer has the receipt of the other
    one. Where only sends of unknown outcome have that body, as many messages answer for these (``answer``), those with
    the lowest ids; any more are copies. All else was sent by producers without receipts.

    Returns:
        The place, ``hash``, and ``copy`` and ``answer``, which are 0 or 1.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    body = ["queue", "hash", "size"]
    sent = receipts.groupBy(*body).agg(
        f.count_if(~f.col("unknown")).alias("accepted"),
        f.count_if(f.col("unknown") & f.col("id").isNull()).alias("doubtful"),
    )
    alike = rows.where("stray").select(*PLACE, "hash", "size").join(sent, body)
    order = Window.partitionBy(*body).orderBy(receipt_columns.position("id"), "partition")
    rank = f.row_number().over(order)
    answers = (f.col("accepted") == 0) & (rank <= f.col("doubtful"))
    return alike.select(*PLACE, "hash", (~answers).cast("int").alias("copy"), answers.cast("int").alias("answer"))
