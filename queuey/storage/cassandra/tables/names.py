"""Messages in Cassandra that are found by a name or an idempotency key.

:mod:`..write.name_steps` and :mod:`..write.post_keys` decide; :mod:`..write.row_changes` carries out their steps.

A process that stops while it replaces the value of a name leaves both values in the queue. So messages that are written
as values carry a mark. A reader by time reads the rows of their names and shows only the messages that are the values.
It first finishes or undoes what another process left unfinished, as a call for the name does. Below the horizon that is
always possible, because the horizon is D behind the clock, and D > W.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.messages import KEPT_SECONDS, Location, Message, Named, NewMessage, PostKey, PostResult, Queue
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.read.slice_reads import Gathered
from queuey.storage.cassandra.read.watched_arrivals import PolledArrivals
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.statements.lightweight_transactions import DocumentStatements, new_number
from queuey.storage.cassandra.statements.message_codec import Marked, NamedMessage
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.write import name_steps
from queuey.storage.cassandra.write.name_steps import Found, NameRow
from queuey.storage.cassandra.write.post_keys import KeyRow, PostedIds, carry_out
from queuey.storage.cassandra.write.row_changes import RowChange, RowTable
from queuey.storage.contracts.keyed_posts import KeyedPosts
from queuey.storage.contracts.names import Names
from queuey.storage.new_messages import check_and_weigh

_COLUMNS = "state, content, messages"
_KEY_STATEMENTS = DocumentStatements("idempotency_keys", "qid, key", _COLUMNS, expires=True)
_NAME_STATEMENTS = DocumentStatements("names", "qid, name", _COLUMNS, expires=True)
STATEMENTS_TO_PREPARE = (_KEY_STATEMENTS.find, _KEY_STATEMENTS.change, _NAME_STATEMENTS.find, _NAME_STATEMENTS.change)
"""Statements that are prepared when the store connects."""

ROW_TTL_MARGIN = 60
"""Number of seconds for which a name's row outlives its values."""
MAX_CONCURRENT_ROWS = 64
"""Max name rows that one read requests concurrently."""

_TIMEOUT_MESSAGE = "Cassandra did not change the name in time"

Verdicts = dict[str, Found]
"""The present values of names."""

_encode = msgspec.msgpack.Encoder().encode
_decode_ids = msgspec.msgpack.Decoder(PostedIds).decode
_decode_values = msgspec.msgpack.Decoder(tuple[PostedIds, PostedIds, bytes, int]).decode


class CassandraKeyedPosts(KeyedPosts):
    def __init__(self, parts: StoreParts, arrivals: PolledArrivals) -> None:
        self._parts = parts
        self._driver = parts.driver
        self._arrivals = arrivals

    @store_call("Cassandra did not finish the write in time", raise_given_up=True)
    async def append_once(
        self, queue: Queue, items: Sequence[NewMessage], key: PostKey, *, after: Position | None = None
    ) -> PostResult:
        check_and_weigh(queue, items)
        table = RowTable(_KEY_STATEMENTS, lambda row: _encode(row.ids), _key_row, lambda _row, _now: key.seconds)
        change = RowChange(self._parts, queue, (table, key.text), items=items, after=after)
        result = await change.run(lambda steps: carry_out(steps, key, new_number))
        if not result.replayed:
            self._arrivals.notify_appended(queue, items)
        return result


class CassandraNames(Names):
    def __init__(self, parts: StoreParts, arrivals: PolledArrivals) -> None:
        self._parts = parts
        self._driver = parts.driver
        self._clock = parts.clock
        self._rows = parts.rows
        self._arrivals = arrivals

    @store_call(_TIMEOUT_MESSAGE)
    async def find_named(self, queue: Queue, name: str) -> Named | None:
        await self._rows.find_current(queue)
        present = await self._new_change(queue, name).run(lambda steps: name_steps.find(steps, name, new_number))
        return None if present.row is None else named_of(present)

    @store_call(_TIMEOUT_MESSAGE)
    async def write_named(
        self, queue: Queue, name: str, item: NewMessage | None, content: bytes, seen: Named | None
    ) -> Named:
        row = None if seen is None else require_row(seen)
        if item is None:
            await self._rows.find_current(queue)
            seen_row = row or NameRow("done", b"", name_steps.NOTHING, 0)
            done = await self._new_change(queue, name).run(
                lambda steps: name_steps.clear(steps, name, seen_row, new_number)
            )
            return named_of(Found(done))
        items = [message_codec.mark_named(item, name)]
        check_and_weigh(queue, items)
        row_ttl = item.ttl + KEPT_SECONDS if item.kept else item.ttl
        expires = self._clock.now() + row_ttl * TICKS_PER_SECOND
        done = await self._new_change(queue, name, items).run(
            lambda steps: name_steps.write(steps, name, row, content, expires, new_number)
        )
        self._arrivals.notify_appended(queue, items)
        return named_of(Found(done))

    @store_call(_TIMEOUT_MESSAGE)
    async def settle_named(self, queue: Queue, name: str, seen: Named) -> None:
        await self._rows.find_current(queue)
        await self._new_change(queue, name).run(
            lambda steps: name_steps.forget_replaced(steps, require_row(seen), new_number)
        )

    def _new_change(self, queue: Queue, name: str, items: Sequence[NewMessage] = ()) -> RowChange:
        return RowChange(self._parts, queue, (TABLE, name), items=items)


def require_row(seen: Named) -> NameRow:
    assert isinstance(seen.state, NameRow)  # noqa: S101 - it was found here
    return seen.state


def named_of(found: Found) -> Named:
    location, content = found.value
    return Named(location, content, found.replaced, found.busy, found.row)


def _key_row(state: Any, content: bytes, messages: bytes, version: int) -> KeyRow:  # noqa: ANN401 - one of the states
    return KeyRow(state, content, _decode_ids(messages), version)


def _name_row(state: Any, content: bytes, messages: bytes, version: int) -> NameRow:  # noqa: ANN401 - as above
    ids, kept, kept_content, expires = _decode_values(messages)
    return NameRow(state, content, ids, version, kept=kept, kept_content=kept_content, expires=expires)


def _values_of(row: NameRow) -> bytes:
    return _encode((row.ids, row.kept, row.kept_content, row.expires))


def _row_ttl(row: NameRow, now: int) -> int:
    return max(0, row.expires - now) // TICKS_PER_SECOND + ROW_TTL_MARGIN


TABLE = RowTable(_NAME_STATEMENTS, _values_of, _name_row, _row_ttl)


async def find_values(parts: StoreParts, queue: Queue, marked: Marked, *, early: bool = False) -> Verdicts:
    """Reads the rows of the names of marked messages.

    A row may be outdated: a reader shows a newer value only after this one was removed. If the row does not show that
    the message is the value and the change was completed, the name is resolved as by a call for it.

    ``early``: uses the row as it is. A value that is still being written does not count, and nothing is undone.
    """
    verdicts: Verdicts = {}
    all_names, driver, consistency = list(marked), parts.driver, parts.options.catalogue_read
    for first in range(0, len(all_names), MAX_CONCURRENT_ROWS):
        batch = all_names[first : first + MAX_CONCURRENT_ROWS]
        answers = await driver.ask_all([TABLE.read_request(queue.qid, name, consistency) for name in batch])
        for name, rows in zip(batch, answers, strict=True):
            row = TABLE.row(rows)
            verdict = Found(row if isinstance(row, NameRow) else None)
            settled = row is not None and row.state == "done" and not verdict.replaced
            if not early and (not settled or marked[name] != {verdict.value[0]}):
                change = RowChange(parts, queue, (TABLE, name))
                with parts.driver.calls.deadline.without_marking_sent():
                    verdict = await change.run(partial(name_steps.find_shown, name=name, new_version=new_number))
            verdicts[name] = verdict
    return verdicts


def show_values(gathered: Gathered, found: Verdicts, *, waits: bool) -> Gathered:
    messages: list[Message] = []
    for message in gathered.messages:
        shows = not isinstance(message, NamedMessage) or found[message.name].is_shown(_location(message))
        if shows is None and waits:
            return Gathered(messages, message.position, more=False)
        if shows:
            messages.append(message)
    return gathered._replace(messages=messages)


def _location(message: Message) -> Location:
    return message.partition, message.position
