"""Encoding and decoding of rows of the store's tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from queuey.model.errors import QueueChanged
from queuey.model.messages import Meta, Queue, stored_meta
from queuey.storage import catalogue_rows
from queuey.storage.sqlite.connection import Connection

SELECT_CLOCK = "SELECT last_ticks, catalogue_version, (SELECT min(ticks) FROM delayed), next_queue_id FROM clock"
SELECT_CATALOGUE_VERSION = "SELECT catalogue_version FROM clock"

_QUEUE_FIELDS = ("application", "name", "uid", "qid", *catalogue_rows.SPEC_COLUMNS, "created")
QUEUE_COLUMNS = ", ".join(_QUEUE_FIELDS)
_SELECT_QUEUE = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE application = ? AND name = ?"  # noqa: S608 - constants only

_encode_meta = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(Meta).decode


def queue_from_row(row: Sequence[Any], version: int) -> Queue:
    return Queue(**catalogue_rows.decode_fields(dict(zip(_QUEUE_FIELDS, row, strict=True))), version=version)


def queue_to_row(queue: Queue) -> list[Any]:
    return catalogue_rows.encode_values(queue, _QUEUE_FIELDS)


def find_queue(connection: Connection, application: str, name: str, version: int) -> Queue | None:
    row = connection.execute(_SELECT_QUEUE, (application, name)).fetchone()
    return None if row is None else queue_from_row(row, version)


def verify(connection: Connection, queue: Queue) -> None:
    """Checks that a queue's row, read at an older version of the catalogue, has not changed.

    Raises:
        QueueChanged: The row has changed or is gone.
    """
    present = find_queue(connection, queue.application, queue.name, queue.version)
    if present != queue:
        raise QueueChanged(queue.name)


def has_application(connection: Connection, name: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM applications WHERE name = ?", (name,)).fetchall())


@lru_cache(maxsize=1024)
def encode_meta(meta: Meta | None) -> bytes | None:
    return None if meta is None or meta == Meta() else _encode_meta(stored_meta(meta))


@lru_cache(maxsize=1024)
def decode_meta(data: bytes) -> Meta:
    return _decode_meta(data)
