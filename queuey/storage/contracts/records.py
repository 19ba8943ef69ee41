"""The contract of records: small named documents, read, decided on, and written unless others were faster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from queuey.model.errors import RecordChanged, StoreBusy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from queuey.model.messages import Record, RecordDue

MAX_RECORD_BYTES = 1 << 16
"""Max bytes of a record's value, unless the record expires."""
MAX_CHANGE_ATTEMPTS = 20
"""Max attempts of a change that conflicts with concurrent ones."""
LEDGER_KIND = "ledger"
"""Kind of the entries of the :class:`~queuey.storage.contracts.ledger.Ledger`."""


class Records(ABC):
    """Records, each changed by compare-and-set.

    The key of a record is its ``kind`` (the feature that uses it), its application and its name. ``due`` is the instant
    at which that feature has to process it: :meth:`due_records` finds due records without reading their values.

    A change is in doubt if it raised :class:`~queuey.model.errors.StoreUnavailable` with outcome ``unknown``: it may
    have been applied, and others may have changed the record since. The next :meth:`record` shows which, because
    nothing that was sent before it takes effect after it.
    """

    @abstractmethod
    async def record(self, kind: str, application: str, name: str) -> Record | None:
        """Returns the last accepted version of a record, or None if the record does not exist."""

    @abstractmethod
    async def records(self, kind: str, application: str, *, start: str = "", limit: int = 100) -> list[Record]:
        """Lists an application's records by name (UTF-8 order), from ``start`` (inclusive) on.

        Cost: proportional to ``limit``, not to the number of records.
        """

    @abstractmethod
    async def set_record(self, record: Record, *, kept: float | None = None) -> Record:
        """Replaces a record if its stored version is ``record.version``; 0 creates it.

        The record is kept for at least ``kept`` seconds; None keeps it until it is removed.

        Returns:
            The record with its new version. A version is never used again, even if the record is removed and created
            again.

        Raises:
            RecordChanged: The stored record has another version, or does not exist, or exists and was to be created.
            InvalidRequest: The value is empty or longer than ``MAX_RECORD_BYTES``.
        """

    @abstractmethod
    async def remove_record(self, record: Record) -> None:
        """Removes a record if its stored version is ``record.version``.

        Raises:
            RecordChanged: The stored record has another version, or does not exist.
        """

    @abstractmethod
    async def due_records(
        self, kind: str, until: int, *, application: str | None = None, limit: int = 1000
    ) -> list[RecordDue]:
        """Finds the records that are due, the longest due first.

        Args:
            kind: The feature that uses them.
            until: Latest due time (ticks), inclusive.
            application: The application that owns the records; all applications if None.
            limit: Max records.
        """


async def change_record(
    records: Records, key: tuple[str, str, str], decide: Callable[[Record | None], Awaitable[Record | None]]
) -> Record | None:
    """Changes a record to what ``decide`` makes of it, and decides again whenever another caller was faster.

    Args:
        records: The records.
        key: Kind, application and name.
        decide: Returns the record to store, with the version of the one that it got, or None to change nothing.

    Returns:
        The stored record, or None if nothing was changed.

    Raises:
        StoreBusy: Other callers keep changing the record.
    """
    for _ in range(MAX_CHANGE_ATTEMPTS):
        changed = await decide(await records.record(*key))
        if changed is None:
            return None
        with suppress(RecordChanged):
            return await records.set_record(changed)
    raise StoreBusy(f"Too many processes change {key[2]!r}. Try again.")
