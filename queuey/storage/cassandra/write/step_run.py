"""Carries out, step by step, what :mod:`.post_keys` and :mod:`.names` decide.

Every step goes through the callbacks of the driver, of the writer or of the undo writes; no thread is held.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from queuey.errors import Outcome, StoreUnavailable
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import NewMessage, Queue
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.consistency_levels import ConsistencyLevels, InForce
from queuey.storage.cassandra.driver import Driver, Encoded, Request, Rows, Statement
from queuey.storage.cassandra.driver.callbacks import begin, called
from queuey.storage.cassandra.lightweight_transactions import LightweightTransactions, unclear
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.cassandra.write.post_keys import (
    IdRun,
    KeyRow,
    Look,
    MadeIds,
    MakeIds,
    PostedIds,
    Remove,
    Step,
    Steps,
    Swap,
    TimeLeft,
    Write,
)
from queuey.storage.cassandra.write.reserving_writer import Reservation, ReservingWriter
from queuey.storage.cassandra.write.write_batches import Written
from queuey.storage.cassandra.write.writer import GIVEN_UP

_size_at = struct.Struct(">i").unpack_from

Done = Callable[[Any, Exception | None], None]
"""Called with what the steps return, or their error."""


class RowStatements:
    """Statements that read and change rows of a table, each by its own key, by compare-and-set.

    Args:
        table: Its name.
        key: The column that, with ``qid``, names a row.

    Attributes:
        find: Selects state, content, messages and version.
        change: Sets a TTL and these, if the version is the expected one.
    """

    def __init__(self, table: str, key: str) -> None:
        where = f"WHERE qid = ? AND {key} = ?"
        self.find = Statement(f"SELECT state, content, messages, version FROM {table} {where}")
        self.change = Statement(
            f"UPDATE {table} USING TTL ? SET state = ?, content = ?, messages = ?, version = ? {where} IF version = ?",
            idempotent=False,
        )

    def look(self, qid: int, key: str, consistency: str) -> Encoded:
        text = key.encode()
        values = struct.pack(">iqi", 8, qid, len(text)) + text
        routing_key = struct.pack(">HqBH", 8, qid, 0, len(text)) + text + b"\0"
        return Encoded(self.find, 2, [values], routing_key, consistency, decode_row)


def decode_row(body: bytes) -> Rows:
    """Returns the row of an answer (see ``driver.cql.protocol.ROWS``), if there is one."""
    (count,), at = _size_at(body, 12), 16
    if not count:
        return []
    cells: list[bytes | None] = []
    for _ in range(4):
        (size,) = _size_at(body, at)
        cells.append(body[at + 4 : at + 4 + size] if size >= 0 else None)
        at += 4 + max(0, size)
    state, content, messages, version = cells
    if state is None or version is None:
        return []
    return [(state.decode(), content, messages, int.from_bytes(version, signed=True))]


class RowTable(NamedTuple):
    """A table whose rows are changed by compare-and-set.

    Attributes:
        statements: Read and change a row.
        encode: Returns ``messages`` of a row.
        decode: Makes a row of the four columns.
        seconds: Returns for how long a row is kept, given the clock (ticks).
    """

    statements: RowStatements
    encode: Callable[[Any], bytes]
    decode: Callable[[str, bytes, bytes, int], KeyRow]
    seconds: Callable[[Any, int], int]

    def row(self, found: Rows) -> KeyRow | None:
        return self.decode(*found[0]) if found and found[0][-1] is not None else None


class StoreParts(NamedTuple):
    driver: Driver
    options: CassandraOptions
    clock: Clock
    levels: ConsistencyLevels
    writer: ReservingWriter
    transactions: LightweightTransactions


class _Made(MadeIds, frozen=True):
    reservation: Reservation


class StepRun:
    """Steps on their way. They come one after another, each in the thread in which the one before ended."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._made: _Made | None = None
        """Reserved and not written yet."""
        self._lock = threading.Lock()
        self.withdrawn = False
        """Its caller has given up."""
        self._sent = False

    def begin(
        self,
        queue: Queue,
        row: tuple[RowTable, str],
        steps: Steps[Any],
        done: Done,
        *,
        items: Sequence[NewMessage] = (),
        after: Position | None = None,
    ) -> Callable[[], Outcome]:
        """Starts the steps; returns the function that gives them up."""
        self._queue = queue
        self._items = items
        self._table, text = row
        self._key = queue.qid, text
        self._after = after
        begin(self._carry_out(steps), done)
        return self._withdraw

    @property
    def _level(self) -> InForce:
        """The queue's, as it is now: it may have changed since the steps began."""
        return self._parts.levels.of(self._queue)

    def _withdraw(self) -> Outcome:
        with self._lock:
            self.withdrawn = True
            return "unknown" if self._sent else "none"

    async def _carry_out(self, steps: Steps[Any]) -> Any:  # noqa: ANN401 - what the steps return
        value: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(value) if error is None else steps.throw(error)
            except BaseException as end:
                self._drop()
                if isinstance(end, StopIteration):
                    return end.value
                raise
            value = error = None
            try:
                value = await self._do(step)
            except Exception as failure:  # noqa: BLE001 - the steps decide what it means
                error = failure

    async def _do(self, step: Step) -> Any:  # noqa: ANN401 - what is sent back to the steps
        match step:
            case MakeIds():
                return await self._reserve()
            case Look():
                return self._table.row(await called(partial(self._parts.driver.send, self._read_row())) or [])
            case Swap(row=row):
                if row.state == "done":
                    self._note_sent()
                return await self._swap(step)
            case Write(made):
                assert isinstance(made, _Made)  # noqa: S101 - it was given by _reserve
                self._note_sent()
                self._made = None
                return await called(partial(self._parts.writer.write, made.reservation))
            case Remove(ids, unseen):
                return await self._remove(ids, unseen=unseen)
            case TimeLeft(ids):
                left = ids.made + self._level.deadline * TICKS_PER_SECOND - self._parts.clock.now()
                return max(0.0, left / TICKS_PER_SECOND)

    # The steps

    async def _reserve(self) -> _Made:
        reservation: Reservation = await called(
            lambda done: self._parts.writer.reserve(self._queue, self._items, done, self._after)
        )
        self._drop()
        self._made = made = _Made(_ids_of(reservation), reservation)
        return made

    def _drop(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            self._parts.writer.drop(made.reservation)

    def _note_sent(self) -> None:
        """Refuses if the caller has given up; from here on readers may notice what is sent."""
        with self._lock:
            if self.withdrawn and not self._sent:
                raise StoreUnavailable(GIVEN_UP)
            self._sent = True

    async def _remove(self, ids: PostedIds, *, unseen: bool) -> Outcome:
        level, qid, (now, boot) = self._level, self._queue.qid, self._parts.clock.both()
        made = boot - max(0, now - ids.made) / TICKS_PER_SECOND
        until, minted = (made + level.undone_within, made) if unseen else (boot + level.undone_within, math.inf)
        written = [
            Written(run.kind, qid, run.partition, run.bucket, run.ticks, run.low, run.number) for run in ids.runs
        ]
        undo = partial(self._parts.writer.undo, written, level, until, minted=minted)
        outcome: Outcome = await called(lambda done: undo(lambda outcome: done(outcome, None)))
        return outcome

    async def _swap(self, swap: Swap) -> KeyRow | None:
        """Changes the row, if it is as it was seen; returns the row that stands there then."""
        parts, table, row, read_back = self._parts, self._table, swap.row, self._read_row()
        expected = None if swap.seen is None else swap.seen.version

        async def change() -> Request:
            now = parts.clock.now()
            ttl = min(table.seconds(row, now), bucketing.longest_ttl(now))
            values = (ttl, row.state, row.content, table.encode(row), row.version, *self._key, expected)
            return Request(table.statements.change, values, parts.options.catalogue_write, read_back.consistency)

        result = await parts.transactions.decide(change, row.version, read_back)
        if result.is_done:
            return row
        if result.is_unclear and not swap.final:
            raise unclear(f"{self._key[1]!r}")
        return table.row([result.row] if result.row else [])

    def _read_row(self) -> Request:
        """Reads what stands there, as a transaction: what others have in doubt is decided before."""
        return Request(self._table.statements.find, self._key, self._parts.levels.row_serial())


def _ids_of(reservation: Reservation) -> PostedIds:
    """Returns the ids of a reservation in the order of its messages, those that follow each other together."""
    by_index = {
        item.index: IdRun(partition, run.time_bucket.ttl_class, run.time_bucket.bucket, run.ticks + number, run.low, 1)
        for partition, run in reservation.runs
        for number, item in enumerate(run.items)
    }
    runs: list[IdRun] = []
    for index in range(len(by_index)):
        one = by_index[index]
        last = runs[-1] if runs else None
        if last is not None and one == last._replace(ticks=last.ticks + last.number, number=1):
            runs[-1] = last._replace(number=last.number + 1)
        else:
            runs.append(one)
    return PostedIds(reservation.made_at, tuple(runs))
