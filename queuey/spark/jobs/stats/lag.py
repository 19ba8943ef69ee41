"""How far consumer groups are behind, and what TTL will take before they read it.

A task goes through a range of queues and observes each group in each partition: how much is unread, how old it is, how
long it lives. With ``sample`` two observations some seconds apart give the rates at which messages come and are read;
with one it is assumed that the group stands still and no messages come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from queuey import ids
from queuey.errors import GroupNotFound, QueueChanged, QueueNotFound
from queuey.ids import FIRST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import Queue, Slice
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.jobs import name_ranges, tasks
from queuey.spark.jobs.name_ranges import RANGE, NameRange
from queuey.spark.jobs.offset_files import Offsets
from queuey.spark.jobs.stats.ttl_forecast import Backlog, Forecast, forecast
from queuey.spark.options import Assign, Selection, StoreOptions, Subscribe
from queuey.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_COUNTED = 1_000_000
"""Messages of one partition that are counted between two observations."""
FROM_FILE = "from file"
"""What the group of a file of offsets is called unless it is named."""


class LagOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is observed.

    Attributes:
        selection: Which queues; None: all of the application.
        groups: Only these groups; empty: all that have offsets.
        offsets: Offsets that the store does not have, of the one group in ``groups``.
        within: Seconds of the forecast.
        sample: Seconds between two observations; 0: one observation.
        top: How many partitions are listed, those in greatest danger first.
        size: Queues of one task, about.
    """

    store: StoreOptions
    selection: Selection | None = None
    groups: tuple[str, ...] = ()
    offsets: dict[str, dict[int, Position]] | None = None
    within: float = 3600.0
    sample: float = 0.0
    top: int = 100
    size: int = RANGE

    def __post_init__(self) -> None:
        if isinstance(self.selection, Assign):
            raise OptionError("The lag is measured for whole queues, but assign names partitions.")
        if self.offsets is not None and self.sample:
            raise OptionError("A file of offsets stands still: --sample is for groups that the store knows.")
        if self.offsets is not None and len(self.groups) > 1:
            raise OptionError("A file of offsets is of one group.")
        if self.within <= 0 or self.sample < 0 or self.top < 0 or self.size < 1:
            raise OptionError("Lengths of time and numbers are positive.")


class GroupObservation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group in a partition, at one moment.

    Attributes:
        position: Everything up to it was processed; the first of all: nothing was.
        count: Messages above it; ``exact``: counted, else estimated.
        oldest, newest: Ages of the first and the last of these, in seconds.
        ttl: Seconds that the first of them lives, from its id on.
        horizon: Below it everything was seen (ticks).
        at: The store's clock (ticks).
    """

    queue: str
    partition: int
    group: str
    position: Position
    count: int
    exact: bool
    oldest: float
    newest: float
    ttl: float
    horizon: int
    at: int


class ObservedRates(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened between two observations: the second one, and messages a second that came and were read."""

    last: GroupObservation
    arriving: float
    reading: float


class Behind(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a partition.

    Attributes:
        offset: The id up to which everything was processed; None: nothing was.
        messages: Unread; ``exact``: counted, else estimated.
        seconds: Age of the oldest unread message.
        arriving, reading: Messages a second; None: not measured.
        forecast: Messages that expire unread.
    """

    queue: str
    partition: int
    group: str
    offset: str | None
    messages: int
    exact: bool
    seconds: float
    arriving: float | None
    reading: float | None
    forecast: Forecast


class LagReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        partitions: Pairs of a group and a partition that were measured.
        behind: How many of them have unread messages.
        messages: Unread in all of them; ``exact``: counted.
        lost: Messages that expire unread in the forecast.
        first: Seconds until the first of these goes; None: none does.
        rows: Those in greatest danger: by when the first message goes, then by how many are unread.
        within: Seconds of the forecast.
        sample: Seconds between two observations; 0: groups are taken to stand still.
        at: When it was observed, seconds since 1970.
    """

    partitions: int
    behind: int
    messages: int
    exact: bool
    lost: int
    first: float | None
    rows: tuple[Behind, ...]
    within: float
    sample: float
    at: float


def run(
    spark: SparkSession,
    options: LagOptions,
    say: Callable[[str], None] = lambda _: None,
    wait: Callable[[float], object] = time.sleep,
) -> LagReport:
    """Measures the lag of groups.

    Args:
        spark: The session.
        options: What to measure.
        say: Called with the progress.
        wait: Waits so many seconds.

    Raises:
        OptionError: The options cannot be used.
        QueueNotFound: A queue that is named is not there.
        StoreUnavailable: The store does not answer.
    """
    store = open_stores.opened(options.store)
    say("listing queues")
    payloads = _payloads(options)
    say(f"observing, in {len(payloads):,} tasks")
    observe = partial(_observe, options.store, options.groups)
    found = [msgspec.msgpack.decode(one, type=GroupObservation) for one in tasks.values(spark, observe, payloads)]
    if options.sample:
        say(f"observing again in {options.sample:g} s")
        wait(options.sample)
        behind = _again(spark, options, found)
    else:
        behind = [_judged(one, options.within) for one in found]
    return summed_up(behind, options, ids.ticks_to_seconds(store.now()))


def summed_up(behind: Sequence[Behind], options: LagOptions, at: float) -> LagReport:
    """Puts what was found into a report. Pure."""
    unread = [one for one in behind if one.messages]
    ordered = sorted(unread, key=_danger)
    firsts = [one.forecast.first for one in unread if one.forecast.first is not None]
    return LagReport(
        partitions=len(behind),
        behind=len(unread),
        messages=sum(one.messages for one in unread),
        exact=all(one.exact for one in unread),
        lost=sum(one.forecast.lost for one in unread),
        first=min(firsts, default=None),
        rows=tuple(ordered[: options.top]),
        within=options.within,
        sample=options.sample,
        at=at,
    )


def _danger(one: Behind) -> tuple[float, int, str, int, str]:
    first = one.forecast.first
    return float("inf") if first is None else first, -one.messages, one.queue, one.partition, one.group


def _payloads(options: LagOptions) -> list[bytes]:
    if options.offsets is None:
        if options.selection is not None:
            name_ranges.check(options.store, options.selection)
        parts = name_ranges.name_ranges_of(options.store, options.selection, options.size)
        return [msgspec.msgpack.encode((part, None)) for part in parts]
    names = set(options.offsets)
    if options.selection is not None:
        names &= {queue.name for queue in open_stores.selected(options.store, options.selection)}
    parts = name_ranges.name_ranges_of(options.store, Subscribe(tuple(sorted(names))), options.size)
    return [msgspec.msgpack.encode((part, {name: options.offsets[name] for name in part.names})) for part in parts]


def _observe(options: StoreOptions, groups: tuple[str, ...], payload: bytes) -> Iterator[bytes]:
    """Does the work of one task: observes every group in every queue of a stretch."""
    stretch, given = msgspec.msgpack.decode(payload, type=tuple[NameRange, dict[str, dict[int, Position]] | None])
    store = open_stores.opened(options)
    default_ttl = open_stores.settings_of(options).default_ttl
    for queues in name_ranges.queues(options, stretch):
        for queue in queues:
            try:
                for group, positions in _groups(store, queue, groups, given):
                    for one in observed(store, queue, group, positions, queue.ttl or default_ttl):
                        yield msgspec.msgpack.encode(one)
            except (QueueChanged, QueueNotFound):
                continue


def _groups(
    store: Store, queue: Queue, groups: tuple[str, ...], given: Offsets | None
) -> Iterator[tuple[str, Mapping[int, Position]]]:
    """Returns the groups to measure in a queue, with their offsets by partition."""
    if given is not None:
        yield groups[0] if groups else FROM_FILE, given[queue.name]
        return
    for group in groups or store.groups(queue):
        try:
            yield group, {offset.partition: offset.position for offset in store.offsets(queue, group)}
        except GroupNotFound:
            continue


def observed(
    store: Store, queue: Queue, group: str, positions: Mapping[int, Position], ttl: float
) -> Iterator[GroupObservation]:
    """Observes a group in all partitions of a queue.

    Args:
        store: Where the queue is.
        queue: It.
        group: The group's name.
        positions: Its offsets; of other partitions nothing was processed.
        ttl: Seconds that messages live of which the store does not say.
    """
    # The clock goes first: what is found is not younger than it.
    horizon, at = store.horizon(queue), store.now()
    newest = {info.partition: info.newest for info in store.inspect(queue)[1]}
    places = [(number, positions.get(number)) for number in range(1, queue.partitions + 1)]
    for (number, position), lag in zip(places, store.lag(queue, places), strict=True):
        above = FIRST if position is None else ids.following(position)
        first = _first(store, queue, number, above) if lag.count else None
        begun, ends = (at, at + int(ttl * TICKS_PER_SECOND)) if first is None else first
        last = newest.get(number)
        oldest = _age(at, begun)
        yield GroupObservation(
            queue=queue.name,
            partition=number,
            group=group,
            position=FIRST if position is None else position,
            count=0 if first is None else lag.count,
            exact=lag.exact,
            oldest=oldest,
            newest=oldest if last is None else min(oldest, _age(at, last[0])),
            ttl=max(1.0, (ends - begun) / TICKS_PER_SECOND),
            horizon=horizon,
            at=at,
        )


def _first(store: Store, queue: Queue, partition: int, above: Position) -> tuple[int, int] | None:
    """Returns when the first unread message was stored and when it expires (ticks), without its body."""
    batch = next(store.scan_arrow(queue, Slice(partition, above, limit=1), bodies=False), None)
    return None if batch is None else (batch.column("ticks")[0].as_py(), batch.column("expires")[0].as_py())


def _age(at: int, ticks: int) -> float:
    return max(0.0, (at - ticks) / TICKS_PER_SECOND)


def _again(spark: SparkSession, options: LagOptions, before: Sequence[GroupObservation]) -> list[Behind]:
    """Observes the same groups once more and takes the rates from the difference."""
    by_queue: dict[str, list[GroupObservation]] = {}
    for one in before:
        by_queue.setdefault(one.queue, []).append(one)
    share = max(1, options.size // 10)
    listed = list(by_queue.values())
    payloads = [
        msgspec.msgpack.encode([one for each in listed[start : start + share] for one in each])
        for start in range(0, len(listed), share)
    ]
    found = tasks.values(spark, partial(_follow, options.store), payloads)
    moved = (msgspec.msgpack.decode(one, type=ObservedRates) for one in found)
    return [_judged(one.last, options.within, one.arriving, one.reading) for one in moved]


def _follow(options: StoreOptions, payload: bytes) -> Iterator[bytes]:
    """Does the work of one task of the second round."""
    store = open_stores.opened(options)
    default_ttl = open_stores.settings_of(options).default_ttl
    before: dict[tuple[str, str], dict[int, GroupObservation]] = {}
    for one in msgspec.msgpack.decode(payload, type=list[GroupObservation]):
        before.setdefault((one.queue, one.group), {})[one.partition] = one
    for (name, group), earlier in before.items():
        try:
            queue = open_stores.queue(store, options, name)
            positions = {offset.partition: offset.position for offset in store.offsets(queue, group)}
            for last in observed(store, queue, group, positions, queue.ttl or default_ttl):
                if last.partition in earlier:
                    yield msgspec.msgpack.encode(_moved(store, queue, earlier[last.partition], last))
        except (GroupNotFound, QueueChanged, QueueNotFound):
            continue


def _moved(store: Store, queue: Queue, first: GroupObservation, last: GroupObservation) -> ObservedRates:
    seconds = max(0.001, (last.at - first.at) / TICKS_PER_SECOND)
    read = 0
    if last.position > first.position:
        part = Slice(last.partition, ids.following(first.position), ids.following(last.position), limit=MOST_COUNTED)
        read, _ = store.extent(queue, part)
    fresh = Slice(last.partition, (first.horizon, LOW_MIN), (last.horizon, LOW_MIN), limit=MOST_COUNTED)
    came, _ = store.extent(queue, fresh) if last.horizon > first.horizon else (0, FIRST)
    return ObservedRates(last, came / seconds, read / seconds)


def _judged(
    one: GroupObservation, within: float, arriving: float | None = None, reading: float | None = None
) -> Behind:
    backlog = Backlog(
        count=one.count,
        oldest=one.oldest,
        newest=one.newest,
        ttl=one.ttl,
        arriving=arriving or 0.0,
        reading=reading or 0.0,
    )
    return Behind(
        queue=one.queue,
        partition=one.partition,
        group=one.group,
        offset=None if one.position == FIRST else ids.to_hex(one.position),
        messages=one.count,
        exact=one.exact,
        seconds=round(one.oldest if one.count else 0.0, 3),
        arriving=arriving,
        reading=reading,
        forecast=forecast(backlog, within),
    )
