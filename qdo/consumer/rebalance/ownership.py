"""The partitions that a consumer owns: none, or partitions that its user chose.

Partitions that a group shares out are in :mod:`qdo.consumer.rebalance.partition_table`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.partition_listener import PartitionListener
from qdo.consumer.rebalance.session_events import CommitListener
from qdo.coordination import AnyCoordinator, CommittedOffset, HandlingNote, OwnedOffset
from qdo.errors import NotOwner
from qdo.partitions import Partition, some

MAX_NAMED = 5
"""Max partitions that an error names."""


class Ownership:
    """The partitions of a consumer; of this one: none."""

    @property
    def connected(self) -> bool:
        """They are surely owned still."""
        return False

    @property
    def held(self) -> Mapping[Partition, OwnedPartition]:
        """The rows for which commits are accepted."""
        return {}

    def held_row(self, partition: Partition) -> OwnedPartition | None:
        return self.held.get(partition)

    async def commit(self, offsets: Mapping[Partition, str], *, back: bool = False) -> None:
        """Checks the ids of last processed messages and records them; what is recorded already costs nothing.

        Args:
            offsets: The ids.
            back: They may lie before what was committed.

        Raises:
            InvalidArgument: One of them cannot be committed; none was.
            NotOwner: Some partitions are no longer this member's; the offsets of the rest were recorded.
            CoordinationLost: Each was recorded or not.
            SessionLost
        """
        rows = {each: row for each in offsets if (row := self.held_row(each)) is not None and row.begun}
        lost = frozenset(offsets.keys() - rows.keys())
        changed = [row for each, row in rows.items() if row.accepts(offsets[each], back=back)]
        sought = [row for row in changed if row.seek_pending]
        for row in changed:
            row.want(offsets[row.partition], back=back)
        try:
            lost |= await self.flush(changed) if changed else lost
        except BaseException:
            # Recorded or not: a caller that went back may have to do so again.
            for row in sought:
                row.seek_pending = True
            raise
        if lost:
            raise NotOwner(f"no longer owned by this member: {some(lost, MAX_NAMED)}", lost)

    async def record(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        """Records offsets unchecked; returns the partitions that are not ours, for which nothing was recorded."""
        rows = [row for partition in offsets if (row := self.held_row(partition)) is not None]
        for row in rows:
            row.want(offsets[row.partition])
        return frozenset(offsets) - {row.partition for row in rows} | await self.flush(rows)

    def add(self, row: OwnedPartition, offset: str, messages: int) -> None:
        """Records the id of a last handled message together with others, later; see :class:`CommitBuffer`.

        Args:
            row: The ownership; nothing happens if it is over.
            offset: The id.
            messages: Number of messages handled since the last call.

        Raises:
            InvalidArgument: The id cannot be committed.
        """

    async def flush(self, rows: Collection[OwnedPartition], _deadline: float | None = None) -> frozenset[Partition]:
        """Records what is pending of some rows, at once; returns as :meth:`record` does.

        Args:
            rows: The ownerships.
            deadline: Until when it is tried, by the loop's clock; for ``patience`` seconds if it is None.

        Raises:
            CoordinationLost: Each was recorded or not.
            SessionLost
        """
        return frozenset(row.partition for row in rows)

    async def note(self, row: OwnedPartition, note: HandlingNote | None) -> None:
        """Records beside a partition's offset what was begun of it, in one write with what is pending.

        Raises:
            NotOwner: The ownership is over.
            CoordinationLost, SessionLost
        """
        if row.commits:
            row.note = note
        if await self.flush([row]):
            raise NotOwner(f"{row.partition} is not owned by this member", frozenset([row.partition]))


class ManualAssignment(Ownership):
    """The partitions of a consumer that belongs to no group; the counterpart of a group's member.

    Other processes do not know of it, so partitions are never lost. Others may work on the same partitions.

    Args:
        coordinator: Of the group whose offsets are used; None: none are, and nothing is recorded.
        owner: Works on the partitions; notified of each that comes or goes, as by a group.
        revoke_timeout: Seconds that it has to give partitions up.
        mirror: Notified of commits, unless it is None.

    Attributes:
        held: The partitions.
        table: What is owned is said here as well.
    """

    held: Mapping[Partition, OwnedPartition] = {}

    def __init__(
        self,
        coordinator: AnyCoordinator | None,
        owner: PartitionListener,
        revoke_timeout: float,
        mirror: CommitListener | None = None,
    ) -> None:
        self.table = self
        self._mirror = mirror
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

    async def flush(self, rows: Collection[OwnedPartition], _deadline: float | None = None) -> frozenset[Partition]:
        # As the group's offsets: the last commit wins. A member that owns one of the partitions makes it fail.
        if self._coordinator is None:
            for row in rows:
                row.answer(recorded=True)
            return frozenset()
        changes = {row: (row.pending_offset, row.pending_back) for row in rows if row.pending_offset is not None}
        offsets = {row.partition: offset for row, (offset, _) in changes.items()}
        recorded = False
        try:
            await self._coordinator.set_offsets(offsets)
            recorded = True
        finally:
            for row in changes:
                row.answer(recorded=recorded)
        for row, (offset, _) in changes.items():
            row.held = OwnedOffset(row.partition, CommittedOffset(offset, time.time()), 0)
        if self._mirror is not None:
            self._mirror.recorded({row.partition: change for row, change in changes.items()})
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
