"""Named messages in Cassandra: :mod:`..write.names` decides, :mod:`..write.row_changes` carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Named, NewMessage, Queue
from queuey.storage import items as items_of
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.driver.store_loop import blocking
from queuey.storage.cassandra.lightweight_transactions import new_number
from queuey.storage.cassandra.store.connected import ConnectedStore
from queuey.storage.cassandra.write import names
from queuey.storage.cassandra.write.names import Found, NameRow
from queuey.storage.cassandra.write.post_keys import PostedIds
from queuey.storage.cassandra.write.row_changes import RowChange, RowStatements, RowTable
from queuey.storage.contracts.names import Names

_STATEMENTS = RowStatements("names", "name")
PREPARED = (_STATEMENTS.find, _STATEMENTS.change)
"""Statements that are prepared ahead."""

MARGIN = 60
"""Number of seconds for which a row outlives its values."""

_TIMEOUT_MESSAGE = "Cassandra did not change the name in time"
_Kept = tuple[PostedIds, PostedIds, bytes, int]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


class CassandraNames(ConnectedStore, Names):
    @blocking(_TIMEOUT_MESSAGE)
    async def find_named(self, queue: Queue, name: str) -> Named | None:
        await self._rows.current(queue)
        found = await self._change(queue, name).run(lambda steps: names.find(steps, name, new_number))
        return None if found.row is None else named_of(found)

    @blocking(_TIMEOUT_MESSAGE)
    async def write_named(
        self, queue: Queue, name: str, item: NewMessage | None, content: bytes, seen: Named | None
    ) -> Named:
        row = None if seen is None else row_of(seen)
        if item is None:
            await self._rows.current(queue)
            seen_row = row or NameRow("done", b"", names.NOTHING, 0)
            done = await self._change(queue, name).run(lambda steps: names.clear(steps, name, seen_row, new_number))
            return named_of(Found(done))
        items = items_of.checked(queue, [message_codec.named(item, name)])
        expires = self._clock.now() + item.ttl * TICKS_PER_SECOND
        done = await self._change(queue, name, items).run(
            lambda steps: names.write(steps, name, row, content, expires, new_number)
        )
        self._arrivals.appended(queue, items)
        return named_of(Found(done))

    @blocking(_TIMEOUT_MESSAGE)
    async def settle_named(self, queue: Queue, name: str, seen: Named) -> None:
        await self._rows.current(queue)
        await self._change(queue, name).run(lambda steps: names.settle(steps, row_of(seen), new_number))

    def _change(self, queue: Queue, name: str, items: Sequence[NewMessage] = ()) -> RowChange:
        return RowChange(self._parts, queue, (TABLE, name), items=items)


def row_of(seen: Named) -> NameRow:
    assert isinstance(seen.state, NameRow)  # noqa: S101 - it was found here
    return seen.state


def named_of(found: Found) -> Named:
    location, content = found.value
    return Named(location, content, found.replaced, found.busy, found.row)


def _encoded(row: NameRow) -> bytes:
    return _encode((row.ids, row.kept, row.kept_content, row.expires))


def _decoded(state: Any, content: bytes, messages: bytes, version: int) -> NameRow:  # noqa: ANN401 - one of the states
    ids, kept, kept_content, expires = _decode(messages)
    return NameRow(state, content, ids, version, kept=kept, kept_content=kept_content, expires=expires)


def _seconds(row: NameRow, now: int) -> int:
    return max(0, row.expires - now) // TICKS_PER_SECOND + MARGIN


TABLE = RowTable(_STATEMENTS, _encoded, _decoded, _seconds)
