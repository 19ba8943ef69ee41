"""The contract of claim logs: one log per queue partition, to which many processes append by compare-and-set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from queuey.ids import EPOCH_TICKS

if TYPE_CHECKING:
    from queuey.messages import LogEntry, LogPage, Queue

PAGE = 256
"""Max entries that :meth:`ClaimLogs.read_log` returns; mostly more than are kept behind a snapshot."""
LONGEST_ENTRY = 1 << 20
"""Max bytes of an entry's body."""
LONGEST_SNAPSHOT = 4 << 20
"""Max bytes of a snapshot's body."""


class ClaimLogs(ABC):
    """Claim logs of queues, by partition.

    A log belongs to ``(queue.qid, partition)``. A purge or a delete changes the qid, so the log is then empty, and the
    old one can be reached no more; the store removes it later.

    Entries are numbered 1, 2, 3, … without gaps. A **snapshot** stands for all entries up to its number, so that those
    may be removed. All processes make the same snapshot for a number, because it follows from the entries. Appends are
    linearizable per log over all processes: of several for one number one is applied, and appends to an outdated state
    are refused.
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
        """Appends an entry if the newest one is ``entry.number - 1``; returns whether it was applied. Holds no thread.

        An entry in doubt may have been applied, may be applied later, or never. Reading does not show which. Send **the
        same entry again** until it is applied or refused: after that, no earlier attempt can take effect any more.
        If it is refused then, it may have been applied before: compare the entry at ``entry.number``, whose body holds
        a random token of its writer.

        Args:
            queue: The queue.
            partition: Of the queue.
            entry: The new entry.
            snapshot: The log names this snapshot from now on, in place of the one before, which may go. It was written
                by :meth:`write_snapshot` before, and its number is below ``entry.number``.
            truncate_below: Entries below this number may be removed. It is at most one more than the number of the
                snapshot that the log names.

        Raises:
            InvalidRequest: The partition is beyond the queue's, or the body is too long. Nothing is appended.
            QueueChanged: ``queue`` is out of date. Nothing is appended.
            StoreUnavailable: With ``outcome`` ``none`` this call appends nothing; with ``unknown`` the entry is in
                doubt, which only an attempt that is applied or refused ends.
        """

    @abstractmethod
    async def read_log(self, queue: Queue, partition: int, first: int, *, newest: bool = False) -> LogPage:
        """Reads a log from the entry numbered ``first`` on.

        Every entry that was applied before is shown to a reader that knows of it from a refusal, and to every reader
        with ``newest``. One that was applied is never hidden again by the end of the log.

        If ``first`` is 1 and the log names a snapshot, or if entries from ``first`` on are gone already, the page has
        the snapshot that the log names and the entries after it. A page has at most ``PAGE`` entries: a reader that has
        not reached ``last`` reads again from the number after the page's. Without ``newest``, a page may have nothing
        though ``last`` is higher, if an entry has not reached all replicas; with it, the entry is there.

        Args:
            queue: The queue.
            partition: Of the queue.
            first: The lowest number of interest, from 1.
            newest: First finish or discard every append under way, so that no entry that is not shown will turn
                out to have been applied before this call began. For processes that have not read this log before.

        Raises:
            InvalidRequest: The partition is beyond the queue's.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: The log cannot be read.
        """

    @abstractmethod
    async def write_snapshot(self, queue: Queue, partition: int, number: int, body: bytes) -> None:
        """Writes a snapshot that stands for all entries up to ``number``, which was applied. Idempotent.

        It is of no effect until an entry names it. One that is never named is replaced by the next, or goes with the
        log.

        Raises:
            InvalidRequest: The partition is beyond the queue's, or the body is too long.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: It may not have been written: nothing may name it.
        """

    @abstractmethod
    def claim_time(self) -> int:
        """Returns the clock of claims' expiries (ticks). Never blocks.

        The clocks of two processes differ by no more than the store allows (S).

        Raises:
            StoreUnavailable: The clock was not compared with others lately, or is off.
        """

    def claim_now(self) -> int:
        """Returns :meth:`claim_time` in milliseconds since 1970."""
        return (self.claim_time() - EPOCH_TICKS) // 10_000

    @abstractmethod
    def claims_refusal(self, queue: Queue) -> str | None:
        """Returns why messages of a queue must not be claimed on this store as it is configured; None: they may be.

        Claims conclude from a read that nothing is there, so every read must meet every acknowledged
        write. The text names the consistency level to choose. Never blocks.

        Raises:
            StoreUnavailable: The backend was not reached yet, so its data centres are not known.
        """
