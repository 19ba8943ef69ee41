"""Queues, applications and keys of the embedded store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from queuey.model import ids
from queuey.model.errors import (
    ApplicationExists,
    ApplicationNotFound,
    Conflict,
    KeyNotFound,
    QueueExists,
    QueueNotFound,
    StoreBusy,
)
from queuey.model.messages import OPERATORS, Key, Queue, QueueSpec, Scope
from queuey.storage import Applications, Catalogue, catalogue_rows
from queuey.storage.bridge import thread_state
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.transaction import Transaction

_INSERT_QUEUE = (
    f"INSERT INTO queues ({row_codec.QUEUE_COLUMNS}) "  # noqa: S608 - constants
    f"VALUES ({', '.join('?' for _ in row_codec.QUEUE_COLUMNS.split(','))})"
)
_UPDATE_QUEUE = f"UPDATE queues SET {catalogue_rows.make_assignments()} WHERE application = ? AND name = ?"  # noqa: S608 - constants
_LIST_QUEUES = (
    f"SELECT {row_codec.QUEUE_COLUMNS} FROM queues "  # noqa: S608 - constants
    "WHERE application = ? AND name >= ? ORDER BY name LIMIT ?"
)


_LIST_APPLICATIONS = "SELECT name FROM applications WHERE name >= ? ORDER BY name LIMIT ?"
_SELECT_KEYS = "SELECT application, id, created, expires, note, scope FROM keys "
MAX_READS_AT_ONCE = 31
"""Max rows of queues that are read in the loop's thread until the next one is read in another thread."""
_MAX_EXISTENCE_AGE = 5.0
"""Max seconds for which the existence of an application is remembered."""


class SqliteCatalogue(Catalogue):
    """The catalogue in SQLite. The sweep later removes the messages of purged and deleted queues."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._reads_at_once = 0

    async def create_queue(self, application: str, name: str, spec: QueueSpec) -> tuple[Queue, bool]:
        fields = catalogue_rows.new_queue_fields(spec)

        def work(transaction: Transaction) -> tuple[Queue, bool]:
            connection = transaction.connection
            present = row_codec.find_queue(connection, application, name, transaction.catalogue)
            if present is not None:
                if differing := catalogue_rows.find_differing(present, spec):
                    raise QueueExists(present, differing)
                return present, False
            if not row_codec.has_application(connection, application):
                raise ApplicationNotFound(application)
            number = transaction.make_queue_number()
            queue = Queue(
                application=application,
                name=name,
                uid=number,
                qid=number,
                created=ids.ticks_to_seconds(transaction.now),
                version=transaction.catalogue,
                **fields,
            )
            connection.execute(_INSERT_QUEUE, row_codec.queue_to_row(queue))
            return queue, True

        queue, created = await self._db.write(work)
        self._db.queues.put(queue)
        return queue, created

    async def queue(self, application: str, name: str, *, fresh: bool = False) -> Queue:
        cached = None if fresh else self.cached_queue(application, name)
        if cached is not None:
            return cached
        if not (fresh or thread_state.may_block):
            # Most rows are in memory: a thread would take longer than the read. Now and then one is taken, so that the
            # turn of a caller with thousands of queues ends.
            self._reads_at_once = (self._reads_at_once + 1) % (MAX_READS_AT_ONCE + 1)
            if self._reads_at_once:
                with contextlib.suppress(StoreBusy):
                    return self._db.readers.read_without_waiting(partial(self._read_row, application, name))
        return await self._read_queue(application, name)

    @threaded
    def _read_queue(self, application: str, name: str) -> Queue:
        with self._db.readers.lend() as connection:
            return self._read_row(application, name, connection)

    def _read_row(self, application: str, name: str, connection: Connection) -> Queue:
        # The version is read first: a change between the two reads makes the row look older than it is, not newer.
        catalogue = self._db.refresh_catalogue_version(connection)
        queue = row_codec.find_queue(connection, application, name, catalogue)
        if queue is None:
            self._db.queues.drop(application, name)
            raise QueueNotFound(name)
        self._db.queues.put(queue)
        return queue

    def cached_queue(self, application: str, name: str) -> Queue | None:
        rows = self._db.queues.rows.get(application)
        cached = None if rows is None else rows.get(name)
        return cached if cached is not None and cached.version == self._db.writer.catalogue else None

    async def update_queue(self, queue: Queue, changes: QueueSpec, *, clear: Iterable[str] = ()) -> Queue:
        fields = catalogue_rows.find_changed(queue, changes, clear)

        def work(transaction: Transaction) -> Queue:
            transaction.verify(queue)
            changed = msgspec.structs.replace(queue, **fields, version=transaction.bump_catalogue_version())
            transaction.connection.execute(
                _UPDATE_QUEUE, (*catalogue_rows.encode_values(changed), queue.application, queue.name)
            )
            return changed

        return self._replace_cached(queue, await self._db.write(work))

    async def delete_queue(self, queue: Queue) -> None:
        def work(transaction: Transaction) -> None:
            transaction.verify(queue)
            transaction.bump_catalogue_version()
            connection = transaction.connection
            connection.execute("DELETE FROM queues WHERE application = ? AND name = ?", (queue.application, queue.name))
            connection.execute("DELETE FROM offsets WHERE uid = ?", (queue.uid,))
            connection.execute("INSERT INTO pending_deletes (qid) VALUES (?)", (queue.qid,))

        self._db.queues.drop(queue.application, queue.name)
        await self._db.write(work)
        self._db.queues.drop(queue.application, queue.name)

    async def purge_queue(self, queue: Queue) -> Queue:
        def work(transaction: Transaction) -> Queue:
            transaction.verify(queue)
            purged = msgspec.structs.replace(
                queue, qid=transaction.make_queue_number(), version=transaction.bump_catalogue_version()
            )
            transaction.connection.execute(
                "UPDATE queues SET qid = ? WHERE application = ? AND name = ?",
                (purged.qid, queue.application, queue.name),
            )
            transaction.connection.execute("INSERT INTO pending_deletes (qid) VALUES (?)", (queue.qid,))
            return purged

        return self._replace_cached(queue, await self._db.write(work))

    def _replace_cached(self, old: Queue, new: Queue) -> Queue:
        self._db.queues.drop(old.application, old.name)
        self._db.queues.put(new)
        return new

    @threaded
    def list_queues(self, application: str, *, start: str = "", limit: int = 1000) -> list[Queue]:
        with self._db.readers.lend() as connection:
            catalogue = self._db.refresh_catalogue_version(connection)
            rows = connection.execute(_LIST_QUEUES, (application, start, limit)).fetchall()
        return [row_codec.queue_from_row(row, catalogue) for row in rows]


class SqliteApplications(Applications):
    """Applications and keys in SQLite. A key's id is 8 digits of its digest, or more if they are taken."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._known: dict[str, float] = {}
        """Monotonic time until which an application counts as existing, by name."""

    async def create_application(self, name: str) -> None:
        catalogue_rows.require_readable("application", name)

        def work(transaction: Transaction) -> None:
            connection = transaction.connection
            if row_codec.has_application(connection, name):
                raise ApplicationExists(name)
            created = ids.ticks_to_seconds(transaction.now)
            connection.execute("INSERT INTO applications VALUES (?, ?)", (name, created))

        await self._db.write(work)

    @threaded
    def application_names(self, *, start: str = "", limit: int | None = None) -> list[str]:
        max_rows = -1 if limit is None else limit
        with self._db.readers.lend() as connection:
            return [name for (name,) in connection.execute(_LIST_APPLICATIONS, (start, max_rows))]

    async def has_application(self, name: str) -> bool:
        return self._known.get(name, 0.0) > time.monotonic() or await self._read_existence(name)

    @threaded
    def _read_existence(self, name: str) -> bool:
        """Returns whether an application exists. Remembers for a while that it does, never that it does not."""
        now = time.monotonic()
        with self._db.readers.lend() as connection:
            exists = row_codec.has_application(connection, name)
        if exists:
            self._known[name] = now + _MAX_EXISTENCE_AGE
        return exists

    def forget(self) -> None:
        self._known.clear()

    async def add_key(
        self,
        application: str,
        digest: bytes,
        *,
        expires: float | None = None,
        note: str = "",
        scope: Scope | None = None,
    ) -> Key:
        catalogue_rows.require_readable("note", note)

        def work(transaction: Transaction) -> Key:
            connection = transaction.connection
            if application != OPERATORS and not row_codec.has_application(connection, application):
                raise ApplicationNotFound(application)
            present = connection.execute(_SELECT_KEYS + "WHERE digest = ?", (digest,)).fetchone()
            if present is not None:
                if present[0] != application:
                    raise Conflict("This key belongs to another application.")
                return _key_from_row(present)
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
                (digest, application, key.id, key.created, expires, note, catalogue_rows.encode_scope(scope)),
            )
            return key

        return await self._db.write(work)

    @threaded
    def keys(self, application: str) -> list[Key]:
        with self._db.readers.lend() as connection:
            return [
                _key_from_row(row)
                for row in connection.execute(
                    _SELECT_KEYS + "WHERE application = ? ORDER BY created, id", (application,)
                )
            ]

    async def revoke_key(self, application: str, key_id: str) -> None:
        def work(transaction: Transaction) -> None:
            removed = transaction.connection.execute(
                "DELETE FROM keys WHERE application = ? AND id = ? RETURNING id", (application, key_id)
            ).fetchall()
            if not removed:
                raise KeyNotFound(key_id)

        await self._db.write(work)

    async def expire_key(self, application: str, key_id: str, expires: float) -> Key:
        def work(transaction: Transaction) -> Key:
            connection = transaction.connection
            connection.execute(
                "UPDATE keys SET expires = ? WHERE application = ? AND id = ?", (expires, application, key_id)
            )
            row = connection.execute(
                _SELECT_KEYS + "WHERE application = ? AND id = ?", (application, key_id)
            ).fetchone()
            if row is None:
                raise KeyNotFound(key_id)
            return _key_from_row(row)

        return await self._db.write(work)

    @threaded
    def find_key(self, digest: bytes) -> Key | None:
        with self._db.readers.lend() as connection:
            row = connection.execute(_SELECT_KEYS + "WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else _key_from_row(row)


def _key_from_row(row: Any) -> Key:  # noqa: ANN401 - a row of the driver
    application, key_id, created, expires, note, scope = row
    return Key(
        application=application,
        id=key_id,
        created=created,
        expires=expires,
        note=note,
        scope=catalogue_rows.decode_scope(scope),
    )
