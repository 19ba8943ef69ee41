"""What else happens to messages that are stored or removed; the rooms above this one do it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

from queuey.model.messages import Location, NewMessage, Queue

NotifyRemoved = Callable[[Queue], None]
"""Called with a queue after messages of it were deleted, or written by id or name."""


def notify_nobody(_queue: Queue) -> None:
    """Does nothing, where no streams are open."""


class EnsureExpiry(Protocol):
    """Ensures that kept messages become dead letters when they expire (``ExpiryRecords.ensure_expiry``)."""

    async def __call__(self, queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False) -> None:
        """Awaited before messages are stored, and again with ``is_stored`` before their post is acknowledged."""


class Leavings(Protocol):
    """Records why messages end that nobody acknowledges."""

    async def record_leaving(
        self,
        queue: Queue,
        locations: Collection[Location],
        status: Literal["removed", "superseded"],
        *,
        is_stored: bool = True,
    ) -> object: ...


class MessageEffects(Protocol):
    """What else happens to messages: :class:`~queuey.claims.claims.ClaimUseCases` ends their jobs."""

    @property
    def ensure_expiry(self) -> EnsureExpiry: ...
    @property
    def jobs(self) -> Leavings: ...
