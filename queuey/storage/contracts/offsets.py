"""The contract of offsets: how far consumer groups have processed the partitions of a queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.model.groups import MemberCommit, OwnedOffset, OwnedOffsets
    from queuey.model.ids import Position
    from queuey.model.messages import Offset, OffsetChange, Queue


class OffsetRecords(ABC):
    """Offsets of consumer groups in queues, and the owners of partitions."""

    @abstractmethod
    async def set_offsets(
        self,
        queue: Queue,
        group: str,
        changes: Sequence[OffsetChange],
        *,
        commit: MemberCommit | None = None,
        disown: int | None = None,
        is_admin: bool = True,
    ) -> list[Offset]:
        """Records offsets, each partition by its own compare-and-set. Returns the offsets now recorded.

        A group is a reader of the queue if its name begins with :data:`~queuey.storage.offset_changes.READER_PREFIX`.

        Args:
            queue: The queue.
            group: The group.
            changes: At most one change for each partition.
            commit: Set if a member commits. Partitions that the member does not own under the epoch are not changed.
            disown: If the recorded offsets have this version, all partitions lose their owners (origin ``lost``).
            is_admin: The caller may use the last tenth of the queue's groups.

        Raises:
            NotOwner: The member does not own some partitions. These are unchanged, all other offsets are set.
            PartitionsOwned: Members have owned partitions of this queue, and neither ``commit`` nor ``disown`` with the
                present version was given. Nothing was recorded.
            InvalidRequest: The queue does not have a partition.
            Conflict: The group is new, and the queue has 1,000 groups; or it is a new reader, and the queue has 10,000.
            OffsetConflict: Some comparisons failed. These partitions are unchanged, all other offsets are set.
        """

    @abstractmethod
    async def group_offsets(self, queue: Queue, group: str) -> list[Offset]:
        """Returns the recorded offsets, by partition.

        Raises:
            GroupNotFound: Nothing is recorded for the group.
        """

    @abstractmethod
    async def offsets_of_queues(self, queues: Sequence[Queue], group: str) -> list[dict[int, Position]]:
        """Returns the offsets of one group in each of several queues, by partition.

        A deleted queue has no offsets. The queue rows may be out of date.
        """

    @abstractmethod
    async def groups(self, queue: Queue) -> list[str]:
        """Lists the groups with recorded offsets, sorted, without readers."""

    @abstractmethod
    async def delete_group(self, queue: Queue, group: str, *, disown: int | None = None) -> None:
        """Deletes the offsets of a group. The highest epoch of its rows stays: see :class:`OwnedOffsets`.

        Raises:
            PartitionsOwned: See :meth:`set_offsets`.
            GroupNotFound: Nothing is recorded for the group.
        """

    @abstractmethod
    async def owned_offsets(self, queue: Queue, group: str, notes: Container[int] = ()) -> OwnedOffsets:
        """Returns the rows of a group for a queue. Only rows of the partitions ``notes`` include their notes.

        Unlike :meth:`group_offsets` it accepts a queue row that is out of date: offsets belong to the queue's uid.
        """

    @abstractmethod
    async def hand_over(self, queue: Queue, group: str, version: int | None, owners: Sequence[OwnedOffset]) -> bool:
        """Records the owners, epochs and origins of partitions if the stored version is still ``version``.

        Positions and notes stay. A partition without an offset still has none.

        Args:
            queue: The queue.
            group: The group.
            version: ``OwnedOffsets.version`` of the rows.
            owners: Rows as read with this version, with new owners.

        Returns:
            False if nothing was recorded, because another call has changed the version.

        Raises:
            QueueChanged: The queue is gone.
            Conflict: The group is new, and the queue has 1,000 groups.
            StoreUnavailable: See its ``outcome``. With ``unknown`` the caller reads again.
        """
