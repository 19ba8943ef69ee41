"""What ``seek`` understands."""

from __future__ import annotations

from datetime import datetime

from qdo.consumer.initial_offsets import horizons
from qdo.errors import InvalidArgument
from qdo.partitions import Partition
from queuey.client import EARLIEST, ApiError, AsyncClient, id_before, order_of


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
        end = (await horizons(client, [partition]))[partition]
        if isinstance(end, ApiError):
            raise end
        return end
    try:
        if isinstance(to, str):
            order_of(to)
            return to.replace("-", "").lower()
        return id_before(to)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{to!r} is not a position: {error}") from error
