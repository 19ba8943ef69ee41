"""Named messages in the embedded store: a name and its message change in one transaction."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import msgspec

from queuey.model.errors import NameChanged
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import KEPT_SECONDS, Location, Named, NewMessage, Queue
from queuey.storage.contracts.names import Names
from queuey.storage.new_messages import check_and_weigh
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.transaction import Append, Transaction

_SELECT_NAME = (
    "SELECT version, content, location, replaced, expires FROM names WHERE qid = ? AND name = ? AND expires > ?"
)
_WRITE_NAME = (
    "INSERT OR REPLACE INTO names (qid, name, version, content, location, replaced, expires) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SET_REPLACED = "UPDATE names SET replaced = ? WHERE qid = ? AND name = ? AND version = ?"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Location | None).decode
_NO_LOCATION = _encode(None)


class SqliteNames(Names):
    def __init__(self, database: Database) -> None:
        self._db = database

    @threaded
    def find_named(self, queue: Queue, name: str) -> Named | None:
        with self._db.readers.lend() as connection:
            self._db.verify(connection, queue)
            row = _read_named(connection, queue, name, self._db.clock())
        return None if row is None else row[0]

    async def write_named(
        self, queue: Queue, name: str, item: NewMessage | None, content: bytes, seen: Named | None
    ) -> Named:
        work = partial(_write_named, queue, name, item, content, seen)
        return await self._db.write(work, weight=check_and_weigh(queue, [] if item is None else [item]))

    async def settle_named(self, queue: Queue, name: str, seen: Named) -> None:
        await self._db.write(partial(_forget_replaced, queue, name, seen))


def _read_named(connection: Connection, queue: Queue, name: str, now: int) -> tuple[Named, int] | None:
    row: Any = connection.execute(_SELECT_NAME, (queue.qid, name, now)).fetchone()
    if row is None:
        return None
    version, content, location, replaced, expires = row
    return Named(_decode(location), content, _decode(replaced), 0.0, version), expires


def _write_named(
    queue: Queue, name: str, item: NewMessage | None, content: bytes, seen: Named | None, transaction: Transaction
) -> Named:
    """Stores a new value and deletes the previous message.

    The row keeps that message's location as ``replaced`` until the name is settled. Its expiry never gets earlier.

    Raises ``NameChanged`` unless the value is still ``seen``.
    """
    transaction.verify(queue)
    present = _read_named(transaction.connection, queue, name, transaction.now)
    named, expires = present or (None, 0)
    if (named and named.state) != (seen and seen.state):
        raise NameChanged(name)
    replaced = None if named is None else named.location
    if replaced is not None:
        transaction.remove([(queue.qid << 8 | replaced[0], replaced[1])])
    location: Location | None = None
    if item is not None:
        [position] = transaction.append(Append(queue, [item]))
        location = item.partition, position
        row_ttl = item.ttl + KEPT_SECONDS if item.kept else item.ttl
        expires = max(expires, position[0] + row_ttl * TICKS_PER_SECOND)
    version = secrets.randbits(62)
    values = (queue.qid, name, version, content, _encode(location), _encode(replaced), expires)
    transaction.connection.execute(_WRITE_NAME, values)
    return Named(location, content, replaced, 0.0, version)


def _forget_replaced(queue: Queue, name: str, seen: Named, transaction: Transaction) -> None:
    transaction.verify(queue)
    transaction.connection.execute(_SET_REPLACED, (_NO_LOCATION, queue.qid, name, seen.state))
