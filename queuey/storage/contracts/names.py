"""The contract of named messages: a name in a queue stands for one message, the newest that was written under it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.messages import Named, NewMessage, Queue


class Names(ABC):
    """What names stand for.

    A name belongs to ``queue.qid``: a purge or a delete forgets it. It is remembered for as long as its message may
    live. Whether its message is done is not known here: that stands in the claim log.

    A value that is written takes the place of the one before, which is removed. Because the claim log is to know of
    that, too, the name remembers the replaced value until :meth:`settle_named`. Where a process broke off at any point,
    the next :meth:`find_named` removes what was not confirmed, and shows what is still to be done away with.
    """

    @abstractmethod
    def find_named(self, queue: Queue, name: str) -> Named | None:
        """Returns what a name stands for; None: it was not used, or long ago.

        Raises:
            StoreBusy: It is being changed all the time.
        """

    @abstractmethod
    def write_named(
        self, queue: Queue, name: str, item: NewMessage | None, content: bytes, seen: Named | None
    ) -> Named:
        """Writes a message as the value of a name, if the name still stands for what was ``seen``; all or nothing.

        When this returns, reads find the new value, and not the one before. On a store with a read delay, range reads
        find neither for that long. If it raises ``StoreUnavailable`` with outcome ``unknown``, the name has the one or
        the other; the next :meth:`find_named` shows which.

        Args:
            queue: The queue.
            name: 1 to ``LONGEST_NAME`` characters.
            item: The message; None: the name is to have none.
            content: A hash of it.
            seen: What :meth:`find_named` has returned: nobody busy, nothing replaced.

        Returns:
            What the name stands for now. ``replaced`` is what was seen before.

        Raises:
            NameChanged: It stands for something else now, or somebody is changing it. Nothing was stored.
            InvalidRequest: The partition is beyond the queue's.
        """

    @abstractmethod
    def settle_named(self, queue: Queue, name: str, seen: Named) -> None:
        """Forgets the replaced value, if the name still stands for what was ``seen``."""
