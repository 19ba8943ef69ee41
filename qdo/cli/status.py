"""``qdo status`` and ``qdo groups``: what a group is doing, and which groups there are."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import structs

from qdo.cli.opening import open_client, open_group
from qdo.cli.options import GROUP, MEETING, QUEUES, with_settings
from qdo.cli.selection import chosen, point
from qdo.cli.settings import SERVICE, WorkSettings
from qdo.consumer.rebalance.queue_discovery import identify
from qdo.coordination import TargetAssignment
from qdo.partitions import Partition
from queuey.client import ClientError, GroupOffset, QueueNotFound
from queuey.terminal import output, times
from queuey.terminal.output import Block, ToStderr
from queuey.terminal.texts import plural
from queuey.titles import age_of_lag, estimated, instant, titled

if TYPE_CHECKING:
    from qdo.coordination import AnyCoordinator, CommittedOffset, Member
    from queuey.client import AsyncClient

_CLEAR = "\x1b[2J\x1b[H"
AT_A_TIME = 8
"""Max queues that the service is asked about at the same time."""


class PartitionStatus(msgspec.Struct, frozen=True):
    """The state of a partition, as ``--json`` prints it.

    Attributes:
        owner: The owner; None: there is none.
        target: The next owner; None: there is none.
        offset, recorded, by: The committed offset, its time, and the member (empty: a command, or with a group of the
            service a former owner); None: there is none.
        lag, lag_exact, lag_seconds: Messages after the offset, and the age of the oldest; None: not known.
    """

    service: str
    app: str
    queue: str
    partition: int
    owner: str | None
    target: Annotated[str | None, titled("moves to", lambda name, one: name if name != one.owner else "")]
    offset: str | None = None
    recorded: Annotated[float | None, titled(unit=instant)] = None
    by: str | None = None
    lag: Annotated[int | None, titled("behind", estimated("lag_exact"))] = None
    lag_exact: bool | None = None
    lag_seconds: Annotated[float | None, titled("oldest of them", age_of_lag)] = None


class MemberStatus(msgspec.Struct, frozen=True):
    """A member, as ``--json`` prints it; ``owns`` is how many of the partitions."""

    id: Annotated[str, titled("member")]
    static: Annotated[bool, titled(unit=lambda static, _: "yes" if static else "")]
    since: Annotated[float, titled(unit=instant)]
    service: str
    app: str
    queues: list[str]
    patterns: list[str]
    owns: int


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A group at one moment, as ``--json`` prints it.

    Attributes:
        known: The group has, or had, a member or an offset.
        service: The id of the store that was asked for the lag; None: none was.
        lag: Messages behind the offsets; None: not known of all.
        lag_unknown: The reason.
    """

    group: str
    known: bool
    service: str | None = None
    members: list[MemberStatus]
    partitions: list[PartitionStatus]
    lag: int | None = None
    lag_unknown: str | None = None


@with_settings(*SERVICE, *GROUP, *QUEUES)
async def status(
    settings: WorkSettings,
    lag: Annotated[bool, typer.Option(help="Ask the service for the lag.")] = True,
    watch: Annotated[float | None, times.duration("Show it again after this time, until Ctrl-C.", least=0.1)] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print it once, as metrics for Prometheus.")] = False,
) -> None:
    """Show a group: its members, who owns what, offsets and lag; with --json one document.

    With ZooKeeper it needs the service only for the lag. Ends with 1 if there is no such group.
    """
    if metrics and (output.as_json() or watch is not None):
        raise typer.BadParameter(
            "It prints once, in a form of its own: without --json and --watch.", param_hint="--metrics"
        )
    async with open_group(settings) as coordinator:
        while True:
            found = await look(coordinator, settings, lag=lag)
            if watch is not None and not output.as_json() and sys.stdout.isatty():
                print(_CLEAR, end="")
            if metrics:
                output.write(metrics_of(found))
            output.show(found, _lag_unknown(found) if metrics else _described(found))
            if watch is None and not found.known:
                raise typer.Exit(1)
            if watch is None or output.is_unread():
                return
            await asyncio.sleep(watch)


async def look(coordinator: AnyCoordinator, settings: WorkSettings, *, lag: bool) -> GroupStatus:
    members, planned, owners, offsets = await coordinator.snapshot()
    target = planned or TargetAssignment()
    # A member that has left gets nothing any more; the next member that joins will write that.
    wanted = {each: name for each, name in target.owners.items() if name in members or name in target.absent}
    partitions = [
        _partition(each, owners.get(each), wanted.get(each), offsets.get(each))
        for each in chosen({*owners, *wanted, *offsets}, settings)
    ]
    found = GroupStatus(
        group=coordinator.group,
        known=bool(members or partitions) or coordinator.group in await coordinator.groups(),
        members=[_member(each, partitions) for _, each in sorted(members.items())],
        partitions=partitions,
    )
    if not lag:
        return found
    try:
        async with open_client(settings) as client:
            found = structs.replace(found, service=await identify(client))
            partitions = await _measured(found, client)
    except ClientError as error:
        return structs.replace(found, lag_unknown=str(error))
    lags = [each.lag for each in partitions if each.lag is not None]
    return structs.replace(found, partitions=partitions, lag=sum(lags) if len(lags) == len(partitions) else None)


def _partition(
    each: Partition, owner: str | None, target: str | None, offset: CommittedOffset | None
) -> PartitionStatus:
    recorded = () if offset is None else (offset.id, offset.at, offset.member)
    return PartitionStatus(*each.queue, each.number, owner, target, *recorded)


def _member(member: Member, partitions: Iterable[PartitionStatus]) -> MemberStatus:
    wants, owns = member.wants, sum(each.owner == member.id for each in partitions)
    whose = wants.service, wants.application
    return MemberStatus(member.id, member.static, member.since, *whose, sorted(wants.names), list(wants.patterns), owns)


async def _measured(found: GroupStatus, client: AsyncClient) -> list[PartitionStatus]:
    """Adds the lag to the partitions of the client's service and application."""
    slots = asyncio.Semaphore(AT_A_TIME)
    behind: dict[tuple[str, int], GroupOffset] = {}

    async def measure(queue: str, mine: Mapping[int, str | None]) -> None:
        with suppress(QueueNotFound):
            async with slots:
                behind.update({(queue, number): lag for number, lag in (await client.lag(queue, mine)).items()})

    queues: dict[str, dict[int, str | None]] = {}
    for each in found.partitions:
        if (each.service, each.app) == (found.service, client.application):
            queues.setdefault(each.queue, {})[each.partition] = each.offset
    await asyncio.gather(*(measure(queue, mine) for queue, mine in queues.items()))
    return [
        structs.replace(each, lag=lag.lag, lag_exact=lag.lag_exact, lag_seconds=lag.lag_seconds)
        if each.app == client.application
        and each.service == found.service
        and (lag := behind.get((each.queue, each.partition))) is not None
        else each
        for each in found.partitions
    ]


def metrics_of(found: GroupStatus) -> bytes:
    """Returns the state of a group as gauges; lags only of partitions whose lag is known."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    labels = ("group", "application", "queue", "partition")
    messages = GaugeMetricFamily("qdo_group_lag_messages", "Messages behind the committed offset.", labels=labels)
    age = GaugeMetricFamily("qdo_group_lag_seconds", "Age of the oldest of these messages; 0: none.", labels=labels)
    families = [messages, age]
    for one in found.partitions:
        if one.lag is not None:
            place = found.group, one.app, one.queue, str(one.partition)
            messages.add_metric(place, one.lag)
            age.add_metric(place, one.lag_seconds or 0.0)
    unowned = sum(one.owner is None for one in found.partitions)
    for name, text, number in (
        ("members", "Members of the group.", len(found.members)),
        ("partitions", "Partitions that the group has offsets or owners of, or assigns.", len(found.partitions)),
        ("unowned_partitions", "Those of them that no member owns.", unowned),
        ("status_seconds", "When this was printed, in seconds since 1970.", time()),
        ("lag_known", "1: the lag of all these partitions is known; 0: of some it is not.", found.lag is not None),
    ):
        families.append(GaugeMetricFamily(f"qdo_group_{name}", text, labels=("group",)))
        families[-1].add_metric((found.group,), number)

    class Families(Collector):
        """Not gauges of this process: those would be written to the files of a program of several processes."""

        def collect(self) -> list[Metric]:
            return [*families]

    registry = CollectorRegistry()
    registry.register(Families())
    return generate_latest(registry)


def _described(found: GroupStatus) -> Iterator[Block]:
    if not found.known:
        yield ToStderr(
            f"Group {found.group} is not known: it never had a member or an offset. See them all: qdo groups"
        )
        return
    owned = sum(each.owner is not None for each in found.partitions)
    counted = [each.lag for each in found.partitions if each.lag is not None]
    behind = f", {plural(sum(counted), 'message')} behind" if counted else ""
    owners = plural(len(found.members), "member owns", "members own")
    yield (f"{found.group}: {owners} {owned} of {plural(len(found.partitions), 'partition')}{behind}")
    yield from _lag_unknown(found)
    services = {each.service for each in found.partitions}
    if found.service:
        yield f"The service asked has the store {found.service}."
        if others := (services | {each.service for each in found.members}) - {found.service}:
            yield ToStderr(f"The group has to do with other stores, too: {', '.join(sorted(others))}")
    if found.members:
        yield ""
        of = ("service", lambda member: f"{member.service}/{member.app}")
        yield output.table(MemberStatus, found.members, "id", "owns", "since", "static", of)
    if found.partitions:
        yield ""
        owner, offset = ("owner", lambda one: one.owner or "nobody"), ("offset", lambda one: point(one.offset))
        shown = ("queue", "partition", owner, "target", offset, "recorded", "lag", "lag_seconds")
        yield output.table(PartitionStatus, found.partitions, *(["service"] if len(services) > 1 else []), *shown)


def _lag_unknown(found: GroupStatus) -> Iterator[Block]:
    if found.lag_unknown:
        yield ToStderr(f"The lag is not known: {found.lag_unknown}")


class GroupCounts(msgspec.Struct, frozen=True):
    """A group, and how many members and partitions with an offset it has."""

    group: str
    members: int
    partitions: Annotated[int, titled("partitions with an offset")]


@with_settings(*SERVICE, *MEETING)
async def groups(settings: WorkSettings) -> None:
    """List the groups that the service knows, or ZooKeeper; with --json one a line."""
    # Which groups there are does not depend on the group that asks.
    async with open_group(settings, settings.group or "qdo") as any_group:
        names = await any_group.groups()
    output.show_each(GroupCounts, [await _counts(settings, name) for name in names])


async def _counts(settings: WorkSettings, name: str) -> GroupCounts:
    async with open_group(settings, name) as coordinator:
        group = await coordinator.snapshot()
    return GroupCounts(name, len(group.members), len(group.offsets))
