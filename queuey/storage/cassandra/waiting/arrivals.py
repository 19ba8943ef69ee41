"""Finds new messages for waiting readers, because other processes do not notify this one.

What this process writes itself it knows, and what others write they record (:mod:`.recent_writes`): readers are woken
when the read delay is over, those that read early at once. The record is a hint, so every watched partition is also
polled: all of them in each turn where they are few; where they are many, all in very many turns, and soon after
something may have been missed.

A poll of a partition is a read of one message from where the previous poll ended, so the polls form a chain of cursors
and miss as little as a reader does (G1). Watchers that want messages before the read delay is over are also woken by
what the delayed chain finds, because that one finds late messages. The cost does not depend on the number of waiting
readers. Applications take turns.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush, nsmallest
from itertools import islice, zip_longest
from operator import attrgetter
from typing import Protocol

from queuey.errors import QueueChanged, QueueyError
from queuey.ids import LOW_MIN, TICKS_PER_SECOND
from queuey.messages import NewMessage, Page, Queue, Slice
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.recent import Recent
from queuey.storage.cassandra.waiting.recent_writes import KEPT, WINDOW, RecentWrites
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
THREADS = 4
"""Number of threads for polls of partitions of which nothing is in memory."""
FEW = 3
"""Max watches that need no record, as all are polled in each turn."""
FIRST = 2
"""Number of readings of the record that go back far."""
EARLY = 0.08
"""Interval between two readings of the record, in seconds, if somebody reads early."""
SOME, SELDOM = 12, 5
"""Partitions that are polled, and in how many turns, while the record is read: 12 a second, of two to three queries, or
half as many if somebody reads early."""

Done = Callable[[Page | None, Exception | None], None]


class ReadableStore(Protocol):
    """The part of the store that polls need."""

    def read_delay(self, queue: Queue) -> float: ...

    def horizon_now(self, queue: Queue, *, delayed: bool) -> int:
        """Returns the horizon (ticks) of a read that begins now. Never blocks."""

    def begin_look(self, queue: Queue, part: Slice, done: Done) -> bool:
        """``begin_read`` that accepts cached rows as old as a delayed read would."""

    def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]: ...


class PolledArrivals:
    """The watches of one store."""

    def __init__(self, store: ReadableStore, clock: Clock, record: RecentWrites) -> None:
        self._store = store
        self._clock = clock
        self._record = record
        self._readings = 0
        """How often the record was read since it could not be, or need not be."""
        self._missed = False
        """The record could not be read the last time."""
        self._lately: Recent[int, float] = Recent(clock.boottime, lambda: KEPT, MOST_DUE)
        """When something was stored in partitions (boot time), while the record is followed."""
        self._next_due = math.inf
        """When the next watch is due (boot time)."""
        self._noting = threading.Lock()
        """Guards ``_lately``, ``_next_due`` and ``_early``."""
        self._turns = 0
        self._early = 0
        """Watches of those who read early."""
        self._read_at = -math.inf
        """When the record was read last (boot time)."""
        self._hurries = False
        """A glance will record what was noted."""
        self._looks = 0
        self._shown: list[tuple[float, int]] = []
        """A heap: when what was stored in a partition is shown (boot time)."""
        self._planned: set[tuple[float, int]] = set()
        """The members of ``_shown``."""
        self._arriving: list[tuple[float, int]] = []
        """A heap: when delayed messages of this process in a partition become due (boot time)."""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="queuey-poll")
        self.watches = Watches(self._look, self._glance)

    def watch(
        self, queue: Queue, partition: int, wake: Callable[[], None], *, delayed: bool, early: bool = False
    ) -> Callable[[], None]:
        both = early or not delayed
        promptly = [True] if not self._store.read_delay(queue) else [False, True] if both else [False]
        found = [
            Watch(queue, partition, wake, self._store.horizon_now(queue, delayed=not prompt), prompt=prompt)
            for prompt in promptly
        ]
        stop = self.watches.add(*found)
        if early:
            stop = self._counted(stop)
        stored = self._lately.get(found[0].key)
        for watch in found:
            if watch.prompt:
                continue
            if self._delay_of(watch) > KEPT - WINDOW:
                self._expect((watch,))
            elif stored is not None:
                self._show_later(watch, stored)
        return stop

    def _counted(self, stop: Callable[[], None]) -> Callable[[], None]:
        """Reads the record more often until the watch is stopped."""
        with self._noting:
            self._early += 1
        self.watches.hurry()

        def stopped() -> None:
            stop()
            with self._noting:
                self._early -= 1

        return stopped

    def _expect(self, watches: Iterable[Watch]) -> None:
        """Polls partitions once as soon as all that is stored in them by now is shown."""
        now = self._clock.boottime()
        for watch in watches:
            watch.due = now + self._delay_of(watch)
            self._note_due(watch.due)

    def _note_due(self, due: float) -> None:
        with self._noting:
            self._next_due = min(self._next_due, due)

    def _delay_of(self, watch: Watch) -> float:
        return 0.0 if watch.prompt else self._store.read_delay(watch.queue) + MARGIN

    def appended(self, queue: Queue, items: Iterable[NewMessage]) -> None:
        now = self._clock.boottime()
        stored: set[int] = set()
        for delay, key in {(item.delay or 0.0, queue.qid << 8 | item.partition) for item in items}:
            if not delay:
                stored.add(key)
            elif len(self._arriving) < MOST_DUE:
                heappush(self._arriving, (now + delay, key))
        if stored:
            self._stored(stored, now)
        self.watches.poll_once()

    def rewritten(self, qid: int, partitions: Iterable[int]) -> None:
        """Called when this process has changed what readers of partitions find anywhere in them."""
        keys = [qid << 8 | partition for partition in partitions]
        self._note(keys)
        self.watches.wrote(keys)
        self.watches.poll_once()

    def close(self) -> None:
        """Wakes all watchers, and records that nothing will come any more."""
        self.watches.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        while self._record.write():
            pass

    def share(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        self.watches.share, self.watches.wanted = stored, wanted

    def hear(self, moment: int, partitions: Iterable[int]) -> bool:
        """The moment is in ticks of the other process's clock."""
        self._take_all(moment, partitions)
        return bool(self.watches)

    def _take_all(self, at: int, keys: Iterable[int]) -> None:
        ticks, now = self._clock.both()
        for key in keys:
            self._take(key, now + (at - ticks) / TICKS_PER_SECOND)

    def _note(self, keys: Collection[int]) -> None:
        self._record.note(keys)
        if not self._hurries:
            self._hurries = True
            self.watches.hurry()

    def _stored(self, keys: Collection[int], at: float) -> None:
        self._note(keys)
        for key in keys:
            self._take(key, at)
        if self.watches.share is not None:
            self.watches.share(self._clock.now(), keys)

    def _take(self, key: int, at: float) -> None:
        """Wakes prompt watchers of a partition now, the others when what was stored at a boot time is shown."""
        if self._readings:
            with self._noting:
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

    def _look(self, watches: Sequence[Watch]) -> None:
        now = self._clock.boottime()
        while self._arriving and self._arriving[0][0] <= now:
            self._stored((heappop(self._arriving)[1],), now)
        self._hurries = False
        if self._record.write() or self._arriving:
            self.watches.poll_once()
        most = self._follow(watches)
        self._show(now)
        if most or self._next_due <= now:
            self._next_due = math.inf
            self._poll(next_to_look_for(watches, now, most), now)
            self._note_due(min((watch.due for watch in self.watches.all()), default=math.inf))

    def _show(self, now: float) -> None:
        while self._shown and self._shown[0][0] <= now:
            due = heappop(self._shown)
            self._planned.discard(due)
            self.watches.wrote({due[1]})

    def _glance(self) -> float:
        """Does what those who read early wait for, here and elsewhere; returns the seconds until there is more."""
        now = self._clock.boottime()
        if self._record.due <= now:
            self._hurries = False
            self._record.write(ends=False)
        soon = self._record.due
        if self._early and self._readings:
            if self._read_at + EARLY <= now:
                self._read_record(latest=True)
            self._show(now)
            soon = min(soon, self._read_at + EARLY)
        return max(MARGIN / 10, soon - now)

    def _read_record(self, *, first: bool = False, latest: bool = False) -> None:
        self._read_at = self._clock.boottime()
        for at, keys in self._record.read(first=first, latest=latest):
            self._take_all(at, keys)

    def _follow(self, watches: Sequence[Watch]) -> int:
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
            self._read_record(first=self._readings < FIRST)
        except QueueyError as error:
            log.debug("Cannot read what was written lately: %s", error)
            self._readings, self._missed = 0, True
            return MOST
        self._readings += 1
        if self._record.lost() or self._missed:
            self._expect(watches)
            self._missed = False
        return most

    def _poll(self, watches: Sequence[Watch], now: float) -> None:
        left: dict[Queue, list[Watch]] = {}
        for watch in watches:
            self._looks += 1
            watch.looked = self._looks
            watch.asking = True
            if watch.due <= now:
                watch.due = math.inf
            if not self._store.begin_look(watch.queue, _part(watch), partial(_ended, watch)):
                left.setdefault(watch.queue, []).append(watch)
        for queue, some in left.items():
            with suppress(RuntimeError):  # It is being closed.
                self._pool.submit(self._read, queue, some)

    def _read(self, queue: Queue, watches: Sequence[Watch]) -> None:
        try:
            pages = self._store.read(queue, [_part(watch) for watch in watches])
        except Exception as error:  # noqa: BLE001 - it is polled again in its turn, and a reader gets the same
            for watch in watches:
                _ended(watch, None, error)
        else:
            for watch, page in zip(watches, pages, strict=True):
                _ended(watch, page, None)


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


def _ended(watch: Watch, page: Page | None, error: Exception | None) -> None:
    watch.asking = False
    if page is not None:
        if page.messages:
            # A woken reader reads everything below.
            watch.position = page.horizon
        elif page.next is not None:
            watch.position = page.next[0]
    if isinstance(error, QueueChanged) or (page is not None and page.messages):
        watch.wake()
