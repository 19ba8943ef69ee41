"""Implements the steps by which :mod:`.post_keys` and :mod:`.name_steps` change the rows of keys and names."""

from __future__ import annotations

import math
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from queuey.model.errors import Outcome
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.messages import NewMessage, Queue
from queuey.storage.cassandra.cluster import Driver, Encoded, Rows, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.cluster.store_loop import wait_for_callback
from queuey.storage.cassandra.statements.consistency_levels import ConsistencyLevels, ResolvedLevel
from queuey.storage.cassandra.statements.lightweight_transactions import (
    DocumentStatements,
    LightweightTransactions,
    make_unclear_error,
)
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.cassandra.write.post_keys import IdRun, KeyRow, MadeIds, PostedIds
from queuey.storage.cassandra.write.reserving_writer import Reservation, ReservingWriter
from queuey.storage.cassandra.write.write_batches import Written

_unpack_size = struct.Struct(">i").unpack_from

T = TypeVar("T")


def decode_row(body: bytes) -> Rows:
    (count,), offset = _unpack_size(body, 12), 16
    if not count:
        return []
    cells: list[bytes | None] = []
    for _ in range(4):
        (size,) = _unpack_size(body, offset)
        cells.append(body[offset + 4 : offset + 4 + size] if size >= 0 else None)
        offset += 4 + max(0, size)
    state, content, messages, version = cells
    if state is None or version is None:
        return []
    return [(state.decode(), content, messages, int.from_bytes(version, signed=True))]


class RowTable(NamedTuple):
    """A table whose rows are changed by compare-and-set.

    Attributes:
        statements: The statements that read and change a row.
        encode: Returns the column ``messages`` of a row.
        decode: Makes a row from the four columns.
        seconds: Returns the TTL of a row (seconds), given the row and the time (ticks).
    """

    statements: DocumentStatements
    encode: Callable[[Any], bytes]
    decode: Callable[[str, bytes, bytes, int], KeyRow]
    seconds: Callable[[Any, int], int]

    def read_request(self, qid: int, key: str, consistency: str) -> Encoded:
        text = key.encode()
        values = struct.pack(">iqi", 8, qid, len(text)) + text
        routing_key = struct.pack(">HqBH", 8, qid, 0, len(text)) + text + b"\0"
        return Encoded(self.statements.find, 2, [values], routing_key, consistency, decode_row)

    def row(self, rows: Rows) -> KeyRow | None:
        return self.decode(*rows[0]) if rows and rows[0][-1] is not None else None


class RowChangeParts(Protocol):
    """The parts of a store that changes of rows use."""

    driver: Driver
    options: CassandraOptions
    clock: SteadyClock
    levels: ConsistencyLevels
    writer: ReservingWriter
    transactions: LightweightTransactions


class _Made(MadeIds, frozen=True):
    reservation: Reservation


class RowChange:
    """The steps of a call that changes one row and writes its messages (see :class:`.post_keys.Steps`).

    A call that is given up has changed nothing until it writes messages or a row that is done.
    """

    def __init__(
        self,
        parts: RowChangeParts,
        queue: Queue,
        row: tuple[RowTable, str],
        *,
        items: Sequence[NewMessage] = (),
        after: Position | None = None,
    ) -> None:
        self._parts = parts
        self._queue = queue
        self._items = items
        self._table, text = row
        self._key = queue.qid, text
        self._after = after
        self._deadline = parts.driver.calls.deadline
        self._made: _Made | None = None
        """The reservation that is not written yet."""

    async def run(self, work: Callable[[RowChange], Awaitable[T]]) -> T:
        try:
            return await work(self)
        finally:
            self._drop_reservation()

    @property
    def _level(self) -> ResolvedLevel:
        return self._parts.levels.resolve(self._queue)

    def _drop_reservation(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            self._parts.writer.drop(made.reservation)

    async def read(self) -> KeyRow | None:
        return self._table.row(await self._parts.driver.ask(self._make_read_request()))

    async def make_ids(self) -> MadeIds:
        with self._deadline.without_marking_sent():
            reservation: Reservation = await wait_for_callback(
                lambda done: self._parts.writer.reserve(self._queue, self._items, done, self._after)
            )
        self._drop_reservation()
        self._made = made = _Made(_make_posted_ids(reservation), reservation)
        return made

    async def swap(self, seen: KeyRow | None, row: KeyRow, *, final: bool = True) -> KeyRow | None:
        parts, table, read_back = self._parts, self._table, self._make_read_request()
        expected = None if seen is None else seen.version

        async def change() -> StatementRequest:
            now = parts.clock.now()
            ttl = min(table.seconds(row, now), bucketing.max_cassandra_ttl(now))
            values = (ttl, row.state, row.content, table.encode(row), row.version, *self._key, expected)
            return StatementRequest(
                table.statements.change, values, parts.options.catalogue_write, read_back.consistency
            )

        with nullcontext() if row.state == "done" else self._deadline.without_marking_sent():
            result = await parts.transactions.decide(change, row.version, read_back)
        if result.is_done:
            return row
        if result.is_unclear and not final:
            raise make_unclear_error(f"{self._key[1]!r}")
        return table.row([result.row] if result.row else [])

    async def write(self, made: MadeIds) -> None:
        assert isinstance(made, _Made)  # noqa: S101 - make_ids returned it
        self._deadline.mark_sent()
        self._made = None
        await wait_for_callback(partial(self._parts.writer.write, made.reservation))

    async def remove(self, ids: PostedIds, *, unseen: bool) -> Outcome:
        """Undoes messages. The outcome is ``none`` only in time; with ``unseen``, that is before readers pass them."""
        level, qid, (now, boot) = self._level, self._queue.qid, self._parts.clock.now_and_boottime()
        made = boot - max(0, now - ids.made) / TICKS_PER_SECOND
        until, id_boottime = (made + level.undone_within, made) if unseen else (boot + level.undone_within, math.inf)
        written = [
            Written(run.kind, qid, run.partition, run.bucket, run.ticks, run.low, run.number) for run in ids.runs
        ]
        undo = partial(self._parts.writer.undo, written, level, until, id_boottime=id_boottime)
        outcome: Outcome = await wait_for_callback(lambda done: undo(lambda outcome: done(outcome, None)))
        return outcome

    async def time_left(self, ids: PostedIds) -> float:
        remaining_ticks = ids.made + self._level.deadline * TICKS_PER_SECOND - self._parts.clock.now()
        return max(0.0, remaining_ticks / TICKS_PER_SECOND)

    def _make_read_request(self) -> Encoded:
        """Returns a serial read of the row, which first settles changes of others that are in doubt."""
        return self._table.read_request(*self._key, self._parts.levels.row_serial_level())


def _make_posted_ids(reservation: Reservation) -> PostedIds:
    by_index = {
        item.index: IdRun(partition, run.time_bucket.ttl_class, run.time_bucket.code, run.ticks + number, run.low, 1)
        for partition, run in reservation.runs
        for number, item in enumerate(run.items)
    }
    runs: list[IdRun] = []
    for index in range(len(by_index)):
        single = by_index[index]
        last = runs[-1] if runs else None
        if last is not None and single == last._replace(ticks=last.ticks + last.number, number=1):
            runs[-1] = last._replace(number=last.number + 1)
        else:
            runs.append(single)
    return PostedIds(reservation.made_at, tuple(runs))
