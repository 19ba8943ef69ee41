"""Queues of the embedded store."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from queuey import ids
from queuey.errors import ApplicationNotFound, QueueExists, QueueNotFound
from queuey.messages import Queue, QueueSpec
from queuey.storage import Catalogue, queue_rows, specs
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction

_INSERT = (
    f"INSERT INTO queues ({row_codec.QUEUE_COLUMNS}) "  # noqa: S608 - constants
    f"VALUES ({', '.join('?' for _ in row_codec.QUEUE_COLUMNS.split(','))})"
)
_UPDATE = f"UPDATE queues SET {queue_rows.assignments()} WHERE application = ? AND name = ?"  # noqa: S608 - constants
_LIST = (
    f"SELECT {row_codec.QUEUE_COLUMNS} FROM queues "  # noqa: S608 - constants
    "WHERE application = ? AND name >= ? ORDER BY name LIMIT ?"
)


class SqliteCatalogue(Catalogue):
    _db: Database

    def create_queue(self, application: str, name: str, spec: QueueSpec) -> tuple[Queue, bool]:
        fields = specs.of_new(spec)

        def work(transaction: Transaction) -> tuple[Queue, bool]:
            connection = transaction.connection
            present = row_codec.find_queue(connection, application, name, transaction.catalogue)
            if present is not None:
                if differing := specs.differing(present, spec):
                    raise QueueExists(present, differing)
                return present, False
            if not row_codec.has_application(connection, application):
                raise ApplicationNotFound(application)
            number = transaction.new_id()
            queue = Queue(
                application=application,
                name=name,
                uid=number,
                qid=number,
                created=ids.ticks_to_seconds(transaction.now),
                version=transaction.catalogue,
                **fields,
            )
            connection.execute(_INSERT, row_codec.queue_to_row(queue))
            return queue, True

        queue, created = self._db.writer.perform(work)
        self._db.queues.put(queue)
        return queue, created

    def queue(self, application: str, name: str, *, fresh: bool = False) -> Queue:
        cached = None if fresh else self.cached_queue(application, name)
        if cached is not None:
            return cached
        with self._db.readers.reading() as connection:
            # The version first: a change between the two reads then makes the row look older than it is, never newer.
            catalogue = self._db.read_catalogue(connection)
            queue = row_codec.find_queue(connection, application, name, catalogue)
        if queue is None:
            self._db.queues.drop(application, name)
            raise QueueNotFound(name)
        self._db.queues.put(queue)
        return queue

    def cached_queue(self, application: str, name: str) -> Queue | None:
        cached = self._db.queues.get((application, name))
        return cached if cached is not None and cached.version == self._db.catalogue else None

    def update_queue(self, queue: Queue, changes: QueueSpec, *, clear: Iterable[str] = ()) -> Queue:
        fields = specs.changed(queue, changes, clear)

        def work(transaction: Transaction) -> Queue:
            transaction.verify(queue)
            changed = msgspec.structs.replace(queue, **fields, version=transaction.change_catalogue())
            transaction.connection.execute(_UPDATE, (*queue_rows.values(changed), queue.application, queue.name))
            return changed

        return self._changed(queue, self._db.writer.perform(work))

    def delete_queue(self, queue: Queue) -> None:
        def work(transaction: Transaction) -> None:
            transaction.verify(queue)
            transaction.change_catalogue()
            connection = transaction.connection
            connection.execute("DELETE FROM queues WHERE application = ? AND name = ?", (queue.application, queue.name))
            connection.execute("DELETE FROM offsets WHERE uid = ?", (queue.uid,))
            connection.execute("INSERT INTO pending_deletes (qid) VALUES (?)", (queue.qid,))

        self._db.queues.drop(queue.application, queue.name)
        self._db.writer.perform(work)
        self._db.queues.drop(queue.application, queue.name)

    def purge_queue(self, queue: Queue) -> Queue:
        def work(transaction: Transaction) -> Queue:
            transaction.verify(queue)
            purged = msgspec.structs.replace(queue, qid=transaction.new_id(), version=transaction.change_catalogue())
            transaction.connection.execute(
                "UPDATE queues SET qid = ? WHERE application = ? AND name = ?",
                (purged.qid, queue.application, queue.name),
            )
            transaction.connection.execute("INSERT INTO pending_deletes (qid) VALUES (?)", (queue.qid,))
            return purged

        return self._changed(queue, self._db.writer.perform(work))

    def _changed(self, old: Queue, new: Queue) -> Queue:
        self._db.queues.drop(old.application, old.name)
        self._db.queues.put(new)
        return new

    def list_queues(self, application: str, *, start: str = "", limit: int = 1000) -> list[Queue]:
        with self._db.readers.reading() as connection:
            catalogue = self._db.read_catalogue(connection)
            found = connection.execute(_LIST, (application, start, limit)).fetchall()
        return [row_codec.queue_from_row(row, catalogue) for row in found]
