"""The first positions of partitions, and the positions that ``seek`` accepts.

With ``start="latest"``, a group begins at the end of each partition that exists when its first member starts, and at
the beginning of partitions that appear later. The position is recorded before any message is handed out. Otherwise, if
a member stopped before its first commit, its successor would begin at a later end and skip the messages in between. So
if the group has assigned a queue and has no offset of it, nobody has begun it: it begins at its end, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from random import uniform

from qdo.consumer.fetcher import MAX_QUEUES_PER_CALL
from qdo.errors import InvalidArgument, QdoError
from qdo.group.offsets import PartitionOwnership
from qdo.group.records import GroupSnapshot
from qdo.partitions import Partition, Queue
from queuey.client import EARLIEST, ApiError, AsyncClient, ClientError, Query, RetryPolicy, id_before, order_of

log = logging.getLogger("qdo.consumer")

RecordOffsets = Callable[[Mapping[Partition, str]], Awaitable[frozenset[Partition]]]
"""Records offsets of the group; returns the partitions that this member has lost, for which nothing was recorded."""
BeginAt = Callable[[PartitionOwnership, str], None]
"""Starts reading a partition after a position."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 10.0
"""First and max pause between attempts, in seconds."""


async def read_horizons(client: AsyncClient, partitions: Iterable[Partition]) -> Mapping[Partition, str | ApiError]:
    """Returns the horizon of each partition's queue, or the error of its read.

    No message has the horizon itself as its id, so a read after it returns exactly the messages that arrive from now
    on.

    Raises:
        ClientError: The service cannot return the horizons.
    """
    by_name: dict[str, list[Partition]] = {}
    for partition in partitions:
        by_name.setdefault(partition.queue.name, []).append(partition)
    names = list(by_name)
    results: dict[Partition, str | ApiError] = {}
    for start in range(0, len(names), MAX_QUEUES_PER_CALL):
        # No message is before the lowest id, so the answer has no messages.
        queries = [
            Query(queue=name, partitions=1, limit=1, before=EARLIEST)
            for name in names[start : start + MAX_QUEUES_PER_CALL]
        ]
        for read in await client.read_queues(queries):
            end = read.page.horizon if read.page is not None else read.error
            if end is not None:
                results |= dict.fromkeys(by_name[read.queue], end)
    return results


class LatestStart:
    """Finds the first positions of partitions without an offset, in a group with ``start="latest"``.

    Args:
        client: The client that reads the ends of partitions.
        record: Records the first offsets.
        begin_at: Starts reading a partition.
        is_shared: Whether the group assigns the partitions, so that partitions that appear later are new.
    """

    def __init__(self, client: AsyncClient, record: RecordOffsets, begin_at: BeginAt, *, is_shared: bool) -> None:
        self._client = client.with_retry(RetryPolicy(deadline=0.0))
        self._record = record
        self._begin_at = begin_at
        self._is_shared = is_shared
        self._first_end: str | None = None
        self._group_has_offsets = False
        """Whether the group had offsets when this member started, so that queues it did not know are new."""
        self._not_begun: AbstractSet[Queue] = frozenset()
        """The queues that the group had assigned when this member started, and of which it had no offset."""

    def set_group(self, group: GroupSnapshot) -> None:
        """Sets the group's state when this member started."""
        targets = {} if group.target is None else group.target.owners
        begun = {partition.queue for partition in group.offsets}
        self._group_has_offsets = bool(begun)
        self._not_begun = {partition.queue for partition in (*group.owners, *targets)} - begun

    async def begin(self, rows: Iterable[PartitionOwnership]) -> None:
        """Starts reading partitions without an offset; retries until each is read or no longer owned."""
        waiting = list(rows)
        pause = FIRST_PAUSE_SECONDS
        while waiting := [row for row in waiting if row.fetch_from is None and not row.closed]:
            try:
                await self._begin_at_ends(waiting)
            except (ClientError, QdoError) as error:
                log.warning("the first positions of %s partitions are not known yet, retrying: %s", len(waiting), error)
            if any(row.fetch_from is None and not row.closed for row in waiting):
                await asyncio.sleep(pause * uniform(0.5, 1.0))  # noqa: S311 - spreads the members
                pause = min(MAX_PAUSE_SECONDS, 2 * pause)

    async def _begin_at_ends(self, rows: list[PartitionOwnership]) -> None:
        """Records first positions and reads from there. Rows placed or lost meanwhile are skipped.

        Partitions of new queues begin at their oldest messages, others at their present ends. If the partitions are
        shared, later ones begin no later than the ends that were recorded first.
        """
        queues = {row.partition.queue for row in rows}
        new = queues - self._not_begun if self._group_has_offsets else frozenset()
        ends = await read_horizons(self._client, [row.partition for row in rows if row.partition.queue not in new])
        # Meanwhile the user may have set a position, or another member may own the partition.
        unplaced = {row.partition for row in rows if row.fetch_from is None and not row.closed}
        points = {p: end for p, end in ends.items() if isinstance(end, str) and p in unplaced}
        for partition, error in ends.items():
            if isinstance(error, ApiError):
                log.warning("the first position of %s is not known yet, retrying: %s", partition, error)
        last_end = max(points.values(), key=order_of, default=None)
        if self._is_shared and (first := self._first_end) is not None:
            # Partitions that appear later begin at the first end, so that no message sent meanwhile is skipped.
            points = {p: min(end, first, key=order_of) for p, end in points.items()}
        points |= dict.fromkeys((partition for partition in unplaced if partition.queue in new), EARLIEST)
        if not points:
            return
        lost = await self._record(points)
        self._first_end = self._first_end or last_end
        for row in rows:
            point = points.get(row.partition)
            if point is not None and row.partition not in lost and row.fetch_from is None and not row.closed:
                self._begin_at(row, point)


async def read_ends(client: AsyncClient, partitions: Iterable[Partition]) -> dict[Partition, str]:
    """Returns the end of each partition: a read after it returns the messages that arrive from now on.

    Raises:
        ClientError: The service cannot return the ends.
    """
    positions: dict[Partition, str] = {}
    for partition, end in (await read_horizons(client, partitions)).items():
        if isinstance(end, ApiError):
            raise end
        positions[partition] = end
    return positions


async def find_position(client: AsyncClient, partition: Partition, to: str | datetime | float) -> str:
    """Returns the id after which to read.

    Args:
        client: The client, used only for ``latest``.
        partition: The partition.
        to: ``earliest``, ``latest``, an id, or an instant (seconds since 1970, or an aware datetime).

    Raises:
        InvalidArgument: The position is not valid.
        ClientError: The service cannot return the partition's end.
    """
    if to == "earliest":
        return EARLIEST
    if to == "latest":
        return (await read_ends(client, [partition]))[partition]
    try:
        if isinstance(to, str):
            order_of(to)
            return to.replace("-", "").lower()
        return id_before(to)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{to!r} is not a position: {error}") from error
