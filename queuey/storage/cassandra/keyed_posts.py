"""Posts with idempotency keys in Cassandra: carries out what :mod:`.write.post_keys` decides.

Every step goes through the callbacks of the driver, of the writer or of the undo writes; no thread is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from queuey.errors import Outcome, StoreUnavailable
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import NewMessage, PostKey, PostResult, Queue
from queuey.storage import items as items_of
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.claim_logs import AppendsInFlight
from queuey.storage.cassandra.consistency_levels import ConsistencyLevels
from queuey.storage.cassandra.driver import Driver, Rows, Statement
from queuey.storage.cassandra.ids.clock import Clock, ClockWatch
from queuey.storage.cassandra.lightweight_transactions import judge, new_number, read_outcome
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.cassandra.read.arrivals import PolledArrivals
from queuey.storage.cassandra.write.post_keys import (
    IdRun,
    KeyRow,
    MadeIds,
    MakeIds,
    PostedIds,
    Remove,
    Step,
    Swap,
    TimeLeft,
    Write,
    carry_out,
)
from queuey.storage.cassandra.write.reserving_writer import Reservation, ReservingWriter
from queuey.storage.cassandra.write.write_batches import Written
from queuey.storage.cassandra.write.writer import GIVEN_UP
from queuey.storage.contracts.keyed_posts import Done, KeyedPosts
from queuey.storage.deadlines import Deadline

_FIND = Statement("SELECT state, content, messages, version FROM idempotency_keys WHERE qid = ? AND key = ?")
_SET = Statement(
    "UPDATE idempotency_keys USING TTL ? SET state = ?, content = ?, messages = ?, version = ? "
    "WHERE qid = ? AND key = ? IF version = ?",
    idempotent=False,
)
PREPARED = (_FIND, _SET)
"""What is sent from threads that must never wait."""

MOST_SENT = 5
"""How often a change in doubt is sent."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PostedIds).decode


class CassandraKeyedPosts(KeyedPosts):
    """The contract of posts with keys on Cassandra."""

    _driver: Driver
    _options: CassandraOptions
    _clock: Clock
    _watch: ClockWatch
    _levels: ConsistencyLevels
    _writer: ReservingWriter
    _appends: AppendsInFlight
    _arrivals: PolledArrivals
    _deadline: Deadline

    def append_once(
        self, queue: Queue, items: Sequence[NewMessage], key: PostKey, *, after: Position | None = None
    ) -> PostResult:
        """See the contract."""
        found: PostResult = self._deadline.result(
            lambda done: self.begin_append_once(queue, items, key, done, after=after),
            "Cassandra did not finish the post in time",
        )
        return found

    def begin_append_once(
        self,
        queue: Queue,
        items: Sequence[NewMessage],
        key: PostKey,
        done: Done,
        *,
        after: Position | None = None,
    ) -> Callable[[], Outcome]:
        """See the contract."""
        items_of.checked(queue, items)

        post = _Post(_Parts(self._driver, self._options, self._clock, self._watch, self._levels, self._writer))

        def ended(result: PostResult | None, error: Exception | None) -> None:
            if result is not None and not result.replayed:
                self._arrivals.appended(queue, items)
            if not post.withdrawn:
                done(result, error)

        return post.begin(queue, items, key, after, self._appends.begin(ended))


class _Parts(NamedTuple):
    """The parts of the store that a post needs."""

    driver: Driver
    options: CassandraOptions
    clock: Clock
    watch: ClockWatch
    levels: ConsistencyLevels
    writer: ReservingWriter


class _Made(MadeIds, frozen=True):
    """Ids that the writer has made."""

    reservation: Reservation


class _Post:
    """One post on its way. Its steps come one after another, each in the thread in which the one before ended."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self._made: _Made | None = None
        """Reserved and not written yet."""
        self._lock = threading.Lock()
        self.withdrawn = False
        """Its caller has given up."""
        self._sent = False

    def begin(
        self, queue: Queue, items: Sequence[NewMessage], key: PostKey, after: Position | None, done: Done
    ) -> Callable[[], Outcome]:
        """Starts it; returns the function that gives it up."""
        self._queue = queue
        self._items = items
        self._key = key
        self._after = after
        self._done = done
        self._level = self._parts.levels.of(queue)
        self._steps = carry_out(key, new_number)
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
                case Swap():
                    _Change(self._parts, self._queue.qid, self._key, step, self._go_on).send()
                case Write(made):
                    self._write(made)
                case Remove(ids, unseen):
                    self._remove(ids, unseen=unseen)
                case TimeLeft(ids):
                    left = ids.made + self._level.deadline * TICKS_PER_SECOND - self._parts.clock.now()
                    self._go_on(max(0.0, left / TICKS_PER_SECOND))
        except Exception as error:  # noqa: BLE001 - the post decides what it means
            self._go_on(None, error)

    def _end(self, result: PostResult | None, error: Exception | None) -> None:
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

    def _write(self, made: MadeIds) -> None:
        assert isinstance(made, _Made)  # noqa: S101 - it was given by _reserved
        with self._lock:
            if self.withdrawn:
                raise StoreUnavailable(GIVEN_UP)
            self._sent = True
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


class _Change:
    """A change of a key's row: sent until it is decided, then answered with the row that stands there."""

    def __init__(
        self,
        parts: _Parts,
        qid: int,
        key: PostKey,
        swap: Swap,
        done: Callable[[KeyRow | None, Exception | None], None],
    ) -> None:
        self._parts = parts
        self._name = qid, key.text
        self._swap = swap
        self._done = done
        row, clock, options = swap.row, parts.clock, parts.options
        ttl = min(key.seconds, bucketing.longest_ttl(clock.now()))
        expected = None if swap.seen is None else swap.seen.version
        self._values = (ttl, row.state, row.content, _encode(row.ids), row.version, *self._name, expected)
        self._until = clock.boottime() + options.catalogue_deadline
        self._sent = 0
        self._doubted = False

    def send(self) -> None:
        """Sends it. Never raises."""
        options = self._parts.options
        self._sent += 1
        self._parts.driver.begin(
            _SET,
            self._values,
            consistency=options.catalogue_write,
            serial=options.catalogue_serial,
            done=self._answered,
        )

    def _answered(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        if error is None and rows:
            result = read_outcome(rows, doubted=self._doubted)
            if result.applied or (result.seen and result.seen[-1] == self._swap.row.version):
                self._done(self._swap.row, None)
            else:
                self._look()
            return
        error = error or StoreUnavailable("Cassandra did not say whether a change was applied", outcome="unknown")
        left = self._until - self._parts.clock.boottime() if self._sent < MOST_SENT else 0.0
        final = judge(error, doubted=self._doubted, left=left)
        self._doubted = True
        if final is None:
            self.send()
        else:
            self._done(None, final)

    def _look(self) -> None:
        """Reads what stands there instead, as a transaction: what others have in doubt is decided before."""
        serial = self._parts.options.catalogue_serial
        self._parts.driver.begin(_FIND, self._name, consistency=serial, done=self._found)

    def _found(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        if error is not None:
            self._done(None, error)
            return
        if not rows or rows[0][-1] is None:
            self._done(None, None)
            return
        state, content, messages, version = rows[0]
        mine = self._swap.row
        self._done(mine if version == mine.version else KeyRow(state, content, _decode(messages), version), None)


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
