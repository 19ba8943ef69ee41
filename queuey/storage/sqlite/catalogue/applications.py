"""Applications and keys of the embedded store."""

from __future__ import annotations

import time
from typing import Any

from queuey import ids
from queuey.errors import ApplicationExists, ApplicationNotFound, Conflict, KeyNotFound
from queuey.messages import OPERATORS, Key, Scope
from queuey.storage import Applications, scopes
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction

_LIST = "SELECT name FROM applications WHERE name >= ? ORDER BY name LIMIT ?"
_KEY = "SELECT application, id, created, expires, note, scope FROM keys "
_CACHED = 5.0
"""Max seconds for which the existence of an application is remembered."""


class SqliteApplications(Applications):
    _db: Database
    _known: dict[str, float]

    def create_application(self, name: str) -> None:
        def work(transaction: Transaction) -> None:
            connection = transaction.connection
            if row_codec.has_application(connection, name):
                raise ApplicationExists(name)
            created = ids.ticks_to_seconds(transaction.now)
            connection.execute("INSERT INTO applications VALUES (?, ?)", (name, created))

        self._db.writer.perform(work)

    def applications(self, *, start: str = "", limit: int | None = None) -> list[str]:
        most = -1 if limit is None else limit
        with self._db.readers.reading() as connection:
            return [name for (name,) in connection.execute(_LIST, (start, most))]

    def has_application(self, name: str) -> bool:
        now = time.monotonic()
        if self._known.get(name, 0.0) > now:
            return True
        with self._db.readers.reading() as connection:
            found = row_codec.has_application(connection, name)
        if found:
            self._known[name] = now + _CACHED
        return found

    def add_key(
        self,
        application: str,
        digest: bytes,
        *,
        expires: float | None = None,
        note: str = "",
        scope: Scope | None = None,
    ) -> Key:
        def work(transaction: Transaction) -> Key:
            connection = transaction.connection
            if application != OPERATORS and not row_codec.has_application(connection, application):
                raise ApplicationNotFound(application)
            present = connection.execute(_KEY + "WHERE digest = ?", (digest,)).fetchone()
            if present is not None:
                if present[0] != application:
                    raise Conflict("This key belongs to another application.")
                return _key(present)
            taken = {key_id for (key_id,) in connection.execute("SELECT id FROM keys")}
            key = Key(
                application=application,
                id=next(name for n in range(8, 65) if (name := digest.hex()[:n]) not in taken),
                created=ids.ticks_to_seconds(transaction.now),
                expires=expires,
                note=note,
                scope=scope,
            )
            connection.execute(
                "INSERT INTO keys (digest, application, id, created, expires, note, scope) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (digest, application, key.id, key.created, expires, note, scopes.to_text(scope)),
            )
            return key

        return self._db.writer.perform(work)

    def keys(self, application: str) -> list[Key]:
        with self._db.readers.reading() as connection:
            return [
                _key(row)
                for row in connection.execute(_KEY + "WHERE application = ? ORDER BY created, id", (application,))
            ]

    def revoke_key(self, application: str, key_id: str) -> None:
        def work(transaction: Transaction) -> None:
            gone = transaction.connection.execute(
                "DELETE FROM keys WHERE application = ? AND id = ? RETURNING id", (application, key_id)
            ).fetchall()
            if not gone:
                raise KeyNotFound(key_id)

        self._db.writer.perform(work)

    def expire_key(self, application: str, key_id: str, expires: float) -> Key:
        def work(transaction: Transaction) -> Key:
            connection = transaction.connection
            connection.execute(
                "UPDATE keys SET expires = ? WHERE application = ? AND id = ?", (expires, application, key_id)
            )
            row = connection.execute(_KEY + "WHERE application = ? AND id = ?", (application, key_id)).fetchone()
            if row is None:
                raise KeyNotFound(key_id)
            return _key(row)

        return self._db.writer.perform(work)

    def find_key(self, digest: bytes) -> Key | None:
        with self._db.readers.reading() as connection:
            row = connection.execute(_KEY + "WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else _key(row)


def _key(row: Any) -> Key:  # noqa: ANN401 - a row of the driver
    application, key_id, created, expires, note, scope = row
    return Key(
        application=application,
        id=key_id,
        created=created,
        expires=expires,
        note=note,
        scope=scopes.from_text(scope),
    )
