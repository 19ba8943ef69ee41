"""What the jobs can be asked for. The options of the command line stand with the structs; nothing here needs Spark."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from queuey.ids import FIRST, LAST, Position
from queuey.messages import MAX_TTL
from queuey.pipeline.sql_text import check_condition, check_query
from queuey.spark.errors import OptionError
from queuey.spark.options import DEFAULT_LEAD, MAX_LEAD, MAX_NAME, Assign, Pattern, Selection, StoreOptions, Subscribe
from queuey.terminal.struct_options import option

HOUR = 3600
MAX_WIDTH = 31 * 86_400
"""Max width of a bucket, in seconds."""
MAX_LATE = 31 * 86_400.0
"""Max time until an answer, and margin of an audit, in seconds."""
MAX_SAMPLES = 10_000
"""Max messages that an audit names for each finding."""
MAX_INTERVAL = 86_400.0
"""Max time between two observations or micro-batches, in seconds."""
RANGE_SIZE = 5000
"""Number of queues in a task: some seconds of work, so that no task runs alone for long at the end."""
VIEW = "messages"
"""The view from which the query of a pipe selects."""
LAG, GROUPS = "How far groups are behind", "What groups have passed"
Mode = Literal["append", "update"]


def check_width(seconds: float) -> None:
    """Refuses widths of buckets that are not whole seconds, from 1 s to 31 days.

    Raises:
        OptionError: See above.
    """
    if seconds != int(seconds) or not 1 <= seconds <= MAX_WIDTH:
        raise OptionError(f"a bucket is a whole number of seconds wide, from 1 s to 31 d, not {seconds:g} s")


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Queues to archive, and the archive to write.

    Attributes:
        to: Directory or URL of the archive, the same on all of Spark's machines.
        seconds (1h): Time span of one bucket: 1h, 15m, 1d.
        verify: Scan the store a second time and compare.
        again: Scan archived buckets again, and add missing messages.
        dry_run: Only find out what would be archived.
    """

    store: StoreOptions
    selection: Selection
    to: Annotated[str, option()]
    seconds: Annotated[int, option("--bucket", seconds=True)] = HOUR
    verify: Annotated[bool, option()] = True
    again: Annotated[bool, option()] = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_width(self.seconds)


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to replay, and their targets.

    Attributes:
        archive: Directory or URL of the archive.
        into (queues of the same names): The target queue.
        existing: The target may exist already.
        fresh: Give messages new ids, in their old order, so that readers get them.
        lower, upper: Positions of the old ids: what lies in ``[lower, upper)``.
        where: Only messages that match this condition, in Spark's SQL.
        partitions (as archived): Partitions of a new queue.
        ttl (the queue's): Time to live of the messages, from now on.
        keep_expiry: Messages keep their time of expiry; expired ones are left out.
        rate (0): Most messages per second; 0: no limit.
        lead: Seconds by which fresh ids lie ahead of the clock: what a task may take for a few thousand messages.
        run (derived): Name of this replay: under one name each message is written once.
        dry_run: Only find out what would be written.
    """

    store: StoreOptions
    archive: Annotated[str, option(argument=True)]
    selection: Selection
    into: Annotated[str | None, option()] = None
    existing: Annotated[bool, option()] = False
    fresh: Annotated[bool, option()] = False
    lower: Position = FIRST
    upper: Position = LAST
    where: Annotated[str | None, option()] = None
    partitions: Annotated[int | None, option(ge=1)] = None
    ttl: Annotated[int | None, option(seconds=True, ge=1, le=MAX_TTL)] = None
    keep_expiry: Annotated[bool, option()] = False
    rate: Annotated[float, option(ge=0)] = 0.0
    lead: float = DEFAULT_LEAD
    run: Annotated[str | None, option()] = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.keep_expiry and self.ttl is not None:
            raise OptionError("either messages keep when they expire, or they get a TTL")
        if self.ttl is not None and not 1 <= self.ttl <= MAX_TTL:
            raise OptionError(f"a TTL is 1 to {MAX_TTL} seconds")
        if self.lower >= self.upper:
            raise OptionError("a replay has to end after it begins")
        if self.run is not None and not 0 < len(self.run) <= MAX_NAME:
            raise OptionError(f"the name of a run has 1 to {MAX_NAME} characters")
        if self.into is not None:
            from queuey.spark import open_stores

            open_stores.check_name(self.into)
        if self.where is not None:
            check_condition(self.where)


class Pipe(msgspec.Struct, frozen=True, kw_only=True):
    """Source, transform and target.

    Attributes:
        store: The store of all queues.
        source: The queues that are read.
        target: The queue that is written to. If it is None, each row's column ``queue`` names one.
        sql: A SELECT from the view ``messages``.
        function: module:function, which gets a DataFrame and returns one.
        checkpoint: The directory in which Spark keeps how far the stream is.
        start: Where a stream without a checkpoint begins: ``earliest``, ``latest``, or seconds since 1970.
        group: Record progress as offsets of this consumer group.
        once: Move the messages that are there now, and end.
        every (1s): Time between micro-batches.
        most: Most messages of one micro-batch.
        create: Create the queue if it does not exist.
        partitions (the source's): Partitions of a new queue.
        ttl (the queue's): Time to live of the messages.
        lead (10s): How far ahead ids are reserved; readers wait this long.
        watermark: How late messages may be for groups by time, as Spark writes it: ``10 minutes``.
        mode: Give groups when they are complete (``append``) or whenever they change (``update``).
    """

    store: StoreOptions
    source: Selection
    target: str | None
    sql: str | None = None
    function: Annotated[str | None, option()] = None
    checkpoint: str
    start: str | float = "latest"
    group: Annotated[str | None, option()] = None
    once: Annotated[bool, option()] = False
    every: Annotated[float, option(seconds=True, le=MAX_INTERVAL)] = 1.0
    most: Annotated[int | None, option(ge=1)] = None
    create: Annotated[bool, option()] = False
    partitions: Annotated[int | None, option(ge=1)] = None
    ttl: Annotated[int | None, option(seconds=True, ge=1, le=MAX_TTL)] = None
    lead: Annotated[float, option(seconds=True, ge=0.1, le=MAX_LEAD)] = DEFAULT_LEAD
    watermark: str | None = None
    mode: Mode = "append"

    def __post_init__(self) -> None:
        if (self.sql is None) == (self.function is None):
            raise OptionError("a pipe has one transform: SQL or a function")
        if self.target is None and self.create:
            raise OptionError("only a queue that is named can be created")
        if (
            isinstance(self.source, Pattern)
            and self.target is not None
            and re.fullmatch(self.source.regex, self.target)
        ):
            raise OptionError(f"queue {self.target} would be read again: the pattern takes it, too")
        if isinstance(self.source, Subscribe) and self.target in self.source.names:
            raise OptionError(f"queue {self.target} cannot be read and written by the same pipe")
        if self.sql is not None:
            check_query(self.sql, VIEW)


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Receipts and the messages to compare them with.

    Attributes:
        receipts: Files of receipts, directories or globs; where Spark's tasks find them.
        store: Where the queues are.
        archive: Directory of queuey pipeline archive; messages in it count as present, too.
        only_archive: Do not read the store.
        queues (all): Only receipts of this queue; several may be given.
        names: Queues that are stored under another name: as in the receipts -> as stored.
        groups: A group with offsets in the store; several may be given.
        offsets: Offsets that the store does not have, by the name of their group.
        late (the queue's read delay, or 5s if it has none): Answers this long after the id's time count as late.
        margin (60s): How long before its expiry a message may be missing: the duration of an audit.
        copies: Producers send equal bodies on purpose, so they are not duplicates.
        samples: Number of messages to name for each finding.
    """

    receipts: Annotated[tuple[str, ...], option(argument=True)]
    store: StoreOptions
    archive: Annotated[str | None, option()] = None
    only_archive: Annotated[bool, option()] = False
    queues: Annotated[tuple[str, ...], option("--queue")] = ()
    names: dict[str, str] = {}
    groups: Annotated[tuple[str, ...], option("--group", panel=GROUPS)] = ()
    offsets: dict[str, dict[str, dict[int, Position]]] = {}
    late: Annotated[float | None, option(seconds=True, ge=0.001, le=MAX_LATE)] = None
    margin: Annotated[float, option(seconds=True, le=MAX_LATE)] = 60.0
    copies: Annotated[bool, option(" /--equal-bodies")] = True
    samples: Annotated[int, option(ge=0, le=MAX_SAMPLES)] = 10

    def __post_init__(self) -> None:
        if not self.receipts:
            raise OptionError("An audit needs files of receipts.")
        if self.only_archive and self.archive is None:
            raise OptionError("An audit of an archive alone needs the archive.")
        if self.only_archive and self.groups:
            raise OptionError("Offsets of groups are in the store, and only the archive is to be looked into.")
        if (self.late is not None and self.late <= 0) or self.margin < 0 or self.samples < 0:
            raise OptionError("Lengths of time and numbers are positive.")


class StatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Queues to measure.

    Attributes:
        selection: Which queues. If it is None, all of the application.
        top: Length of the lists.
        recent: Also count what the deepest queues got in the last minute and hour.
        size: Queues of one task, about.
    """

    store: StoreOptions
    selection: Selection | None = None
    top: Annotated[int, option(ge=0)] = 10
    recent: bool = True
    size: int = RANGE_SIZE

    def __post_init__(self) -> None:
        if isinstance(self.selection, Assign):
            raise OptionError("Queues are measured whole: assign names partitions.")
        if self.top < 0 or self.size < 1:
            raise OptionError("A list has no negative length, and a task at least one queue.")


class LagOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Groups and queues to measure.

    Attributes:
        selection: Which queues. If it is None, all of the application.
        groups (all): Only this group; several may be given.
        offsets: Offsets that the store does not have, of the one group in ``groups``.
        within (1h): Time span of the forecast of messages that expire unread.
        sample (0): Measure twice, this far apart, to see whether groups keep up; 0: once.
        top: How many partitions are listed, those in greatest danger first.
        size: Queues of one task, about.
    """

    store: StoreOptions
    selection: Selection | None = None
    groups: Annotated[tuple[str, ...], option("--group", panel=LAG)] = ()
    offsets: dict[str, dict[int, Position]] | None = None
    within: Annotated[float, option(seconds=True, ge=1, le=MAX_TTL, panel=LAG)] = 3600.0
    sample: Annotated[float, option(seconds=True, le=MAX_INTERVAL, panel=LAG)] = 0.0
    top: int = 100
    size: int = RANGE_SIZE

    def __post_init__(self) -> None:
        if isinstance(self.selection, Assign):
            raise OptionError("The lag is measured for whole queues, but assign names partitions.")
        if self.offsets is not None and self.sample:
            raise OptionError("A file of offsets stands still: --sample is for groups that the store knows.")
        if self.offsets is not None and len(self.groups) > 1:
            raise OptionError("A file of offsets is of one group.")
        if self.within <= 0 or self.sample < 0 or self.top < 0 or self.size < 1:
            raise OptionError("Lengths of time and numbers are positive.")
