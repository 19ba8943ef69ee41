"""Queues in Cassandra."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from queuey.model import ids
from queuey.model.errors import (
    ApplicationNotFound,
    QueueChanged,
    QueueExists,
    QueueNotFound,
    StoreClosed,
    StoreUnavailable,
    in_doubt,
)
from queuey.model.messages import KEPT_SECONDS, Queue, QueueSpec
from queuey.storage import Catalogue, catalogue_rows
from queuey.storage.cassandra.catalogue.queue_cache import COLUMNS, MIN_LONGEST_ROW, SELECT_QUEUE, CachedQueue, row_of
from queuey.storage.cassandra.catalogue.queue_index import IndexEntry
from queuey.storage.cassandra.cluster import Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.read.watched_arrivals import PolledArrivals
from queuey.storage.cassandra.statements.lightweight_transactions import ChangeResult, new_number
from queuey.storage.cassandra.tables.applications import CassandraApplications
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.time import bucketing

_INSERT_QUEUE = Statement(
    f"INSERT INTO queues (application, name, {COLUMNS}) VALUES (?, ?{', ?' * len(COLUMNS.split(','))}) IF NOT EXISTS",
    idempotent=False,
)
_UPDATE_QUEUE = Statement(
    f"UPDATE queues SET {catalogue_rows.make_assignments()}, version = ? "
    "WHERE application = ? AND name = ? IF version = ?",
    idempotent=False,
)
_PURGE_QUEUE = Statement(
    "UPDATE queues SET qid = ?, home_class = ?, longest_ttl = ?, longest_row = ?, version = ? WHERE application = ? "
    "AND name = ? IF version = ?",
    idempotent=False,
)
_DELETE_QUEUE = Statement("DELETE FROM queues WHERE application = ? AND name = ? IF version = ?", idempotent=False)
_ROWS_PER_REQUEST = 10
"""Number of rows in one request of a listing: a quarter of the cost of single reads; few enough for guardrails."""
_SELECT_BY_NAMES = Statement(
    f"SELECT name, {COLUMNS} FROM queues WHERE application = ? AND name IN ({', '.join('?' * _ROWS_PER_REQUEST)})"
)
_CLOSING_POLL_INTERVAL = 0.2
"""Max seconds until a waiting call finds that the store is being closed."""
_MAX_CONCURRENT_ROWS = 500
"""Max entries that ``list_queues`` passes to one ``_read_existing``, which has no limit of its own."""


class CassandraCatalogue(Catalogue):
    """The catalogue contract on Cassandra.

    Each change of a queue is one lightweight transaction on its row. It is answered when no process can still use the
    previous row (see :mod:`queuey.storage.cassandra.catalogue.queue_cache`).
    """

    def __init__(self, parts: StoreParts, applications: CassandraApplications, arrivals: PolledArrivals) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._clock = parts.clock
        self._closing = parts.closing
        self._deadline = parts.deadline
        self._timing = parts.timing
        self._rows = parts.rows
        self._index = parts.index
        self._pending_deletes = parts.pending_deletes
        self._transactions = parts.transactions
        self._applications = applications
        self._arrivals = arrivals

    @store_call()
    async def create_queue(self, application: str, name: str, spec: QueueSpec) -> tuple[Queue, bool]:
        catalogue_rows.new_queue_fields(spec)
        row, created = await self._find_row(application, name), False
        if row is None:
            if not await self._applications.exists(application):
                raise ApplicationNotFound(application)
            async with self._transactions.turn(("queue", application, name)):
                row, created = await self._create_row(application, name, spec)
        if differing := catalogue_rows.find_differing(row.queue, spec):
            raise QueueExists(row.queue, differing)
        return row.queue, created

    async def _create_row(self, application: str, name: str, spec: QueueSpec) -> tuple[CachedQueue, bool]:
        """Creates a queue, unless another caller creates it first. Returns its row, and True if this call created it.

        Each attempt uses new numbers. If an attempt succeeds but its answer is lost, others may find and delete that
        queue. The next attempt must not create a queue with the same numbers, because it would have its messages.
        """
        while True:
            tried: dict[int, CachedQueue] = {}

            async def change(tried: dict[int, CachedQueue] = tried) -> StatementRequest:
                row = self._new_row(application, name, spec)
                tried[row.queue.uid] = row
                await self._index.add(application, name, row.queue.uid)
                return self._transactions.make_request(_INSERT_QUEUE, _values_of(row))

            result = await self._transactions.decide(change)
            try:
                present = tried[next(reversed(tried))] if result.is_done else await self._find_row(application, name)
            except StoreUnavailable as error:
                if result.is_unclear:
                    raise in_doubt(error) from error
                raise
            for uid in tried.keys() - {present.queue.uid if present else 0}:
                await self._index.remove(application, name, uid)
            if present is not None:
                self._rows.put(present)
                return present, present.queue.uid in tried
            # The other caller has deleted the queue again.

    def _new_row(self, application: str, name: str, spec: QueueSpec) -> CachedQueue:
        now, read_at = self._clock.now_and_boottime()
        queue = Queue(
            application=application,
            name=name,
            uid=new_number(),
            qid=new_number(),
            created=ids.ticks_to_seconds(now),
            version=new_number(),
            **catalogue_rows.find_set_fields(spec),
        )
        longest_ttl = self._default_longest_ttl(queue)
        return CachedQueue(
            queue=queue, home_class=bucketing.class_of(longest_ttl), longest_ttl=longest_ttl, read_at=read_at
        )

    def _default_longest_ttl(self, queue: Queue) -> int:
        ttl = self._options.default_ttl if queue.ttl is None else queue.ttl
        return ttl if queue.on_expiry == "drop" else ttl + KEPT_SECONDS

    async def _find_row(self, application: str, name: str) -> CachedQueue | None:
        try:
            return await self._rows.read(application, name)
        except QueueNotFound:
            return None

    @store_call()
    async def queue(self, application: str, name: str, *, fresh: bool = False) -> Queue:
        row = None if fresh else self._rows.get(application, name)
        return (row or await self._rows.read(application, name)).queue

    def cached_queue(self, application: str, name: str) -> Queue | None:
        row = self._rows.get(application, name)
        return None if row is None else row.queue

    @store_call()
    async def update_queue(self, queue: Queue, changes: QueueSpec, *, clear: Iterable[str] = ()) -> Queue:
        fields = catalogue_rows.find_changed(queue, changes, clear)
        updated = msgspec.structs.replace(queue, **fields, version=new_number())
        changed = await self._change_row(
            queue, _UPDATE_QUEUE, (*catalogue_rows.encode_values(updated), updated.version), updated.version
        )
        changed.require(QueueChanged(queue.name), f"queue {queue.name!r}")
        await self._wait_for_others()
        return updated

    @store_call()
    async def purge_queue(self, queue: Queue) -> Queue:
        purged = msgspec.structs.replace(queue, qid=new_number(), version=new_number())
        longest_ttl = self._default_longest_ttl(queue)
        await self._add_pending_delete(queue, deleted=False)
        numbers = purged.qid, bucketing.class_of(longest_ttl), longest_ttl, MIN_LONGEST_ROW, purged.version
        changed = await self._change_row(queue, _PURGE_QUEUE, numbers, purged.version)
        changed.require(QueueChanged(queue.name), f"queue {queue.name!r}")
        await self._wait_for_others()
        self._arrivals.notify_rewritten(queue.qid, range(1, queue.partitions + 1))
        return purged

    @store_call()
    async def delete_queue(self, queue: Queue) -> None:
        await self._add_pending_delete(queue, deleted=True)
        changed = await self._change_row(queue, _DELETE_QUEUE)
        # After an unclear outcome the name may belong to another queue that was created since: this one is deleted.
        if not changed.is_done and not (changed.is_unclear and changed.row[0] != queue.uid):
            raise QueueChanged(queue.name)
        await self._wait_for_others()
        self._arrivals.notify_rewritten(queue.qid, range(1, queue.partitions + 1))
        # Last, because the index has an entry of every queue that exists (see ``queue_index``).
        await self._index.remove(queue.application, queue.name, queue.uid)

    async def _add_pending_delete(self, queue: Queue, *, deleted: bool) -> None:
        row = await self._rows.find_current(queue, since=self._clock.boottime())
        await self._pending_deletes.add(row, self._clock.now(), deleted=deleted)

    async def _change_row(
        self, queue: Queue, statement: Statement, values: tuple[object, ...] = (), token: int | None = None
    ) -> ChangeResult:
        key = queue.application, queue.name
        read_back = StatementRequest(SELECT_QUEUE, key, self._options.catalogue_serial) if token is None else None
        async with self._transactions.turn(("queue", *key)):
            self._rows.forget(*key)
            result = await self._transactions.run(statement, (*values, *key, queue.version), token, read_back=read_back)
            self._rows.forget(*key)
        return result

    async def _wait_for_others(self) -> None:
        """Waits C of the timing in force, so that no process uses the former row.

        The timing is read again when its lease is over. Raises (outcome unknown) if the store closes.
        """
        began = self._clock.raw_boottime_ns()
        while True:
            if not self._timing.is_fresh(self._clock.boottime()):
                await self._renew_times()
            remaining_seconds = self._timing.stored.assumed.row_age - self._clock.seconds_since(began)
            if remaining_seconds <= 0:
                return
            await self._driver.loop.sleep(self._deadline.time_left(min(remaining_seconds, _CLOSING_POLL_INTERVAL)))
            if self._closing.is_set():
                raise StoreClosed("the store is closing; the queue has changed", outcome="unknown")

    async def _renew_times(self) -> None:
        try:
            problem = await self._timing.renew(self._driver)
        except StoreUnavailable as error:
            raise in_doubt(error) from error
        if problem is not None:
            raise StoreUnavailable(f"{problem}; the queue has changed", outcome="unknown")

    @store_call()
    async def list_queues(self, application: str, *, start: str = "", limit: int = 1000) -> list[Queue]:
        # Queues are in the order of the UTF-8 bytes of their names.
        queues: list[Queue] = []
        scan = self._index.scan(application, start)
        while len(queues) < limit and (entries := await scan.take(min(limit - len(queues), _MAX_CONCURRENT_ROWS))):
            queues += await self._read_existing(application, entries)
        return queues

    async def _read_existing(self, application: str, entries: list[IndexEntry]) -> list[Queue]:
        names = list(dict.fromkeys(entry.name for entry in entries))
        names += names[-1:] * (-len(names) % _ROWS_PER_REQUEST)
        batches = [names[first : first + _ROWS_PER_REQUEST] for first in range(0, len(names), _ROWS_PER_REQUEST)]
        read_at = self._clock.boottime()
        level = self._options.catalogue_read
        answers = await self._driver.ask_all(
            [StatementRequest(_SELECT_BY_NAMES, (application, *batch), level) for batch in batches]
        )
        rows = [row_of(application, name, values, read_at) for answer in answers for name, *values in answer]
        by_uid = {row.queue.uid: row.queue for row in rows}
        return [by_uid[entry.uid] for entry in entries if entry.uid in by_uid]


def _values_of(row: CachedQueue) -> tuple[object, ...]:
    queue = row.queue
    numbers = queue.uid, queue.qid, row.home_class, row.longest_ttl, row.longest_row
    return queue.application, queue.name, *numbers, *catalogue_rows.encode_values(queue), queue.created, queue.version
