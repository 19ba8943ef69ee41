"""Use cases of the offsets of consumer groups."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from queuey.access.queue_access import MAX_ATTEMPTS, QueueAccess
from queuey.api.progress import GroupOffset, LagRead, LagState, Offsets, RecordedOffset, RecordedOffsets
from queuey.model import ids
from queuey.model.errors import GroupNotFound, InvalidRequest, StoreBusy
from queuey.model.groups import PartitionsOwned
from queuey.model.ids import Position
from queuey.model.messages import OffsetChange, Queue
from queuey.model.partitions import check_partitions
from queuey.runtime.metrics import GroupLag
from queuey.storage import Store
from queuey.storage.offset_changes import READER_PREFIX

T = TypeVar("T")
_GROUP_NAME_PATTERN = re.compile(r"[A-Za-z0-9._:@\-]{1,100}")


def require_group_name(group: str) -> None:
    if _GROUP_NAME_PATTERN.fullmatch(group) is None:
        raise InvalidRequest({"group": "A group name has 1 to 100 of A-Z a-z 0-9 . _ : @ -"})


def _refuse_reader(group: str) -> None:
    if group.startswith(READER_PREFIX):
        raise GroupNotFound(group)


class OffsetUseCases:
    """Records and reads offsets outside of group membership; members commit by ``GroupUseCases.commit``.

    Args:
        store: Stores the offsets.
        require_inactive: Raises ``GroupActive`` if a group of an application has members.
    """

    def __init__(self, store: Store, require_inactive: Callable[[str, str], Awaitable[object]]) -> None:
        self._store = store
        self._require_inactive = require_inactive

    async def _change(self, access: QueueAccess, group: str, change: Callable[..., Awaitable[T]]) -> T:
        version: int | None = None
        for _ in range(MAX_ATTEMPTS):
            try:
                return await access.apply(partial(change, disown=version))
            except PartitionsOwned as error:
                version = error.version
                await self._require_inactive(access.queue.application, group)
        raise StoreBusy(f"Members of group {group!r} came and went while this request ran. Try again.")

    async def record(
        self, access: QueueAccess, group: str, changes: Sequence[OffsetChange], *, is_admin: bool = True
    ) -> RecordedOffsets:
        """Records offsets, each partition by its own compare-and-set. ``is_admin`` is as for the store.

        Raises:
            InvalidRequest: The name of the group or a partition is not valid.
            Conflict: The group is new, and the queue has the maximum number of groups.
            OffsetConflict: Some comparisons failed; the offsets of the other partitions are recorded.
            GroupActive: The group has members; only they may commit.
        """
        require_group_name(group)

        async def record(queue: Queue, disown: int | None) -> dict[int, RecordedOffset]:
            check_partitions((change.partition for change in changes), queue.partitions)
            recorded = await self._store.offsets.set_offsets(queue, group, changes, disown=disown, is_admin=is_admin)
            return {offset.partition: RecordedOffset(ids.to_hex(offset.position)) for offset in recorded}

        return RecordedOffsets(group=group, partitions=await self._change(access, group, record) if changes else {})

    async def read_progress(self, access: QueueAccess, group: str) -> Offsets:
        """Returns the offset and the lag of each partition of the queue. Without an offset all messages count as lag.

        Raises:
            GroupNotFound: Nothing is recorded for the group.
        """
        _refuse_reader(group)

        async def progress(queue: Queue) -> Offsets:
            recorded = {offset.partition: offset for offset in await self._store.offsets.group_offsets(queue, group)}
            numbers = range(1, queue.partitions + 1)
            locations = [(n, recorded[n].position if n in recorded else None) for n in numbers]
            lags = await self._store.messages.lag(queue, locations)
            partitions = {
                number: GroupOffset(
                    offset=None if position is None else ids.to_hex(position),
                    updated=None if position is None else recorded[number].updated,
                    lag=lag.count,
                    lag_exact=lag.exact,
                    lag_seconds=lag.seconds,
                )
                for (number, position), lag in zip(locations, lags, strict=True)
            }
            return Offsets(group=group, partitions=partitions, lag=sum(lag.count for lag in lags))

        return await access.apply(progress)

    async def measure_lag(self, access: QueueAccess, group: str) -> GroupLag:
        async def standing(queue: Queue) -> GroupLag:
            rows = (await self._store.offsets.owned_offsets(queue, group)).rows
            positions = [(n, rows[n].position if n in rows else None) for n in range(1, queue.partitions + 1)]
            lags = await self._store.messages.lag(queue, positions)
            is_ours = any(row.epoch for row in rows.values())
            owned = sum(row.owner > 0 for row in rows.values()) if is_ours else None
            age = max((lag.seconds or 0.0 for lag in lags), default=0.0)
            return GroupLag(queue.application, queue.name, group, sum(lag.count for lag in lags), age, owned)

        return await access.apply(standing)

    async def read_lag(self, access: QueueAccess, cursors: Mapping[int, Position | None]) -> LagRead:
        """Returns the lag behind each partition's cursor; behind None all messages count. Records nothing.

        Raises:
            InvalidRequest: The queue does not have one of the partitions.
        """

        async def lag(queue: Queue) -> LagRead:
            check_partitions(cursors, queue.partitions)
            locations = sorted(cursors.items())
            lags = await self._store.messages.lag(queue, locations)
            partitions = {
                number: LagState(lag=lag.count, lag_exact=lag.exact, lag_seconds=lag.seconds)
                for (number, _), lag in zip(locations, lags, strict=True)
            }
            return LagRead(partitions=partitions, lag=sum(lag.count for lag in lags))

        return await access.apply(lag)

    async def list_groups(self, access: QueueAccess) -> list[str]:
        return list(await access.apply(self._store.offsets.groups))

    async def forget(self, access: QueueAccess, group: str) -> None:
        """Removes a group's offsets of the queue.

        Raises:
            GroupNotFound: Nothing is recorded for the group.
            GroupActive: The group has members.
        """
        _refuse_reader(group)

        async def forget(queue: Queue, disown: int | None) -> None:
            await self._store.offsets.delete_group(queue, group, disown=disown)

        await self._change(access, group, forget)
