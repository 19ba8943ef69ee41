"""The contract of named messages: a name in a queue stands for one message, the newest that was written under it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.messages import Named, NewMessage, Queue


class Names(ABC):
    """Names of messages.

    A name belongs to ``queue.qid``: a purge or a delete forgets it. It is remembered for as long as its message may
    live. Only the claim log knows whether its message is done.

    A new value takes the place of the one before, which is removed. Because the claim log must learn of
    that, too, the name remembers the replaced value until :meth:`settle_named`. Where a process broke off at any point,
    the next :meth:`find_named` removes a value that was not confirmed, and shows the replaced one.
    """

    @abstractmethod
    async def find_named(self, queue: Queue, name: str) -> Named | None:
        """Returns the value of a name; None: it was not used, or long ago.

        Raises:
            StoreBusy: Too many concurrent changes of the name.
        """

    @abstractmethod
    async def write_named(
        self, queue: Queue, name: str, item: NewMessage | None, content: bytes, seen: Named | None
    ) -> Named:
        """Writes a message as the value of a name, if its value is still the one ``seen``; all or nothing.

        When this returns the new value, reads find it, and not the one before. On a store with a read delay, range
        reads find neither for that long. If it raises ``StoreUnavailable`` with outcome ``unknown``, the name has the
        one or the other; the next :meth:`find_named` shows which.

        Args:
            queue: The queue.
            name: 1 to :data:`queuey.messages.LONGEST_NAME` characters.
            item: The message; None: the name gets free.
            content: A hash of it.
            seen: From :meth:`find_named`: not busy, nothing replaced. It is ``replaced`` in the new value.

        Raises:
            NameChanged: It has another value now, or another caller is changing it. Nothing was stored.
            InvalidRequest: The partition is beyond the queue's.
        """

    @abstractmethod
    async def settle_named(self, queue: Queue, name: str, seen: Named) -> None:
        """Forgets the replaced value, if the name's value is still the one ``seen``."""
