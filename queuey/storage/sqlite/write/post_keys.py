"""Posts with idempotency keys: the key's row and the messages are of one transaction.

So a key is there if and only if its messages were stored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from queuey.errors import KeyReused
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Location, PostKey, PostResult
from queuey.storage.sqlite.write.transaction import Append, Transaction

_FIND = "SELECT content, locations FROM idempotency_keys WHERE qid = ? AND key = ? AND expires > ?"
_KEEP = "INSERT OR REPLACE INTO idempotency_keys (qid, key, content, locations, expires) VALUES (?, ?, ?, ?, ?)"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Location]).decode


def append_once(transaction: Transaction, append: Append, key: PostKey) -> PostResult:
    """Stores messages unless the key shows that they were stored before.

    Raises:
        KeyReused: The key is that of another post; nothing was done.
        QueueChanged, InvalidRequest: As :meth:`Transaction.append`; nothing was done.
    """
    transaction.verify(append.queue)
    connection, qid = transaction.connection, append.queue.qid
    found: Any = connection.execute(_FIND, (qid, key.text, transaction.now)).fetchone()
    if found is not None:
        content, locations = found
        if content != key.content:
            raise KeyReused(key.text)
        return PostResult(_decode(locations), replayed=True)
    positions = transaction.append(append)
    stored = [(item.partition, position) for item, position in zip(append.items, positions, strict=True)]
    expires = transaction.now + key.seconds * TICKS_PER_SECOND
    connection.execute(_KEEP, (qid, key.text, key.content, _encode(stored), expires))
    return PostResult(stored, replayed=False)
