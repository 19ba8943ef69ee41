"""The contract of the ledger: which pieces of repeatable work are done, with their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from queuey.model.errors import Conflict

if TYPE_CHECKING:
    pass


LEDGER_TTL = 30 * 86_400
"""Max seconds for which a ledger entry is kept after its last change."""


class Ledger(ABC):
    """Records the progress of repeatable work: entries kept for 30 days, each changed by compare-and-set.

    The key of an entry is ``work`` (any text up to 500 bytes) and ``piece`` (an integer from 0).
    """

    @abstractmethod
    async def now(self) -> int:
        """Returns the clock of ids (ticks)."""

    async def ids_ahead(self) -> float:
        """Returns how far the next id will be ahead of the clock (seconds), because the clock was ahead before."""
        return 0.0

    @abstractmethod
    async def entry(self, work: str, piece: int) -> bytes | None:
        """Returns the last value accepted for a piece, or None if it does not exist."""

    @abstractmethod
    async def enter(
        self, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: float = LEDGER_TTL
    ) -> bytes:
        """Sets the value of a piece if the present value is ``expected``; None if the piece must not exist.

        Repeating the call after an error is safe. The value is kept for at least ``kept`` seconds, at most 30 days.

        Returns:
            The value afterwards: ``value``, or the value that another caller has set.

        Raises:
            Conflict: ``expected`` is not None and the piece does not exist, for example because it has expired.
        """


async def exchange(
    ledger: Ledger, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: float = LEDGER_TTL
) -> bytes | None:
    """Sets a value like :meth:`Ledger.enter`, but returns None if the expected value has expired."""
    try:
        return await ledger.enter(work, piece, value, expected=expected, kept=kept)
    except Conflict:
        return None
