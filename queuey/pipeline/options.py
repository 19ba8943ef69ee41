"""Options of the jobs. The structs also define the options of the command line. Needs no Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from queuey.model.ids import FIRST, LAST, Position
from queuey.model.messages import MAX_TTL, is_readable
from queuey.model.titles import option
from queuey.spark.errors import OptionError
from queuey.spark.options import DEFAULT_LEAD, MAX_LEAD, MAX_NAME, Assign, Pattern, Selection, StoreOptions, Subscribe

_TOKEN = re.compile(
    r"""
    [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | --[^\n]* | /\*.*?\*/ | \s+
    | `(?P<quoted>(?:[^`]|``)*)` | (?P<open>['"`]|/\*) | (?P<word>\w+) | (?P<mark>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_FIRST_WORDS = frozenset({"select", "with", "from", "values", "table"})
HOUR = 3600
MAX_WIDTH = 31 * 86_400
"""Max width of a bucket, in seconds."""
MAX_LATE = 31 * 86_400.0
"""Max time until an answer, and margin of an audit, in seconds."""
MAX_SAMPLES = 10_000
"""Max messages that an audit names for each finding."""
MAX_INTERVAL = 86_400.0
"""Max time between two observations or micro-batches, in seconds."""
MAX_RANGE_SIZE = 5000
"""Number of queues in a task: a few seconds of work, so that no task runs alone for long at the end."""
VIEW_NAME = "messages"
"""The view from which the query of a pipe selects."""
LAG_PANEL, GROUPS_PANEL = "How far groups are behind", "What groups have passed"
Mode = Literal["append", "update"]


def check_query(text: str, view: str) -> None:
    """Checks that a text can be one query of a view.

    Raises:
        OptionError: The text does not begin like a query, does not name the view, or is incomplete.
    """
    words = list(_words(text))
    if not words:
        raise OptionError("the SQL is empty: it has to be a SELECT")
    if words[0].lower() not in _FIRST_WORDS:
        raise OptionError(f"the SQL begins with {words[0]!r}: it has to be a SELECT")
    if view not in {word.lower() for word in words}:
        raise OptionError(f"the SQL does not name the view {view}, so it does not read the stream of messages")


def check_condition(text: str) -> None:
    """Checks that a text can be one expression.

    Raises:
        OptionError: The text is empty or incomplete.
    """
    if not list(_words(text)):
        raise OptionError("the condition is empty")


def _words(text: str) -> Iterator[str]:
    """Yields words, and quoted names without their quotes, in order and as written.

    Raises:
        OptionError: A quote, comment or parenthesis is not balanced, or a second statement follows.
    """
    opened: list[int] = []
    ended = False
    for token in _TOKEN.finditer(text):
        if token["open"]:
            raise OptionError(f"{token['open']} in {_quote_around(text, token.start())} is never closed")
        word = token["word"] or token["quoted"]
        if ended and (word or token["mark"] not in {None, ";"}):
            raise OptionError(
                f"there is more after ; in {_quote_around(text, token.start())}: only one statement is allowed"
            )
        if word:
            yield word
        match token["mark"]:
            case "(":
                opened.append(token.start())
            case ")" if not opened:
                raise OptionError(f") in {_quote_around(text, token.start())} closes nothing")
            case ")":
                opened.pop()
            case ";":
                ended = True
    if opened:
        raise OptionError(f"( in {_quote_around(text, opened[-1])} is never closed")


def _quote_around(text: str, index: int) -> str:
    return repr(" ".join(text[max(0, index - 20) : index + 20].split()))


def check_width(seconds: float) -> None:
    """Checks the width of buckets.

    Raises:
        OptionError: The width is not a whole number of seconds from 1 s to 31 days.
    """
    if seconds != int(seconds) or not 1 <= seconds <= MAX_WIDTH:
        raise OptionError(f"the width of a bucket is a whole number of seconds, from 1 s to 31 d, not {seconds:g} s")


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Queues to archive, and the archive to write.

    Attributes:
        to: Directory or URL of the archive, the same on all of Spark's machines.
        seconds (1h): Time span of one bucket: 1h, 15m, 1d.
        verify: Scan the store a second time and compare.
        again: Scan archived buckets again, and add missing messages.
        dry_run: Only show what would be archived.
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
        lower, upper: Only messages with old positions in ``[lower, upper)``.
        where: Only messages that match this condition, in Spark's SQL.
        partitions (as archived): Partitions of a new queue.
        ttl (the queue's): Time to live of the messages, from now on.
        keep_expiry: Messages keep their time of expiry; expired ones are left out.
        rate (0): Max messages per second; 0 means no limit.
        lead: Seconds by which fresh ids are ahead of the clock: the time a task needs for a few thousand messages.
        run (derived): Name of this replay; repeated runs with one name write each message once.
        dry_run: Only show what would be written.
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
            raise OptionError("messages keep their expiry or get a TTL, not both")
        if self.ttl is not None and not 1 <= self.ttl <= MAX_TTL:
            raise OptionError(f"a TTL is 1 to {MAX_TTL} seconds")
        if self.lower >= self.upper:
            raise OptionError("the end of a replay has to be after its start")
        if self.run is not None and (not 0 < len(self.run) <= MAX_NAME or not is_readable(self.run)):
            raise OptionError(f"the name of a run has 1 to {MAX_NAME} characters that show")
        if self.into is not None:
            from queuey.spark import open_stores

            open_stores.check_name(self.into)
        if self.where is not None:
            check_condition(self.where)


class Pipe(msgspec.Struct, frozen=True, kw_only=True):
    """Source, transform and target.

    Attributes:
        store: The store of all queues.
        source: The queues to read.
        target: The queue to write to. If it is None, each row's column ``queue`` names its queue.
        sql: A SELECT from the view ``messages``.
        function: module:function, which gets a DataFrame and returns one.
        checkpoint: The directory in which Spark records the progress of the stream.
        start: Where a stream without a checkpoint begins: ``earliest``, ``latest``, or seconds since 1970.
        group: Record progress as offsets of this consumer group.
        once: Move the messages that exist now, and end.
        every (1s): Time between micro-batches.
        most: Max messages in one micro-batch.
        create: Create the queue if it does not exist.
        partitions (the source's): Partitions of a new queue.
        ttl (the queue's): Time to live of the messages.
        lead (10s): How far ahead of the clock ids are reserved; readers wait this long.
        watermark: Max lateness of messages for groups by time, as in Spark: ``10 minutes``.
        mode: Write groups when they are complete (``append``) or whenever they change (``update``).
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
            raise OptionError("create needs the name of the target queue")
        if (
            isinstance(self.source, Pattern)
            and self.target is not None
            and re.fullmatch(self.source.regex, self.target)
        ):
            raise OptionError(f"queue {self.target} would be read again: the pattern matches it, too")
        if isinstance(self.source, Subscribe) and self.target in self.source.names:
            raise OptionError(f"queue {self.target} cannot be read and written by the same pipe")
        if self.sql is not None:
            check_query(self.sql, VIEW_NAME)


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Receipts and the messages to compare them with.

    Attributes:
        receipts: Files of receipts, directories or globs, readable for Spark's tasks.
        store: The store of the queues.
        archive: Directory of queuey pipeline archive; messages in it count as present, too.
        only_archive: Do not read the store.
        queues (all): Only receipts of this queue; several may be given.
        names: Renamed queues: name in the receipts -> name in the store.
        groups: A group with offsets in the store; several may be given.
        late (the queue's read delay, or 5s if it has none): Answers this long after the id's time count as late.
        margin (60s): How long before its expiry a message may be missing: the duration of an audit.
        copies: Producers send equal bodies on purpose, so they are not duplicates.
        samples: Number of messages to show for each finding.
    """

    receipts: Annotated[tuple[str, ...], option(argument=True)]
    store: StoreOptions
    archive: Annotated[str | None, option()] = None
    only_archive: Annotated[bool, option()] = False
    queues: Annotated[tuple[str, ...], option("--queue")] = ()
    names: dict[str, str] = {}
    groups: Annotated[tuple[str, ...], option("--group", panel=GROUPS_PANEL)] = ()
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
            raise OptionError("Offsets of groups are in the store, but only the archive is to be read.")
        if (self.late is not None and self.late <= 0) or self.margin < 0 or self.samples < 0:
            raise OptionError("Durations and numbers have to be positive.")


class StatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Queues to measure.

    Attributes:
        selection: The queues; all queues of the application if it is None.
        top: Length of the lists.
        recent: Also count the messages that the deepest queues received in the last minute and hour.
        size: Approximate number of queues in a task.
    """

    store: StoreOptions
    selection: Selection | None = None
    top: Annotated[int, option(ge=0)] = 10
    recent: bool = True
    size: int = MAX_RANGE_SIZE

    def __post_init__(self) -> None:
        if isinstance(self.selection, Assign):
            raise OptionError("Only whole queues are measured, but assign names partitions.")
        if self.top < 0 or self.size < 1:
            raise OptionError("The length of a list cannot be negative, and a task has at least one queue.")


class LagOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Groups and queues to measure.

    Attributes:
        selection: The queues; all queues of the application if it is None.
        groups (all): Only this group; several may be given.
        within (1h): Time span of the forecast of messages that expire unread.
        sample (0): Measure twice, this far apart, to see whether groups keep up; 0 means once.
        top: Number of partitions to list, the most endangered first.
        size: Approximate number of queues in a task.
    """

    store: StoreOptions
    selection: Selection | None = None
    groups: Annotated[tuple[str, ...], option("--group", panel=LAG_PANEL)] = ()
    within: Annotated[float, option(seconds=True, ge=1, le=MAX_TTL, panel=LAG_PANEL)] = 3600.0
    sample: Annotated[float, option(seconds=True, le=MAX_INTERVAL, panel=LAG_PANEL)] = 0.0
    top: int = 100
    size: int = MAX_RANGE_SIZE

    def __post_init__(self) -> None:
        if isinstance(self.selection, Assign):
            raise OptionError("The lag is measured for whole queues, but assign names partitions.")
        if self.within <= 0 or self.sample < 0 or self.top < 0 or self.size < 1:
            raise OptionError("Durations and numbers have to be positive.")
