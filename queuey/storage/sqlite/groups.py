"""Consumer groups of the embedded store. Each change of state is one write transaction."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from msgspec.structs import astuple, replace

from queuey.groups.state import GroupChange, GroupRow, Head, StoredGroup
from queuey.messages import ClockSample, GroupSessions
from queuey.storage.contracts.claim_logs import ClaimLogs
from queuey.storage.contracts.groups import ConsumerGroups, seen_members, session_ttl
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction

_COLUMNS = ", ".join(Head.__struct_fields__)
_MARKS = ", ".join("?" * len(Head.__struct_fields__))
_HEAD = f"SELECT {_COLUMNS} FROM group_heads WHERE application = ? AND name = ?"  # noqa: S608 - constants only
_NEW_HEAD = (
    f"INSERT INTO group_heads ({_COLUMNS}, application, name) VALUES ({_MARKS}, ?, ?) "  # noqa: S608 - constants only
    "ON CONFLICT DO NOTHING RETURNING 1"
)
_SET_HEAD = (
    f"UPDATE group_heads SET ({_COLUMNS}) = ({_MARKS}) "  # noqa: S608 - constants only
    "WHERE application = ? AND name = ? AND version = ? RETURNING 1"
)
_ROWS = "SELECT kind, key, body FROM group_rows WHERE application = ? AND name = ? ORDER BY kind, key"
_SET_ROW = "INSERT OR REPLACE INTO group_rows (application, name, kind, key, body) VALUES (?, ?, ?, ?, ?)"
_REMOVE_HEAD = "DELETE FROM group_heads WHERE application = ? AND name = ? AND version = ? RETURNING 1"
_REMOVE_ROWS = "DELETE FROM group_rows WHERE application = ? AND name = ?"
_NAMES = "SELECT name FROM group_heads WHERE application = ? AND name >= ? ORDER BY name LIMIT ?"
_SEEN = (
    "INSERT INTO group_sessions (application, name, member, uid, seen, expires) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET seen = max(seen, excluded.seen), expires = max(expires, excluded.expires)"
)
_SESSIONS = "SELECT member, uid, seen FROM group_sessions WHERE application = ? AND name = ? AND expires > ?"
_SEARCHED = "SELECT searched FROM group_heads WHERE application = ? AND name = ?"
_NOTE_SEARCH = "UPDATE group_heads SET searched = max(searched, ?) WHERE application = ? AND name = ?"


class SqliteGroups(ConsumerGroups, ClaimLogs):
    _db: Database

    def group_head(self, application: str, name: str, *, serial: bool = False) -> Head | None:  # noqa: ARG002
        with self._db.readers.reading() as connection:
            return _head(connection, application, name)

    def group_state(self, application: str, name: str) -> StoredGroup | None:
        with self._db.readers.reading() as connection:
            connection.execute("BEGIN")
            try:
                head = _head(connection, application, name)
                rows: Any = connection.execute(_ROWS, (application, name)).fetchall()
            finally:
                connection.execute("COMMIT")
        return None if head is None else StoredGroup(head, tuple(GroupRow(*row) for row in rows))

    def change_group(self, application: str, name: str, version: int, change: GroupChange) -> Head | None:
        head = replace(change.head, version=secrets.randbits(62) | 1)

        def work(transaction: Transaction) -> Head | None:
            execute = transaction.connection.execute
            if version:
                applied = execute(_SET_HEAD, (*astuple(head), application, name, version)).fetchall()
            else:
                applied = execute(_NEW_HEAD, (*astuple(head), application, name)).fetchall()
            if not applied:
                return None
            rows = [(application, name, *astuple(row)) for row in change.rows]
            transaction.connection.executemany(_SET_ROW, rows)
            return head

        return self._db.writer.perform(work, weight=sum(len(row.body) for row in change.rows))

    def remove_group(self, application: str, name: str, version: int) -> bool:
        def work(transaction: Transaction) -> bool:
            execute = transaction.connection.execute
            removed = execute(_REMOVE_HEAD, (application, name, version)).fetchall()
            if removed:
                execute(_REMOVE_ROWS, (application, name))
            return bool(removed)

        return self._db.writer.perform(work)

    def group_names(self, application: str, *, start: str = "", limit: int = 100) -> list[str]:
        with self._db.readers.reading() as connection:
            return [name for (name,) in connection.execute(_NAMES, (application, start, limit))]

    def renew_session(self, application: str, name: str, member: int, session: int) -> int:
        seen = self.claim_now()
        self._write(_SEEN, application, name, member, 0, seen, seen + session_ttl(session))
        return seen

    def sample_clock(self) -> ClockSample:
        return ClockSample(self.claim_now())

    def confirm_clock(self, sample: ClockSample) -> None:
        """Does nothing: all processes of a file have the clock of one machine."""

    def groups_refusal(self) -> str | None:
        return None

    def group_sessions(self, application: str, name: str) -> GroupSessions:
        clock = self.claim_now()
        with self._db.readers.reading() as connection:
            searched: Any = connection.execute(_SEARCHED, (application, name)).fetchone()
            rows: Any = connection.execute(_SESSIONS, (application, name, clock)).fetchall()
        return GroupSessions(clock, searched[0] if searched else 0, seen_members(rows))

    def ask_member(self, application: str, name: str, member: int, uid: int, session: int) -> None:
        now = self.claim_now()
        self._write(_SEEN, application, name, member, uid, now, now + session)

    def note_search(self, application: str, name: str, when: int) -> None:
        self._write(_NOTE_SEARCH, when, application, name)

    def _write(self, sql: str, *values: object) -> None:
        self._db.writer.perform(partial(_execute, sql, values))


def _execute(sql: str, values: Any, transaction: Transaction) -> None:  # noqa: ANN401 - for the driver
    transaction.connection.execute(sql, values)


def _head(connection: Connection, application: str, name: str) -> Head | None:
    row: Any = connection.execute(_HEAD, (application, name)).fetchone()
    return None if row is None else Head(*row)
