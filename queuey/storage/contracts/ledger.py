"""The ledger: which pieces of repeatable work are done, with their results. Its entries are records that expire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from queuey.model.errors import Conflict, InvalidRequest, RecordChanged, StoreBusy
from queuey.model.ids import TICKS_MAX
from queuey.model.messages import Record
from queuey.storage.contracts.records import LEDGER_KIND

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuey.storage.contracts.records import Records

LEDGER_TTL = 30 * 86_400
"""Max seconds for which a ledger entry is kept after its last change."""
IDENTITY = "identity of the store"
"""Ledger key under which the identity is stored."""
MAX_WORK_BYTES = 500
"""Max bytes of a work's name."""
_MAX_PIECES = 1 << 63
_MAX_ATTEMPTS = 200
"""Max attempts at a change. Each failed attempt means that another caller has succeeded."""


class Entry(NamedTuple):
    """A new value of a piece, and the seconds for which it is kept at least; None keeps it until it is removed."""

    value: bytes
    kept: float | None = LEDGER_TTL


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

        def decide(present: bytes | None) -> Entry | None:
            if present is None and expected is not None:
                raise Conflict(f"Piece {piece} of {work!r} is no longer in the ledger")
            return Entry(value, kept) if present == expected and present != value else None

        stored = await self.change(work, piece, decide)
        return value if stored is None else stored

    async def change(
        self, work: str, piece: int, decide: Callable[[bytes | None], Entry | None], *, expects_none: bool = False
    ) -> bytes | None:
        """Changes a piece to what ``decide`` makes of its value, and decides again whenever another caller was faster.

        Args:
            work: The work.
            piece: The piece.
            decide: Returns the new entry for a value; None leaves the piece as it is.
            expects_none: The first attempt does not read, because the piece probably does not exist.

        Returns:
            The value afterwards, or None if the piece does not exist.

        Raises:
            StoreBusy: Other callers keep changing the piece.
        """
        name, present = _entry_name(work, piece), None
        for attempt in range(_MAX_ATTEMPTS):
            if attempt or not expects_none:
                present = await self._records.record(LEDGER_KIND, "", name)
            new = decide(None if present is None else present.value)
            if new is None:
                return None if present is None else present.value
            version = 0 if present is None else present.version
            changed = Record(LEDGER_KIND, "", name, new.value, TICKS_MAX, version)
            with suppress(RecordChanged):
                await self._records.set_record(changed, kept=new.kept)
                return new.value
        raise StoreBusy("other callers keep changing this entry of the ledger")


def _entry_name(work: str, piece: int) -> str:
    if not 0 < len(work.encode()) <= MAX_WORK_BYTES:
        raise InvalidRequest({"work": f"must have 1 to {MAX_WORK_BYTES} bytes"})
    if not 0 <= piece < _MAX_PIECES:
        raise InvalidRequest({"piece": "must be an integer from 0"})
    return f"{piece:x} {work}"
