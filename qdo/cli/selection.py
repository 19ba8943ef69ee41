"""Which partitions a command is about, and where their offsets are to go."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from qdo.consumer.rebalance.queue_discovery import discover
from qdo.errors import InvalidArgument
from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription, subscribe
from queuey.client import EARLIEST, id_before, order_of
from queuey.terminal import time_parsing

if TYPE_CHECKING:
    from qdo.cli.opening import OpenedGroup
    from qdo.cli.settings import WorkSettings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def chosen(partitions: Iterable[Partition], settings: WorkSettings, numbers: Collection[int] = ()) -> list[Partition]:
    """Returns the partitions of the queues that the settings name, of all queues if they name none; sorted.

    Args:
        partitions: To choose from.
        settings: Name queues and patterns.
        numbers: Of the partitions; empty: all.
    """
    wanted = subscription(settings)
    return sorted(
        partition
        for partition in partitions
        if (not numbers or partition.number in numbers) and (wanted is None or wanted.wants(partition.queue.name))
    )


def subscription(settings: WorkSettings) -> Subscription | None:
    """Returns which queues the settings name; None: they name none.

    Raises:
        InvalidArgument: No queue can have such a name.
    """
    return subscribe(settings.queue, settings.pattern) if settings.queue or settings.pattern else None


async def existing(opened: OpenedGroup, settings: WorkSettings, numbers: Collection[int] = ()) -> list[Partition]:
    """Returns the chosen partitions of the service: of the queues that are named, else of those with an offset.

    Raises:
        InvalidArgument: A queue that is named does not exist, or nothing is chosen.
    """
    wanted = subscription(settings)
    if wanted is not None:
        counts = await discover(opened.client, wanted)
        missing = wanted.names - counts.keys()
        if missing:
            raise InvalidArgument(f"there is no queue {', '.join(sorted(missing))}")
        found = [
            Partition(Queue(opened.service, opened.client.application, name), number)
            for name, count in counts.items()
            for number in range(1, count + 1)
        ]
    else:
        found = [
            partition
            for partition in await opened.coordinator.offsets()
            if partition.queue[:2] == (opened.service, opened.client.application)
        ]
    partitions = chosen(found, settings, numbers)
    if not partitions:
        raise InvalidArgument("no partition is chosen: name queues with --queue or --pattern")
    return partitions


async def deleted(opened: OpenedGroup, partitions: Iterable[Partition], former: str | None = None) -> set[Queue]:
    """Returns the queues of partitions that the service says do not exist; with a former name all that have it.

    Raises:
        InvalidArgument: It is not a former name, but the service's own.
        ClientError: The service cannot say.
    """
    queues = {partition.queue for partition in partitions}
    if former is not None:
        if former == opened.service:
            raise InvalidArgument(f"{former} is the present store of the service")
        return {queue for queue in queues if queue.service == former}
    ours = {queue.name: queue for queue in queues if queue[:2] == (opened.service, opened.client.application)}
    there = await discover(opened.client, subscribe(ours, []))
    return {queue for name, queue in ours.items() if name not in there}


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
        return _EPOCH + timedelta(microseconds=int(Decimal(time_parsing.point(text, now)) * 1_000_000))
    except InvalidOperation as error:
        raise InvalidArgument(f"{text!r} is a cursor, not a time") from error
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(str(error)) from error
