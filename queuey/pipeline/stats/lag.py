"""How far consumer groups are behind, and what TTL will take before they read it.

A task goes through a range of queues and observes each group in each partition: how much is unread and how old it is,
by the store's own lag, and how long it lives. With ``sample`` the groups are observed twice, some seconds apart: the
age of the oldest unread message grows by less than these seconds if the group reads. With one observation it is assumed
that the group stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from queuey import ids
from queuey.errors import GroupNotFound, QueueChanged, QueueNotFound
from queuey.ids import FIRST, TICKS_PER_SECOND, Position
from queuey.messages import Queue, Slice
from queuey.pipeline import name_ranges, tasks
from queuey.pipeline.name_ranges import NameRange
from queuey.pipeline.offset_files import Offsets
from queuey.pipeline.options import LagOptions
from queuey.pipeline.stats.ttl_forecast import Backlog, Forecast, forecast
from queuey.spark import open_stores
from queuey.spark.options import StoreOptions, Subscribe
from queuey.storage import Store, bridge
from queuey.titles import duration, estimated, formatted, titled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FROM_FILE = "from file"
"""Default name of the group in a file of offsets."""


class GroupObservation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group in a partition, at one moment.

    Attributes:
        position: Everything up to it was processed; the first of all: nothing was.
        count: Messages above it; ``exact``: counted, else estimated.
        oldest, newest: Ages of the first and the last of these, in seconds.
        ttl: Seconds that the first of them lives, from its id on.
        read, written: Up to when messages are read, and up to when there are any: ticks of the first unread message
            (or of now), and of the last message (or 0).
        at: The store's clock in ticks.
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
    read: int
    written: int
    at: int

    @property
    def key(self) -> tuple[str, int, str]:
        return self.queue, self.partition, self.group


class Behind(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a partition.

    Attributes:
        offset: The id up to which everything was processed; None: nothing was.
        messages: Unread; ``exact``: counted, else estimated.
        seconds: Age of the oldest unread message.
        growth: Seconds by which that age grows each second; None: not measured.
        forecast: Messages that expire unread.
    """

    queue: str
    partition: int
    group: str
    offset: str | None
    messages: Annotated[int, titled("unread", estimated("exact", ","))]
    exact: bool
    seconds: Annotated[float, titled("behind", duration)]
    growth: Annotated[float | None, titled(unit=formatted(".2f"))]
    forecast: Forecast


class LagReport(msgspec.Struct, frozen=True, kw_only=True):
    """Lag of all groups.

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
    messages: Annotated[int, titled("unread messages", estimated("exact", ","))]
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
    earlier, found = {}, _observations(spark, options, payloads)
    if options.sample:
        say(f"observing again in {options.sample:g} s")
        wait(options.sample)
        earlier, found = found, _observations(spark, options, payloads)
    behind = [judged(one, earlier.get(key), options.within) for key, one in found.items()]
    return summed_up(behind, options, ids.ticks_to_seconds(bridge.run(store.ledger.now())))


def summed_up(behind: Sequence[Behind], options: LagOptions, at: float) -> LagReport:
    """Returns the report."""
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


def _observations(
    spark: SparkSession, options: LagOptions, payloads: Sequence[bytes]
) -> dict[tuple[str, int, str], GroupObservation]:
    found = tasks.values(spark, partial(_observe, options.store, options.groups), payloads)
    return {one.key: one for one in (msgspec.msgpack.decode(each, type=GroupObservation) for each in found)}


def _observe(options: StoreOptions, groups: tuple[str, ...], payload: bytes) -> Iterator[bytes]:
    """Observes every group in every queue of a range; runs in a task."""
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
    if given is not None:
        yield groups[0] if groups else FROM_FILE, given[queue.name]
        return
    for group in groups or tuple(bridge.run(store.offsets.groups(queue))):
        try:
            yield (
                group,
                {offset.partition: offset.position for offset in bridge.run(store.offsets.group_offsets(queue, group))},
            )
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
    places = [(number, positions.get(number)) for number in range(1, queue.partitions + 1)]
    newest = {info.partition: info.newest for info in bridge.run(store.messages.inspect(queue))[1]}
    now = bridge.run(store.ledger.now())
    for (number, position), lag in zip(places, bridge.run(store.messages.lag(queue, places)), strict=True):
        first = _first(store, queue, number, position) if lag.count else None
        last = newest.get(number)
        yield GroupObservation(
            queue=queue.name,
            partition=number,
            group=group,
            position=position or FIRST,
            count=lag.count if first else 0,
            exact=lag.exact,
            oldest=lag.seconds,
            newest=min(lag.seconds, max(0.0, (now - last[0]) / TICKS_PER_SECOND)) if last else lag.seconds,
            ttl=max(1.0, (first[1] - first[0]) / TICKS_PER_SECOND) if first else ttl,
            read=first[0] if first else now,
            written=last[0] if last else 0,
            at=now,
        )


def _first(store: Store, queue: Queue, partition: int, offset: Position | None) -> tuple[int, int] | None:
    """Returns storage time and expiry (ticks) of the first unread message, without reading its body."""
    lower = FIRST if offset is None else ids.following(offset)
    batch = next(bridge.iterate(store.bulk.scan_arrow(queue, Slice(partition, lower, limit=1), bodies=False)), None)
    return None if batch is None else (batch.column("ticks")[0].as_py(), batch.column("expires")[0].as_py())


def judged(one: GroupObservation, earlier: GroupObservation | None, within: float) -> Behind:
    """Computes lag, growth and forecast of a group.

    Args:
        one: The group.
        earlier: The same group, some time before; None: it is taken to stand still.
        within: Seconds of the forecast.
    """
    growth = None
    if earlier is not None:
        growth = min(1.0, 1.0 - (one.read - earlier.read) / max(1, one.at - earlier.at))
    backlog = Backlog(
        count=one.count,
        oldest=one.oldest,
        newest=one.newest,
        ttl=one.ttl,
        growth=1.0 if growth is None else growth,
        coming=earlier is not None and one.written > earlier.written,
    )
    return Behind(
        queue=one.queue,
        partition=one.partition,
        group=one.group,
        offset=None if one.position == FIRST else ids.to_hex(one.position),
        messages=one.count,
        exact=one.exact,
        seconds=round(one.oldest, 3),
        growth=None if growth is None else round(growth, 3),
        forecast=forecast(backlog, within),
    )
