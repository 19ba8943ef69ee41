"""Finds new messages for waiting readers, because other processes do not notify this one.

This process knows its own writes, and reads the writes of others from a record (:mod:`.recent_writes`). A write wakes
readers when the read delay is over, and early readers at once. The record is only a hint, so every watched partition is
polled as well. A few partitions are all polled in each turn. Many partitions are polled in rotation, and all of them
once soon after the record may have missed something.

A poll of a partition reads one message from where the previous poll ended. So the polls form a chain of cursors and
miss as little as a reader does (G1). Watchers that want messages before the read delay is over are also woken by the
delayed chain, because only that chain finds late messages. The cost does not depend on the number of waiting readers.
Applications take turns.

Everything runs in the thread of the store's loop, and only while there are watches or something to record::

    idle ──(a watch, a message that this process stores)──► planned ──(the timer)──► busy: polls, or reads the record
      ▲                                                      │    ▲                   for early readers
      └──(no watches, and the end is recorded)───────────────┘    └──(the turn ends)──┘
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

from queuey.model.errors import QueueChanged, QueueyError, StoreClosed
from queuey.model.ids import LOW_MIN, TICKS_PER_SECOND
from queuey.model.messages import NewMessage, Page, Queue, Slice
from queuey.storage import partition_watches
from queuey.storage.cassandra.cluster.store_loop import Calls
from queuey.storage.cassandra.read.recent_writes import FIRST_WINDOW, WINDOW, RecentWrites, keys_of
from queuey.storage.cassandra.time.clock import ExpiringCache, SteadyClock
from queuey.storage.partition_watches import Wake, Watch, Watches

log = logging.getLogger(__name__)

MAX_DELAY, MAX_PLANNED = 61.0, 100_000
"""Max seconds until a message is shown, and max planned times. What exceeds either is left to the polls."""
DELAY_MARGIN = 0.05
"""Number of seconds added to the read delay: a reader woken too early finds nothing, and is not woken again."""
WAKE_INTERVAL = 0.05
"""Interval in which a partition's messages wake its readers together, in seconds."""
MAX_POLLED = 128
"""Max partitions being polled at a time: with the pause after each turn about 500 polls a second."""
STEPS_PER_TURN, POLLS_PER_TURN = 1_000, 16
"""Max watches or keys that one turn of the loop handles, and max polls that it begins: a few milliseconds of work."""
MAX_WITHOUT_RECORD = 3
"""Max watches without a record: all of them are polled in each turn."""
FIRST_WINDOW_READS = 2
"""Number of initial reads of the record that go back up to ``FIRST_WINDOW``."""
EARLY_READ_INTERVAL = 0.08
"""Interval between two reads of the record, in seconds, while there are early readers."""
EARLY_POLL_TOLERANCE = 0.01
"""Max seconds by which a poll turn may come too early, which saves a read of the record just before it."""
TURNS_BETWEEN_POLLS = 5
"""Interval between polls, in turns, while the record is read."""
POLLS_BESIDE_RECORD = 12
"""Number of partitions polled at such a turn: 12 a second, with two or three queries each. Half as many while there
are early readers."""


class PolledReads(Protocol):
    """The reads that the polls need."""

    def read_delay(self, queue: Queue) -> float: ...

    def horizon_now(self, queue: Queue, *, keeps_read_delay: bool) -> int:
        """Returns the horizon (ticks) of a read that begins now. Never blocks."""

    async def read(self, queue: Queue, slices: Sequence[Slice], *, polls: bool) -> list[Page]:
        """Reads slices; with ``polls`` accepts cached rows as old as a delayed read would."""


class PolledArrivals:
    """The watches of one store. Public methods may be called from any thread.

    Delayed messages that were appended wake readers only from their due time on. Rewritten partitions wake all their
    readers at once.
    """

    def __init__(self, reads: PolledReads, clock: SteadyClock, record: RecentWrites, calls: Calls) -> None:
        self._reads = reads
        self._clock = clock
        self._record = record
        self._calls = calls
        self._loop = calls.loop
        self._next_poll_at = math.inf
        """Boot time of the next poll turn. All times in this class are boot times, in seconds."""
        self._timer_at = math.inf
        """When the timer in force fires. Earlier timers are ignored."""
        self._is_busy = False
        """A poll turn or a read of the record is under way."""
        self._readings = 0
        """Number of successful reads of the record since it was last unreadable or unused."""
        self._missed = False
        self._stored_at: ExpiringCache[int, float] = ExpiringCache(clock.boottime, lambda: FIRST_WINDOW, MAX_PLANNED)
        """By partition, when a message was stored last, while the record is read."""
        self._next_due = math.inf
        """The earliest ``due`` of a watch."""
        self._turns = 0
        self._early: set[Watch] = set()
        self._read_at = -math.inf
        self._polls = 0
        self._steps = 0
        """Watches and keys that were handled in this turn of the loop."""
        self._shown: list[tuple[float, int]] = []
        """A heap: when stored messages are shown, with their partition."""
        self._planned: set[tuple[float, int]] = set()
        self._arriving: list[tuple[float, int]] = []
        """A heap: when delayed messages of this process become due, with their partition."""
        self.watches = Watches()

    def watch(
        self, queue: Queue, partition: int, wake: Wake, *, keeps_read_delay: bool, early: bool = False
    ) -> Callable[[], None]:
        """Calls ``wake`` when a partition has new messages; returns a function that ends the watch.

        With ``keeps_read_delay`` it is called when that is over. Without, and with ``early`` in addition, it is called
        as soon as a message is stored.
        """
        needs_prompt = early or not keeps_read_delay
        prompt_flags = [True] if not self._reads.read_delay(queue) else [False, True] if needs_prompt else [False]
        watches = [
            Watch(queue, partition, wake, self._reads.horizon_now(queue, keeps_read_delay=not prompt), prompt=prompt)
            for prompt in prompt_flags
        ]
        # Added before anything is awaited, so that a message stored from now on finds the watch.
        stop = self.watches.add(*watches)
        if early:
            self._early.add(watches[0])
        self._call_in_loop(self._plan_watched, watches)

        def stop_early() -> None:
            stop()
            self._early.discard(watches[0])

        return stop_early if early else stop

    def notify_appended(self, queue: Queue, items: Iterable[NewMessage]) -> None:
        self._call_in_loop(self._report_appended, queue.qid, {(item.delay or 0.0, item.partition) for item in items})

    def notify_rewritten(self, qid: int, partitions: Iterable[int]) -> None:
        self._call_in_loop(self._report_rewritten, [qid << 8 | partition for partition in partitions])

    def close(self) -> None:
        self.watches.close()
        self._call_in_loop(self._record.close)

    def share_news(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        self.watches.share, self.watches.wanted = stored, wanted

    def receive_news(self, moment: int, partitions: Iterable[int]) -> bool:
        """Receives partitions that another process wrote to, at a time in ticks of that process's clock.

        Returns whether this process has any watches.
        """
        self._call_in_loop(self._notify_all, moment, [*partitions])
        return bool(self.watches)

    def _call_in_loop(self, call: Callable[..., object], *args: object) -> None:
        with suppress(StoreClosed):  # close() has woken all watchers.
            self._loop.call(call, *args)

    # Everything below runs in the loop's thread: the timer

    def _set_timer(self) -> None:
        needs_look = self.watches or self._arriving or self._record.is_open
        if needs_look and self._next_poll_at == math.inf and not self._is_busy:
            self._next_poll_at = self._clock.boottime() + partition_watches.POLL_INTERVAL
        due = min(self._record.due, self._find_next_turn_time())
        if due < self._timer_at and not self.watches.is_closed:
            self._timer_at = due
            self._loop.later(max(0.0, due - self._clock.boottime()), partial(self._on_timer, due))

    def _find_next_turn_time(self) -> float:
        if self._is_busy:
            return math.inf
        if self._early and self._readings:
            return min(self._next_poll_at, self._read_at + EARLY_READ_INTERVAL)
        return self._next_poll_at

    def _on_timer(self, due: float) -> None:
        if due != self._timer_at or self.watches.is_closed:
            return
        self._timer_at = math.inf
        now = max(due, self._clock.boottime())  # Timers may be early by the resolution of their clock.
        try:
            if self._record.due <= now:
                self._record.write(ends_turn=False)
            if self._find_next_turn_time() <= now:
                turn = (
                    self._poll_turn(now) if self._next_poll_at <= now + EARLY_POLL_TOLERANCE else self._read_early(now)
                )
                self._is_busy = True
                with suppress(StoreClosed):  # The store is being closed, which wakes all watchers.
                    self._calls.begin(turn, self._end_turn)
        finally:
            self._set_timer()

    def _end_turn(self, _: object, error: Exception | None) -> None:
        if isinstance(error, QueueyError):
            # A reader gets this error as well.
            log.debug("Cannot check for new messages: %s", error)
        elif error is not None:
            log.error("Checking for new messages failed.", exc_info=error)
        self._is_busy = False
        if not self._calls.is_closed:
            self._set_timer()

    # Events

    def _plan_watched(self, watches: Sequence[Watch]) -> None:
        """Makes up for messages that were stored before the watches were added, except for prompt watches.

        Plans a poll if the delay is longer than the record goes back, otherwise the wake-up for the message stored
        last.
        """
        stored = self._stored_at.get(watches[0].key)
        for watch in watches:
            if watch.prompt:
                continue
            if self._delay_of(watch) > FIRST_WINDOW - WINDOW:
                self._plan_poll(watch)
            elif stored is not None:
                self._show_later(watch, stored)
        self._set_timer()

    def _report_appended(self, qid: int, stored: Collection[tuple[float, int]]) -> None:
        now = self._clock.boottime()
        keys: set[int] = set()
        for delay, partition in stored:
            if not delay:
                keys.add(qid << 8 | partition)
            elif len(self._arriving) < MAX_PLANNED:
                heappush(self._arriving, (now + delay, qid << 8 | partition))
        if keys:
            self._report_stored(keys, now)
        self._set_timer()

    def _report_rewritten(self, keys: Collection[int]) -> None:
        self._record.add_keys(keys)
        self.watches.notify(keys)
        self._set_timer()

    def _report_stored(self, keys: Collection[int], at: float) -> None:
        self._record.add_keys(keys)
        for key in keys:
            self._notify(key, at)
        if self.watches.share is not None:
            self.watches.share(self._clock.now(), keys)

    def _notify_all(self, moment: int, keys: Iterable[int]) -> None:
        ticks, now = self._clock.now_and_boottime()
        for key in keys:
            self._notify(key, now + (moment - ticks) / TICKS_PER_SECOND)

    def _notify(self, key: int, at: float) -> None:
        """Wakes a partition's prompt watchers now, the others when a message stored at boot time ``at`` is shown.

        A prompt watcher is also woken later if ``at`` is ahead of this clock. While the record is read, ``at`` is kept
        for watches that are added later.
        """
        if self._readings:
            self._stored_at.put(key, at, at)
        # After the put: a watch that is added meanwhile finds the entry, or is found here.
        for watch in self.watches.find(key):
            if watch.prompt:
                watch.wake()
            if not watch.prompt or at > self._clock.boottime():  # Written by another clock, which is ahead.
                self._show_later(watch, at)

    def _show_later(self, watch: Watch, stored: float) -> None:
        delay = self._delay_of(watch)
        due = math.ceil((stored + delay) / WAKE_INTERVAL) * WAKE_INTERVAL, watch.key
        if delay <= MAX_DELAY and due not in self._planned and len(self._planned) < MAX_PLANNED:
            self._planned.add(due)
            heappush(self._shown, due)

    def _plan_poll(self, watch: Watch) -> None:
        watch.due = self._clock.boottime() + self._delay_of(watch)
        self._next_due = min(self._next_due, watch.due)

    def _delay_of(self, watch: Watch) -> float:
        return 0.0 if watch.prompt else self._reads.read_delay(watch.queue) + DELAY_MARGIN

    # Turns

    async def _poll_turn(self, now: float) -> None:
        self._next_poll_at = math.inf
        while self._arriving and self._arriving[0][0] <= now:
            self._report_stored((heappop(self._arriving)[1],), now)
            await self._count_steps(1)
        self._record.write()
        watches = self.watches.all()
        max_polls = await self._follow_record(watches)
        await self._wake_shown(now)
        if max_polls or self._next_due <= now:
            await self._begin_polls(choose_watches_to_poll(watches, now, max_polls), now)
            # Watches that are being polled keep their times until the poll has succeeded.
            self._next_due = min((watch.due for watch in self.watches.all() if not watch.asking), default=math.inf)

    async def _read_early(self, now: float) -> None:
        await self._read_record(latest=True)
        await self._wake_shown(now)

    async def _wake_shown(self, now: float) -> None:
        while self._shown and self._shown[0][0] <= now:
            due = heappop(self._shown)
            self._planned.discard(due)
            self.watches.notify({due[1]})
            await self._count_steps(1)

    async def _count_steps(self, steps: int) -> None:
        self._steps += steps
        if self._steps >= STEPS_PER_TURN:
            self._steps = 0
            await self._loop.next_turn()

    async def _read_record(self, *, first: bool = False, latest: bool = False) -> None:
        self._read_at = self._clock.boottime()
        for moment, encoded in await self._record.read(first=first, latest=latest):
            keys = keys_of(encoded)
            for start in range(0, len(keys), STEPS_PER_TURN):
                chunk = keys[start : start + STEPS_PER_TURN]
                self._notify_all(moment, chunk)
                await self._count_steps(len(chunk))

    async def _follow_record(self, watches: Sequence[Watch]) -> int:
        """Reads the record every other turn, unless all partitions can be polled in each. Returns the max polls now.

        Plans a poll of every partition after the record may have missed something.
        """
        if len(watches) <= MAX_WITHOUT_RECORD and not self._early:
            self._readings, self._missed = 0, False
            return MAX_WITHOUT_RECORD
        self._turns += 1
        max_polls = (
            0 if self._turns % TURNS_BETWEEN_POLLS else POLLS_BESIDE_RECORD // 2 if self._early else POLLS_BESIDE_RECORD
        )
        if self._readings and self._turns % 2:
            return max_polls
        try:
            # Goes back further twice: the first read may miss what this process itself wrote just before.
            await self._read_record(first=self._readings < FIRST_WINDOW_READS)
        except QueueyError as error:
            log.debug("Cannot read the record of recent writes: %s", error)
            self._readings, self._missed = 0, True
            return MAX_POLLED
        self._readings += 1
        if self._record.take_missed() or self._missed:
            for watch in watches:
                self._plan_poll(watch)
                await self._count_steps(1)
            self._missed = False
        return max_polls

    async def _begin_polls(self, watches: Sequence[Watch], now: float) -> None:
        by_queue: dict[Queue, list[Watch]] = {}
        for watch in watches:
            by_queue.setdefault(watch.queue, []).append(watch)
        for queue, group in by_queue.items():
            await self._count_steps(len(group) * STEPS_PER_TURN // POLLS_PER_TURN)
            for watch in group:
                self._polls += 1
                watch.polled = self._polls
                watch.asking = True
            self._calls.begin(
                self._reads.read(queue, [_slice_from(watch) for watch in group], polls=True),
                partial(_apply_pages, group, now),
            )


def choose_watches_to_poll(watches: Sequence[Watch], now: float, max_polls: int) -> list[Watch]:
    """Returns the watches to poll now: those due, then the ones that were polled longest ago.

    Fills up to ``max_polls``, which due watches may exceed, and never has more than ``MAX_POLLED`` polled at a time.
    """
    free = [watch for watch in watches if not watch.asking]
    room = MAX_POLLED - (len(watches) - len(free))
    chosen = _choose_in_turns([watch for watch in free if watch.due <= now], room)
    remaining = min(max_polls, room) - len(chosen)
    if remaining > 0:
        chosen += _choose_in_turns([watch for watch in free if watch.due > now], remaining)
    return chosen


def _choose_in_turns(watches: Iterable[Watch], most: int) -> list[Watch]:
    by_application: dict[str, list[Watch]] = {}
    for watch in watches:
        by_application.setdefault(watch.queue.application, []).append(watch)
    ordered = [nsmallest(most, group, key=attrgetter("polled")) for group in by_application.values()]
    turns = (watch for turn in zip_longest(*ordered) for watch in turn if watch is not None)
    return list(islice(turns, most))


def _slice_from(watch: Watch) -> Slice:
    return Slice(watch.partition, (watch.position, LOW_MIN), limit=1, keeps_read_delay=not watch.prompt)


def _apply_pages(watches: Sequence[Watch], began: float, pages: Sequence[Page] | None, error: Exception | None) -> None:
    for watch in watches:
        watch.asking = False
        if watch.due <= began and (pages is not None or isinstance(error, QueueChanged)):
            watch.due = math.inf
    for index, watch in enumerate(watches):
        if pages is None:
            if isinstance(error, QueueChanged):
                watch.wake()
        elif pages[index].messages:
            # A woken reader reads everything below.
            watch.position = pages[index].horizon
            watch.wake()
        elif (next_position := pages[index].next) is not None:
            watch.position = next_position[0]
