"""The contract of named messages: a name in a queue refers to the last message written under it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.model.messages import Named, NewMessage, Queue


class Names(ABC):
    """Names of messages.

    A name belongs to ``queue.qid``: a purge or a delete removes it. It is kept for as long as its message may live.
    Whether its message is done is recorded only in the claim log.

    A new value replaces the previous one, which is removed. The claim log must record that too, so the name keeps the
    replaced value until :meth:`settle_named`. If a write was interrupted, the next :meth:`find_named` removes a value
    that was not confirmed and returns the previous one.
    """

    @abstractmethod
    async def find_named(self, queue: Queue, name: str) -> Named | None:
        """Returns the value of a name, or None if the name is not in use or its value has expired.

        Raises:
            StoreBusy: Too many concurrent changes of the name.
        """

    @abstractmethod
    async def write_named(
        self, queue: Queue, name: str, item: NewMessage | None, content: bytes, seen: Named | None
    ) -> Named:
        """Writes a message as the value of a name, all or nothing, if the present value is still ``seen``.

        Once this has returned, reads find the new message and not the previous one. On a store with a read delay, range
        reads find neither until the delay is over. After ``StoreUnavailable`` with outcome ``unknown`` the name has
        either value; the next :meth:`find_named` returns it.

        Args:
            queue: The queue.
            name: 1 to :data:`queuey.model.messages.MAX_NAME_LENGTH` characters.
            item: The message; None frees the name.
            content: Hash of the message.
            seen: Result of :meth:`find_named`, neither busy nor with a replaced value. It becomes ``replaced`` of the
                new value.

        Raises:
            NameChanged: The name has another value, or another caller is changing it. Nothing was stored.
            InvalidRequest: The queue does not have the partition.
        """

    @abstractmethod
    async def settle_named(self, queue: Queue, name: str, seen: Named) -> None:
        """Removes the replaced value if the present value is still ``seen``."""
