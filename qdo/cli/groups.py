"""``qdo groups``: which groups there are."""

from __future__ import annotations

import asyncio

from qdo.cli.opening import open_group
from qdo.cli.options import MEETING, with_settings
from qdo.cli.settings import WorkSettings
from queuey.terminal import output
from queuey.terminal.output import Json


@with_settings(*MEETING)
def groups(settings: WorkSettings, json: Json = False) -> None:
    """List the groups that the coordination service knows; with --json one a line. Needs no service."""

    async def read() -> list[tuple[str, int, int]]:
        # Which groups there are does not depend on the group that asks.
        async with open_group(settings, settings.group or "qdo") as any_group:
            names = await any_group.groups()
        return [await _counts(settings, name) for name in names]

    found = asyncio.run(read())
    if json:
        for name, members, partitions in found:
            output.emit({"group": name, "members": members, "partitions": partitions})
    else:
        output.table(["group", "members", "partitions with an offset"], found)


async def _counts(settings: WorkSettings, name: str) -> tuple[str, int, int]:
    async with open_group(settings, name) as coordinator:
        return name, len(await coordinator.members()), len(await coordinator.offsets())
