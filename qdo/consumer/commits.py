"""Records how far partitions were processed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.rebalance.partition_table import Ownership
from qdo.errors import InvalidArgument, NotOwner
from qdo.partitions import Partition, Queue, some
from queuey.client import AsyncClient, ClientError, OffsetConflict, order_of

log = logging.getLogger("qdo.consumer")

_NAMED = 5
"""Partitions that an error names."""
TRIES = 5
"""Attempts, if others record offsets at the same time."""


async def record_commits(
    table: Ownership, mirror: OffsetMirror | None, offsets: Mapping[Partition, str], *, back: bool = False
) -> None:
    """Checks commits and passes them on. Those that are recorded already cost nothing.

    Args:
        table: What the member owns.
        mirror: Where they go too, if anywhere.
        offsets: The ids.
        back: They may lie before what was committed.

    Raises:
        InvalidArgument: One of them cannot be committed; none was.
        NotOwner: Some partitions are no longer this member's; the offsets of the rest were recorded.
        CoordinationLost: Each was recorded or not.
        SessionLost
    """
    rows = {each: row for each in offsets if (row := table.held_row(each)) is not None and row.begun}
    lost = frozenset(offsets.keys() - rows.keys())
    new = {each: offsets[each] for each, row in rows.items() if check_commit(row, offsets[each], back=back)}
    sought = [rows[each] for each in new if rows[each].sought]
    for row in sought:
        row.sought = False
    try:
        lost |= await table.record(new) if new else lost
    except BaseException:
        # Recorded or not: a caller that went back may have to do so again.
        for row in sought:
            row.sought = True
        raise
    if mirror is not None:
        moved = {row.partition for row in sought}
        mirror.record({each: (new[each], back or each in moved) for each in new.keys() - lost})
    if lost:
        raise NotOwner(f"no longer owned by this member: {some(lost, _NAMED)}", lost)


def check_commit(row: OwnedPartition, identifier: str, *, back: bool = False) -> bool:
    """Returns whether an id is worth recording as the offset of a partition: whether it differs from what is recorded.

    Args:
        row: Where the partition stands.
        identifier: The id.
        back: It may lie before what was recorded.

    Raises:
        InvalidArgument: It is no id, was not handed out yet, or lies before the recorded offset without a seek back.
    """
    if row.recorded is not None and identifier == row.recorded == row.lowest_commit:
        return False
    try:
        order = order_of(identifier)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{row.partition}: {identifier!r} is not a message id") from error
    if row.position is None or order > order_of(row.position):
        raise InvalidArgument(f"{row.partition}: {identifier} was not returned by poll, so it cannot be committed")
    if _behind(row, order) and not back:
        raise InvalidArgument(f"{row.partition}: {identifier} is before {row.lowest_commit}, which was committed")
    return True


def is_behind(row: OwnedPartition, identifier: str) -> bool:
    """Returns whether more than this was committed already, with no seek back since."""
    return _behind(row, order_of(identifier))


def _behind(row: OwnedPartition, order: tuple[int, int]) -> bool:
    return row.lowest_commit is not None and not row.sought and order < order_of(row.lowest_commit)


class OffsetMirror:
    """The offsets of one group, as the service has them, so that its lag shows there.

    The coordination service has the offsets that count. The mirror follows: it goes back only after a seek (a member
    that lost a partition may come late), it is brought up to date in the background, and when it fails that is logged
    and tried again with the next commit.

    Args:
        client: To speak to the service with.
        group: The group's name.
    """

    def __init__(self, client: AsyncClient, group: str) -> None:
        self._client = client
        self._group = group
        self._known: dict[Partition, str | None] = {}
        self._due: dict[Partition, tuple[str, bool]] = {}
        self._task: asyncio.Task[None] | None = None

    def record(self, offsets: Mapping[Partition, tuple[str, bool]]) -> None:
        """Begins to record offsets, with ``True`` even if the service has later ones."""
        for partition, (offset, back) in offsets.items():
            again = self._due.get(partition, ("", False))[1]
            self._due[partition] = (offset, back or again)
        if self._due and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._catch_up())

    async def flush(self) -> None:
        """Waits until everything is recorded, or could not be."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _catch_up(self) -> None:
        while self._due:
            queue = next(iter(self._due)).queue
            mine = [partition for partition in self._due if partition.queue == queue]
            changes = {partition.number: self._due.pop(partition) for partition in mine}
            try:
                await self._set(queue, changes)
            except ClientError as error:
                log.warning("offsets of %s were not recorded in the service: %s", queue.name, error)

    async def _set(self, queue: Queue, changes: Mapping[int, tuple[str, bool]]) -> None:
        """Records offsets of one queue, each unless the service has a later one and it is not to go back."""
        left = dict(changes)
        for _ in range(TRIES):
            # An offset that must go back is recorded without comparing.
            expected = {n: self._known.get(Partition(queue, n)) for n, (_, back) in left.items() if not back}
            if not left:
                return
            try:
                await self._client.commit(
                    queue.name, self._group, {n: offset for n, (offset, _) in left.items()}, expected=expected
                )
            except OffsetConflict as conflict:
                for number, now in conflict.current.items():
                    self._known[Partition(queue, number)] = now
                left = {n: change for n, change in left.items() if not _reached(conflict, n, change[0])}
            else:
                self._known |= {Partition(queue, n): offset for n, (offset, _) in left.items()}
                return


def _reached(conflict: OffsetConflict, number: int, offset: str) -> bool:
    now = conflict.current.get(number)
    return number in conflict.applied or (now is not None and order_of(now) >= order_of(offset))
