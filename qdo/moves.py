"""Moving a group's offsets from outside: what would change, and the change.

Offsets can be moved only while the group has no members: a running consumer goes on from what it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from qdo.coordination import CommittedOffset, Coordinator
from qdo.errors import GroupActive
from qdo.partitions import Partition, some
from queuey.client import order_of

log = logging.getLogger("qdo.consumer")

_NAMED = 3
"""Max members that an error names."""


class Move(msgspec.Struct, frozen=True):
    """The change of a partition's offset; None: nothing is recorded."""

    partition: Partition
    before: str | None
    after: str | None

    @property
    def changes(self) -> bool:
        if self.before is None or self.after is None:
            return self.before is not self.after
        return order_of(self.before) != order_of(self.after)

    @property
    def goes_back(self) -> bool:
        """Messages that count as processed would be handled again."""
        if self.before is None:
            return False
        return self.after is None or order_of(self.after) < order_of(self.before)


def moves(wanted: Mapping[Partition, str | None], recorded: Mapping[Partition, CommittedOffset]) -> list[Move]:
    """Returns the move of each partition, sorted."""
    return [
        Move(partition, recorded[partition].id if partition in recorded else None, after)
        for partition, after in sorted(wanted.items())
    ]


async def refuse_active(coordinator: Coordinator) -> None:
    """Raises GroupActive if the group has members."""
    if members := await coordinator.members():
        raise GroupActive(
            f"group {coordinator.group} is active, so its offsets cannot be moved: "
            f"stop its members first ({some(members, _NAMED)})"
        )


async def carry_out(coordinator: Coordinator, planned: Iterable[Move]) -> list[Move]:
    """Moves the offsets that change and are still as planned; returns those moves.

    Raises:
        GroupActive: The group has members.
        OffsetMoved: Another process moved one of them meanwhile; run it again.
        CoordinationLost: They were moved or not; run it again.
    """
    changing = [move for move in planned if move.changes]
    await refuse_active(coordinator)
    if changing:
        await coordinator.set_offsets(
            {move.partition: move.after for move in changing},
            expected={move.partition: move.before for move in changing},
        )
    return changing


async def warn_of_other_stores(coordinator: Coordinator, service: str) -> None:
    """Logs a warning if the group recorded offsets for other stores only."""
    services = await coordinator.services()
    if services and service not in services:
        log.warning(
            "group %s has recorded offsets for %s, and none for this service, whose store is %s: it begins again. If "
            "this is the same service with another store, stop the group and run: "
            "qdo offsets seek --to TIME --pattern '*'",
            coordinator.group,
            ", ".join(sorted(services)),
            service,
        )
