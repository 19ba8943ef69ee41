"""``qdo offsets``: how far a group has come, and moving that."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from qdo.cli.opening import group_of, open_both, open_group
from qdo.cli.options import GROUP, QUEUES, with_settings
from qdo.cli.selection import chosen, deleted, existing, hidden, id_of, point
from qdo.cli.settings import SERVICE, WorkSettings
from qdo.consumer.positions import ends
from queuey.client import EARLIEST
from queuey.terminal import output
from queuey.terminal.commands import group
from queuey.terminal.output import DryRun, Json, Yes
from queuey.time_parsing import iso

if TYPE_CHECKING:
    from qdo.cli.opening import OpenedGroup
    from qdo.moves import Move
    from qdo.partitions import Partition

app = group()

Numbers = Annotated[
    list[int] | None, typer.Option("--partition", min=1, help="Only partitions of this number; several may be given.")
]
Wanted = Callable[["OpenedGroup", "list[Partition]"], Awaitable[Mapping["Partition", str | None]]]

_FATES = {
    "move": "",
    "same": "there already",
    "ahead": "the group is further; --back takes it over",
    "untouched": "nothing was processed",
    "gone": "no such queue or partition",
    "hidden": "the key may not see the queue; use one that may",
}


@app.command("show")
@with_settings(*GROUP, *QUEUES)
async def show(settings: WorkSettings, partition: Numbers = None, json: Json = False) -> None:
    """Show what is recorded; with --json one partition a line. Needs no service."""
    async with open_group(settings) as coordinator:
        recorded = await coordinator.offsets()
    found = [
        {**_place(one), "offset": recorded[one].id, "recorded": recorded[one].at, "member": recorded[one].member}
        for one in chosen(recorded, settings, partition or ())
    ]
    output.listed(["queue", "partition", "offset", "recorded", "by"], found, _row, json=json)


@app.command("reset")
@with_settings(*SERVICE, *GROUP, *QUEUES)
async def reset(
    settings: WorkSettings,
    to: Annotated[
        Literal["earliest", "latest"], typer.Argument(help="Where to: before the oldest message, or after the newest.")
    ],
    partition: Numbers = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Begin anew with everything that is there, or with what comes from now on.

    Without --queue and --pattern every partition that has an offset is meant.
    """

    async def wanted(opened: OpenedGroup, partitions: list[Partition]) -> Mapping[Partition, str | None]:
        return dict.fromkeys(partitions, EARLIEST) if to == "earliest" else await ends(opened.client, partitions)

    await _move(settings, partition, wanted, dry_run=dry_run, json=json)


@app.command("seek")
@with_settings(*SERVICE, *GROUP, *QUEUES)
async def seek(
    settings: WorkSettings,
    to: Annotated[
        str,
        typer.Option(
            help="The id of the last message that counts as processed; or an instant, from which on messages are "
            "handled: seconds since 1970, ISO 8601 (local time unless it names a zone), or relative such as -1h.",
            show_default=False,
        ),
    ],
    partition: Numbers = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Go on behind a message, or from an instant on.

    Without --queue and --pattern every partition that has an offset is meant.
    """
    position = id_of(to, time.time())

    async def wanted(_: OpenedGroup, partitions: list[Partition]) -> Mapping[Partition, str | None]:
        return dict.fromkeys(partitions, position)

    await _move(settings, partition, wanted, dry_run=dry_run, json=json)


@app.command("forget")
@with_settings(*GROUP, *QUEUES)
async def forget(
    settings: WorkSettings, partition: Numbers = None, dry_run: DryRun = False, yes: Yes = False, json: Json = False
) -> None:
    """Remove offsets, so that the group begins there as if it were new; without a choice the whole group."""
    from qdo.moves import carry_out, moves, refuse_active

    some = bool(settings.queue or settings.pattern or partition)
    if not dry_run:
        group = group_of(settings)
        what = f"these offsets of group {group}" if some else f"group {group} with all its offsets"
        output.confirm(f"Forget {what}?", yes=yes)
    async with open_group(settings) as coordinator:
        recorded = await coordinator.offsets()
        planned = moves(dict.fromkeys(chosen(recorded, settings, partition or ())), recorded)
        await refuse_active(coordinator)
        if not dry_run:
            await (carry_out(coordinator, planned) if some else coordinator.forget())
    _print_moves(planned, dry_run=dry_run, json=json)


@app.command("prune")
@with_settings(*SERVICE, *GROUP)
async def prune(
    settings: WorkSettings,
    former: Annotated[
        str | None,
        typer.Option("--service", help="Remove all offsets of this former store instead."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove what the group recorded of queues that the service does not have any more."""
    from qdo.moves import moves, refuse_active

    if not dry_run:
        output.confirm(f"Remove these offsets of group {group_of(settings)}?", yes=yes)
    async with open_both(settings) as opened:
        await refuse_active(opened.coordinator)
        recorded = await opened.coordinator.offsets()
        gone, unseen = await deleted(opened, recorded, former)
        if unseen:
            output.note(f"qdo: {hidden(unseen)}, so their offsets stay. Use a key that may see them.")
        if gone and not dry_run:
            await opened.coordinator.forget(gone)
    planned = moves(dict.fromkeys(each for each in recorded if each.queue in gone), recorded)
    _print_moves(planned, dry_run=dry_run, json=json)


@app.command("migrate")
@with_settings(*SERVICE, *GROUP)
async def migrate(
    settings: WorkSettings,
    back: Annotated[bool, typer.Option("--back", help="Also if the group's own offset is higher.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Take over how far the original Qdo's workers came, from the application's queue qdo_status.

    May be repeated: what is there already stays, and no offset moves back without --back.
    """
    from qdo import migration

    async with open_both(settings) as opened:
        done = await migration.migrate(*opened, back=back, dry_run=dry_run)
    for reason in done.unreadable:
        output.note(f"qdo: passed over, no status: {reason}")
    _print_moves(done.moves, dry_run=dry_run, json=json, fates=done.fates)


async def _move(
    settings: WorkSettings, numbers: list[int] | None, wanted: Wanted, *, dry_run: bool, json: bool
) -> None:
    from qdo.moves import carry_out, moves, refuse_active

    async with open_both(settings) as opened:
        await refuse_active(opened.coordinator)
        partitions = await existing(opened, settings, numbers or ())
        goals = await wanted(opened, partitions)
        planned = moves(goals, await opened.coordinator.offsets(partitions))
        if not dry_run:
            await carry_out(opened.coordinator, planned)
    _print_moves(planned, dry_run=dry_run, json=json)


def _print_moves(
    planned: list[Move], *, dry_run: bool, json: bool, fates: Mapping[Partition, str] | None = None
) -> None:
    by_place = {move.partition: move for move in planned}
    rows = []
    for partition in sorted({*by_place, *(fates or {})}):
        move = by_place.get(partition)
        fate = _FATES[fates[partition]] if fates else "" if move is None or move.changes else _FATES["same"]
        changes = move is not None and move.changes
        if json:
            places = {"from": move.before, "to": move.after} if move else {"from": None, "to": None}
            output.emit({**_place(partition), **places, "changed": changes and not dry_run, "note": fate})
        rows.append((*_names(partition), *((point(move.before), point(move.after)) if move else ("", "")), fate))
    if not json:
        output.table(["queue", "partition", "from", "to", ""], rows)
    count = sum(move.changes for move in planned)
    output.note(f"{count} offsets would be moved; nothing was changed." if dry_run else f"{count} offsets were moved.")


def _row(found: Mapping[str, Any]) -> list[object]:
    by = found["member"] or "from outside"
    return [found["queue"], found["partition"], point(found["offset"]), iso(found["recorded"]), by]


def _names(partition: Partition) -> tuple[str, int]:
    return partition.queue.name, partition.number


def _place(partition: Partition) -> dict[str, object]:
    queue = partition.queue
    return {"service": queue.service, "app": queue.application, "queue": queue.name, "partition": partition.number}
