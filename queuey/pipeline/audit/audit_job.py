"""The job ``audit``: compares receipts with stored and archived messages, and with the offsets of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec

from queuey.model.ids import Position
from queuey.model.texts import format_count
from queuey.model.titles import instant, titled
from queuey.pipeline.audit import receipt_columns, receipt_join
from queuey.pipeline.audit.receipt_join import FLAGS
from queuey.pipeline.audit.sources import MessageSources, find_spans
from queuey.pipeline.options import AuditOptions
from queuey.spark.errors import OptionError
from queuey.spark.source import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FINDING_KINDS = ("missing", "differs", "twice", "late")


class Passed(msgspec.Struct, frozen=True):
    """Counts of accepted messages that a group has passed, that wait for it, and that expired unread."""

    passed: int
    waiting: int
    expired: int


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Counts for a partition, or for all partitions.

    Attributes:
        accepted: Messages that were accepted, according to a receipt.
        present: Accepted messages in the store or the archive.
        archived: Accepted messages in the archive.
        missing: Accepted messages that are neither present, expired nor ahead.
        expired: Accepted messages that are not present because their TTL is over.
        ahead: Accepted messages that readers cannot see yet: delayed, or too recent.
        copies: Messages without a receipt with the same body as an accepted message of their queue.
        twice: Ids that the store or the archive has more than once.
        differs: Accepted messages with a stored body that no receipt has.
        late: Accepted messages whose answer came long after their id's time; readers may have passed them.
        maybe: Ids of receipts of unknown outcome.
        found: Present messages among those in ``maybe``.
        groups: Group -> its progress.
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
    """A message with a finding.

    Attributes:
        kind: ``missing``, ``differs``, ``twice``, ``copies`` or ``late``.
        at: When it was accepted, in seconds since 1970; None if there is no receipt.
        sha256: First half of the SHA-256 of the stored body, or of the accepted body if it is not stored.
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
        sound: True if no message is missing, duplicated or altered.
        total: Counts over all partitions.
        partitions: Queue -> partition -> counts.
        lines: Number of lines of receipts.
        broken: Number of lines that could not be read.
        foreign: Number of lines of other applications.
        doubtful: Number of sends of unknown outcome without an id.
        answered: Number of messages that match such sends.
        strays: Number of messages without a receipt, including copies.
        samples: Some messages for each kind of finding.
        at: When the audit began, in seconds since 1970.
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


def run(spark: SparkSession, options: AuditOptions, report_progress: Callable[[str], None] = lambda _: None) -> Audit:
    """Compares receipts with messages.

    Raises:
        OptionError: The options are not valid, or there are no receipts.
        ArchiveDamaged: There is no archive, or it is damaged.
        StoreUnavailable: The store does not answer.
    """
    from pyspark.sql import functions as f

    report_progress("reading receipts")
    message_sources = MessageSources(
        spark, options.store, archive=options.archive, only_archive=options.only_archive, groups=options.groups
    )
    lines = receipt_columns.read_receipts(spark, options.receipts)
    ours = ~f.col("broken") & (f.col("app").isNull() | (f.col("app") == message_sources.application))
    selected = f.col("queue").isin(list(options.queues)) if options.queues else f.lit(col=True)
    receipts = lines.where(ours & selected).withColumn("queue", receipt_columns.rename_queues("queue", options.names))
    counts = lines.agg(
        f.count("*").alias("lines"),
        f.count_if("broken").alias("broken"),
        f.count_if(~f.col("broken") & ~ours).alias("foreign"),
        f.count_if(ours & selected & f.col("unknown") & f.col("id").isNull()).alias("doubtful"),
    ).first()
    queue_spans = find_spans(receipts)
    _check_receipts(options, {span.queue for span in queue_spans})
    # Horizons are read first, so all messages below them exist when the queues are read.
    about = spark.createDataFrame(message_sources.describe_queues(queue_spans), receipt_join.QUEUES_SCHEMA)
    groups = message_sources.read_offsets(queue_spans)
    report_progress(f"scanning {format_count(len(queue_spans), 'queue')}")
    rows = receipt_join.classify_ids(
        message_sources.add_sealed(receipt_join.find_promised(receipts, about), queue_spans),
        receipt_join.join_present(message_sources.read_stored(queue_spans), message_sources.read_archived(queue_spans)),
        [_offsets_frame(spark, offsets) for offsets in groups.values()],
        now=message_sources.now,
        late=options.late,
        margin=options.margin,
    )
    with _persisted(rows) as matched, _persisted(receipt_join.find_copies(matched, receipts)) as strays:
        partitions = _count_by_partition(matched, strays, tuple(groups), copies=options.copies)
        total = sum_accounts(account for accounts in partitions.values() for account in accounts.values())
        answered = strays.agg(f.coalesce(f.sum("answer"), f.lit(0)).alias("n")).first()
        alone = matched.where("stray").count()
        samples = _collect_samples(matched, strays, total, options.samples)
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
    """Checks that there are receipts, because an audit without receipts would find nothing wrong.

    Args:
        options: The options of the audit.
        queues: Queues with receipts, by their names in the store.

    Raises:
        OptionError: There are no receipts, or a named queue has no receipts.
    """
    if not queues and not options.queues:
        raise OptionError("There are no receipts of this application in these files.")
    for name in options.queues:
        if options.names.get(name, name) not in queues:
            raise OptionError(f"There are no receipts of queue {name!r} in these files.")


def sum_accounts(accounts: Iterable[Account]) -> Account:
    listed = list(accounts)
    groups: dict[str, Passed] = {}
    for account in listed:
        for name, more in account.groups.items():
            sum_ = groups.get(name, Passed(0, 0, 0))
            groups[name] = Passed(sum_.passed + more.passed, sum_.waiting + more.waiting, sum_.expired + more.expired)
    numbers = {name: sum(getattr(account, name) for account in listed) for name in (*FLAGS, "copies")}
    return Account(**numbers, groups=groups)


def _offsets_frame(spark: SparkSession, offsets: Mapping[str, Mapping[int, Position]]) -> DataFrame:
    rows = [
        (queue, partition, columns.position_text(position))
        for queue, positions in offsets.items()
        for partition, position in positions.items()
    ]
    return spark.createDataFrame(rows, receipt_join.OFFSETS_SCHEMA)


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[DataFrame]:
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _count_by_partition(
    matched: DataFrame, strays: DataFrame, groups: Sequence[str], *, copies: bool
) -> dict[str, dict[int, Account]]:
    """Returns queue -> partition -> counts. If ``copies`` is False, equal bodies do not count as copies."""
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
    accounts: dict[str, dict[int, Account]] = {}
    for row in counted.join(alike, key_columns, "left").collect():
        numbers = {flag: row[flag] for flag in FLAGS}
        progress_of_groups = {
            name: Passed(row[f"passed_{number}"], row[f"waiting_{number}"], row[f"expired_{number}"])
            for number, name in enumerate(groups)
        }
        account = Account(**numbers, copies=(row.copies or 0) if copies else 0, groups=progress_of_groups)
        accounts.setdefault(row.queue, {})[row.partition] = account
    return {queue: dict(sorted(by_partition.items())) for queue, by_partition in sorted(accounts.items())}


def _collect_samples(matched: DataFrame, strays: DataFrame, total: Account, max_samples: int) -> list[AuditSample]:
    from pyspark.sql import functions as f

    frames = [(kind, matched.where(f.col(kind) == 1)) for kind in _FINDING_KINDS if getattr(total, kind)]
    if total.copies:
        frames.append(("copies", strays.where("copy = 1").withColumn("at", f.lit(None).cast("double"))))
    return [
        AuditSample(
            kind=kind, queue=row.queue, partition=row.partition, id=row.id, at=row.at, sha256=bytes(row.hash).hex()
        )
        for kind, frame in frames
        for row in frame.select("queue", "partition", "id", "at", "hash").limit(max_samples).collect()
    ]
