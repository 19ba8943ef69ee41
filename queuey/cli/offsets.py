"""``queuey offsets``: the offsets of consumer groups in a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queuey.api.progress import GroupOffset
from queuey.cli.service_options import Group, Queue, connected, group_names
from queuey.terminal import output
from queuey.terminal.commands import make_group
from queuey.terminal.output import Yes

if TYPE_CHECKING:
    from queuey.client import Client

app = make_group()


@app.command("show")
@connected
def show(
    client: Client,
    queue: Queue,
    group: Annotated[
        str | None, typer.Argument(help="Consumer group.", show_default="all", autocompletion=group_names)
    ] = None,
) -> None:
    """Show recorded offsets and the lag behind them; with --json one group per line."""
    groups = [group] if group is not None else client.groups(queue)
    if not groups:
        output.print_note(
            f"No group has recorded offsets of {queue} here. See those of Qdo's workers: qdo status --group GROUP"
        )
    for name in groups:
        offsets = client.offsets(queue, name)
        shown = ("offset", "updated", "lag", "lag_seconds")
        rows = output.table(GroupOffset, offsets.partitions, *shown, key="partition")
        output.show(offsets, (f"{name}: {offsets.lag} behind", rows))


@app.command("set")
@connected
def set_offsets(
    client: Client,
    queue: Queue,
    group: Group,
    offset: Annotated[
        list[str], typer.Argument(help="<partition>=<message id>; several may be given.", show_default=False)
    ],
    expect: Annotated[
        list[str] | None,
        typer.Option(help="<partition>=<id>, or =none: set the offset only if this is its present value."),
    ] = None,
) -> None:
    """Record that a group has processed everything up to and including these messages."""
    offsets = dict(_parse_pair(text) for text in offset)
    expected = {number: None if name == "none" else name for number, name in map(_parse_pair, expect or [])}
    if unset := expected.keys() - offsets.keys():
        raise typer.BadParameter(f"partition {min(unset)} has an expected offset but no new one", param_hint="--expect")
    recorded = client.commit(queue, group, offsets, expected=expected or None)
    partitions = {number: {"offset": text} for number, text in recorded.items()}
    table = output.Table(["partition", "offset"], sorted(recorded.items()))
    output.show({"group": group, "partitions": partitions}, [table])


@app.command("delete")
@connected
def delete(client: Client, queue: Queue, group: Group, yes: Yes = False) -> None:
    """Delete a group's offsets."""
    output.confirm(f"Delete the offsets of {group}?", yes=yes)
    client.delete_group(queue, group)
    output.show({"group": group, "deleted": True}, f"The offsets of {group} are deleted.")


def _parse_pair(text: str) -> tuple[int, str]:
    number, equals, name = text.partition("=")
    if not (equals and name and number.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not <partition>=<message id>")
    return int(number), name
