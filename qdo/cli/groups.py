"""``qdo groups``: which groups there are."""

from __future__ import annotations

from qdo.cli.opening import open_group
from qdo.cli.options import MEETING, with_settings
from qdo.cli.settings import WorkSettings
from queuey.terminal import output
from queuey.terminal.output import Json


@with_settings(*MEETING)
async def groups(settings: WorkSettings, json: Json = False) -> None:
    """List the groups that the coordination service knows; with --json one a line. Needs no service."""
    # Which groups there are does not depend on the group that asks.
    async with open_group(settings, settings.group or "qdo") as any_group:
        names = await any_group.groups()
    found = [await _counts(settings, name) for name in names]
    output.listed(["group", "members", "partitions with an offset"], found, lambda one: [*one.values()], json=json)


async def _counts(settings: WorkSettings, name: str) -> dict[str, object]:
    async with open_group(settings, name) as coordinator:
        members, offsets = await coordinator.members(), await coordinator.offsets()
    return {"group": name, "members": len(members), "partitions": len(offsets)}
