"""Posts with idempotency keys in Cassandra: :mod:`..write.post_keys` decides, :mod:`..write.row_changes` acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from queuey.errors import Outcome
from queuey.ids import Position
from queuey.messages import NewMessage, PostKey, PostResult, Queue
from queuey.storage import items as items_of
from queuey.storage.cassandra.lightweight_transactions import new_number
from queuey.storage.cassandra.store.connected import ConnectedStore
from queuey.storage.cassandra.write.post_keys import KeyRow, PostedIds, carry_out
from queuey.storage.cassandra.write.row_changes import RowChange, RowStatements, RowTable
from queuey.storage.contracts.keyed_posts import Done, KeyedPosts

_STATEMENTS = RowStatements("idempotency_keys", "key")
PREPARED = (_STATEMENTS.find, _STATEMENTS.change)
"""Statements that are prepared ahead."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PostedIds).decode


class CassandraKeyedPosts(ConnectedStore, KeyedPosts):
    def begin_append_once(
        self,
        queue: Queue,
        items: Sequence[NewMessage],
        key: PostKey,
        done: Done,
        *,
        after: Position | None = None,
    ) -> Callable[[], Outcome]:
        items_of.checked(queue, items)
        return self._driver.calls.begin(self._append_once(queue, items, key, after), done)

    async def _append_once(
        self, queue: Queue, items: Sequence[NewMessage], key: PostKey, after: Position | None
    ) -> PostResult:
        change = RowChange(self._parts, queue, (_table(key), key.text), items=items, after=after)
        result = await change.run(lambda steps: carry_out(steps, key, new_number))
        if not result.replayed:
            self._arrivals.appended(queue, items)
        return result


def _table(key: PostKey) -> RowTable:
    return RowTable(_STATEMENTS, lambda row: _encode(row.ids), _row, lambda _row, _now: key.seconds)


def _row(state: Any, content: bytes, messages: bytes, version: int) -> KeyRow:  # noqa: ANN401 - one of the states
    return KeyRow(state, content, _decode(messages), version)
