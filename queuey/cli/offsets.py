"""``queuey offsets``: how far consumer groups have processed a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuey import time_parsing
from queuey.cli.service_options import Group, Queue, connected, group_names
from queuey.terminal import output
from queuey.terminal.commands import group
from queuey.terminal.output import Json, Yes

if TYPE_CHECKING:
    from queuey.client import Client
    from queuey.client.results import Offsets

app = group()

_COLUMNS = ["partition", "offset", "recorded", "behind", "oldest of them"]


@app.command("show")
@connected
def show(
    client: Client,
    queue: Queue,
    group: Annotated[
        str | None, typer.Argument(help="Consumer group.", show_default="all", autocompletion=group_names)
    ] = None,
    json: Json = False,
) -> None:
    """Show recorded offsets, and how many messages lie behind them; with --json one group a line."""
    groups = [group] if group is not None else client.groups(queue)
    if not groups:
        output.note(
            f"No group has recorded offsets of {queue} here. See those of Qdo's workers: qdo status --group GROUP"
        )
    for name in groups:
        found = client.offsets(queue, name)
        if json:
            output.emit(found)
            continue
        output.say(f"{name}: {found.lag} behind")
        output.table(_COLUMNS, _rows(found))


@app.command("set")
@connected
def set_offsets(
    client: Client,
    queue: Queue,
    group: Group,
    offset: Annotated[list[str], typer.Argument(help="<partition>=<message id>, one or several.", show_default=False)],
    expect: Annotated[
        list[str] | None,
        typer.Option(help="<partition>=<id>, or =none: set it only if this is recorded now."),
    ] = None,
    json: Json = False,
) -> None:
    """Record that a group has processed everything up to and including these messages."""
    offsets = dict(_pair(text) for text in offset)
    expected = {number: None if name == "none" else name for number, name in map(_pair, expect or [])}
    if unset := expected.keys() - offsets.keys():
        raise typer.BadParameter(f"partition {min(unset)} is expected but not set", param_hint="--expect")
    recorded = client.commit(queue, group, offsets, expected=expected or None)
    if json:
        output.emit({"group": group, "partitions": {number: {"offset": text} for number, text in recorded.items()}})
    else:
        output.table(["partition", "offset"], sorted(recorded.items()))


@app.command("delete")
@connected
def delete(client: Client, queue: Queue, group: Group, yes: Yes = False, json: Json = False) -> None:
    """Forget a group's offsets."""
    output.confirm(f"Forget the offsets of {group}?", yes=yes)
    client.delete_group(queue, group)
    output.emit({"group": group, "deleted": True}) if json else output.say(f"The offsets of {group} are forgotten.")


def _rows(found: Offsets) -> list[list[Any]]:
    return [
        [
            number,
            part.offset,
            None if part.updated is None else time_parsing.iso(part.updated),
            part.lag if part.lag_exact else f"about {part.lag}",
            time_parsing.length(part.lag_seconds) if part.lag else None,
        ]
        for number, part in sorted(found.partitions.items())
    ]


def _pair(text: str) -> tuple[int, str]:
    number, equals, name = text.partition("=")
    if not (equals and name and number.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not <partition>=<message id>")
    return int(number), name
