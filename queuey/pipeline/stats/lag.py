"""The lag of consumer groups, and a forecast of messages that expire before they are read.

A task goes through a range of queues and observes each group in each partition: count, age and TTL of unread messages.
With ``sample`` it observes groups twice, some seconds apart: if a group reads, the age of the oldest unread message
grows by less than these seconds. A single observation assumes that the group does not read.

The model of the forecast: the ages of unread messages are evenly distributed between the oldest and the newest, and
each message expires when its age reaches the TTL. The group reads in order, and the age of the oldest unread message
grows at a constant rate: by a second each second if the group does not read, by less if it reads slower than messages
came, not at all if it keeps up. Once that age has reached the TTL, a share of the expiring messages equal to this
growth is lost, and the group reads the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from queuey.model import ids
from queuey.model.errors import GroupNotFound, QueueChanged, QueueNotFound
from queuey.model.ids import FIRST, TICKS_PER_SECOND, Position
from queuey.model.messages import Queue, Slice
from queuey.model.titles import duration, format_as, format_estimate, titled
from queuey.pipeline import name_ranges, tasks
from queuey.pipeline.name_ranges import NameRange
from queuey.pipeline.options import LagOptions
from queuey.spark import open_stores
from queuey.spark.options import StoreOptions
from queuey.storage import Store, bridge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_MAX_ROUNDING_ERROR = 1e-6
"""Max error of rounding, in messages."""


class UnreadBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """Unread messages of a group in a partition.

    Attributes:
        count: Number of messages.
        oldest: Age of the oldest message, in seconds.
        newest: Age of the newest message, in seconds.
        ttl: Lifetime of messages, in seconds.
        growth: Seconds by which the age of the oldest message grows each second, 1 at most.
        coming: True if new messages keep coming.

    Raises:
        ValueError: A value is out of range, or the oldest message is younger than the newest.
    """

    count: int
    oldest: float
    newest: float
    ttl: float
    growth: float = 1.0
    coming: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or self.ttl <= 0 or not 0 <= self.newest <= self.oldest:
            raise ValueError("a backlog has a negative count or age, or its oldest message is younger than its newest")
        if self.growth > 1:
            raise ValueError("the growth of a backlog is above 1 second each second")


class Forecast(msgspec.Struct, frozen=True):
    """Messages that will expire unread.

    Attributes:
        first: Seconds until the first message expires unread; None if none does within the forecast.
        lost: Number of messages that expire unread within the forecast.
    """

    first: float | None = None
    lost: int = 0


def forecast(backlog: UnreadBacklog, within: float) -> Forecast:
    """Forecasts the messages that a group loses from now on; none if it keeps up or they expire later.

    Args:
        backlog: The unread messages.
        within: Time span of the forecast, in seconds.
    """
    if not backlog.count or backlog.growth <= 0:
        return Forecast()
    first = max(0.0, backlog.ttl - backlog.oldest) / backlog.growth
    end = within if backlog.coming else min(within, max(0.0, backlog.ttl - backlog.newest))
    if first > end:
        return Forecast()
    between = (backlog.oldest - backlog.newest) / max(1, backlog.count - 1)
    if not between:
        return Forecast(first, backlog.count)
    lost = 1 + math.floor(backlog.growth * (end - first) / between + _MAX_ROUNDING_ERROR)
    return Forecast(first, lost if backlog.coming else min(backlog.count, lost))


class GroupObservation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group in a partition, observed once.

    Attributes:
        position: Position up to which all messages were processed; ``FIRST`` if no message was.
        count: Number of unread messages; counted if ``exact``, else estimated.
        oldest, newest: Ages of the first and the last unread message, in seconds.
        ttl: Lifetime of the first unread message from its id on, in seconds.
        read: Time of the first unread message, or of the observation if all are read, in ticks.
        written: Time of the last message in ticks, or 0.
        at: Time of the observation by the store's clock, in ticks.
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


class GroupPartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a partition.

    Attributes:
        offset: Id up to which all messages were processed; None if no message was.
        messages: Number of unread messages; counted if ``exact``, else estimated.
        seconds: Age of the oldest unread message.
        growth: Seconds by which that age grows each second; None if it was not measured.
        forecast: Messages that will expire unread.
    """

    queue: str
    partition: int
    group: str
    offset: str | None
    messages: Annotated[int, titled("unread", format_estimate("exact", ","))]
    exact: bool
    seconds: Annotated[float, titled("behind", duration)]
    growth: Annotated[float | None, titled(unit=format_as(".2f"))]
    forecast: Forecast


class LagReport(msgspec.Struct, frozen=True, kw_only=True):
    """Lag of all groups.

    Attributes:
        partitions: Number of measured pairs of a group and a partition.
        behind: Number of pairs with unread messages.
        messages: Number of unread messages in all pairs; all counted if ``exact``.
        lost: Number of messages that will expire unread, by the forecast.
        first: Seconds until the first message expires unread; None if none does.
        rows: The most endangered pairs: by the first expiry, then by the number of unread messages.
        within: Time span of the forecast, in seconds.
        sample: Seconds between two observations; 0 assumes that groups do not read.
        at: Time of the observation, in seconds since 1970.
    """

    partitions: int
    behind: int
    messages: Annotated[int, titled("unread messages", format_estimate("exact", ","))]
    exact: bool
    lost: int
    first: float | None
    rows: tuple[GroupPartitionLag, ...]
    within: float
    sample: float
    at: float


def run(
    spark: SparkSession,
    options: LagOptions,
    report_progress: Callable[[str], None] = lambda _: None,
    wait: Callable[[float], object] = time.sleep,
) -> LagReport:
    """Measures the lag of groups; with the option ``sample`` twice, with a pause in between.

    Args:
        spark: The session.
        options: What to measure.
        report_progress: Called with the progress.
        wait: Sleeps for the given seconds.

    Raises:
        OptionError: The options are not valid.
        QueueNotFound: A named queue does not exist.
        StoreUnavailable: The store does not answer.
    """
    store = open_stores.opened(options.store)
    report_progress("listing queues")
    payloads = _make_payloads(options)
    report_progress(f"observing, in {len(payloads):,} tasks")
    earlier, observations = {}, _collect_observations(spark, options, payloads)
    if options.sample:
        report_progress(f"observing again in {options.sample:g} s")
        wait(options.sample)
        earlier, observations = observations, _collect_observations(spark, options, payloads)
    behind = [
        make_group_lag(observation, earlier.get(key), options.within) for key, observation in observations.items()
    ]
    return make_report(behind, options, ids.ticks_to_seconds(bridge.run(store.ledger.now())))


def make_report(behind: Sequence[GroupPartitionLag], options: LagOptions, at: float) -> LagReport:
    unread = [lag for lag in behind if lag.messages]
    ordered = sorted(unread, key=_danger_key)
    firsts = [lag.forecast.first for lag in unread if lag.forecast.first is not None]
    return LagReport(
        partitions=len(behind),
        behind=len(unread),
        messages=sum(lag.messages for lag in unread),
        exact=all(lag.exact for lag in unread),
        lost=sum(lag.forecast.lost for lag in unread),
        first=min(firsts, default=None),
        rows=tuple(ordered[: options.top]),
        within=options.within,
        sample=options.sample,
        at=at,
    )


def _danger_key(lag: GroupPartitionLag) -> tuple[float, int, str, int, str]:
    first = lag.forecast.first
    return float("inf") if first is None else first, -lag.messages, lag.queue, lag.partition, lag.group


def _make_payloads(options: LagOptions) -> list[bytes]:
    if options.selection is not None:
        name_ranges.check_selection(options.store, options.selection)
    return [
        msgspec.msgpack.encode(name_range)
        for name_range in name_ranges.divide_names(options.store, options.selection, options.size)
    ]


def _collect_observations(
    spark: SparkSession, options: LagOptions, payloads: Sequence[bytes]
) -> dict[tuple[str, int, str], GroupObservation]:
    observations = tasks.run_for_values(spark, partial(_observe, options.store, options.groups), payloads)
    return {
        observation.key: observation
        for observation in (msgspec.msgpack.decode(packed, type=GroupObservation) for packed in observations)
    }


def _observe(options: StoreOptions, groups: tuple[str, ...], payload: bytes) -> Iterator[bytes]:
    store = open_stores.opened(options)
    default_ttl = open_stores.read_settings(options).default_ttl
    for queues in name_ranges.list_queues(options, msgspec.msgpack.decode(payload, type=NameRange)):
        for queue in queues:
            try:
                for group, positions in _read_group_offsets(store, queue, groups):
                    for observation in observe_group(store, queue, group, positions, queue.ttl or default_ttl):
                        yield msgspec.msgpack.encode(observation)
            except (QueueChanged, QueueNotFound):
                continue


def _read_group_offsets(
    store: Store, queue: Queue, groups: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[int, Position]]]:
    for group in groups or tuple(bridge.run(store.offsets.groups(queue))):
        try:
            yield (
                group,
                {offset.partition: offset.position for offset in bridge.run(store.offsets.group_offsets(queue, group))},
            )
        except GroupNotFound:
            continue


def observe_group(
    store: Store, queue: Queue, group: str, positions: Mapping[int, Position], ttl: float
) -> Iterator[GroupObservation]:
    """Observes a group in all partitions of a queue.

    Args:
        store: The store.
        queue: The queue.
        group: Name of the group.
        positions: Partition -> offset; in other partitions no message was processed.
        ttl: TTL in partitions without unread messages, in seconds.
    """
    places = [(number, positions.get(number)) for number in range(1, queue.partitions + 1)]
    newest = {info.partition: info.newest for info in bridge.run(store.messages.inspect(queue))[1]}
    now = bridge.run(store.ledger.now())
    for (number, position), lag in zip(places, bridge.run(store.messages.lag(queue, places)), strict=True):
        first = _read_first_unread(store, queue, number, position) if lag.count else None
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


def _read_first_unread(store: Store, queue: Queue, partition: int, offset: Position | None) -> tuple[int, int] | None:
    lower = FIRST if offset is None else ids.following(offset)
    batch = next(bridge.iterate(store.bulk.scan_arrow(queue, Slice(partition, lower, limit=1), bodies=False)), None)
    return None if batch is None else (batch.column("ticks")[0].as_py(), batch.column("expires")[0].as_py())


def make_group_lag(observation: GroupObservation, earlier: GroupObservation | None, within: float) -> GroupPartitionLag:
    """Computes lag, growth and forecast of a group.

    Args:
        observation: An observation.
        earlier: An earlier observation of the same group; None assumes that the group does not read.
        within: Time span of the forecast, in seconds.
    """
    growth = None
    if earlier is not None:
        growth = min(1.0, 1.0 - (observation.read - earlier.read) / max(1, observation.at - earlier.at))
    backlog = UnreadBacklog(
        count=observation.count,
        oldest=observation.oldest,
        newest=observation.newest,
        ttl=observation.ttl,
        growth=1.0 if growth is None else growth,
        coming=earlier is not None and observation.written > earlier.written,
    )
    return GroupPartitionLag(
        queue=observation.queue,
        partition=observation.partition,
        group=observation.group,
        offset=None if observation.position == FIRST else ids.to_hex(observation.position),
        messages=observation.count,
        exact=observation.exact,
        seconds=round(observation.oldest, 3),
        growth=None if growth is None else round(growth, 3),
        forecast=forecast(backlog, within),
    )
