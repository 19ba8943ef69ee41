"""``queuey group``: consumer groups whose members the service knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from queuey.cli.operations.store_options import ConfiguredStore, on_store
from queuey.cli.service_options import connected
from queuey.model import time_parsing
from queuey.model.texts import format_count
from queuey.terminal import output
from queuey.terminal.commands import make_group
from queuey.terminal.output import Yes

if TYPE_CHECKING:
    from queuey.api.groups import GroupInfo
    from queuey.client import Client

app = make_group()

Group = Annotated[str, typer.Argument(help="Name of the consumer group.", show_default=False)]


@app.command("list")
@connected
def list_groups(client: Client) -> None:
    """List the application's consumer groups by name."""
    names = client.consumer_groups.names()
    output.show({"groups": names}, names)


@app.command("show")
@connected
def show(
    client: Client,
    group: Group,
    lag: Annotated[bool, typer.Option("--lag", help="Count the messages behind each offset.")] = False,
) -> None:
    """Show the members of a group, and the owner of each partition."""
    shown = client.consumer_groups.show(group, lag=lag)
    output.show(shown, _describe(shown))


def _describe(group: GroupInfo) -> Iterator[output.Block]:
    members = [(m.name, m.number, m.state, time_parsing.format_instant(m.since), m.session) for m in group.members]
    names = {m.number: m.name for m in group.members}
    where = f" in data centre {group.centre}" if group.centre else ""
    yield f"{group.group}: {format_count(len(members), 'member', 'members')}{where}"
    yield output.Table(["member", "number", "state", "since", "session"], members)
    if group.unassigned:
        yield output.ToStderr(f"{group.unassigned} partitions have no member that may read them.")
    owned = [
        (
            name,
            number,
            names.get(p.owner or 0),
            p.since and time_parsing.format_instant(p.since),
            p.came,
            names.get(p.target or 0),
            p.offset,
            p.lag,
        )
        for name, partitions in group.queues.items()
        for number, p in sorted(partitions.items())
    ]
    yield output.Table(["queue", "partition", "owner", "since", "from", "target", "offset", "lag"], owned)


@app.command("delete")
@connected
def delete(
    client: Client,
    group: Group,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if it has members.")] = False,
) -> None:
    """Delete a group that has no members. Its offsets stay; queuey offsets delete removes them."""
    output.confirm(f"Delete group {group}?", yes=yes)
    client.consumer_groups.forget(group, force=force)
    output.show({"group": group, "deleted": True}, f"Group {group} is deleted. Its offsets stay.")


@app.command("remove")
@connected
def remove(
    client: Client,
    group: Group,
    member: Annotated[int, typer.Argument(help="Number of the member.", min=1, show_default=False)],
    yes: Yes = False,
) -> None:
    """Remove a member from a group. Its partitions go to the others; it can join again while its key is valid."""
    output.confirm(f"Remove member {member} from group {group}?", yes=yes)
    client.consumer_groups.remove_member(group, member)
    output.show({"group": group, "removed": member}, f"Member {member} is no longer in group {group}.")


@app.command("move")
@on_store
def move(
    store_at: ConfiguredStore,
    application: Annotated[str, typer.Argument(help="Name of the application.", show_default=False)],
    group: Group,
    to: Annotated[str, typer.Option("--to", help="Data centre that serves the group from now on; must be this one.")],
) -> None:
    """Move a group to this data centre after its own was lost. Works directly on the store of --store.

    Members continue when their heartbeats reach a service here.
    """
    from queuey.app.service import Service

    with store_at.open() as store:
        service = Service(store)
        service.core.run(service.groups.move(application, group, to))
    output.show({"group": group, "centre": to}, f"Group {group} is served in {to}. Its members join again there.")
