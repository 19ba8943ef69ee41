"""Where a group begins that is to handle only what comes: at the end of each partition when it is first assigned.

That point is recorded before anything is handed out. Otherwise a member that stops before its first commit would let
its successor begin at a later end, and what came in between would be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from random import uniform

from qdo.consumer.commits import Record
from qdo.consumer.fetching import QUEUES
from qdo.consumer.tracks import Track
from qdo.errors import QdoError
from qdo.partitions import Partition
from queuey.client import EARLIEST, ApiError, AsyncClient, ClientError, Query

log = logging.getLogger("qdo.consumer")

PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds between tries, at first and at most."""


async def horizons(client: AsyncClient, partitions: Iterable[Partition]) -> Mapping[Partition, str | ApiError]:
    """Returns for each partition the horizon of its queue, or why there is none.

    No message has the horizon itself as its id, so whoever goes on after it reads exactly what comes from then on.

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


async def begin_at_ends(
    client: AsyncClient, tracks: Iterable[Track], record: Record, begin_at: Callable[[Track, str], None]
) -> None:
    """Begins partitions at their ends, and tries until that is done, or they are gone, or begin elsewhere.

    Args:
        client: To ask the service with.
        tracks: Those of which nothing is recorded.
        record: Records offsets with the group.
        begin_at: Begins to read.
    """
    left = list(tracks)
    pause = PAUSE
    while left := [track for track in left if track.since is None and not track.closed]:
        try:
            await _begin(client, left, record, begin_at)
        except (ClientError, QdoError) as error:
            log.warning("cannot tell where to begin with %s partitions, trying on: %s", len(left), error)
        if any(track.since is None and not track.closed for track in left):
            await asyncio.sleep(pause * uniform(0.5, 1.0))  # noqa: S311 - so that members come back apart
            pause = min(LONGEST_PAUSE, 2 * pause)


async def _begin(
    client: AsyncClient, tracks: list[Track], record: Record, begin_at: Callable[[Track, str], None]
) -> None:
    ends = await horizons(client, [track.partition for track in tracks])
    # Meanwhile somebody may have said where to go on, or the partition may be somebody else's.
    open_still = {track.partition for track in tracks if track.since is None and not track.closed}
    points = {each: end for each, end in ends.items() if isinstance(end, str) and each in open_still}
    for partition, error in ends.items():
        if isinstance(error, ApiError):
            log.warning("cannot tell where to begin with %s, trying on: %s", partition, error)
    if not points:
        return
    lost = await record(points)
    for track in tracks:
        point = points.get(track.partition)
        if point is not None and track.partition not in lost and track.since is None and not track.closed:
            begin_at(track, point)
