"""The contract of claim logs: one log per queue partition, to which many processes append by compare-and-set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.model.messages import LogEntry, LogPage, Queue

MAX_PAGE_ENTRIES = 256
"""Max entries that :meth:`ClaimLogs.read_log` returns. Usually a log has fewer after its snapshot."""
MAX_ENTRY_BYTES = 1 << 20
"""Max bytes of an entry's body."""
MAX_SNAPSHOT_BYTES = 4 << 20
"""Max bytes of a snapshot's body."""


class ClaimLogs(ABC):
    """Claim logs of queues, by partition.

    A log belongs to ``(queue.qid, partition)``. A purge or a delete changes the qid, so the log is empty afterwards.
    The old log cannot be reached any more, and the store removes it later.

    Entries are numbered 1, 2, 3, … without gaps. A **snapshot** replaces all entries up to its number, so that they may
    be removed. It depends only on the entries, so all processes make the same snapshot for a number. Appends are
    linearizable per log over all processes: one of several concurrent appends with the same number is applied, and
    appends based on an outdated state are refused.
    """

    @abstractmethod
    async def append_entry(
        self,
        queue: Queue,
        partition: int,
        entry: LogEntry,
        *,
        snapshot: int | None = None,
        truncate_below: int | None = None,
    ) -> bool:
        """Appends an entry if the newest one is ``entry.number - 1``. Does not occupy a thread while it waits.

        An entry in doubt may have been applied, may be applied later, or never. Reading does not show which. Send **the
        same entry again** until it is applied or refused: after that, no earlier attempt can take effect any more.
        If it is refused then, it may have been applied before: compare the entry at ``entry.number``, whose body
        contains a random token of its writer.

        Args:
            queue: The queue.
            partition: Partition of the queue.
            entry: The new entry.
            snapshot: Number of the snapshot that the log names from now on. The previous one may be removed. It must
                have been written by :meth:`write_snapshot`, and its number must be below ``entry.number``.
            truncate_below: Entries below this number may be removed. It is at most one more than the number of the
                snapshot that the log names.

        Returns:
            Whether the entry was applied.

        Raises:
            InvalidRequest: The queue does not have the partition, or the body is too long. Nothing is appended.
            QueueChanged: ``queue`` is out of date. Nothing is appended.
            StoreUnavailable: With ``outcome`` ``none`` this call appends nothing. With ``unknown`` the entry is in
                doubt until an attempt is applied or refused.
        """

    @abstractmethod
    async def read_log(self, queue: Queue, partition: int, first: int, *, newest: bool = False) -> LogPage:
        """Reads a log from the entry numbered ``first`` on.

        An entry that was applied is shown to every reader with ``newest``, and to every caller whose append was refused
        because of it. An entry that was shown is never missing from a later read.

        If ``first`` is 1 and the log names a snapshot, or if entries from ``first`` on have been removed, the page has
        the snapshot that the log names and the entries after it. A page has at most ``MAX_PAGE_ENTRIES`` entries: a
        reader that has not reached ``last`` reads again from the number after the page's last entry. Without ``newest``
        a page may be empty although ``last`` is higher, because an entry has not reached all replicas.

        Args:
            queue: The queue.
            partition: Partition of the queue.
            first: Number of the first entry to read, from 1.
            newest: Finish or discard every append under way first, so that every entry applied before this call began
                is shown. For processes that have not read this log before.

        Raises:
            InvalidRequest: The queue does not have the partition.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: The log cannot be read.
        """

    @abstractmethod
    async def write_snapshot(self, queue: Queue, partition: int, number: int, body: bytes) -> None:
        """Writes a snapshot of all entries up to ``number``, which has been applied. Idempotent.

        A snapshot has no effect until an entry names it. A snapshot that is never named is replaced by the next one or
        removed with the log.

        Raises:
            InvalidRequest: The queue does not have the partition, or the body is too long.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: The snapshot may not have been written. No entry may name it.
        """

    @abstractmethod
    def claims_refusal(self, queue: Queue) -> str | None:
        """Returns why messages of a queue cannot be claimed with this store's configuration, or None if they can.

        A claim relies on reads to show that a message does not exist, so every read must see every acknowledged write.
        The text names the consistency level to choose. Never blocks.

        Raises:
            StoreUnavailable: The backend has not been reached yet, so its data centres are not known.
        """
