"""Use cases of the offsets of consumer groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from queuey.errors import GroupNotFound, InvalidRequest
from queuey.ids import Position
from queuey.messages import Lag, Offset, OffsetChange, Queue
from queuey.service.messages import partition_error
from queuey.service.queue_access import QueueAccess
from queuey.storage import Store
from queuey.storage.offset_changes import READERS

_GROUP = re.compile(r"[A-Za-z0-9._:@\-]{1,100}")


def require_group_name(group: str) -> None:
    """Refuses a bad name of a consumer group (InvalidRequest)."""
    if _GROUP.fullmatch(group) is None:
        raise InvalidRequest({"group": "A group name has 1 to 100 of A-Z a-z 0-9 . _ : @ -"})


def check_partitions(numbers: Iterable[int], queue: Queue) -> None:
    """Refuses partitions that the queue does not have (InvalidRequest)."""
    found = {f"partitions.{number}": partition_error(number, queue) for number in numbers}
    if errors := {field: error for field, error in found.items() if error is not None}:
        raise InvalidRequest(errors)


def _refuse_reader(group: str) -> None:
    """Refuses the name of a reader (GroupNotFound): read marks are the reader's own."""
    if group.startswith(READERS):
        raise GroupNotFound(group)


class Progress(msgspec.Struct, frozen=True):
    """Offset of a group in one partition; None: nothing is recorded, all messages lie ahead."""

    partition: int
    offset: Offset | None
    lag: Lag


class OffsetUseCases:
    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, access: QueueAccess, group: str, changes: Sequence[OffsetChange]) -> list[Offset]:
        """Records offsets, each partition by its own compare-and-set.

        Raises:
            InvalidRequest: The name of the group or a partition is not valid.
            Conflict: The group is a new one, and the queue has as many as it may have.
            OffsetConflict: Some comparisons failed; the offsets of the other partitions are recorded.
        """
        require_group_name(group)

        def record(queue: Queue) -> list[Offset]:
            check_partitions((change.partition for change in changes), queue)
            return self._store.set_offsets(queue, group, changes)

        return access.use(record) if changes else []

    def progress(self, access: QueueAccess, group: str) -> list[Progress]:
        """Returns the offset of each partition of the queue.

        Raises:
            GroupNotFound: Nothing is recorded for the group.
        """
        _refuse_reader(group)

        def progress(queue: Queue) -> list[Progress]:
            recorded = {offset.partition: offset for offset in self._store.offsets(queue, group)}
            numbers = range(1, queue.partitions + 1)
            locations = [(n, recorded[n].position if n in recorded else None) for n in numbers]
            lags = self._store.lag(queue, locations)
            return [Progress(n, recorded.get(n), lag) for n, lag in zip(numbers, lags, strict=True)]

        return access.use(progress)

    def lag(self, access: QueueAccess, cursors: Mapping[int, Position | None]) -> list[tuple[int, Lag]]:
        """Returns the lag behind cursors, by partition; None: all messages count. Nothing is recorded."""

        def lag(queue: Queue) -> list[tuple[int, Lag]]:
            check_partitions(cursors, queue)
            locations = sorted(cursors.items())
            return [
                (number, each) for (number, _), each in zip(locations, self._store.lag(queue, locations), strict=True)
            ]

        return access.use(lag)

    def groups(self, access: QueueAccess) -> list[str]:
        return access.use(self._store.groups)

    def forget(self, access: QueueAccess, group: str) -> None:
        """Removes a group.

        Raises:
            GroupNotFound: Nothing is recorded for it.
        """
        _refuse_reader(group)
        access.use(lambda queue: self._store.delete_group(queue, group))
