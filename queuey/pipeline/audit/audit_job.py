"""Compares receipts with what is stored, what is archived, and what groups have passed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec

from queuey.ids import Position
from queuey.pipeline.audit import receipt_columns, receipt_join
from queuey.pipeline.audit.receipt_join import FLAGS
from queuey.pipeline.audit.sources import MessageSources, spans
from queuey.pipeline.options import AuditOptions
from queuey.spark.errors import OptionError
from queuey.spark.source import columns
from queuey.terminal.texts import plural
from queuey.titles import instant, titled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS = ("missing", "differs", "twice", "late")


class Passed(msgspec.Struct, frozen=True):
    """Position of a group: accepted messages that it passed, that wait for it, and that expired unread."""

    passed: int
    waiting: int
    expired: int


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, or all of them.

    Attributes:
        accepted: Messages that some receipt says were accepted.
        present: Of these, in the store or the archive; ``archived``: in the archive.
        missing: Of these, neither there nor expired.
        expired: Not there; their TTL is over.
        ahead: Not visible to readers yet: delayed, or too recent.
        copies: Messages without a receipt that have the body of an accepted one of their queue.
        twice: Ids that the archive has more than once.
        differs: Present with a body that no receipt of them has.
        late: Answered for long after they were given their ids; they may have been passed by readers.
        maybe: Ids of receipts of unknown outcome; ``found``: those that are present.
        groups: Where groups stand.
    """

    accepted: int = 0
    present: int = 0
    archived: int = 0
    missing: int = 0
    expired: int = 0
    ahead: int = 0
    copies: int = 0
    twice: int = 0
    differs: int = 0
    late: int = 0
    maybe: int = 0
    found: int = 0
    groups: dict[str, Passed] = {}

    @property
    def sound(self) -> bool:
        return not (self.missing or self.copies or self.twice or self.differs)


class AuditSample(msgspec.Struct, frozen=True, kw_only=True):
    """A message that something is wrong with.

    Attributes:
        kind: ``missing``, ``differs``, ``twice``, ``copies`` or ``late``.
        at: When it was accepted, seconds since 1970; None: there is no receipt.
        sha256: First half of the hash of what is stored, else of what was accepted.
    """

    kind: Annotated[str, titled("finding")]
    queue: str
    partition: int
    id: str
    at: Annotated[float | None, titled("accepted", instant)]
    sha256: Annotated[str, titled("hash")]


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an audit.

    Attributes:
        sound: Nothing is missing, duplicated or altered.
        total: Over all partitions.
        partitions: Queue -> partition -> account.
        lines: Lines of receipts; ``broken``: that could not be read; ``foreign``: of other applications.
        doubtful: Sends of unknown outcome without an id; ``answered``: messages that answer for them.
        strays: Messages without a receipt, copies included.
        samples: Some messages of each kind of finding.
        at: When it began, seconds since 1970.
    """

    sound: bool
    total: Account
    partitions: dict[str, dict[int, Account]]
    lines: int
    broken: int
    foreign: int
    doubtful: int
    answered: int
    strays: int
    samples: tuple[AuditSample, ...]
    at: float


def run(spark: SparkSession, options: AuditOptions, say: Callable[[str], None] = lambda _: None) -> Audit:
    """Compares receipts with messages.

    Raises:
        OptionError: The options cannot be used, or there are no receipts.
        ArchiveDamaged: There is no archive, or it is not whole.
        StoreUnavailable: The store does not answer.
    """
    from pyspark.sql import functions as f

    say("reading receipts")
    message_sources = MessageSources(
        spark, options.store, archive=options.archive, only_archive=options.only_archive, groups=options.groups
    )
    lines = receipt_columns.receipts(spark, options.receipts)
    ours = ~f.col("broken") & (f.col("app").isNull() | (f.col("app") == message_sources.application))
    wanted = f.col("queue").isin(list(options.queues)) if options.queues else f.lit(col=True)
    receipts = lines.where(ours & wanted).withColumn("queue", receipt_columns.renamed("queue", options.names))
    counts = lines.agg(
        f.count("*").alias("lines"),
        f.count_if("broken").alias("broken"),
        f.count_if(~f.col("broken") & ~ours).alias("foreign"),
        f.count_if(ours & wanted & f.col("unknown") & f.col("id").isNull()).alias("doubtful"),
    ).first()
    found = spans(receipts)
    _check_receipts(options, {span.queue for span in found})
    # Horizons first: messages below them are there when they are read.
    about = spark.createDataFrame(message_sources.about(found), receipt_join.ABOUT)
    groups = {**message_sources.offsets(found), **options.offsets}
    say(f"scanning {plural(len(found), 'queue')}")
    rows = receipt_join.matched(
        message_sources.sealed(receipt_join.promised(receipts, about), found),
        receipt_join.present(message_sources.stored(found), message_sources.archived(found)),
        [_offsets(spark, offsets) for offsets in groups.values()],
        now=message_sources.now,
        late=options.late,
        margin=options.margin,
    )
    with _kept(rows) as matched, _kept(receipt_join.strays(matched, receipts)) as strays:
        partitions = _accounts(matched, strays, tuple(groups), copies=options.copies)
        total = summed(account for each in partitions.values() for account in each.values())
        answered = strays.agg(f.coalesce(f.sum("answer"), f.lit(0)).alias("n")).first()
        alone = matched.where("stray").count()
        samples = _samples(matched, strays, total, options.samples)
    assert counts is not None  # noqa: S101 - an aggregate without groups has one row
    assert answered is not None  # noqa: S101 - likewise
    return Audit(
        sound=total.sound,
        total=total,
        partitions=partitions,
        lines=counts.lines,
        broken=counts.broken,
        foreign=counts.foreign,
        doubtful=counts.doubtful,
        answered=answered.n,
        strays=alone,
        samples=tuple(samples),
        at=message_sources.now,
    )


def _check_receipts(options: AuditOptions, queues: set[str]) -> None:
    """Refuses to find all well where nothing was promised.

    Args:
        options: Of the audit.
        queues: Queues that there are receipts of, by their names in the store.

    Raises:
        OptionError: There are no receipts at all, or none of a queue that is named.
    """
    if not queues and not options.queues:
        raise OptionError("There are no receipts in these files, at least none of this application.")
    for name in options.queues:
        if options.names.get(name, name) not in queues:
            raise OptionError(f"There are no receipts of queue {name!r} in these files.")


def summed(found: Iterable[Account]) -> Account:
    """Adds accounts up."""
    listed = list(found)
    groups: dict[str, Passed] = {}
    for account in listed:
        for name, one in account.groups.items():
            sum_ = groups.get(name, Passed(0, 0, 0))
            groups[name] = Passed(sum_.passed + one.passed, sum_.waiting + one.waiting, sum_.expired + one.expired)
    numbers = {name: sum(getattr(account, name) for account in listed) for name in (*FLAGS, "copies")}
    return Account(**numbers, groups=groups)


def _offsets(spark: SparkSession, offsets: Mapping[str, Mapping[int, Position]]) -> DataFrame:
    rows = [
        (queue, partition, columns.text_of(position))
        for queue, each in offsets.items()
        for partition, position in each.items()
    ]
    return spark.createDataFrame(rows, receipt_join.OFFSETS)


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Caches a DataFrame while it is used several times."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _accounts(
    matched: DataFrame, strays: DataFrame, groups: Sequence[str], *, copies: bool
) -> dict[str, dict[int, Account]]:
    from pyspark.sql import functions as f

    key_columns = ["queue", "partition"]
    passed = [
        column
        for number in range(len(groups))
        for column in (
            f.sum(f"passed_{number}").alias(f"passed_{number}"),
            f.sum(f.col("present") * (1 - f.col(f"passed_{number}"))).alias(f"waiting_{number}"),
            f.sum(f.col("expired") * (1 - f.col(f"passed_{number}"))).alias(f"expired_{number}"),
        )
    ]
    counted = matched.groupBy(*key_columns).agg(*(f.sum(flag).alias(flag) for flag in FLAGS), *passed)
    alike = strays.groupBy(*key_columns).agg(f.sum("copy").alias("copies"))
    found: dict[str, dict[int, Account]] = {}
    for row in counted.join(alike, key_columns, "left").collect():
        numbers = {flag: row[flag] for flag in FLAGS}
        stands = {
            name: Passed(row[f"passed_{number}"], row[f"waiting_{number}"], row[f"expired_{number}"])
            for number, name in enumerate(groups)
        }
        account = Account(**numbers, copies=(row.copies or 0) if copies else 0, groups=stands)
        found.setdefault(row.queue, {})[row.partition] = account
    return {queue: dict(sorted(each.items())) for queue, each in sorted(found.items())}


def _samples(matched: DataFrame, strays: DataFrame, total: Account, most: int) -> list[AuditSample]:
    """Returns some messages of each kind of finding that occurs."""
    from pyspark.sql import functions as f

    frames = [(kind, matched.where(f.col(kind) == 1)) for kind in _KINDS if getattr(total, kind)]
    if total.copies:
        frames.append(("copies", strays.where("copy = 1").withColumn("at", f.lit(None).cast("double"))))
    return [
        AuditSample(
            kind=kind, queue=row.queue, partition=row.partition, id=row.id, at=row.at, sha256=bytes(row.hash).hex()
        )
        for kind, frame in frames
        for row in frame.select("queue", "partition", "id", "at", "hash").limit(most).collect()
    ]
