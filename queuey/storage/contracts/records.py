"""The contract of records: small named documents of applications, kept until they are removed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.model.messages import Record, RecordDue

MAX_RECORD_BYTES = 1 << 16
"""Max bytes of a record's value."""


class Records(ABC):
    """Records, each changed by compare-and-set. Unlike ledger entries they never expire.

    The key of a record is its ``kind`` (the feature that uses it), its application and its name. ``due`` is the instant
    at which that feature has to process it: :meth:`due_records` finds due records without reading their values.
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
    async def set_record(self, record: Record) -> Record:
        """Replaces a record if its stored version is ``record.version``; 0 creates it.

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
