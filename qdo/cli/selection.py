"""Which partitions a command is about, and where their offsets are to go."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from qdo.errors import InvalidArgument
from qdo.partitions import Partition, Queue
from queuey.client import EARLIEST, id_before, instants, order_of

if TYPE_CHECKING:
    from qdo.cli.opening import Opened
    from qdo.cli.settings import Settings
    from queuey.client import AsyncClient

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def chosen(partitions: Iterable[Partition], settings: Settings, numbers: Collection[int] = ()) -> list[Partition]:
    """Returns the partitions of the queues that the settings name, of all queues if they name none; sorted.

    Args:
        partitions: To choose from.
        settings: Name queues and patterns.
        numbers: Of the partitions; empty: all.
    """
    patterns = (*settings.queue, *settings.pattern)
    return sorted(
        partition
        for partition in partitions
        if (not numbers or partition.number in numbers) and (not patterns or _matches(partition.queue.name, settings))
    )


async def existing(opened: Opened, settings: Settings, numbers: Collection[int] = ()) -> list[Partition]:
    """Returns the chosen partitions of the service: of the queues that are named, else of those with an offset.

    Raises:
        InvalidArgument: A queue that is named does not exist, or nothing is chosen.
    """
    if settings.queue or settings.pattern:
        queues = [queue async for queue in opened.client.queues()]
        missing = set(settings.queue) - {queue.name for queue in queues}
        if missing:
            raise InvalidArgument(f"there is no queue {', '.join(sorted(missing))}")
        found = [
            Partition(Queue(opened.host, opened.client.application, queue.name), number)
            for queue in queues
            for number in range(1, queue.partitions + 1)
        ]
    else:
        found = [
            partition
            for partition in await opened.coordinator.offsets()
            if partition.queue[:2] == (opened.host, opened.client.application)
        ]
    partitions = chosen(found, settings, numbers)
    if not partitions:
        raise InvalidArgument("no partition is chosen: name queues with --queue or --pattern")
    return partitions


def id_of(text: str, now: float) -> str:
    """Returns the id up to which everything counts as processed: the one given, or the last before an instant.

    Args:
        text: An id, or an instant in a form that ``queuey read --since`` takes.
        now: Seconds since 1970, what relative instants count from.

    Raises:
        InvalidArgument: It is neither.
    """
    compact = text.strip().replace("-", "").lower()
    if len(compact) == len(EARLIEST):
        try:
            order_of(compact)
        except ValueError:
            pass
        else:
            return compact
    try:
        return id_before(moment(text, now))
    except ValueError as error:
        raise InvalidArgument(str(error)) from error


def moment(text: str, now: float) -> datetime:
    """Returns an instant, cut to microseconds, so that a message of that very instant is not before it.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        return _EPOCH + timedelta(microseconds=int(Decimal(instants.point(text, now)) * 1_000_000))
    except InvalidOperation as error:
        raise InvalidArgument(f"{text!r} is a cursor, which says where to begin, and no instant") from error
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(str(error)) from error


async def newest(client: AsyncClient, partitions: Iterable[Partition]) -> dict[Partition, str]:
    """Returns the newest id that can be read of each partition; of one without messages the lowest there can be."""
    wanted: dict[Queue, list[int]] = {}
    for partition in partitions:
        wanted.setdefault(partition.queue, []).append(partition.number)
    ends = {Partition(queue, number): EARLIEST for queue, numbers in wanted.items() for number in numbers}
    for queue, numbers in wanted.items():
        page = await client.read(queue.name, partitions=numbers, order="descending", limit=1)
        ends.update((Partition(queue, message.partition), message.id) for message in page.messages)
    return ends


def _matches(name: str, settings: Settings) -> bool:
    return name in settings.queue or any(fnmatchcase(name, pattern) for pattern in settings.pattern)
