"""The ledger: which pieces of repeatable work are done, with their results. Its entries are records that expire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING
from uuid import uuid4

from queuey.model.errors import Conflict, InvalidRequest, RecordChanged, StoreBusy
from queuey.model.ids import TICKS_MAX
from queuey.model.messages import Record
from queuey.storage.contracts.records import LEDGER_KIND

if TYPE_CHECKING:
    from queuey.storage.contracts.records import Records

LEDGER_TTL = 30 * 86_400
"""Max seconds for which a ledger entry is kept after its last change."""
IDENTITY = "identity of the store"
"""Ledger key under which the identity is stored."""
MAX_WORK_BYTES = 500
"""Max bytes of a work's name."""
_MAX_PIECES = 1 << 63
_MAX_ATTEMPTS = 20


class Ledger(ABC):
    """Records the progress of repeatable work: entries kept for 30 days, each changed by compare-and-set.

    The key of an entry is ``work`` (any text up to ``MAX_WORK_BYTES``) and ``piece`` (an integer from 0). A value that
    returns (A, B, A) is not mistaken for one that never changed.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    @abstractmethod
    async def now(self) -> int:
        """Returns the clock of ids (ticks)."""

    @abstractmethod
    async def ids_ahead(self) -> float:
        """Returns how far the next id will be ahead of the clock (seconds), because the clock was ahead before."""

    async def identity(self) -> str:
        """Returns the identity of the store (:meth:`~queuey.storage.Store.identity`), an entry that never expires."""
        stored = await self.entry(IDENTITY, 0)
        if stored is None:
            stored = await self.enter(IDENTITY, 0, uuid4().hex.encode(), expected=None, kept=None)
        return stored.decode()

    async def entry(self, work: str, piece: int) -> bytes | None:
        """Returns the last value accepted for a piece, or None if it does not exist."""
        record = await self._records.record(LEDGER_KIND, "", _entry_name(work, piece))
        return None if record is None else record.value

    async def enter(
        self, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: float | None = LEDGER_TTL
    ) -> bytes:
        """Sets the value of a piece if the present value is ``expected``; None if the piece must not exist.

        Repeating the call after an error is safe. The value is kept for at least ``kept`` seconds; None keeps it until
        it is removed.

        Returns:
            The value afterwards: ``value``, or the value that another caller has set.

        Raises:
            Conflict: ``expected`` is not None and the piece does not exist, for example because it has expired.
            StoreBusy: Other callers keep changing the piece.
        """
        name = _entry_name(work, piece)
        for _ in range(_MAX_ATTEMPTS):
            present = await self._records.record(LEDGER_KIND, "", name)
            if present is None and expected is not None:
                raise Conflict(f"Piece {piece} of {work!r} is no longer in the ledger")
            if present is not None and (present.value == value or present.value != expected):
                return present.value
            version = 0 if present is None else present.version
            try:
                await self._records.set_record(Record(LEDGER_KIND, "", name, value, TICKS_MAX, version), kept=kept)
            except RecordChanged:
                continue
            return value
        raise StoreBusy("other callers keep changing this entry of the ledger")


async def exchange(
    ledger: Ledger, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: float = LEDGER_TTL
) -> bytes | None:
    """Sets a value like :meth:`Ledger.enter`, but returns None if the expected value has expired."""
    try:
        return await ledger.enter(work, piece, value, expected=expected, kept=kept)
    except Conflict:
        return None


def _entry_name(work: str, piece: int) -> str:
    if not 0 < len(work.encode()) <= MAX_WORK_BYTES:
        raise InvalidRequest({"work": f"must have 1 to {MAX_WORK_BYTES} bytes"})
    if not 0 <= piece < _MAX_PIECES:
        raise InvalidRequest({"piece": "must be an integer from 0"})
    return f"{piece:x} {work}"
