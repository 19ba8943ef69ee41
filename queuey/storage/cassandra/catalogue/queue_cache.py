"""Queue rows: how Cassandra and memory hold them, and how old a row may be when it is used.

A change of a queue is answered only after C (:mod:`..cluster.timing`) has passed, and no process uses a row that was
read longer than C ago. So when a purge or delete is answered, no process uses the previous row.

A row also covers the queue's messages: ``longest_ttl`` says how far back readers must look, ``longest_row`` how much
memory a row may take in a reader. A writer makes the row cover a message before it generates the message's id
(:meth:`QueueCache.cover`). A reader uses no row that was read longer than D - S before it chose its horizon, so its row
covers every message with a new id below the horizon. The row does not cover two kinds of messages:

* Messages above the horizon, which claims read. ``longest_ttl`` hides none of them. A scan may exceed its memory limit
  by the rows that were written within C after ``longest_row`` was raised, at most by the number of rows asked for.
* Messages whose ids were given (``put``, loads). They are in buckets that ``longest_ttl`` does not concern. A writer
  that raises ``longest_row`` for them waits for C before it writes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from queuey.model.errors import QueueChanged, QueueNotFound, StoreClosed, StoreUnavailable
from queuey.model.messages import Queue
from queuey.storage import catalogue_rows
from queuey.storage.cassandra.cluster import Driver, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.statements.lightweight_transactions import LightweightTransactions
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.clock import ExpiringCache, SteadyClock
from queuey.storage.cassandra.time.timing_in_force import TimingInForce

_OWN = ("home_class", "longest_ttl", "longest_row")
_FIELDS = ("uid", "qid", *_OWN, *catalogue_rows.SPEC_COLUMNS, "created", "version")
COLUMNS = ", ".join(_FIELDS)
SELECT_QUEUE = Statement(f"SELECT {COLUMNS} FROM queues WHERE application = ? AND name = ?")
MAX_NAME_CHARACTERS = 10_000
"""Max characters of a queue name to look up. Cassandra limits keys to 64 KiB; no queue has a name that long."""
MAX_READ_FRACTION = 0.75
"""Ratio to C of the max time to read a row for a write. The rest of C is for generating and sending ids."""
READ_TIMEOUT = 5.0
"""Timeout of rereading a row for a writer, in seconds."""
FIRST_PAUSE = 0.05
"""Interval after the first of these reads, in seconds. Each further one is twice as long."""
MIN_LONGEST_ROW = 1088
"""Min value of ``longest_row``, in bytes. Each larger class is four times the one before. The sixteenth above a power
of two allows for a row's other columns, for a body of exactly that length."""
_RAISE_LONGEST = Statement(
    "UPDATE queues SET longest_ttl = ?, longest_row = ? WHERE application = ? AND name = ? "
    "IF version = ? AND longest_ttl = ? AND longest_row = ?",
    idempotent=False,
)


class CachedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's row.

    Attributes:
        home_class: Retention class of messages with the queue's default TTL, until a purge.
        longest_ttl: Max TTL in seconds of messages of the home class.
        longest_row: Max bytes of a message's row.
        read_at: Boot time at which its read began, or the transaction that wrote it.
    """

    queue: Queue
    home_class: int
    longest_ttl: int
    longest_row: int = MIN_LONGEST_ROW
    read_at: float


def row_of(application: str, name: str, values: Sequence[Any], read_at: float) -> CachedQueue:
    fields = catalogue_rows.decode_fields(dict(zip(_FIELDS, values, strict=True)))
    own_fields = {column: fields.pop(column) for column in _OWN}
    return CachedQueue(queue=Queue(application=application, name=name, **fields), **own_fields, read_at=read_at)


def next_longest_ttl(seconds: int, home_class: int) -> int:
    """Returns the ``longest_ttl`` to record for a TTL: the next power of two, so that rows rarely change.

    At most the lifetime of the class; raises ValueError if the TTL is longer.
    """
    max_ttl = bucketing.CLASSES[home_class]
    if seconds > max_ttl:
        raise ValueError(f"class {home_class} holds messages for {max_ttl} s, not {seconds}")
    return min(1 << max(0, seconds - 1).bit_length(), max_ttl)


def make_covering_row(row: CachedQueue, ttls: Collection[int], size: int) -> CachedQueue:
    """Returns the row that must be stored before messages are written; the row itself if it covers them.

    Messages of longer classes than the home class are found by the bucket index, whatever their TTL.
    """
    needs_longer_row = size > row.longest_row
    if not needs_longer_row and max(ttls, default=0) <= row.longest_ttl:
        return row
    home_class = row.home_class
    ttl = max((ttl for ttl in ttls if ttl > row.longest_ttl and bucketing.class_of(ttl) <= home_class), default=0)
    if not needs_longer_row and not ttl:
        return row
    longest_ttl = max(row.longest_ttl, next_longest_ttl(ttl, home_class))
    longest_row = row.longest_row
    while longest_row < size:
        longest_row *= 4
    return msgspec.structs.replace(row, longest_ttl=longest_ttl, longest_row=longest_row)


class QueueCache:
    """The rows that this process has read in the last C seconds.

    Only for the thread of the store's loop, except :meth:`get`, :meth:`find_cached` and :meth:`close`.
    """

    def __init__(
        self,
        driver: Driver,
        options: CassandraOptions,
        timing: TimingInForce,
        clock: SteadyClock,
        cas: LightweightTransactions,
    ) -> None:
        self._driver = driver
        self._options = options
        self._timing = timing
        self._clock = clock
        self._transactions = cas
        self._rows: ExpiringCache[tuple[str, str], CachedQueue] = ExpiringCache(
            clock.boottime, partial(attrgetter("stored.kept.row_age"), timing), options.cached_queues
        )
        self._refreshing: set[tuple[str, str]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, application: str, name: str) -> CachedQueue | None:
        """Returns the row if it was read within C. If that is half of C ago, reads it again in the background."""
        row = self._rows.get((application, name))
        if row is None or self._is_closed:
            return None
        age = self._clock.boottime() - row.read_at
        max_age = self._timing.stored.kept.row_age
        if age > max_age:
            return None
        if age > max_age / 2:
            self._refresh((application, name))
        return row

    async def read(self, application: str, name: str) -> CachedQueue:
        self._check_open()
        if len(name) > MAX_NAME_CHARACTERS:
            raise QueueNotFound(name)
        began = self._clock.boottime()
        rows = await self._driver.ask(StatementRequest(SELECT_QUEUE, (application, name), self._options.catalogue_read))
        return self._keep_read((application, name), rows, began)

    async def read_young(self, application: str, name: str) -> CachedQueue:
        """Reads a row that is young enough for a write. Retries after pauses while the read takes too long.

        The age counts from the beginning of the read, because the row may be as it was then. Raises StoreUnavailable if
        reads still take too long after ``READ_TIMEOUT`` seconds.
        """
        until, pause = self._clock.boottime() + READ_TIMEOUT, FIRST_PAUSE
        while True:
            row = await self.read(application, name)
            now = self._clock.boottime()
            if now - row.read_at <= self._timing.stored.kept.row_age * MAX_READ_FRACTION:
                return row
            if now > until:
                raise StoreUnavailable(
                    f"Reading the row of queue {name!r} took {now - row.read_at:.2f} s. A write needs a row at most "
                    f"{self._timing.stored.kept.row_age * MAX_READ_FRACTION:g} s old; Cassandra is too slow"
                )
            await self._driver.loop.sleep(pause)
            pause *= 2

    async def find_current(self, queue: Queue, *, since: float | None = None) -> CachedQueue:
        """Returns the row of a queue that has not changed, read at boot time ``since`` or later (None: within C).

        Raises:
            QueueChanged: The queue has changed or is gone.
        """
        if (row := self.find_cached(queue, since=since)) is not None:
            return row
        self._check_open()
        key, began = (queue.application, queue.name), self._clock.boottime()
        [rows] = await self._driver.ask_all([StatementRequest(SELECT_QUEUE, key, self._options.catalogue_read)])
        try:
            row = self._keep_read(key, rows, began)
        except QueueNotFound as error:
            raise QueueChanged(queue.name) from error
        # Versions are random, so a row of another version may be older or newer than the caller's.
        if row.queue.version != queue.version:
            raise QueueChanged(queue.name)
        return row

    def find_cached(self, queue: Queue, *, since: float | None = None) -> CachedQueue | None:
        """Like :meth:`find_current`, but only from memory: returns None instead of reading or raising. Never blocks."""
        row = self.get(queue.application, queue.name)
        if row is None or row.queue.version != queue.version or (since is not None and row.read_at < since):
            return None
        return row

    def put(self, row: CachedQueue) -> None:
        key = row.queue.application, row.queue.name
        present = self._rows.get(key)
        if not self._is_closed and (present is None or present.read_at <= row.read_at):
            self._rows.put(key, row, row.read_at)

    def forget(self, application: str, name: str) -> None:
        self._rows.pop((application, name))

    def forget_all(self) -> None:
        self._rows.clear()

    def close(self) -> None:
        self._is_closed = True
        with suppress(StoreClosed):  # In a forked child the rows are not used.
            self._driver.loop.call(self._rows.clear)

    async def cover(self, row: CachedQueue, ttls: Collection[int], size: int, *, given: bool = False) -> CachedQueue:
        """Makes a queue's row cover messages (see :func:`make_covering_row`) before one of them is written.

        ``given``: readers' horizons may have passed the ids, so the call waits C, after which no process uses the
        previous row. It waits even if another call made the change, but not if ``row`` already covers the messages.
        """
        if make_covering_row(row, ttls, size) is row:
            return row
        queue = row.queue
        async with self._transactions.turn(("queue", queue.application, queue.name)):
            row = await self.find_current(queue)
            while (covering_row := make_covering_row(row, ttls, size)) is not row:
                began = self._clock.boottime()
                new_values = covering_row.longest_ttl, covering_row.longest_row
                expected = queue.version, row.longest_ttl, row.longest_row
                values = *new_values, queue.application, queue.name, *expected
                if (await self._transactions.run(_RAISE_LONGEST, values)).is_done:
                    row = msgspec.structs.replace(covering_row, read_at=began)
                    self.put(row)
                else:  # Another process raised it, this one did before an answer was lost, or the queue changed.
                    row = await self.find_current(queue, since=began)
        if given:
            await self._driver.loop.sleep(self._timing.stored.assumed.row_age)
            self._check_open()
        return row

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("the store is closed")

    def _keep_read(self, key: tuple[str, str], rows: Sequence[Any], began: float) -> CachedQueue:
        if not rows:
            self._forget_older(key, began)
            raise QueueNotFound(key[1])
        row = row_of(*key, rows[0], began)
        self.put(row)
        return row

    def _forget_older(self, key: tuple[str, str], began: float) -> None:
        present = self._rows.get(key)
        if present is not None and present.read_at <= began:
            self._rows.pop(key)

    def _refresh(self, key: tuple[str, str]) -> None:
        """Reads a row again without waiting, unless that is under way. After an error the old row stays."""
        if key in self._refreshing or self._is_closed:
            return
        self._refreshing.add(key)
        began = self._clock.boottime()

        def done(rows: Sequence[Any] | None, error: Exception | None) -> None:
            self._refreshing.discard(key)
            if error is not None:
                return  # The old row expires. The next call that needs a row reads it, and gets the error.
            if rows:
                self.put(row_of(*key, rows[0], began))
            else:
                self._forget_older(key, began)

        try:
            self._driver.send(StatementRequest(SELECT_QUEUE, key, self._options.catalogue_read), done)
        except Exception as error:  # noqa: BLE001 - the kept row is still valid; the next refresh tries again
            done(None, error)
