"""The contract of records: small documents of applications, by name, kept until they are removed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.messages import Record, RecordDue

MAX_RECORD = 1 << 16
"""Max bytes of a record's value."""


class Records(ABC):
    """Records, each changed by compare-and-set. Unlike entries of the ledger they never expire.

    A record is named by its ``kind`` (what uses it), its application and its name. ``due`` is an instant at which its
    kind has something to do with it: :meth:`due_records` finds those that are due without reading values.
    """

    @abstractmethod
    async def record(self, kind: str, application: str, name: str) -> Record | None:
        """Returns a record, the newest version that was ever accepted; None: there is none."""

    @abstractmethod
    async def records(self, kind: str, application: str, *, start: str = "", limit: int = 100) -> list[Record]:
        """Lists an application's records by name (UTF-8 order), ``start`` inclusive.

        Cost: proportional to ``limit``, not to the number of records.
        """

    @abstractmethod
    async def set_record(self, record: Record) -> Record:
        """Replaces the version of a record that ``record.version`` names; 0 creates it.

        Returns:
            The record with its new version. A version never comes back, also if the record is removed and made again.

        Raises:
            RecordChanged: Another version is there, or none; or the record is there and was to be created.
            InvalidRequest: The value is longer than ``MAX_RECORD``.
        """

    @abstractmethod
    async def remove_record(self, record: Record) -> None:
        """Removes the version of a record that ``record.version`` names.

        Raises:
            RecordChanged: Another version is there, or none.
        """

    @abstractmethod
    async def due_records(
        self, kind: str, until: int, *, application: str | None = None, limit: int = 1000
    ) -> list[RecordDue]:
        """Finds the records that are due at an instant (ticks) or were before, the longest due first.

        Args:
            kind: What uses them.
            until: The instant, inclusive.
            application: The application that owns the records; all applications if None.
            limit: How many at most.
        """
