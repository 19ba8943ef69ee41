"""Wakes waiting claims when a partition may have a message for them.

There are three sources. The store reports each message that it stores. The log reports each claim that this process
ends. Claims that expire, or that other processes end, are found by polling the log, once for all waiting claims of a
partition: when the next claim that this process knows of expires, and every half second. This interval grows if claims
wait on too many partitions.

By the queue's kind, a message that is done may make others deliverable. The log's state counts these, whichever process
has finished them.

If reads lag behind the clock, nothing reports that an older message becomes deliverable. There, each poll of the log
wakes the claims.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from queuey.claims.log.claim_search import LogCache
from queuey.claims.log.log_requests import Key, StateQuery
from queuey.claims.log.message_finder import LOOK_BACK_INTERVAL
from queuey.claims.log.partition_log import PartitionLog
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.model.errors import QueueyError, StoreUnavailable
from queuey.model.messages import Queue
from queuey.runtime.event_loop import Core
from queuey.storage import Store

POLL_INTERVAL = 0.5
"""Interval in seconds between polls of a log on which claims wait."""
MAX_POLLS = 200
"""Max polls per second and process, not counting those for an expired claim."""
MIN_POLL_INTERVAL = 0.1
"""Min seconds between two polls of a log, however many of its claims expire."""
LATE_POLL_DELAY = 2 * LOOK_BACK_INTERVAL
"""Interval in seconds from the store's report of a message to another attempt, because messages may become visible out
of order."""


class _Watched(msgspec.Struct, eq=False):
    """A partition on which claims wait.

    Attributes:
        wakes: Functions that wake the waiting claims.
        due: Loop time of the next poll.
        cancel_poll: Cancels the next poll.
        poll_task: Task of the last poll.
        freed_count: The log's count of messages that were done or released, after its last round; 0 before the first.
        lags: Messages are deliverable only some time after they are stored.
        stored: The store has reported a message since the last poll.
    """

    queue: Queue
    wakes: list[Callable[[], None]] = []
    due: float = math.inf
    cancel_poll: Callable[[], None] = lambda: None
    poll_task: asyncio.Task[None] | None = None
    freed_count: int = 0
    lags: bool = False
    stored: bool = False

    def wake(self) -> None:
        for wake in self.wakes[:]:
            wake()


class ClaimWakeups:
    """Wakes waiting claims. Used in the loop's thread, except for the functions that end a watch.

    Attributes:
        watched: Partitions on which claims wait, by the keys of their logs.
    """

    def __init__(self, store: Store, logs: LogCache, core: Core, timing: ClaimTiming) -> None:
        self._store = store
        self._logs = logs
        self._core = core
        self._timing = timing
        self.watched: dict[Key, _Watched] = {}

    def watch(self, queue: Queue, partition: int, wake: Callable[[], None]) -> Callable[[], None]:
        key = (queue.qid, partition)
        watched = self.watched.get(key) or _Watched(queue)
        # It may raise; before it has succeeded, nothing is changed.
        stop_watch = self._store.messages.watch(
            queue, partition, partial(self._on_stored, key, watched, wake), keeps_read_delay=False
        )
        if key not in self.watched:
            self.watched[key] = watched
            self._poll_within(self._poll_interval(), key, watched)
        watched.queue = queue
        watched.wakes.append(wake)

        def stop() -> None:
            stop_watch()
            self._core.call_soon(self._remove_wake, key, watched, wake)

        return stop

    def _remove_wake(self, key: Key, watched: _Watched, wake: Callable[[], None]) -> None:
        watched.wakes.remove(wake)
        if not watched.wakes:
            watched.cancel_poll()
            del self.watched[key]

    def after_round(self, log: PartitionLog) -> None:
        """Wakes claims if more may be found after a round of a watched log, and schedules the next poll.

        Does nothing while the clock is not trusted.
        """
        watched = self.watched[log.key]
        try:
            has_ended, seconds = self._find_next_expiry(log.state)
        except StoreUnavailable:  # The clock is not trusted now; the next poll repeats this.
            return
        freed_before, watched.freed_count = watched.freed_count, log.state.freed_count
        watched.lags = log.ordered is not None and log.ordered.lags
        self._poll_within(max(seconds, MIN_POLL_INTERVAL), log.key, watched)
        if log.may_deliver_more(watched.freed_count - freed_before, has_ended=has_ended):
            watched.wake()

    def _find_next_expiry(self, state: State) -> tuple[bool, float]:
        now = self._store.clock.now_ms()
        ended = bool(state.find_ended(self._timing.expiry_limit(now), 1))
        return ended, self._timing.seconds_left(state.next_expiry(), now)

    def _poll_interval(self) -> float:
        return max(POLL_INTERVAL, len(self.watched) / MAX_POLLS)

    def _on_stored(self, key: Key, watched: _Watched, wake: Callable[[], None]) -> None:
        """Calls ``wake`` at once, and schedules a later poll of the log; from any thread."""
        wake()
        if not watched.stored:
            watched.stored = True
            self._core.call_soon(self._poll_within, LATE_POLL_DELAY, key, watched)

    def _poll_within(self, seconds: float, key: Key, watched: _Watched) -> None:
        due = self._core.loop.time() + seconds
        if due < watched.due and self.watched.get(key) is watched:
            watched.cancel_poll()
            watched.due = due
            watched.cancel_poll = self._core.loop.call_at(due, self._begin_poll, key, watched).cancel

    def _begin_poll(self, key: Key, watched: _Watched) -> None:
        watched.due = math.inf
        watched.poll_task = self._core.spawn(self._poll(key, watched))

    async def _poll(self, key: Key, watched: _Watched) -> None:
        """Reads the log, ignoring errors, and plans the next poll.

        Wakes the claims if others have ended, if the store has reported a message since the last poll, or if reads lag.
        """
        stored, watched.stored = watched.stored, False
        request = StateQuery(watched.queue, self._find_next_expiry)
        self._logs.add(key, request)
        ended = False
        with suppress(QueueyError):
            ended, _ = await request.future
        self._poll_within(self._poll_interval(), key, watched)
        if stored or ended or watched.lags:
            watched.wake()
