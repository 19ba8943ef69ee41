"""Plans and makes changes of a group's offsets from outside.

Offsets can be moved only while the group has no members, because a running consumer ignores the change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from qdo.errors import GroupActive
from qdo.group.protocol import Coordinator
from qdo.group.records import CommittedOffset
from qdo.partitions import Partition, join_first
from queuey.client import order_of

log = logging.getLogger("qdo.consumer")

_MAX_NAMED_MEMBERS = 3


class OffsetMove(msgspec.Struct, frozen=True):
    """A change of a partition's offset. ``before`` and ``after`` are None where no offset is recorded."""

    partition: Partition
    before: str | None
    after: str | None

    @property
    def is_change(self) -> bool:
        if self.before is None or self.after is None:
            return self.before is not self.after
        return order_of(self.before) != order_of(self.after)


def plan_moves(
    targets: Mapping[Partition, str | None], recorded: Mapping[Partition, CommittedOffset]
) -> list[OffsetMove]:
    return [
        OffsetMove(partition, recorded[partition].id if partition in recorded else None, after)
        for partition, after in sorted(targets.items())
    ]


async def require_no_members(coordinator: Coordinator) -> None:
    if members := await coordinator.members():
        raise GroupActive(
            f"group {coordinator.group} is active, so its offsets cannot be moved: "
            f"stop its members first ({join_first(members, _MAX_NAMED_MEMBERS)})"
        )


async def make_moves(coordinator: Coordinator, planned: Iterable[OffsetMove]) -> list[OffsetMove]:
    """Makes the moves that change an offset, and returns them.

    Raises:
        GroupActive: The group has members.
        OffsetMoved: Another process has moved one of the offsets since they were read. Call this again.
        CoordinationLost: It is unknown whether the offsets were moved. Call this again.
    """
    changing = [move for move in planned if move.is_change]
    await require_no_members(coordinator)
    if changing:
        await coordinator.set_offsets(
            {move.partition: move.after for move in changing},
            expected={move.partition: move.before for move in changing},
        )
    return changing


async def warn_of_other_stores(coordinator: Coordinator, service: str) -> None:
    """Warns if the group has recorded offsets, but none for this store: then it begins again."""
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
