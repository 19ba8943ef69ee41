"""Where partitions begin, and the positions that ``seek`` understands.

A group that is to handle only new messages begins at the end of each partition when its first member starts; what
appears later begins at its beginning. The point is recorded before anything is handed out. Otherwise a member that
stops before its first commit would let its successor begin at a later end, and what came in between would be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from random import uniform

from qdo.consumer.fetcher import QUEUES
from qdo.consumer.owned_partition import OwnedPartition
from qdo.errors import InvalidArgument, QdoError
from qdo.partitions import Partition
from queuey.client import EARLIEST, ApiError, AsyncClient, ClientError, Query, id_before, order_of

log = logging.getLogger("qdo.consumer")

Record = Callable[[Mapping[Partition, str]], Awaitable[frozenset[Partition]]]
"""Records offsets with the group; returns the partitions that this member has lost, of which nothing is recorded."""
BeginAt = Callable[[OwnedPartition, str], None]
"""Begins a partition after a position."""

PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds between tries, at first and at most."""


async def horizons(client: AsyncClient, partitions: Iterable[Partition]) -> Mapping[Partition, str | ApiError]:
    """Returns for each partition the horizon of its queue, or why there is none.

    No message has the horizon itself as its id, so a read after it gets exactly the messages that come from then on.

    Raises:
        ClientError: The service cannot say.
    """
    by_name: dict[str, list[Partition]] = {}
    for partition in partitions:
        by_name.setdefault(partition.queue.name, []).append(partition)
    names = list(by_name)
    found: dict[Partition, str | ApiError] = {}
    for start in range(0, len(names), QUEUES):
        # Nothing lies before the lowest id, so that no message travels.
        queries = [Query(queue=name, partitions=1, limit=1, before=EARLIEST) for name in names[start : start + QUEUES]]
        for read in await client.read_queues(queries):
            end = read.page.horizon if read.page is not None else read.error
            if end is not None:
                found |= dict.fromkeys(by_name[read.queue], end)
    return found


class LatestStart:
    """The beginnings of partitions without an offset, in a group that is to handle only new messages.

    Args:
        client: Asks for the ends of partitions.
        record: Records the first offsets.
        begin_at: Begins partitions.
        is_shared: The group shares partitions out, so what appears later is new.

    Attributes:
        group_has_offsets: The group had some when this member started, so partitions without any are new.
    """

    def __init__(self, client: AsyncClient, record: Record, begin_at: BeginAt, *, is_shared: bool) -> None:
        self.group_has_offsets = False
        self._client = client
        self._record = record
        self._begin_at = begin_at
        self._is_shared = is_shared
        self._first_end: str | None = None

    async def begin(self, rows: Iterable[OwnedPartition]) -> None:
        """Begins partitions of which nothing is recorded; tries until each has begun, or is gone."""
        if self.group_has_offsets:
            for row in rows:
                self._begin_at(row, EARLIEST)
            return
        waiting = list(rows)
        pause = PAUSE
        while waiting := [row for row in waiting if row.fetch_from is None and not row.closed]:
            try:
                await self._begin_at_ends(waiting)
            except (ClientError, QdoError) as error:
                log.warning("the first positions of %s partitions are not known yet, retrying: %s", len(waiting), error)
            if any(row.fetch_from is None and not row.closed for row in waiting):
                await asyncio.sleep(pause * uniform(0.5, 1.0))  # noqa: S311 - so that members come back apart
                pause = min(LONGEST_PAUSE, 2 * pause)

    async def _begin_at_ends(self, rows: list[OwnedPartition]) -> None:
        ends = await horizons(self._client, [row.partition for row in rows])
        # Meanwhile the user may have set a position, or another member may own the partition.
        open_still = {row.partition for row in rows if row.fetch_from is None and not row.closed}
        points = {each: end for each, end in ends.items() if isinstance(end, str) and each in open_still}
        for partition, error in ends.items():
            if isinstance(error, ApiError):
                log.warning("the first position of %s is not known yet, retrying: %s", partition, error)
        if not points:
            return
        if self._is_shared and (first := self._first_end) is not None:
            # What appears later begins where the first ones did, so that nothing sent meanwhile is passed over.
            points = {each: min(end, first, key=order_of) for each, end in points.items()}
        lost = await self._record(points)
        self._first_end = self._first_end or max(points.values(), key=order_of)
        for row in rows:
            point = points.get(row.partition)
            if point is not None and row.partition not in lost and row.fetch_from is None and not row.closed:
                self._begin_at(row, point)


async def ends(client: AsyncClient, partitions: Iterable[Partition]) -> dict[Partition, str]:
    """Returns the end of each partition: a read after it gets the messages that come from now on.

    Raises:
        ClientError: The service cannot say.
    """
    found: dict[Partition, str] = {}
    for partition, end in (await horizons(client, partitions)).items():
        if isinstance(end, ApiError):
            raise end
        found[partition] = end
    return found


async def point_of(client: AsyncClient, partition: Partition, to: str | datetime | float) -> str:
    """Returns the id after which to go on.

    Args:
        client: To ask the service with, which only ``latest`` needs.
        partition: The partition.
        to: ``earliest``, ``latest``, an id, or an instant (seconds since 1970, or an aware datetime).

    Raises:
        InvalidArgument: There is no such position.
        ClientError: The service cannot say where the end is.
    """
    if to == "earliest":
        return EARLIEST
    if to == "latest":
        return (await ends(client, [partition]))[partition]
    try:
        if isinstance(to, str):
            order_of(to)
            return to.replace("-", "").lower()
        return id_before(to)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{to!r} is not a position: {error}") from error
