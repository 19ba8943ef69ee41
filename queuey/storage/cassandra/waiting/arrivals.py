"""Finds new messages for waiting readers, because other processes do not notify this one.

What this process writes itself it knows, and what others write they record (:mod:`.recent_writes`): readers are woken
when the read delay is over, those that read early at once. The record is a hint, so every watched partition is also
polled: all of them in each turn where they are few; where they are many, all in very many turns, and soon after
something may have been missed.

A poll of a partition is a read of one message from where the previous poll ended, so the polls form a chain of cursors
and miss as little as a reader does (G1). Watchers that want messages before the read delay is over are also woken by
what the delayed chain finds, because that one finds late messages. The cost does not depend on the number of waiting
readers. Applications take turns.

All of it runs in the thread of the store's loop, and only as long as somebody watches or something is to be recorded::

    idle ──(a watch, a message that this process stores)──► planned ──(the timer)──► busy: a look, or a reading of the
      ▲                                                      │    ▲                    record for those who read early
      └──(nobody watches, and the end is recorded)───────────┘    └──(its end)───────────┘
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush, nsmallest
from itertools import islice, zip_longest
from operator import attrgetter
from typing import Protocol

from queuey.errors import QueueChanged, QueueyError, StoreClosed
from queuey.ids import LOW_MIN, TICKS_PER_SECOND
from queuey.messages import NewMessage, Page, Queue, Slice
from queuey.storage import watching
from queuey.storage.cassandra.clocks.clock import Clock, Recent
from queuey.storage.cassandra.driver.store_loop import Calls
from queuey.storage.cassandra.waiting.recent_writes import KEPT, WINDOW, RecentWrites, keys_of
from queuey.storage.watching import Watch, Watches

log = logging.getLogger(__name__)

LONGEST_DELAY, MOST_DUE = 61.0, 100_000
"""Seconds until something is shown, and times that something is to be done at, beyond which the polls find it."""
MARGIN = 0.05
"""Number of seconds after the read delay: a reader that is woken too early finds nothing, and is not woken again."""
TOGETHER = 0.05
"""Interval in which messages of a partition wake its readers together, in seconds."""
MOST = 128
"""Max partitions that are polled in one turn: with the pause after it about 500 a second."""
STEPS, POLLS = 1_000, 16
"""Max watches or keys that one turn of the loop takes, and max polls that it begins: some milliseconds."""
FEW = 3
"""Max watches that need no record, as all are polled in each turn."""
FIRST = 2
"""Number of readings of the record that go back far."""
EARLY = 0.08
"""Interval between two readings of the record, in seconds, if somebody reads early."""
NEAR = 0.01
"""Max seconds by which a look comes too early, so that it need not follow on a reading for those who read early."""
SOME, SELDOM = 12, 5
"""Partitions that are polled, and in how many turns, while the record is read: 12 a second, of two to three queries, or
half as many if somebody reads early."""


class PolledReads(Protocol):
    """The reads that polls need."""

    def read_delay(self, queue: Queue) -> float: ...

    def horizon_now(self, queue: Queue, *, delayed: bool) -> int:
        """Returns the horizon (ticks) of a read that begins now. Never blocks."""

    async def poll(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        """Reads slices; accepts cached rows as old as a delayed read would."""


class PolledArrivals:
    """The watches of one store. Public methods may be called from any thread."""

    def __init__(self, reads: PolledReads, clock: Clock, record: RecentWrites, calls: Calls) -> None:
        self._reads = reads
        self._clock = clock
        self._record = record
        self._calls = calls
        self._loop = calls.loop
        self._look_at = math.inf
        """When to look next (boot time, as all moments here)."""
        self._rings_at = math.inf
        """When the timer that counts rings."""
        self._is_busy = False
        """A look is under way, or a reading of the record."""
        self._readings = 0
        """How often the record was read since it could not be, or need not be."""
        self._missed = False
        """The record could not be read the last time."""
        self._lately: Recent[int, float] = Recent(clock.boottime, lambda: KEPT, MOST_DUE)
        """When something was stored in partitions, while the record is followed."""
        self._next_due = math.inf
        """When the next watch is due."""
        self._turns = 0
        self._early: set[Watch] = set()
        """Watches of those who read early; others add theirs, and the loop only asks if there are any."""
        self._read_at = -math.inf
        """When the record was read last."""
        self._looks = 0
        self._steps = 0
        """Watches and keys that this turn of the loop has taken."""
        self._shown: list[tuple[float, int]] = []
        """A heap: when what was stored in a partition is shown."""
        self._planned: set[tuple[float, int]] = set()
        """The members of ``_shown``."""
        self._arriving: list[tuple[float, int]] = []
        """A heap: when delayed messages of this process in a partition become due."""
        self.watches = Watches()

    def watch(
        self, queue: Queue, partition: int, wake: Callable[[], None], *, delayed: bool, early: bool = False
    ) -> Callable[[], None]:
        both = early or not delayed
        promptly = [True] if not self._reads.read_delay(queue) else [False, True] if both else [False]
        found = [
            Watch(queue, partition, wake, self._reads.horizon_now(queue, delayed=not prompt), prompt=prompt)
            for prompt in promptly
        ]
        # Before anything is awaited: a message that is stored from now on finds the watch.
        stop = self.watches.add(*found)
        if early:
            self._early.add(found[0])
        self._call(self._watched, found)

        def stopped() -> None:
            stop()
            self._early.discard(found[0])

        return stopped if early else stop

    def appended(self, queue: Queue, items: Iterable[NewMessage]) -> None:
        self._call(self._appended, queue.qid, {(item.delay or 0.0, item.partition) for item in items})

    def rewritten(self, qid: int, partitions: Iterable[int]) -> None:
        """Called when this process has changed what readers of partitions find anywhere in them."""
        self._call(self._rewritten, [qid << 8 | partition for partition in partitions])

    def close(self) -> None:
        """Wakes all watchers, and records that nothing will come any more."""
        self.watches.close()
        self._call(self._record.close)

    def share(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        self.watches.share, self.watches.wanted = stored, wanted

    def hear(self, moment: int, partitions: Iterable[int]) -> bool:
        """The moment is in ticks of the other process's clock."""
        self._call(self._take_some, moment, [*partitions])
        return bool(self.watches)

    def _call(self, call: Callable[..., object], *args: object) -> None:
        with suppress(StoreClosed):  # All watchers were woken.
            self._loop.call(call, *args)

    # All that follows runs in the loop's thread: what is to be done, and when

    def _plan(self) -> None:
        """Has the timer ring when the next thing is to be done."""
        needs_look = self.watches or self._arriving or self._record.is_open
        if needs_look and self._look_at == math.inf and not self._is_busy:
            self._look_at = self._clock.boottime() + watching.EVERY
        due = min(self._record.due, self._next_turn())
        if due < self._rings_at and not self.watches.is_closed:
            self._rings_at = due
            self._loop.later(max(0.0, due - self._clock.boottime()), partial(self._ring, due))

    def _next_turn(self) -> float:
        """Returns when to look, or to read the record for those who read early: not before that has ended."""
        if self._is_busy:
            return math.inf
        if self._early and self._readings:
            return min(self._look_at, self._read_at + EARLY)
        return self._look_at

    def _ring(self, due: float) -> None:
        if due != self._rings_at or self.watches.is_closed:
            return
        self._rings_at = math.inf
        now = max(due, self._clock.boottime())  # Timers may be early by the resolution of their clock.
        try:
            if self._record.due <= now:
                self._record.write(ends=False)
            if self._next_turn() <= now:
                turn = self._look(now) if self._look_at <= now + NEAR else self._read_early(now)
                self._is_busy = True
                with suppress(StoreClosed):  # The store is being closed, which wakes all watchers.
                    self._calls.begin(turn, self._ended)
        finally:
            self._plan()

    def _ended(self, _: object, error: Exception | None) -> None:
        if isinstance(error, QueueyError):
            # A reader gets this error, too.
            log.debug("Cannot check for new messages: %s", error)
        elif error is not None:
            log.error("Checking for new messages failed.", exc_info=error)
        self._is_busy = False
        if not self._calls.is_closed:
            self._plan()

    # What happens

    def _watched(self, watches: Sequence[Watch]) -> None:
        stored = self._lately.get(watches[0].key)
        for watch in watches:
            if watch.prompt:
                continue
            if self._delay_of(watch) > KEPT - WINDOW:
                self._expect(watch)
            elif stored is not None:
                self._show_later(watch, stored)
        self._plan()

    def _appended(self, qid: int, stored: Collection[tuple[float, int]]) -> None:
        now = self._clock.boottime()
        keys: set[int] = set()
        for delay, partition in stored:
            if not delay:
                keys.add(qid << 8 | partition)
            elif len(self._arriving) < MOST_DUE:
                heappush(self._arriving, (now + delay, qid << 8 | partition))
        if keys:
            self._stored(keys, now)
        self._plan()

    def _rewritten(self, keys: Collection[int]) -> None:
        self._record.note(keys)
        self.watches.wrote(keys)
        self._plan()

    def _stored(self, keys: Collection[int], at: float) -> None:
        self._record.note(keys)
        for key in keys:
            self._take(key, at)
        if self.watches.share is not None:
            self.watches.share(self._clock.now(), keys)

    def _take_some(self, moment: int, keys: Iterable[int]) -> None:
        ticks, now = self._clock.both()
        for key in keys:
            self._take(key, now + (moment - ticks) / TICKS_PER_SECOND)

    def _take(self, key: int, at: float) -> None:
        """Wakes prompt watchers of a partition now, the others when what was stored at a boot time is shown."""
        if self._readings:
            self._lately.put(key, at, at)
        # In this order: who begins to watch meanwhile finds one of the two.
        for watch in self.watches.of(key):
            if watch.prompt:
                watch.wake()
            if not watch.prompt or at > self._clock.boottime():  # By another clock, which is ahead.
                self._show_later(watch, at)

    def _show_later(self, watch: Watch, stored: float) -> None:
        delay = self._delay_of(watch)
        due = math.ceil((stored + delay) / TOGETHER) * TOGETHER, watch.key
        if delay <= LONGEST_DELAY and due not in self._planned and len(self._planned) < MOST_DUE:
            self._planned.add(due)
            heappush(self._shown, due)

    def _expect(self, watch: Watch) -> None:
        """Polls a partition once as soon as all that is stored in it by now is shown."""
        watch.due = self._clock.boottime() + self._delay_of(watch)
        self._next_due = min(self._next_due, watch.due)

    def _delay_of(self, watch: Watch) -> float:
        return 0.0 if watch.prompt else self._reads.read_delay(watch.queue) + MARGIN

    # Turns

    async def _look(self, now: float) -> None:
        self._look_at = math.inf
        while self._arriving and self._arriving[0][0] <= now:
            self._stored((heappop(self._arriving)[1],), now)
            await self._did(1)
        self._record.write()
        watches = self.watches.all()
        most = await self._follow(watches)
        await self._show(now)
        if most or self._next_due <= now:
            await self._poll(next_to_look_for(watches, now, most), now)
            self._next_due = min((watch.due for watch in self.watches.all()), default=math.inf)

    async def _read_early(self, now: float) -> None:
        """Does what those who read early wait for."""
        await self._read_record(latest=True)
        await self._show(now)

    async def _show(self, now: float) -> None:
        while self._shown and self._shown[0][0] <= now:
            due = heappop(self._shown)
            self._planned.discard(due)
            self.watches.wrote({due[1]})
            await self._did(1)

    async def _did(self, steps: int) -> None:
        """Goes on in another turn of the loop when much was done in this one."""
        self._steps += steps
        if self._steps >= STEPS:
            self._steps = 0
            await self._loop.next_turn()

    async def _read_record(self, *, first: bool = False, latest: bool = False) -> None:
        self._read_at = self._clock.boottime()
        for moment, encoded in await self._record.read(first=first, latest=latest):
            keys = keys_of(encoded)
            for start in range(0, len(keys), STEPS):
                some = keys[start : start + STEPS]
                self._take_some(moment, some)
                await self._did(len(some))

    async def _follow(self, watches: Sequence[Watch]) -> int:
        """Reads the record if not all partitions can be polled in each turn; returns how many are polled in this."""
        if len(watches) <= FEW and not self._early:
            self._readings, self._missed = 0, False
            return FEW
        self._turns += 1
        most = 0 if self._turns % SELDOM else SOME // 2 if self._early else SOME
        if self._readings and self._turns % 2:
            return most
        try:
            # Twice: the last that this process has written itself may not have shown in the first one.
            await self._read_record(first=self._readings < FIRST)
        except QueueyError as error:
            log.debug("Cannot read what was written lately: %s", error)
            self._readings, self._missed = 0, True
            return MOST
        self._readings += 1
        if self._record.lost() or self._missed:
            for watch in watches:
                self._expect(watch)
                await self._did(1)
            self._missed = False
        return most

    async def _poll(self, watches: Sequence[Watch], now: float) -> None:
        by_queue: dict[Queue, list[Watch]] = {}
        for watch in watches:
            by_queue.setdefault(watch.queue, []).append(watch)
        for queue, some in by_queue.items():
            await self._did(len(some) * STEPS // POLLS)
            for watch in some:
                self._looks += 1
                watch.looked = self._looks
                watch.asking = True
                if watch.due <= now:
                    watch.due = math.inf
            self._calls.begin(self._reads.poll(queue, [_part(watch) for watch in some]), partial(_polled, some))


def next_to_look_for(watches: Sequence[Watch], now: float, most: int) -> list[Watch]:
    """Returns the watches to poll for now: those that are due, then the ones that were polled longest ago."""
    free = [watch for watch in watches if not watch.asking]
    room = MOST - (len(watches) - len(free))
    found = _by_turns([watch for watch in free if watch.due <= now], room)
    left = min(most, room) - len(found)
    if left > 0:
        found += _by_turns([watch for watch in free if watch.due > now], left)
    return found


def _by_turns(watches: Iterable[Watch], most: int) -> list[Watch]:
    """Returns some watches: applications by turns, of each the ones that were polled longest ago."""
    by_application: dict[str, list[Watch]] = {}
    for watch in watches:
        by_application.setdefault(watch.queue.application, []).append(watch)
    ordered = [nsmallest(most, some, key=attrgetter("looked")) for some in by_application.values()]
    turns = (watch for turn in zip_longest(*ordered) for watch in turn if watch is not None)
    return list(islice(turns, most))


def _part(watch: Watch) -> Slice:
    return Slice(watch.partition, (watch.position, LOW_MIN), limit=1, delayed=not watch.prompt)


def _polled(watches: Sequence[Watch], pages: Sequence[Page] | None, error: Exception | None) -> None:
    """Ends the poll of some watches of a queue, in any thread."""
    for watch in watches:
        watch.asking = False
    for number, watch in enumerate(watches):
        if pages is None:
            if isinstance(error, QueueChanged):
                watch.wake()
        elif pages[number].messages:
            # A woken reader reads everything below.
            watch.position = pages[number].horizon
            watch.wake()
        elif (further := pages[number].next) is not None:
            watch.position = further[0]
