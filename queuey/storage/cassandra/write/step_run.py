"""Carries out, step by step, what :mod:`.post_keys` and :mod:`.names` decide.

Every step goes through the callbacks of the driver, of the writer or of the undo writes; no thread is held.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from queuey.errors import Outcome, StoreUnavailable
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import NewMessage, Queue
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.consistency_levels import ConsistencyLevels
from queuey.storage.cassandra.driver import Driver, Encoded, Request, Rows, Statement
from queuey.storage.cassandra.ids.clock import Clock, ClockWatch
from queuey.storage.cassandra.lightweight_transactions import judge, read_outcome
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

MOST_SENT = 5
"""How often a change in doubt is sent."""

Done = Callable[[Any, Exception | None], None]
"""Called with what the steps return, or their error."""


class RowStatements:
    """What reads and changes rows of a table, each by its own key, by compare-and-set.

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
        """Returns what reads a row the short way."""
        text = key.encode()
        values = struct.pack(">iqi", 8, qid, len(text)) + text
        routing_key = struct.pack(">HqBH", 8, qid, 0, len(text)) + text + b"\0"
        return Encoded(self.find, 2, [values], routing_key, consistency, decode_row)


def decode_row(body: bytes) -> Rows:
    """Returns the row of an answer (see ``driver.fast_path.ROWS``), if there is one."""
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
        """Returns the row that was found; None: there is none."""
        return self.decode(*found[0]) if found and found[0][-1] is not None else None


class StoreParts(NamedTuple):
    """The parts of the store that the steps need."""

    driver: Driver
    options: CassandraOptions
    clock: Clock
    watch: ClockWatch
    levels: ConsistencyLevels
    writer: ReservingWriter


class _Made(MadeIds, frozen=True):
    """Ids that the writer has made."""

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
        """Starts the steps; returns the function that gives them up.

        Args:
            queue: Whose row and messages they are about.
            row: Its table and key.
            steps: What to do.
            done: Called at the end, also of steps that were given up.
            items: What is written.
            after: As for :meth:`Messages.append`.
        """
        self._queue = queue
        self._items = items
        self._table, text = row
        self._key = queue.qid, text
        self._after = after
        self._done = done
        self._level = self._parts.levels.of(queue)
        self._steps = steps
        self._go_on(None)
        return self._withdraw

    def _withdraw(self) -> Outcome:
        with self._lock:
            self.withdrawn = True
            return "unknown" if self._sent else "none"

    # From step to step

    def _go_on(self, value: object, error: Exception | None = None) -> None:
        try:
            step = self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration as ended:
            self._end(ended.value, None)
        except Exception as failure:  # noqa: BLE001 - passed to the waiting caller
            self._end(None, failure)
        else:
            self._begin(step)

    def _begin(self, step: Step) -> None:
        try:
            match step:
                case MakeIds():
                    self._parts.writer.reserve(self._queue, self._items, self._reserved, self._after)
                case Look():
                    RowChange(self._parts, self._table, self._key, None, self._go_on).look()
                case Swap(_, row):
                    if row.state == "done":
                        self._note_sent()
                    RowChange(self._parts, self._table, self._key, step, self._go_on).send()
                case Write(made):
                    self._write(made)
                case Remove(ids, unseen):
                    self._remove(ids, unseen=unseen)
                case TimeLeft(ids):
                    left = ids.made + self._level.deadline * TICKS_PER_SECOND - self._parts.clock.now()
                    self._go_on(max(0.0, left / TICKS_PER_SECOND))
        except Exception as error:  # noqa: BLE001 - the steps decide what it means
            self._go_on(None, error)

    def _end(self, result: object, error: Exception | None) -> None:
        made, self._made = self._made, None
        if made is not None:
            self._parts.writer.drop(made.reservation)
        self._done(result, error)

    # The steps

    def _reserved(self, reservation: Reservation | None, error: Exception | None) -> None:
        if reservation is None:
            self._go_on(None, error)
            return
        dropped, self._made = self._made, _Made(_ids_of(reservation), reservation)
        if dropped is not None:
            self._parts.writer.drop(dropped.reservation)
        self._go_on(self._made)

    def _note_sent(self) -> None:
        """Notes that readers may notice what comes now.

        Raises:
            StoreUnavailable: The caller has given up before.
        """
        with self._lock:
            if self.withdrawn and not self._sent:
                raise StoreUnavailable(GIVEN_UP)
            self._sent = True

    def _write(self, made: MadeIds) -> None:
        assert isinstance(made, _Made)  # noqa: S101 - it was given by _reserved
        self._note_sent()
        self._made = None
        self._parts.writer.write(made.reservation, self._go_on)

    def _remove(self, ids: PostedIds, *, unseen: bool) -> None:
        level, clock, watch = self._level, self._parts.clock, self._parts.watch
        now, boot = clock.both()
        until = boot + level.deadline
        made = boot - max(0, now - ids.made) / TICKS_PER_SECOND
        if unseen:
            until = made + level.delay - self._parts.options.clock_difference

        def removed(outcome: Outcome) -> None:
            # If the clock was wrong, nothing shows whether the removal was in time.
            self._go_on("unknown" if unseen and not watch.vouches(made) else outcome)

        qid = self._queue.qid
        written = [
            Written(run.kind, qid, run.partition, run.bucket, run.ticks, run.low, run.number) for run in ids.runs
        ]
        self._parts.writer.undo(written, level.writes, until, removed)


class RowChange:
    """A change of a row: sent until it is decided, then answered with the row that stands there."""

    def __init__(
        self,
        parts: StoreParts,
        table: RowTable,
        key: tuple[int, str],
        swap: Swap | None,
        done: Callable[[KeyRow | None, Exception | None], None],
    ) -> None:
        self._parts = parts
        self._table = table
        self._key = key
        self._swap = swap
        self._done = done
        self._serial = parts.levels.row_serial()
        self._until = parts.clock.boottime() + parts.options.catalogue_deadline
        self._sent = 0
        self._doubted = False

    def send(self) -> None:
        """Sends it. Never raises."""
        options, swap, now = self._parts.options, self._swap, self._parts.clock.now()
        assert swap is not None  # noqa: S101 - only a look has none
        row, table = swap.row, self._table
        ttl = min(table.seconds(row, now), bucketing.longest_ttl(now))
        expected = None if swap.seen is None else swap.seen.version
        values = (ttl, row.state, row.content, table.encode(row), row.version, *self._key, expected)
        self._sent += 1
        change = Request(table.statements.change, values, options.catalogue_write, self._serial)
        self._parts.driver.send(change, self._answered)

    def _answered(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        swap = self._swap
        if error is None and rows and swap is not None:
            result = read_outcome(rows, doubted=self._doubted)
            if result.applied or (result.seen and result.seen[-1] == swap.row.version):
                self._done(swap.row, None)
            else:
                self.look()
            return
        error = error or StoreUnavailable("Cassandra did not say whether a change was applied", outcome="unknown")
        left = self._until - self._parts.clock.boottime() if self._sent < MOST_SENT else 0.0
        final = judge(error, doubted=self._doubted, left=left)
        self._doubted = True
        if final is None:
            self.send()
        else:
            self._done(None, final)

    def look(self) -> None:
        """Reads what stands there instead, as a transaction: what others have in doubt is decided before."""
        self._parts.driver.send(Request(self._table.statements.find, self._key, self._serial), self._found)

    def _found(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        if error is not None:
            self._done(None, error)
            return
        row = self._table.row(rows or [])
        mine = None if self._swap is None else self._swap.row
        self._done(mine if mine and row and mine.version == row.version else row, None)


def _ids_of(reservation: Reservation) -> PostedIds:
    """Returns the ids of a reservation in the order of its messages, those that follow each other together."""
    by_index = {
        item.index: IdRun(partition, run.time_bucket.kind, run.time_bucket.bucket, run.ticks + number, run.low, 1)
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
