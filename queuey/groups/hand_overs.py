"""Hands partitions over to their next owners, queue by queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from weakref import WeakValueDictionary

from queuey.groups.heartbeat_answers import Rows
from queuey.groups.rules.group_state import GroupState
from queuey.groups.rules.planning import hand_over
from queuey.groups.state_cache import GroupContext, Moment, StateCache
from queuey.model.errors import Conflict, NotFound, QueueChanged, StoreBusy
from queuey.model.groups import OwnedOffset, OwnedOffsets
from queuey.model.messages import Queue

MAX_ATTEMPTS = 20
MAX_OWNERS_STATE_AGE = 0.5
"""Max age in seconds of the state by which owners are decided."""
MAX_CONCURRENT_QUEUES = 8
MAX_CACHED_QUEUES = 1000

GiveBacks = Mapping[int, tuple[int, int]]
"""By partition, the member that gives it back and the epoch of its ownership."""


class HandOvers:
    """The owners of a group's partitions.

    Args:
        context: The group.
        cache: The group's state.
        find_unconfirmed: Returns partitions of a queue that members here do not name yet; these need the notes.
        request_plan: Called when a plan is due, because a partition cannot move again in this epoch.
        wake_owners: Called with the name of a queue, its rows, and those rows that this process has changed.

    Attributes:
        rows: By queue, a moment after which its rows were read, and the rows; the oldest first.
        leavers: Members that left through this process, which gives their partitions back.
    """

    def __init__(
        self,
        context: GroupContext,
        cache: StateCache,
        find_unconfirmed: Callable[[str], set[int]],
        request_plan: Callable[[], None],
        wake_owners: Callable[[str, Rows, Sequence[OwnedOffset]], None],
    ) -> None:
        self._store, self._core, self._counts = context.store, context.core, context.counts
        self._application, self._group = context.key
        self._cache = cache
        self._find_unconfirmed = find_unconfirmed
        self._request_plan = request_plan
        self._wake_owners = wake_owners
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._give_backs: dict[str, dict[int, tuple[int, int]]] = {}
        self.rows: dict[str, tuple[Moment, Rows]] = {}
        self.leavers: set[int] = set()

    def find_rows(self, name: str, since: Moment | None = None) -> Rows | None:
        """Returns the rows of a queue as last read, or None if that was not at a moment or later."""
        read, rows = self.rows.get(name, (-1, None))
        return rows if since is None or read >= since else None

    async def hand_over_queues(
        self, names: Iterable[str], since: Moment, give_backs: Mapping[str, GiveBacks] | None = None
    ) -> None:
        waiting = sorted(names)
        for first in range(0, len(waiting), MAX_CONCURRENT_QUEUES):
            batch = waiting[first : first + MAX_CONCURRENT_QUEUES]
            await asyncio.gather(
                *(self.hand_over_queue(name, since, (give_backs or {}).get(name, {})) for name in batch)
            )

    async def hand_over_queue(self, name: str, since: Moment, give_backs: GiveBacks) -> None:
        """Hands over the partitions of a queue that are free or given back; its rows are then as of ``since`` or later.

        Give-backs that arrive during another hand-over of the queue share the next one.

        Raises:
            StoreUnavailable: The hand-over may have been done.
        """
        waiting = self._give_backs.setdefault(name, {})
        for number, give_back in give_backs.items():
            waiting[number] = max(give_back, waiting.get(number, give_back), key=itemgetter(1))
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        async with lock:
            waiting = self._give_backs.get(name, {})
            if self.find_rows(name, since) is not None and not waiting:
                self._give_backs.pop(name, None)
                return
            began = self._cache.next_moment()
            rows = await self._write_owners(name)
            self.rows.pop(name, None)
            if len(self.rows) >= MAX_CACHED_QUEUES:
                del self.rows[next(iter(self.rows))]
            self.rows[name] = began, rows
            if not self._give_backs.get(name, True):
                del self._give_backs[name]

    async def _write_owners(self, name: str) -> Rows:
        """Hands over free partitions of a queue; returns its rows afterwards, empty if the queue is gone.

        Tries again if others change the rows. Changes nothing if the queue has too many groups already.
        """
        is_fresh = False
        for _ in range(MAX_ATTEMPTS):
            began = self._core.boottime()
            queue = await self._find_planned_queue(name, fresh=is_fresh)
            if queue is None:
                self._give_backs.pop(name, None)
                return {}
            recorded, state = await self._read(queue)
            give_backs = dict(self._give_backs.get(name, {}))
            leaving = {
                number: (row.owner, row.epoch)
                for number, row in recorded.rows.items()
                if row.owner in self.leavers and row.epoch >= state.head.born
            }
            decided = hand_over(state, queue.uid, recorded, give_backs | leaving)
            if decided.needs_plan and await self._cache.refresh() is not state:
                continue  # The rows belong to a later plan.
            if decided.needs_plan:
                self._request_plan()
            try:
                is_written = not decided.owners or await self._store.offsets.hand_over(
                    queue, self._group, recorded.version, decided.owners
                )
            except QueueChanged:
                is_fresh, is_written = True, False
            except Conflict:  # The queue has 1,000 groups already.
                return recorded.rows
            if is_written:
                self._counts.update(row.came for row in decided.owners if row.owner)
                waiting = self._give_backs.get(name, {})
                for number, give_back in give_backs.items():
                    if waiting.get(number) == give_back:
                        del waiting[number]
                rows = {**recorded.rows, **{row.partition: row for row in decided.owners}}
                self._wake_owners(name, rows, decided.owners)
                return rows
            await asyncio.sleep(self._core.rng.random() * (self._core.boottime() - began))
        raise StoreBusy(f"The offsets of queue {name!r} are being changed by others. Try again.")

    async def _read(self, queue: Queue) -> tuple[OwnedOffsets, GroupState]:
        while True:
            unconfirmed = self._find_unconfirmed(queue.name)
            recorded = await self._store.offsets.owned_offsets(queue, self._group, unconfirmed)
            state = await self._cache.refresh(MAX_OWNERS_STATE_AGE)
            if any(row.epoch > state.head.epoch for row in recorded.rows.values()):
                state = await self._cache.refresh()
            if self._find_unconfirmed(queue.name) <= unconfirmed:  # Otherwise a new plan needs more notes.
                return recorded, state

    async def _find_planned_queue(self, name: str, *, fresh: bool) -> Queue | None:
        """Returns a queue's row, or None if it is gone or is not the planned one of that name.

        A cached row may be that of a deleted queue; it counts only if it is the planned one.
        """
        planned = self._cache.targets.queues.get(name)
        with suppress(NotFound):
            queue = await self._store.catalogue.queue(self._application, name, fresh=fresh or planned is None)
            if planned is None or queue.uid == planned.uid:
                return queue
        return None if fresh or planned is None else await self._find_planned_queue(name, fresh=True)
