"""The contracts on progress: offsets of consumer groups, and a ledger of work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from queuey.errors import Conflict

if TYPE_CHECKING:
    from queuey.groups.ownership import MemberCommit, OwnedOffset, OwnedOffsets
    from queuey.ids import Position
    from queuey.messages import Offset, OffsetChange, Queue


class Offsets(ABC):
    """How far consumer groups have processed a queue."""

    @abstractmethod
    async def set_offsets(
        self,
        queue: Queue,
        group: str,
        changes: Sequence[OffsetChange],
        *,
        commit: MemberCommit | None = None,
        disown: int | None = None,
    ) -> list[Offset]:
        """Records offsets, each partition by its own compare-and-set; returns those now recorded.

        A group whose name begins with :data:`~queuey.storage.offset_changes.READERS` is a reader of the queue.

        Args:
            queue: The queue.
            group: The group.
            changes: At most one for each partition.
            commit: It is one of a member: a partition that the member does not own under the epoch stays as it is.
            disown: If the recorded offsets have this version, their partitions have no owner afterwards, as *lost*.

        Raises:
            NotOwner: The member does not own some partitions; those are unchanged, all other offsets are set.
            PartitionsOwned: Members own partitions of this queue, and neither ``commit`` was given, nor ``disown`` with
                the present version. Nothing was recorded.
            InvalidRequest: A partition is beyond the queue's.
            Conflict: Nothing is recorded for the group, and the queue has 1,000 others; or 10,000 other readers.
            OffsetConflict: Some comparisons failed; those partitions are unchanged, all other offsets are set.
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

        A deleted queue has none; whether the rows are up to date is not checked.
        """

    @abstractmethod
    async def groups(self, queue: Queue) -> list[str]:
        """Lists the groups with recorded offsets, sorted; no readers."""

    @abstractmethod
    async def delete_group(self, queue: Queue, group: str, *, disown: int | None = None) -> None:
        """Forgets a group's offsets.

        Raises:
            PartitionsOwned: As of :meth:`set_offsets`.
            GroupNotFound: Nothing is recorded for the group.
        """

    @abstractmethod
    async def owned_offsets(self, queue: Queue, group: str, notes: Container[int] = ()) -> OwnedOffsets:
        """Returns what a group has recorded for a queue; notes only of the partitions named.

        Unlike :meth:`group_offsets` it does not check whether the row is up to date: rows go by uid.
        """

    @abstractmethod
    async def hand_over(self, queue: Queue, group: str, version: int | None, owners: Sequence[OwnedOffset]) -> bool:
        """Records owners, epochs and origins of partitions, nothing else of them, if the version is still there.

        A partition without offset shows none afterwards, to nodes of 0.1.0 one before all messages. ``owners`` are rows
        as they were read with this version, but for their owners.

        Returns whether that was done; False: another call was faster.

        Raises:
            QueueChanged: The queue is gone.
            Conflict: The group is a further one of a queue that has 1,000.
            StoreUnavailable: See its ``outcome``; with ``unknown`` the caller reads again.
        """


LEDGER_TTL = 30 * 86_400
"""Max seconds for which an entry of the ledger is kept after its last change."""


class Ledger(ABC):
    """Notes about pieces of work that may be done again, each changed by compare-and-set. They are kept for 30 days.

    A piece is named by ``work`` (any text up to 500 bytes) and ``piece`` (an integer from 0).
    """

    @abstractmethod
    async def now(self) -> int:
        """Returns the clock of ids (ticks)."""

    async def ids_ahead(self) -> float:
        """Returns the seconds by which the next id will be ahead of the clock, because the clock was ahead once."""
        return 0.0

    @abstractmethod
    async def entry(self, work: str, piece: int) -> bytes | None:
        """Returns the newest value of a piece that was ever accepted; None: there is none."""

    @abstractmethod
    async def enter(
        self, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: float = LEDGER_TTL
    ) -> bytes:
        """Sets the value of a piece if the present one is ``expected`` (None: there is none).

        Returns the value afterwards: ``value``, or that of another caller. Repeating it after an error is safe. The
        value is kept for at least ``kept`` seconds, of which more than 30 days do not count.

        Raises:
            Conflict: A value was expected and there is none, as after 30 days.
        """


async def exchange(
    ledger: Ledger, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: float = LEDGER_TTL
) -> bytes | None:
    """Sets a value as :meth:`Ledger.enter`, and returns None instead of an error if the expected value has expired."""
    try:
        return await ledger.enter(work, piece, value, expected=expected, kept=kept)
    except Conflict:
        return None
