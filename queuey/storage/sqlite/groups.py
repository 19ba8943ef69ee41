"""Consumer groups of the embedded store. Each change of state is one write transaction."""

from __future__ import annotations

from typing import Any

from msgspec.msgpack import Decoder, encode
from msgspec.structs import astuple, replace

from queuey.model.errors import RecordChanged
from queuey.model.groups import ClockSample, GroupChange, GroupHead, GroupRow, GroupSessions, StoredGroup
from queuey.model.ids import TICKS_MAX, StoreClock
from queuey.model.messages import Record
from queuey.storage.contracts.groups import SEARCH_ROW, SEARCH_TTL, GroupRecords, session_ttl, sessions_of
from queuey.storage.contracts.records import Records
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.records import read_record, remove_record, set_record
from queuey.storage.sqlite.transaction import Transaction

_KIND = "group"
"""Kind of the records that have the heads."""
_SELECT_ROWS = "SELECT kind, key, body FROM group_rows WHERE application = ? AND name = ? ORDER BY kind, key"
_SET_ROW = "INSERT OR REPLACE INTO group_rows (application, name, kind, key, body) VALUES (?, ?, ?, ?, ?)"
_REMOVE_ROWS = "DELETE FROM group_rows WHERE application = ? AND name = ?"
_RECORD_SESSION = (
    "INSERT INTO group_sessions (application, name, member, uid, seen, expires) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET seen = max(seen, excluded.seen), expires = max(expires, excluded.expires)"
)
_SELECT_SESSIONS = "SELECT member, uid, seen FROM group_sessions WHERE application = ? AND name = ? AND expires > ?"

_decode = Decoder(GroupHead).decode


class SqliteGroups(GroupRecords):
    def __init__(self, database: Database, records: Records, clock: StoreClock) -> None:
        self._db = database
        self._records = records
        self._now_ms = clock.now_ms

    @threaded
    def group_head(self, application: str, name: str, *, serial: bool = False) -> GroupHead | None:  # noqa: ARG002
        with self._db.readers.lend() as connection:
            return _read_head(connection, application, name)

    @threaded
    def group_state(self, application: str, name: str) -> StoredGroup | None:
        with self._db.readers.lend() as connection:
            connection.execute("BEGIN")
            try:
                head = _read_head(connection, application, name)
                rows: Any = connection.execute(_SELECT_ROWS, (application, name)).fetchall()
            finally:
                connection.execute("COMMIT")
        return None if head is None else StoredGroup(head, tuple(GroupRow(*row) for row in rows))

    async def change_group(self, application: str, name: str, version: int, change: GroupChange) -> GroupHead | None:
        new = Record(_KIND, application, name, encode(change.head), TICKS_MAX, version)

        def work(transaction: Transaction) -> GroupHead:
            record = set_record(new, None, transaction)
            rows = [(application, name, *astuple(row)) for row in change.rows]
            transaction.connection.executemany(_SET_ROW, rows)
            return replace(change.head, version=record.version)

        try:
            return await self._db.write(work, weight=sum(len(row.body) for row in change.rows))
        except RecordChanged:
            return None

    async def remove_group(self, application: str, name: str, version: int) -> bool:
        def work(transaction: Transaction) -> None:
            remove_record(Record(_KIND, application, name, b"", TICKS_MAX, version), transaction)
            transaction.connection.execute(_REMOVE_ROWS, (application, name))

        try:
            await self._db.write(work)
        except RecordChanged:
            return False
        return True

    async def group_names(
        self, application: str, *, start: str = "", limit: int = 100, creator: bytes | None = None
    ) -> list[str]:
        existing: list[str] = []
        while len(existing) < limit:
            page = await self._records.records(_KIND, application, start=start, limit=limit)
            existing += [record.name for record in page if creator in {None, _decode(record.value).creator}]
            if len(page) < limit:
                break
            start = page[-1].name + "\0"
        return existing[:limit]

    def sample_clock(self) -> ClockSample:
        return ClockSample(self._now_ms())

    async def confirm_clock(self, sample: ClockSample) -> None:
        pass  # All processes that use the file have the clock of one machine.

    def groups_refusal(self) -> str | None:
        return None

    async def renew_session(self, application: str, name: str, member: int, session: int) -> int:
        seen = self._now_ms()
        await self._write_session(application, name, member, 0, seen, session_ttl(session))
        return seen

    @threaded
    def group_sessions(self, application: str, name: str) -> GroupSessions:
        clock = self._now_ms()
        with self._db.readers.lend() as connection:
            rows: Any = connection.execute(_SELECT_SESSIONS, (application, name, clock)).fetchall()
        return sessions_of(clock, rows)

    async def ask_member(self, application: str, name: str, member: int, uid: int, session: int) -> None:
        await self._write_session(application, name, member, uid, self._now_ms(), session)

    async def record_search(self, application: str, name: str, when: int) -> None:
        await self._write_session(application, name, *SEARCH_ROW, when, SEARCH_TTL)

    async def _write_session(self, application: str, name: str, member: int, uid: int, when: int, ttl: int) -> None:
        """Records a moment (ms). Neither the moment nor the expiry of a stored row is ever lowered."""

        def work(transaction: Transaction) -> None:
            transaction.connection.execute(_RECORD_SESSION, (application, name, member, uid, when, when + ttl))

        await self._db.write(work)


def _read_head(connection: Connection, application: str, name: str) -> GroupHead | None:
    record = read_record(connection, _KIND, application, name)
    return None if record is None else replace(_decode(record.value), version=record.version)
