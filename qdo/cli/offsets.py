"""``qdo offsets``: shows and moves the offsets of a group."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Literal

import msgspec
import typer

from qdo.cli.opening import OpenedGroup, open_client_and_group, open_group, require_group
from qdo.cli.options import GROUP, QUEUES, with_settings
from qdo.cli.selection import (
    describe_hidden_queues,
    find_deleted_queues,
    find_selected,
    format_point,
    parse_position,
    select_partitions,
)
from qdo.cli.settings import SERVICE, WorkSettings
from qdo.consumer.positions import read_ends
from qdo.group.offset_moves import OffsetMove, make_moves, plan_moves, require_no_members
from qdo.partitions import Partition
from queuey.client import EARLIEST
from queuey.model.titles import instant, titled
from queuey.terminal import output
from queuey.terminal.commands import make_group
from queuey.terminal.output import DryRun, Yes

app = make_group()

Numbers = Annotated[
    list[int] | None, typer.Option("--partition", min=1, help="Only partitions with this number. Can be repeated.")
]
FindTargets = Callable[[OpenedGroup, list[Partition]], Awaitable[Mapping[Partition, str | None]]]

_OFFSET_COLUMNS = (("from", lambda moved: format_point(moved.before)), ("to", lambda moved: format_point(moved.after)))


class RecordedPartition(msgspec.Struct, frozen=True):
    """The offset of a partition.

    Attributes:
        member: The member that recorded the offset, or empty for a command. A group of the service has only the name
            of the current owner.
    """

    service: str
    app: str
    queue: str
    partition: int
    offset: Annotated[str | None, titled(unit=format_point)]
    recorded: Annotated[float, titled(unit=instant)]
    member: str


class MovedOffset(msgspec.Struct, frozen=True):
    """The change of a partition's offset, or a note if it has none to make. An offset is null if none is recorded."""

    service: str
    app: str
    queue: str
    partition: int
    before: str | None = msgspec.field(name="from")
    after: str | None = msgspec.field(name="to")
    changed: bool
    reason: str = msgspec.field(name="note")


@app.command("show")
@with_settings(*SERVICE, *GROUP, *QUEUES)
async def show(settings: WorkSettings, partition: Numbers = None) -> None:
    """Show the recorded offsets; with --json one partition per line."""
    async with open_group(settings) as coordinator:
        recorded = await coordinator.offsets()
    rows = [
        RecordedPartition(*place.queue, place.number, recorded[place].id, recorded[place].at, recorded[place].member)
        for place in select_partitions(recorded, settings, partition or ())
    ]
    # A group of the service has only the name of the current owner.
    is_in_tree = (settings.coordination or "").startswith("zookeeper:")
    by = ("by", lambda offset: offset.member or ("from outside" if is_in_tree else ""))
    output.show_each(RecordedPartition, rows, "queue", "partition", "offset", "recorded", by)


@app.command("reset")
@with_settings(*SERVICE, *GROUP, *QUEUES)
async def reset(
    settings: WorkSettings,
    to: Annotated[
        Literal["earliest", "latest"], typer.Argument(help="Before the oldest message, or after the newest.")
    ],
    partition: Numbers = None,
    dry_run: DryRun = False,
) -> None:
    """Make a group start again at the oldest stored messages, or at new messages only.

    Without --queue and --pattern it moves every partition that has an offset.
    """

    async def find_targets(opened: OpenedGroup, partitions: list[Partition]) -> Mapping[Partition, str | None]:
        return dict.fromkeys(partitions, EARLIEST) if to == "earliest" else await read_ends(opened.client, partitions)

    await _move_offsets(settings, partition, find_targets, dry_run=dry_run)


@app.command("seek")
@with_settings(*SERVICE, *GROUP, *QUEUES)
async def seek(
    settings: WorkSettings,
    to: Annotated[
        str,
        typer.Option(
            help="The id of the last message that counts as processed; or the time of the first message to handle: "
            "seconds since 1970, ISO 8601 (local time unless it names a zone), or relative such as -1h.",
            show_default=False,
        ),
    ],
    partition: Numbers = None,
    dry_run: DryRun = False,
) -> None:
    """Make a group continue after a message, or at a time.

    Without --queue and --pattern it moves every partition that has an offset.
    """
    position = parse_position(to, time.time())

    async def find_targets(_: OpenedGroup, partitions: list[Partition]) -> Mapping[Partition, str | None]:
        return dict.fromkeys(partitions, position)

    await _move_offsets(settings, partition, find_targets, dry_run=dry_run)


@app.command("forget")
@with_settings(*SERVICE, *GROUP, *QUEUES)
async def forget(settings: WorkSettings, partition: Numbers = None, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Remove offsets, so that the group starts there like a new one; without a queue or partition the whole group."""
    is_selection = bool(settings.queue or settings.pattern or partition)
    if not dry_run:
        group = require_group(settings)
        what = f"these offsets of group {group}" if is_selection else f"group {group} with all its offsets"
        output.confirm(f"Forget {what}?", yes=yes)
    async with open_group(settings) as coordinator:
        recorded = await coordinator.offsets()
        planned = plan_moves(dict.fromkeys(select_partitions(recorded, settings, partition or ())), recorded)
        await require_no_members(coordinator)
        if not dry_run:
            await (make_moves(coordinator, planned) if is_selection else coordinator.forget())
    _print_moves(planned, dry_run=dry_run)


@app.command("prune")
@with_settings(*SERVICE, *GROUP)
async def prune(
    settings: WorkSettings,
    former: Annotated[
        str | None, typer.Option("--service", help="Remove all offsets of this former store instead.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove the offsets of queues that do not exist any more."""
    if not dry_run:
        output.confirm(f"Remove these offsets of group {require_group(settings)}?", yes=yes)
    async with open_client_and_group(settings) as opened:
        await require_no_members(opened.coordinator)
        recorded = await opened.coordinator.offsets()
        gone, unseen = await find_deleted_queues(opened, recorded, former)
        if unseen:
            output.print_note(
                f"qdo: {describe_hidden_queues(unseen)}, so their offsets stay. Use a key that may see them."
            )
        if gone and not dry_run:
            await opened.coordinator.forget(gone)
    planned = plan_moves(dict.fromkeys(place for place in recorded if place.queue in gone), recorded)
    _print_moves(planned, dry_run=dry_run)


async def _move_offsets(
    settings: WorkSettings, numbers: list[int] | None, find_targets: FindTargets, *, dry_run: bool
) -> None:
    async with open_client_and_group(settings) as opened:
        await require_no_members(opened.coordinator)
        partitions = await find_selected(opened, settings, numbers or ())
        targets = await find_targets(opened, partitions)
        planned = plan_moves(targets, await opened.coordinator.offsets(partitions))
        if not dry_run:
            await make_moves(opened.coordinator, planned)
    _print_moves(planned, dry_run=dry_run)


def _print_moves(planned: list[OffsetMove], *, dry_run: bool) -> None:
    rows = [
        MovedOffset(
            *move.partition.queue,
            move.partition.number,
            move.before,
            move.after,
            move.is_change and not dry_run,
            "" if move.is_change else "there already",
        )
        for move in sorted(planned, key=lambda move: move.partition)
    ]
    output.show_each(MovedOffset, rows, "queue", "partition", *_OFFSET_COLUMNS, ("", lambda moved: moved.reason))
    count = sum(move.is_change for move in planned)
    output.print_note(
        f"{count} offsets would be moved; nothing was changed." if dry_run else f"{count} offsets were moved."
    )
