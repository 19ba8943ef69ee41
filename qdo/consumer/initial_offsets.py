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
from qdo.consumer.fetch.fetch_planner import QUEUES
from qdo.consumer.fetch.fetch_state import FetchState
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
    client: AsyncClient, fetch_states: Iterable[FetchState], record: Record, begin_at: Callable[[FetchState, str], None]
) -> None:
    """Begins partitions at their ends, and tries until that is done, or they are gone, or begin elsewhere.

    Args:
        client: To ask the service with.
        fetch_states: Those of which nothing is recorded.
        record: Records offsets with the group.
        begin_at: Begins to read.
    """
    left = list(fetch_states)
    pause = PAUSE
    while left := [fetch_state for fetch_state in left if fetch_state.since is None and not fetch_state.closed]:
        try:
            await _begin(client, left, record, begin_at)
        except (ClientError, QdoError) as error:
            log.warning(
                "the positions at which to begin with %s partitions are not known yet, retrying: %s", len(left), error
            )
        if any(fetch_state.since is None and not fetch_state.closed for fetch_state in left):
            await asyncio.sleep(pause * uniform(0.5, 1.0))  # noqa: S311 - so that members come back apart
            pause = min(LONGEST_PAUSE, 2 * pause)


async def _begin(
    client: AsyncClient, fetch_states: list[FetchState], record: Record, begin_at: Callable[[FetchState, str], None]
) -> None:
    ends = await horizons(client, [fetch_state.partition for fetch_state in fetch_states])
    # Meanwhile somebody may have said where to go on, or the partition may be somebody else's.
    open_still = {
        fetch_state.partition for fetch_state in fetch_states if fetch_state.since is None and not fetch_state.closed
    }
    points = {each: end for each, end in ends.items() if isinstance(end, str) and each in open_still}
    for partition, error in ends.items():
        if isinstance(error, ApiError):
            log.warning("the position at which to begin with %s is not known yet, retrying: %s", partition, error)
    if not points:
        return
    lost = await record(points)
    for fetch_state in fetch_states:
        point = points.get(fetch_state.partition)
        if (
            point is not None
            and fetch_state.partition not in lost
            and fetch_state.since is None
            and not fetch_state.closed
        ):
            begin_at(fetch_state, point)
