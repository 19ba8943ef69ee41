"""``qdo status`` and ``qdo groups``: show the state of a group, and list the groups."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import structs

from qdo.cli.opening import open_client, open_group
from qdo.cli.options import COORDINATION, GROUP, QUEUES, with_settings
from qdo.cli.selection import format_point, select_partitions
from qdo.cli.settings import SERVICE, WorkSettings
from qdo.group.discovery import read_store_id
from qdo.group.records import TargetAssignment
from qdo.partitions import Partition
from queuey.client import ClientError, GroupOffset, QueueNotFound
from queuey.model.texts import format_count
from queuey.model.titles import age_of_lag, format_estimate, instant, titled
from queuey.terminal import output, times
from queuey.terminal.output import Block, ToStderr

if TYPE_CHECKING:
    from qdo.group.protocol import Coordinator
    from qdo.group.records import CommittedOffset, Member
    from queuey.client import AsyncClient

_CLEAR_SCREEN = "\x1b[2J\x1b[H"
MAX_CONCURRENT_QUEUES = 8


class PartitionStatus(msgspec.Struct, frozen=True):
    """The state of a partition, as ``--json`` prints it.

    Attributes:
        owner: The owner, or None.
        target: The next owner, or None.
        offset, recorded, by: The committed offset, its time, and the member that committed it, or None if there is no
            offset. The member is empty for a command, and in a group of the service for a former owner.
        lag, lag_exact, lag_seconds: Number of messages after the offset, whether it is exact, and the age of the oldest
            message in seconds; None if unknown.
    """

    service: str
    app: str
    queue: str
    partition: int
    owner: str | None
    target: Annotated[str | None, titled("moves to", lambda name, row: name if name != row.owner else "")]
    offset: str | None = None
    recorded: Annotated[float | None, titled(unit=instant)] = None
    by: str | None = None
    lag: Annotated[int | None, titled("behind", format_estimate("lag_exact"))] = None
    lag_exact: bool | None = None
    lag_seconds: Annotated[float | None, titled("oldest of them", age_of_lag)] = None


class MemberStatus(msgspec.Struct, frozen=True):
    """A member, as ``--json`` prints it; ``owns`` is its number of partitions."""

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
        known: Whether the group has, or had, a member or an offset.
        service: The id of the service's store, or None if the lag was not measured.
        lag: Number of messages behind the offsets, or None if it is unknown for a partition.
        lag_unknown: Why the lag is unknown, or None.
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
    lag: Annotated[bool, typer.Option(help="Measure the lag, which needs the service.")] = True,
    watch: Annotated[float | None, times.duration("Repeat at this interval until Ctrl-C.", minimum=0.1)] = None,
) -> None:
    """Show the members of a group, the owners of its partitions, its offsets and lag; with --json one document.

    With ZooKeeper it needs the service only for the lag. Exits with 1 if the group does not exist.
    """
    async with open_group(settings) as coordinator:
        while True:
            group_status = await measure_group(coordinator, settings, lag=lag)
            if watch is not None and not output.is_json_chosen() and sys.stdout.isatty():
                print(_CLEAR_SCREEN, end="")
            output.show(group_status, _describe_group(group_status))
            if watch is None and not group_status.known:
                raise typer.Exit(1)
            if watch is None or output.is_output_closed():
                return
            await asyncio.sleep(watch)


async def measure_group(coordinator: Coordinator, settings: WorkSettings, *, lag: bool) -> GroupStatus:
    """Returns the state of a group, with the partitions that the settings select.

    An error while the lag is measured is only noted in ``lag_unknown``.
    """
    members, planned, owners, offsets = await coordinator.snapshot()
    target = planned or TargetAssignment()
    # Members that have left are not owners, although the target may name them until another member joins.
    next_owners = {place: name for place, name in target.owners.items() if name in members or name in target.absent}
    partitions = [
        _make_partition_status(place, owners.get(place), next_owners.get(place), offsets.get(place))
        for place in select_partitions({*owners, *next_owners, *offsets}, settings)
    ]
    group = GroupStatus(
        group=coordinator.group,
        known=bool(members or partitions) or coordinator.group in await coordinator.groups(),
        members=[_make_member_status(member, partitions) for _, member in sorted(members.items())],
        partitions=partitions,
    )
    if not lag:
        return group
    try:
        async with open_client(settings) as client:
            group = structs.replace(group, service=await read_store_id(client))
            partitions = await _add_lag(group, client)
    except ClientError as error:
        return structs.replace(group, lag_unknown=str(error))
    lags = [partition.lag for partition in partitions if partition.lag is not None]
    return structs.replace(group, partitions=partitions, lag=sum(lags) if len(lags) == len(partitions) else None)


def _make_partition_status(
    partition: Partition, owner: str | None, target: str | None, offset: CommittedOffset | None
) -> PartitionStatus:
    recorded = () if offset is None else (offset.id, offset.at, offset.member)
    return PartitionStatus(*partition.queue, partition.number, owner, target, *recorded)


def _make_member_status(member: Member, partitions: Iterable[PartitionStatus]) -> MemberStatus:
    wants, owns = member.wants, sum(partition.owner == member.id for partition in partitions)
    app = wants.service, wants.application
    return MemberStatus(member.id, member.static, member.since, *app, sorted(wants.names), list(wants.patterns), owns)


async def _add_lag(group_status: GroupStatus, client: AsyncClient) -> list[PartitionStatus]:
    slots = asyncio.Semaphore(MAX_CONCURRENT_QUEUES)
    behind: dict[tuple[str, int], GroupOffset] = {}

    async def measure(queue: str, mine: Mapping[int, str | None]) -> None:
        with suppress(QueueNotFound):
            async with slots:
                behind.update({(queue, number): lag for number, lag in (await client.lag(queue, mine)).items()})

    queues: dict[str, dict[int, str | None]] = {}
    for partition in group_status.partitions:
        if (partition.service, partition.app) == (group_status.service, client.application):
            queues.setdefault(partition.queue, {})[partition.partition] = partition.offset
    await asyncio.gather(*(measure(queue, mine) for queue, mine in queues.items()))
    return [
        structs.replace(partition, lag=lag.lag, lag_exact=lag.lag_exact, lag_seconds=lag.lag_seconds)
        if partition.app == client.application
        and partition.service == group_status.service
        and (lag := behind.get((partition.queue, partition.partition))) is not None
        else partition
        for partition in group_status.partitions
    ]


def _describe_group(group_status: GroupStatus) -> Iterator[Block]:
    if not group_status.known:
        yield ToStderr(
            f"Group {group_status.group} is not known: it never had a member or an offset. List all groups: qdo groups"
        )
        return
    owned = sum(row.owner is not None for row in group_status.partitions)
    counted = [row.lag for row in group_status.partitions if row.lag is not None]
    behind = f", {format_count(sum(counted), 'message')} behind" if counted else ""
    owners = format_count(len(group_status.members), "member owns", "members own")
    yield (
        f"{group_status.group}: {owners} {owned} of {format_count(len(group_status.partitions), 'partition')}{behind}"
    )
    if group_status.lag_unknown:
        yield ToStderr(f"The lag is not known: {group_status.lag_unknown}")
    services = {row.service for row in group_status.partitions}
    if group_status.service:
        yield f"The store of the service is {group_status.service}."
        if others := (services | {row.service for row in group_status.members}) - {group_status.service}:
            yield ToStderr(f"The group also uses other stores: {', '.join(sorted(others))}")
    if group_status.members:
        yield ""
        of = ("service", lambda member: f"{member.service}/{member.app}")
        yield output.table(MemberStatus, group_status.members, "id", "owns", "since", "static", of)
    if group_status.partitions:
        yield ""
        owner, offset = ("owner", lambda row: row.owner or "nobody"), ("offset", lambda row: format_point(row.offset))
        shown = ("queue", "partition", owner, "target", offset, "recorded", "lag", "lag_seconds")
        yield output.table(
            PartitionStatus, group_status.partitions, *(["service"] if len(services) > 1 else []), *shown
        )


class GroupCounts(msgspec.Struct, frozen=True):
    """A group with its numbers of members and of partitions with an offset."""

    group: str
    members: int
    partitions: Annotated[int, titled("partitions with an offset")]


@with_settings(*SERVICE, *COORDINATION)
async def groups(settings: WorkSettings) -> None:
    """List the groups of the service, or in ZooKeeper; with --json one group per line."""
    # The list does not depend on the group of the coordinator.
    async with open_group(settings, settings.group or "qdo") as any_group:
        names = await any_group.groups()
    output.show_each(GroupCounts, [await _count_group(settings, name) for name in names])


async def _count_group(settings: WorkSettings, name: str) -> GroupCounts:
    async with open_group(settings, name) as coordinator:
        group = await coordinator.snapshot()
    return GroupCounts(name, len(group.members), len(group.offsets))
