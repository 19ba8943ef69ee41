"""``qdo groups``: which groups there are."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qdo.cli.opening import open_group
from qdo.cli.options import MEETING, with_settings
from qdo.cli.settings import WorkSettings
from queuey.terminal import output
from queuey.titles import titled


class GroupCounts(msgspec.Struct, frozen=True):
    """A group, and how many members and partitions with an offset it has."""

    group: str
    members: int
    partitions: Annotated[int, titled("partitions with an offset")]


@with_settings(*MEETING)
async def groups(settings: WorkSettings) -> None:
    """List the groups that the coordination service knows; with --json one a line. Needs no service."""
    # Which groups there are does not depend on the group that asks.
    async with open_group(settings, settings.group or "qdo") as any_group:
        names = await any_group.groups()
    output.show_each(GroupCounts, [await _counts(settings, name) for name in names])


async def _counts(settings: WorkSettings, name: str) -> GroupCounts:
    async with open_group(settings, name) as coordinator:
        members, offsets = await coordinator.members(), await coordinator.offsets()
    return GroupCounts(name, len(members), len(offsets))
