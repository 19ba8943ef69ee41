"""How many messages lie behind a group's offsets, asked from outside of the group.

The service counts for what is recorded with it. Where a group's workers mirror their offsets, that is asked for.
Otherwise the offsets are recorded for a moment under a name that nobody else uses, so that looking on changes nothing
for the group.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from queuey.client import AsyncClient, GroupNotFound, GroupOffset, InvalidArgument, order_of

_NAME = "qdo-status-"


async def lags(
    client: AsyncClient, queue: str, group: str, offsets: Mapping[int, str | None]
) -> Mapping[int, GroupOffset]:
    """Returns what lies behind offsets, by the number of the partition.

    Args:
        client: Of the queue's application.
        queue: Its name.
        group: The group's name.
        offsets: Of partitions of the queue; None: nothing was processed.

    Raises:
        ClientError: The service cannot say.
    """
    known = {number: offset for number, offset in offsets.items() if offset is not None}
    mirrored = await _recorded(client, queue, group)
    if mirrored is not None and all(_same(mirrored.get(number), offset) for number, offset in offsets.items()):
        return mirrored
    if not known:
        info = await client.info(queue)
        return {
            number: GroupOffset(offset=None, lag=part.count, lag_exact=part.exact)
            for number, part in info.partition_info.items()
        }
    name = _NAME + uuid.uuid4().hex
    try:
        await client.commit(queue, name, known)
        return (await client.offsets(queue, name)).partitions
    finally:
        await client.delete_group(queue, name)


async def _recorded(client: AsyncClient, queue: str, group: str) -> Mapping[int, GroupOffset] | None:
    """Returns what the service knows of the group; None: nothing, or its name is none that the service takes."""
    try:
        return (await client.offsets(queue, group)).partitions
    except (GroupNotFound, InvalidArgument):
        return None


def _same(recorded: GroupOffset | None, offset: str | None) -> bool:
    if recorded is None or recorded.offset is None or offset is None:
        return recorded is not None and recorded.offset is offset
    return order_of(recorded.offset) == order_of(offset)
