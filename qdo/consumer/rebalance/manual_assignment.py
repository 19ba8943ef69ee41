"""Partitions that a consumer was assigned by its user, in the place of a share of what a group owns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.rebalance.partition_table import Owner, Ownership
from qdo.coordination import CommittedOffset, Coordinator, OwnedOffset
from qdo.partitions import Partition


class ManualAssignment(Ownership):
    """The partitions of a consumer that belongs to no group; the counterpart of a group's member.

    Other processes do not know of it, so partitions are never lost. Others may work on the same partitions.

    Args:
        coordinator: Of the group whose offsets are used; None: none are, and nothing is recorded.
        owner: Works on the partitions; notified of each that comes or goes, as by a group.
        revoke_timeout: Seconds that it has to give partitions up.

    Attributes:
        held: The partitions.
        table: What is owned is said here as well.
    """

    held: Mapping[Partition, OwnedPartition] = {}

    def __init__(self, coordinator: Coordinator | None, owner: Owner, revoke_timeout: float) -> None:
        self.table = self
        self._coordinator = coordinator
        self._owner = owner
        self._revoke_timeout = revoke_timeout

    async def start(self) -> None: ...

    def recheck(self) -> None: ...

    @property
    def connected(self) -> bool:
        return True

    async def assign(self, partitions: Collection[Partition]) -> None:
        """Works on these partitions from now on and on no others; those that it works on already go on where they are.

        Raises:
            CoordinationError: The offsets cannot be read; everything stays as it is.
        """
        new = [each for each in partitions if each not in self.held]
        recorded = {} if self._coordinator is None else await self._coordinator.offsets(new)
        await self._give_up([row for partition, row in self.held.items() if partition not in partitions])
        rows = [OwnedPartition(each, OwnedOffset(each, recorded.get(each, CommittedOffset()), 0)) for each in new]
        self.held = {row.partition: row for row in (*self.held.values(), *rows) if row.partition in partitions}
        await self._owner.assigned(rows)

    async def record(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        # As the group's offsets: the last commit wins. A member that owns one of the partitions makes it fail.
        if self._coordinator is not None:
            await self._coordinator.set_offsets(offsets)
            for partition, identifier in offsets.items():
                if (row := self.held.get(partition)) is not None:
                    row.held = OwnedOffset(partition, CommittedOffset(identifier, time.time()), 0)
        return frozenset()

    def rejoin(self) -> None: ...

    async def stop(self, within: float | None = None) -> None:
        """Works on nothing any more; see :meth:`qdo.consumer.rebalance.group_member.GroupMember.stop`."""
        await self._give_up(list(self.held.values()), within)
        self.held = {}

    async def _give_up(self, rows: list[OwnedPartition], within: float | None = None) -> None:
        """Stops the owner and lets it commit what it still wants to."""
        for row in rows:
            row.state = "revoking"
        self._owner.stop(rows)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._revoke_timeout if within is None else within):
                await asyncio.gather(*map(self._owner.revoke, rows))
        for row in rows:
            row.state = "lost"
