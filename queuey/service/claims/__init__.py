"""Use cases of claims: messages given to one caller each, until they are acknowledged or released, or a claim expires.

``docs/architecture-claims.md`` says how they work. Each call has two forms: one that starts it and calls back when it
ends, for callers that serve many requests in one thread, and one that waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import msgspec

from queuey import ids
from queuey.claims import ClaimReceipt, ClaimTiming, Poll, Settlement, State, digest_of
from queuey.errors import ClaimsRefused, InvalidRequest, Outcome
from queuey.ids import Position
from queuey.messages import Location, Message, Queue, Slice, rendered_bytes
from queuey.metrics import Metrics
from queuey.service.claims.claiming import Add, ClaimSearch, HandedOut, JoinedAck, begin_after, begin_each
from queuey.service.claims.forwarding import Forwarding
from queuey.service.claims.log_cache import Key, LogCache
from queuey.service.claims.move_turns import MoveOrder, MoveRequest, MoveTurn
from queuey.service.claims.news import ClaimNews
from queuey.service.claims.partition_log import PartitionLog
from queuey.service.claims.requests import (
    ClaimUndecided,
    Kind,
    LookRequest,
    ReleaseAllRequest,
    Request,
    SettleRequest,
    SupersedeRequest,
    too_late,
)
from queuey.service.claims.runtime import Done, Runtime, ThreadRuntime
from queuey.service.claims.totals import ClaimTotals
from queuey.service.claims.turns import Turns
from queuey.service.claims.upkeep import Upkeep
from queuey.service.limits import Limits
from queuey.service.queue_access import QueueAccess
from queuey.service.watching import Trigger, Waiter, WaitingThread, Watchers
from queuey.service.workers import Workers
from queuey.storage import Store

__all__ = ["ClaimCounts", "ClaimUseCases", "HandedOut", "JoinedAck", "Size"]

T = TypeVar("T")
ENOUGH = 100
"""Ids that a partition is asked for at a time while others are asked for fewer: larger entries gain little, and would
leave the other partitions idle."""
AGAIN = 1.0
"""Seconds after which a claim that waits tries again where messages may have been free that it did not get."""
_PAGE = 1000


class ClaimCounts(msgspec.Struct, frozen=True):
    """What is claimed of one partition.

    Attributes:
        claimed: Messages with a claim that lives.
        waiting: Messages whose claims have ended, that wait to be delivered again.
        dead: Messages that are about to become dead letters.
    """

    claimed: int
    waiting: int
    dead: int


class Size(msgspec.Struct, frozen=True):
    """How many messages are not done: counted up to the limit, estimated beyond."""

    count: int
    exact: bool


class ClaimUseCases:
    """Claims, acknowledges, renews and releases.

    Args:
        store: Where messages and logs are kept.
        limits: How much one request may ask for.
        metrics: Counts messages given out.
        stopping: Set when the service ends.
        watchers: Wake waiting requests when messages arrive; None: new ones are made.
        runtime: Threads, clocks and randomness; None: this process's.
        timing: When claims are over.
        upkeep: How logs are kept short.
    """

    def __init__(
        self,
        store: Store,
        limits: Limits,
        metrics: Metrics,
        stopping: threading.Event,
        *,
        watchers: Watchers | None = None,
        runtime: Runtime | None = None,
        timing: ClaimTiming | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._stopping = stopping
        self._watchers = Watchers() if watchers is None else watchers
        self._runtime = runtime or ThreadRuntime(store)
        self._timing = timing or ClaimTiming()
        self._upkeep = upkeep or Upkeep()
        self._totals = ClaimTotals()
        self._logs = LogCache(self._make, limits.claims_memory)
        self._back = ClaimNews(store, self._logs, self._runtime, self._timing)
        self._trigger = Trigger(self._back.watch, for_all=False)
        self._turns = Turns(self._runtime.boottime, self._runtime.jitter)

    def _make(self, key: Key, after: Callable[[PartitionLog], None]) -> PartitionLog:
        def rested(log: PartitionLog) -> None:
            after(log)
            self._back.note(log)

        return PartitionLog(
            self._store, key, self._runtime, self._timing, self._limits, self._upkeep, self._totals, rested
        )

    def share(self, workers: Workers) -> None:
        """Lets one worker of the service do what callers of the others want of a partition."""
        forwarding = Forwarding(workers, self._logs.add_here, self._runtime, self._timing, self._totals)
        self._logs.elsewhere = forwarding.forward

    def statistics(self) -> dict[str, float]:
        """Returns what this process has counted, and what it has in memory, by the names that the metrics have."""
        return {
            **self._totals.statistics(),
            **self._logs.measure(),
            "claims_waiting": self._watchers.count(for_all=False),
        }

    # Claiming

    def begin_claim(  # noqa: PLR0913 - what a caller may ask for
        self,
        queue: Queue,
        done: Done,
        *,
        limit: int,
        ttl: float,
        wait: float = 0.0,
        waiter: Waiter | None = None,
        partitions: Sequence[int] | None = None,
        max_bytes: int | None = None,
        gather: bool = False,
        ack: JoinedAck | None = None,
    ) -> Callable[[], Outcome]:
        """Starts a claim. It does not wait: if there is no message to claim, it calls the ``waiter``.

        Args:
            queue: A row that the caller is authorized for.
            done: Called once, from any thread, with a list of :class:`HandedOut` or the error.
            limit: The most messages to claim.
            ttl: Seconds that the claims last; 0: nothing is claimed, and what would be is shown.
            wait: Seconds that the caller would wait at most.
            waiter: The request that waits: it learns which triggers wake it, and whether to wait. None: no request
                waits.
            partitions: Partitions to claim from; None: all.
            max_bytes: Bytes of the messages in the answer, but for the last one's; None: as many as a page has.
            gather: Give as many as ``limit``, of several partitions, if they are there; else the messages are of one.
            ack: Acknowledge this at once, in the same entry if it is of the partition that is asked first. It learns
                the result before ``done`` is called. If it fails, nothing is claimed.

        Returns:
            A function that gives up: what was claimed for it is released.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            InvalidRequest: The queue has no such partition.
        """
        self.check(queue, partitions)
        order = self._order(queue, partitions, limit)
        if waiter is not None and wait:
            waiter.expect([(queue, order, self._trigger)])

        def told(found: list[HandedOut] | None, error: Exception | None) -> None:
            if waiter is not None and wait and not found and (error is None or isinstance(error, ClaimUndecided)):
                waiter.found_nothing(wait)
                if error is not None:
                    self._runtime.later(AGAIN, partial(self._watchers.tell, waiter.wake))
            self._metrics.delivered(len(found or ()))
            done(found, error)

        poll = Poll(limit, ttl, min(max_bytes or self._limits.page_bytes, self._limits.page_bytes))

        def is_late(began: float) -> bool:
            return self._runtime.boottime() - began > self._timing.answer_within(ttl)

        ack = ack or JoinedAck()
        search = ClaimSearch(self._logs, self._turns, queue, order, poll, told, is_late, ack, gather=gather)
        return self._begin_both(queue, ack, search, order[0]) if ack.pending else search.start()

    def _begin_both(self, queue: Queue, ack: JoinedAck, search: ClaimSearch, first: int) -> Callable[[], Outcome]:
        """Starts a claim that begins with the partition ``first``, and what it acknowledges."""
        beside: list[Request] = []
        logs = self._logs_of(queue)

        def add(number: int, request: Request) -> None:
            beside.append(request) if number == first else logs(number, request)

        parts = _by_partition(ack.receipts)
        if parts.keys() == {first} or self._knows(queue, parts):
            withdraw = self._begin_settling(queue, "acknowledge", ack.receipts, 0.0, search.acknowledged, add)
            search.start(*beside)
        else:  # There may be a receipt that no entry has made: then nothing is claimed.

            def told(settled: list[Settlement] | None, error: Exception | None) -> None:
                search.acknowledged(settled, error)
                search.start()

            withdraw = self.begin_acknowledge(queue, ack.receipts, told)

        def give_up() -> Outcome:
            return "unknown" if "unknown" in {withdraw(), search.give_up()} else "none"

        return give_up

    def claim(  # noqa: PLR0913 - what a caller may ask for
        self,
        access: QueueAccess,
        *,
        limit: int,
        ttl: float,
        wait: float = 0.0,
        waiter: Waiter | None = None,
        partitions: Sequence[int] | None = None,
        max_bytes: int | None = None,
        gather: bool = False,
        ack: JoinedAck | None = None,
    ) -> list[HandedOut]:
        """Gives messages to a caller; does what :meth:`begin_claim` does, and waits if there is nothing.

        Args:
            access: The way to the queue.
            limit: See :meth:`begin_claim`, also for the other arguments.
            ttl: Seconds.
            wait: Seconds to wait at most.
            waiter: The request that waits instead of this call, as for :meth:`begin_claim`. None: this call waits.
            partitions: Partitions to claim from.
            max_bytes: See :meth:`begin_claim`.
            gather: See :meth:`begin_claim`.
            ack: See :meth:`begin_claim`.
        """
        asked: dict[str, Any] = {"limit": limit, "ttl": ttl, "wait": wait, "partitions": partitions}
        asked |= {"max_bytes": max_bytes, "gather": gather}

        def attempt(waiter: Waiter | None) -> list[HandedOut]:
            found: list[HandedOut] = access.use(
                lambda queue: _wait(partial(self.begin_claim, queue, **asked, waiter=waiter, ack=ack))
            )
            return found

        if not wait or waiter is not None:
            return attempt(waiter)
        with closing(WaitingThread(self._watchers)) as thread:
            return thread.patiently(lambda: attempt(thread), wait, self._stopping, access.check_again)

    def check(self, queue: Queue, partitions: Sequence[int] | None = None) -> None:
        """Makes sure that messages of a queue may be claimed, and that it has these partitions.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            InvalidRequest: The queue has no such partition.
        """
        if (refusal := self._store.claims_refusal(queue)) is not None:
            raise ClaimsRefused(refusal)
        for number in partitions or ():
            if not 1 <= number <= queue.partitions:
                text = f"{number} is not a partition of this queue (1 to {queue.partitions})"
                raise InvalidRequest({"partitions": text})

    def _order(self, queue: Queue, partitions: Sequence[int] | None, limit: int) -> Sequence[int]:
        """Returns partitions in the order in which they are asked. The next entry of the first has room for more."""
        if partitions is not None and len(partitions) == 1:
            return partitions
        order = self._turns.order(queue.qid, queue.partitions, lambda number: self._logs.refused((queue.qid, number)))
        if partitions is not None:
            wanted = set(partitions)
            order = [number for number in order if number in wanted]

        def load(number: int) -> int:
            return self._logs.load((queue.qid, number))

        has_room = (number for number in order if not (held := load(number)) or held + limit <= ENOUGH)
        at = order.index(next(has_room, None) or min(order, key=load))
        return [*order[at:], *order[:at]] if at else order

    # Receipts

    def begin_acknowledge(self, queue: Queue, receipts: Sequence[ClaimReceipt], done: Done) -> Callable[[], Outcome]:
        """Starts to acknowledge messages: they will not be delivered any more.

        Args:
            queue: A row that the caller is authorized for.
            receipts: Of this queue. Number 0 names a message, whichever caller has claimed it.
            done: Called with a list of :class:`~queuey.claims.Settlement`, in the order of ``receipts``, or the error.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            InvalidRequest: The queue has no such partition.
        """
        return self._begin_settling(queue, "acknowledge", receipts, 0.0, done)

    def begin_renew(
        self, queue: Queue, receipts: Sequence[ClaimReceipt], ttl: float, done: Done
    ) -> Callable[[], Outcome]:
        """Starts to have claims last for ``ttl`` seconds from now, or as long as they did if that is longer.

        An expired claim becomes valid again if no other caller has claimed the message. 0 seconds release it.
        """
        return self._begin_settling(queue, "renew" if ttl else "release", receipts, ttl, done)

    def begin_release(
        self, queue: Queue, receipts: Sequence[ClaimReceipt], done: Done, delay: float = 0.0
    ) -> Callable[[], Outcome]:
        """Starts to end claims: the messages can be delivered again ``delay`` seconds from now, and not before."""
        return self._begin_settling(queue, "release", receipts, delay, done)

    def acknowledge(self, access: QueueAccess, receipts: Sequence[ClaimReceipt]) -> list[Settlement]:
        """Does what :meth:`begin_acknowledge` does and waits for the end."""
        return self._settle(access, lambda queue, done: self.begin_acknowledge(queue, receipts, done))

    def renew(self, access: QueueAccess, receipts: Sequence[ClaimReceipt], ttl: float) -> list[Settlement]:
        """Does what :meth:`begin_renew` does and waits for the end."""
        return self._settle(access, lambda queue, done: self.begin_renew(queue, receipts, ttl, done))

    def release(self, access: QueueAccess, receipts: Sequence[ClaimReceipt], delay: float = 0.0) -> list[Settlement]:
        """Does what :meth:`begin_release` does and waits for the end."""
        return self._settle(access, lambda queue, done: self.begin_release(queue, receipts, done, delay))

    def _settle(self, access: QueueAccess, begin: Callable[[Queue, Done], Callable[[], Outcome]]) -> list[Settlement]:
        found: list[Settlement] = access.use(lambda queue: _wait(partial(begin, queue)))
        return found

    def _begin_settling(
        self,
        queue: Queue,
        kind: Kind,
        receipts: Sequence[ClaimReceipt],
        ttl: float,
        done: Done,
        add: Add | None = None,
    ) -> Callable[[], Outcome]:
        """Starts to settle receipts. ``add`` passes requests to logs, which have all entries that the receipts name."""
        by_partition = _by_partition(receipts)
        self.check(queue, list(by_partition))
        logs = add or self._logs_of(queue)
        if len(by_partition) == 1:
            [number] = by_partition
            request = SettleRequest(queue, done, kind, receipts, ttl)
            logs(number, request)
            return request.give_up

        began = self._runtime.boottime()

        def told(found: dict[int, list[Settlement]] | None, error: Exception | None) -> None:
            if found is None:
                done(None, error)
                return
            if found and kind == "renew" and self._runtime.boottime() - began > self._timing.answer_within(ttl):
                # Each partition was renewed in time, but the first claim would be over before the caller has the
                # answer.
                done(None, too_late())
                return
            results = {number: iter(settled) for number, settled in found.items()}
            done([next(results[receipt.partition]) for receipt in receipts], None)

        def make(how: Kind, number: int, each: Done) -> Request:
            return SettleRequest(queue, each, how, by_partition[number], ttl)

        def settle() -> Callable[[], Outcome]:
            return begin_each(logs, list(by_partition), partial(make, kind), told)

        def check(checked: Done) -> Callable[[], Outcome]:
            return begin_each(logs, list(by_partition), partial(make, "check"), checked)

        if add is not None or self._knows(queue, by_partition):
            return settle()
        return begin_after(check, settle, done)

    def _knows(self, queue: Queue, parts: Mapping[int, Sequence[ClaimReceipt]]) -> bool:
        return all(self._logs.knows((queue.qid, number), some) for number, some in parts.items())

    # Names

    def supersede(self, queue: Queue, location: Location) -> None:
        """Ends a message that was removed because a newer value has taken its name.

        Afterwards it is given to nobody, and receipts of those who have it are superseded. Waits for the end.
        """
        self.check(queue, [location[0]])
        _wait(lambda done: self._begin_one(queue, location[0], SupersedeRequest(queue, done, [location[1]])))

    def is_done(self, queue: Queue, location: Location) -> bool:
        """Returns whether a message was acknowledged, or is done in another way. Waits for the answer."""
        number, position = location
        return self.look_at(queue, lambda state, _expired: state.is_done(position), [number])[number]

    # Moves to another queue

    def turn(self, queue: Queue, partition: int, order: MoveOrder) -> MoveTurn:
        """Notes what a move to another queue has done in a partition, and takes the next messages for it; waits.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims, so nothing more can be taken.
            QueueChanged: ``queue`` is out of date.
        """
        if not (order.stop or order.give_back):
            self.check(queue, [partition])
        found: MoveTurn = _wait(lambda done: self._begin_one(queue, partition, MoveRequest(queue, done, order)))
        return found

    # Whole queues

    def release_all(self, access: QueueAccess) -> None:
        """Ends every claim of a queue."""
        access.use(lambda queue: _wait(partial(self.begin_release_all, queue)))

    def begin_release_all(self, queue: Queue, done: Done) -> Callable[[], Outcome]:
        """Starts to end every claim of a queue."""
        self.check(queue)
        numbers = range(1, queue.partitions + 1)
        return begin_each(self._logs_of(queue), numbers, lambda _number, each: ReleaseAllRequest(queue, each), done)

    def counts(self, access: QueueAccess) -> dict[int, ClaimCounts]:
        """Counts claims, by partition."""

        def count(state: State, expired: int) -> ClaimCounts:
            claimed = sum(claim.expires >= expired for claim in state.outstanding.values())
            return ClaimCounts(claimed, len(state.outstanding) - claimed, len(state.outbox))

        return access.use(lambda queue: self.look_at(queue, count))

    def size(self, access: QueueAccess, limit: int) -> Size:
        """Counts messages that are not done: up to ``limit`` exactly, more are estimated. Delayed ones do not count."""

        def size(queue: Queue) -> Size:
            total, exact = 0, True
            for number, view in self.look_at(queue, _View).items():
                total += view.outstanding
                for page in self._pages(queue, number, ids.following(view.cursor)):
                    total += sum(not (message.position in view.known or view.is_done(message)) for message in page)
                    if total >= limit:
                        [lag] = self._store.lag(queue, [(number, page[-1].position)])
                        total, exact = total + lag.count, exact and lag.exact
                        break
            return Size(total, exact)

        return access.use(size)

    def peek(self, access: QueueAccess, limit: int) -> list[Message]:
        """Shows the first messages that are not done, claimed or not, partition by partition."""

        def peek(queue: Queue) -> list[Message]:
            found: list[Message] = []
            weight = 0
            for number, view in self.look_at(queue, _View).items():
                for message in self._undone(queue, number, view):
                    if len(found) >= limit or weight >= self._limits.page_bytes:
                        return found
                    found.append(message)
                    weight += rendered_bytes(message.body, message.meta)
            return found

        found = access.use(peek)
        self._metrics.delivered(len(found))
        return found

    def _undone(self, queue: Queue, number: int, view: _View) -> Iterator[Message]:
        """Gives the messages of a partition that are not done, in order."""
        step = max(1, self._limits.page_bytes // self._limits.longest)
        for at in range(0, len(view.below), step):
            yield from self._store.fetch(queue, [(number, position) for position in view.below[at : at + step]])
        for page in self._pages(queue, number, ids.following(view.cursor)):
            yield from (message for message in page if not view.is_done(message))

    def _pages(self, queue: Queue, number: int, lower: Position) -> Iterator[list[Message]]:
        """Reads a partition from a position up to now."""
        more = True
        while more:
            part = Slice(number, lower, limit=_PAGE, max_bytes=self._limits.page_bytes, ahead=True)
            [page] = self._store.read(queue, [part])
            if page.messages:
                yield page.messages
            more = page.more and page.next is not None
            lower = page.next or lower

    def look_at(
        self, queue: Queue, look: Callable[[State, int], T], numbers: Sequence[int] | None = None
    ) -> dict[int, T]:
        """Returns what ``look`` says of partitions' states; waits.

        Args:
            queue: The row.
            look: Called once a partition, with the state and a time (milliseconds since 1970): claims that expire
                before it are over for every process.
            numbers: Of partitions; None: all.
        """
        numbers = range(1, queue.partitions + 1) if numbers is None else numbers
        self.check(queue, numbers)

        def make(_number: int, each: Done) -> Request:
            return LookRequest(queue, each, lambda state: look(state, self._timing.expired(self._runtime.now())))

        found: dict[int, T] = _wait(partial(begin_each, self._logs_of(queue), numbers, make))
        return found

    def _logs_of(self, queue: Queue) -> Add:
        return lambda number, request: self._logs.add((queue.qid, number), request)

    def _begin_one(self, queue: Queue, number: int, request: Request) -> Callable[[], Outcome]:
        self._logs.add((queue.qid, number), request)
        return request.give_up


def _by_partition(receipts: Sequence[ClaimReceipt]) -> dict[int, list[ClaimReceipt]]:
    found: dict[int, list[ClaimReceipt]] = {}
    for receipt in receipts:
        found.setdefault(receipt.partition, []).append(receipt)
    return found


class _View:
    """What is not done in a state, and what scans pass over."""

    def __init__(self, state: State, _expired: int) -> None:
        self.cursor = state.cursor
        self.outstanding = len(state.outstanding)
        self.below = sorted(position for position in state.outstanding if position <= state.cursor)
        self.known = {position for position in state.outstanding if position > state.cursor}
        self._above = frozenset(state.above)
        covers = state.covers.by_digest.items()
        self._ended = {digest: cover for digest, cover in covers if state.is_done(cover.representative)}

    def is_done(self, message: Message) -> bool:
        """Returns whether a message above the cursor is done: acknowledged, or a copy of one that was."""
        if message.position in self._above or message.position in self.known or not self._ended:
            return message.position in self._above
        cover = self._ended.get(digest_of(message.body, message.meta))
        return cover is not None and cover.hides(message.position)


def _wait(begin: Callable[[Done], Callable[[], Outcome]]) -> Any:  # noqa: ANN401 - what is begun
    """Begins something and waits for its result."""
    ended = threading.Event()
    result: list[Any] = []

    def done(value: object, error: Exception | None) -> None:
        result.extend((value, error))
        ended.set()

    give_up = begin(done)
    try:
        ended.wait()
    except BaseException:
        give_up()
        raise
    value, error = result
    if error is not None:
        raise error
    return value
