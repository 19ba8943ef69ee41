"""Polls partitions with waiting readers for new messages, because other processes do not notify this one.

A poll of a partition is a read of one message from where the previous poll ended, so the polls form a chain of cursors
and miss as little as a reader does (G1). Watchers that want messages before the read delay is over are also woken by
what the delayed chain finds, because that one finds late messages.

The cost does not depend on the number of waiting readers. The polls of a process are limited; applications take turns.
Messages that this process has stored itself need no poll: their readers are woken when the read delay is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import islice, zip_longest
from time import monotonic
from typing import Protocol

from queuey.errors import QueueChanged, QueueyError
from queuey.ids import LOW_MIN
from queuey.messages import NewMessage, Page, Queue, Slice
from queuey.storage.watching import Watch, Watches

LONGEST_DELAY, MOST_OWN = 60.0, 100_000
"""Seconds of a read delay, and writes of this process, beyond which the polls find them."""
MARGIN = 0.05
"""Seconds after the read delay: a reader that is woken too early finds nothing, and is not woken again."""
MOST = 128
"""Partitions that are polled in one turn: with the pause after it about 500 a second."""

Done = Callable[[Page | None, Exception | None], None]


class ReadableStore(Protocol):
    """What the polls need of the store."""

    def read_delay(self, queue: Queue) -> float:
        """Returns the queue's read delay in seconds."""

    def horizon_now(self, queue: Queue, *, delayed: bool) -> int:
        """Returns the horizon (ticks) of a read that begins now. Never blocks."""

    def begin_look(self, queue: Queue, part: Slice, done: Done) -> bool:
        """Is ``begin_read`` by rows and buckets that may have been read as long ago as for a delayed read."""

    def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        """See the storage contract."""


class PolledArrivals:
    """The watches of one store.

    Args:
        store: The store to poll.
    """

    def __init__(self, store: ReadableStore) -> None:
        self._store = store
        self._looks = 0
        self._own: list[tuple[float, int]] = []
        """A heap: when what this process has stored in a partition is shown."""
        self.watches = Watches(self._look)

    def watch(self, queue: Queue, partition: int, wake: Callable[[], None], *, delayed: bool) -> Callable[[], None]:
        """See the storage contract."""
        promptly = [True] if not self._store.read_delay(queue) else [False] if delayed else [False, True]
        return self.watches.add(
            *(
                Watch(queue, partition, wake, self._store.horizon_now(queue, delayed=not prompt), prompt=prompt)
                for prompt in promptly
            )
        )

    def appended(self, queue: Queue, items: Iterable[NewMessage]) -> None:
        """Called when this process has stored messages."""
        if self.watches:
            keys = {queue.qid << 8 | item.partition for item in items if not item.delay}
            self.watches.wrote(keys, shown=False)
            delay = self._store.read_delay(queue)
            if 0 < delay <= LONGEST_DELAY and len(self._own) < MOST_OWN:
                due = monotonic() + delay + MARGIN
                for key in self.watches.watched(keys):
                    heappush(self._own, (due, key))

    def _look(self, watches: Sequence[Watch]) -> None:
        now = monotonic()
        while self._own and self._own[0][0] <= now:
            self.watches.wrote({heappop(self._own)[1]}, shown=True)
        left: dict[Queue, list[Watch]] = {}
        for watch in next_to_look_for(watches):
            self._looks += 1
            watch.looked = self._looks
            watch.asking = True
            if not self._store.begin_look(watch.queue, _part(watch), partial(_ended, watch)):
                left.setdefault(watch.queue, []).append(watch)
        for queue, some in left.items():
            try:
                pages = self._store.read(queue, [_part(watch) for watch in some])
            except QueueyError as error:
                for watch in some:
                    _ended(watch, None, error)
            else:
                for watch, page in zip(some, pages, strict=True):
                    _ended(watch, page, None)


def next_to_look_for(watches: Sequence[Watch]) -> list[Watch]:
    """Returns the watches to poll for now: applications by turns, of each the ones that were polled longest ago."""
    by_application: dict[str, list[Watch]] = {}
    for watch in watches:
        if not watch.asking:
            by_application.setdefault(watch.queue.application, []).append(watch)
    for some in by_application.values():
        some.sort(key=lambda watch: watch.looked)
    turns = (watch for turn in zip_longest(*by_application.values()) for watch in turn if watch is not None)
    return list(islice(turns, MOST))


def _part(watch: Watch) -> Slice:
    return Slice(watch.partition, (watch.position, LOW_MIN), limit=1, delayed=not watch.prompt)


def _ended(watch: Watch, page: Page | None, error: Exception | None) -> None:
    """Takes the result of a poll, in any thread."""
    watch.asking = False
    if page is not None:
        if page.messages:
            # A woken reader reads everything below.
            watch.position = page.horizon
        elif page.next is not None:
            watch.position = page.next[0]
    if isinstance(error, QueueChanged) or (page is not None and page.messages):
        watch.wake()
