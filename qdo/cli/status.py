"""``qdo status``: what a group is doing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from qdo.cli import output
from qdo.cli.opening import open_client, open_group
from qdo.cli.options import GROUP, QUEUES, with_settings
from qdo.cli.output import Json
from qdo.cli.selection import chosen
from qdo.cli.settings import SERVICE, WorkSettings
from qdo.partitions import Partition, Queue
from queuey.client import ClientError, GroupOffset
from queuey.terminal import time_parsing

if TYPE_CHECKING:
    from qdo.coordination import CommittedOffset, Coordinator, Member
    from queuey.client import AsyncClient

app = typer.Typer(add_completion=False)

_CLEAR = "\x1b[2J\x1b[H"
AT_A_TIME = 8
"""Queues that the service is asked about at the same time."""


class Line(NamedTuple):
    """What there is to say about a partition.

    Attributes:
        owner: Who has it now; empty: nobody.
        target: Who is to have it; empty: nobody.
        offset: As it is recorded; None: not at all.
        behind: How many messages lie behind; None: not known.
    """

    owner: str
    target: str
    offset: CommittedOffset | None
    behind: GroupOffset | None = None


class Picture(NamedTuple):
    """A group at one moment.

    Attributes:
        unknown: Why the lag is not known, if it is not.
        known: The group is: it has, or had, a member or an offset.
        service: The id of the store of the service that was asked for the lag; empty: none was.
    """

    group: str
    members: Mapping[str, Member]
    lines: Mapping[Partition, Line]
    unknown: str = ""
    known: bool = True
    service: str = ""

    @property
    def lag(self) -> int:
        """How many messages lie behind the offsets, as far as that is known."""
        return sum(line.behind.lag for line in self.lines.values() if line.behind is not None)


@app.command()
@with_settings(*SERVICE, *GROUP, *QUEUES)
def status(
    settings: WorkSettings,
    lag: Annotated[bool, typer.Option(help="Ask the service for the lag.")] = True,
    watch: Annotated[
        float | None, typer.Option(min=0.1, help="Show it again after so many seconds, until Ctrl-C.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a group: its members, who owns what, offsets and lag; with --json one document.

    Needs the service only for the lag. Ends with 1 if there is no such group.
    """

    async def show() -> None:
        async with open_group(settings) as coordinator:
            while True:
                picture = await look(coordinator, settings, lag=lag)
                if watch is not None and not json and sys.stdout.isatty():
                    print(_CLEAR, end="")
                output.emit(as_json(picture)) if json else _print(picture)
                if watch is None:
                    if not picture.known:
                        raise typer.Exit(1)
                    return
                await asyncio.sleep(watch)

    asyncio.run(show())


async def look(coordinator: Coordinator, settings: WorkSettings, *, lag: bool) -> Picture:
    """Looks at a group.

    Raises:
        CoordinationLost: Where its members meet does not answer.
    """
    from qdo.consumer.rebalance.queue_discovery import identify

    members = await coordinator.members()
    target = await coordinator.target()
    # Whoever has left for good is to have nothing any more; the next member to come will say so.
    there = {*members, *(target.absent if target is not None else ())}
    wanted = {each: name for each, name in (target.owners if target is not None else {}).items() if name in there}
    owners = await coordinator.owners()
    offsets = await coordinator.offsets()
    lines = {
        partition: Line(owners.get(partition, ""), wanted.get(partition, ""), offsets.get(partition))
        for partition in chosen({*owners, *wanted, *offsets}, settings)
    }
    known = bool(members or lines) or coordinator.group in await coordinator.groups()
    picture = Picture(coordinator.group, members, lines, known=known)
    if not lag:
        return picture
    try:
        async with open_client(settings) as client:
            picture = picture._replace(service=await identify(client))
            return picture._replace(lines=await _measured(lines, client, picture.service))
    except ClientError as error:
        return picture._replace(unknown=str(error))


async def _measured(lines: Mapping[Partition, Line], client: AsyncClient, service: str) -> Mapping[Partition, Line]:
    """Adds the lag to the partitions of a service and the client's application.

    Raises:
        ClientError: The service cannot say.
    """
    from queuey.client import QueueNotFound

    slots = asyncio.Semaphore(AT_A_TIME)

    async def measured(queue: Queue, mine: Mapping[Partition, Line]) -> dict[Partition, Line]:
        offsets = {place.number: None if line.offset is None else line.offset.id for place, line in mine.items()}
        try:
            async with slots:
                behind = await client.lag(queue.name, offsets)
        except QueueNotFound:
            return {}
        return {place: line._replace(behind=behind.get(place.number)) for place, line in mine.items()}

    by_queue: dict[Queue, dict[Partition, Line]] = {}
    for partition, line in lines.items():
        if partition.queue[:2] == (service, client.application):
            by_queue.setdefault(partition.queue, {})[partition] = line
    parts = await asyncio.gather(*(measured(queue, mine) for queue, mine in by_queue.items()))
    return {**lines, **{place: line for part in parts for place, line in part.items()}}


def as_json(picture: Picture) -> dict[str, Any]:
    """Returns what ``--json`` prints."""
    return {
        "group": picture.group,
        "known": picture.known,
        "service": picture.service or None,
        "members": [
            {
                "id": member.id,
                "static": member.static,
                "since": member.since,
                "service": member.wants.service,
                "app": member.wants.application,
                "queues": sorted(member.wants.names),
                "patterns": list(member.wants.patterns),
                "owns": sum(line.owner == member.id for line in picture.lines.values()),
            }
            for _, member in sorted(picture.members.items())
        ],
        "partitions": [_line_json(partition, line) for partition, line in picture.lines.items()],
        "lag": picture.lag if all(line.behind is not None for line in picture.lines.values()) else None,
        "lag_unknown": picture.unknown or None,
    }


def _line_json(partition: Partition, line: Line) -> dict[str, Any]:
    queue = partition.queue
    offset, behind = line.offset, line.behind
    return {
        "service": queue.service,
        "app": queue.application,
        "queue": queue.name,
        "partition": partition.number,
        "owner": line.owner or None,
        "target": line.target or None,
        "offset": None if offset is None else offset.id,
        "recorded": None if offset is None else offset.at,
        "by": None if offset is None else offset.member,
        "lag": None if behind is None else behind.lag,
        "lag_exact": None if behind is None else behind.lag_exact,
        "lag_seconds": None if behind is None else behind.lag_seconds,
    }


def _print(picture: Picture) -> None:
    if not picture.known:
        output.note(f"Group {picture.group} is not known: it never had a member or an offset. See them all: qdo groups")
        return
    owned = sum(bool(line.owner) for line in picture.lines.values())
    counted = any(line.behind is not None for line in picture.lines.values())
    behind = f", {picture.lag} messages behind" if counted else ""
    output.say(
        f"{picture.group}: {len(picture.members)} members own {owned} of {len(picture.lines)} partitions{behind}"
    )
    if picture.unknown:
        output.note(f"The lag is not known: {picture.unknown}")
    services = {each.queue.service for each in picture.lines}
    if picture.service:
        output.say(f"The service asked has the store {picture.service}.")
        if others := (services | {each.wants.service for each in picture.members.values()}) - {picture.service}:
            output.note(
                f"The group has to do with other stores, or names of services, too: {', '.join(sorted(others))}"
            )
    if picture.members:
        print()
        output.table(["member", "owns", "since", "static", "service"], _member_rows(picture))
    if picture.lines:
        print()
        rows = ((*_service(each, services), *_row(each, line)) for each, line in picture.lines.items())
        output.table([*(["service"] if len(services) > 1 else []), *_COLUMNS], rows)


def _service(partition: Partition, services: Collection[str]) -> tuple[str, ...]:
    """Returns what is said of a partition's service: nothing if there is only one."""
    return (partition.queue.service,) if len(services) > 1 else ()


_COLUMNS = ["queue", "partition", "owner", "moves to", "offset", "recorded", "behind", "oldest of them"]


def _member_rows(picture: Picture) -> Iterable[tuple[object, ...]]:
    for name, member in sorted(picture.members.items()):
        owns = sum(line.owner == name for line in picture.lines.values())
        static, service = "yes" if member.static else "", f"{member.wants.service}/{member.wants.application}"
        yield name, owns, output.instant(member.since), static, service


def _row(partition: Partition, line: Line) -> tuple[object, ...]:
    offset, behind = line.offset, line.behind
    return (
        partition.queue.name,
        partition.number,
        line.owner or "nobody",
        line.target if line.target != line.owner else "",
        output.point(None if offset is None else offset.id),
        "" if offset is None else output.instant(offset.at),
        "" if behind is None else behind.lag if behind.lag_exact else f"about {behind.lag}",
        "" if behind is None or not behind.lag else time_parsing.length(behind.lag_seconds),
    )
