"""Which partitions a command is about, and where their offsets are to go."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from qdo.consumer.rebalance.queue_discovery import discover
from qdo.errors import InvalidArgument
from qdo.partitions import Partition, Queue, Subscription, subscribe
from queuey import time_parsing
from queuey.client import EARLIEST, ClientError, id_before, order_of, time_of
from queuey.client.lookup import look_up
from queuey.terminal import output
from queuey.terminal.texts import did_you_mean

if TYPE_CHECKING:
    from qdo.cli.opening import OpenedGroup
    from qdo.cli.settings import WorkSettings
    from queuey.client import AsyncClient

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_NAMES = 1000
"""Max names of queues that a misspelled name is compared with."""


def chosen(partitions: Iterable[Partition], settings: WorkSettings, numbers: Collection[int] = ()) -> list[Partition]:
    """Returns the partitions, sorted, of the queues in the settings (of all if they name none) with these numbers."""
    wanted = subscription(settings)
    return sorted(
        partition
        for partition in partitions
        if (not numbers or partition.number in numbers) and (wanted is None or wanted.wants(partition.queue.name))
    )


def subscription(settings: WorkSettings) -> Subscription | None:
    """Returns the queues in the settings; None: they name none."""
    return subscribe(settings.queue, settings.pattern) if settings.queue or settings.pattern else None


async def existing(opened: OpenedGroup, settings: WorkSettings, numbers: Collection[int] = ()) -> list[Partition]:
    """Returns the chosen partitions of the service: of the queues that are named, else of those with an offset.

    Raises:
        InvalidArgument: A queue that is named does not exist, or nothing is chosen.
    """
    wanted = subscription(settings)
    if wanted is not None:
        looked = await look_up(opened.client, wanted.names)
        if looked.absent:
            raise InvalidArgument(f"there is no queue {', '.join(sorted(looked.absent))}")
        if looked.hidden:
            raise InvalidArgument(f"{hidden(looked.hidden)}. Use a key that may see them")
        counts = {name: queue.partitions for name, queue in looked.found.items()}
        if wanted.patterns:
            counts |= await discover(opened.client, subscribe((), wanted.patterns))
            await note_unlisted(opened.client, wanted.literal_prefixes())
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


async def deleted(
    opened: OpenedGroup, partitions: Iterable[Partition], former: str | None = None
) -> tuple[set[Queue], frozenset[str]]:
    """Returns the queues of partitions that do not exist, or with a former store all of that store's.

    Also returns the names of queues that the credential may not see: nobody knows whether they exist.

    Raises:
        InvalidArgument: The former store is the present one.
    """
    queues = {partition.queue for partition in partitions}
    if former is not None:
        if former == opened.service:
            raise InvalidArgument(f"{former} is the present store of the service")
        return {queue for queue in queues if queue.service == former}, frozenset()
    ours = {queue.name: queue for queue in queues if queue[:2] == (opened.service, opened.client.application)}
    looked = await look_up(opened.client, ours)
    return {ours[name] for name in looked.absent}, looked.hidden


def hidden(names: Iterable[str]) -> str:
    """Returns a clause about queues for which the service answered 403."""
    return f"the credential may not see {', '.join(sorted(names))}"


async def similar(client: AsyncClient, missing: Collection[str]) -> str:
    """Returns the end of a sentence about queues that do not exist: a hint at similar names, or a full stop."""
    names: tuple[str, ...] = ()
    with suppress(ClientError):
        names = (await client.name_page(limit=MAX_NAMES)).names
    return did_you_mean(missing, names)


async def note_unlisted(client: AsyncClient, prefixes: Iterable[str]) -> None:
    """Prints a note if the credential does not list all queues whose names begin with one of the prefixes."""
    page = await client.queue_page(limit=1)
    if not all(map(page.lists_all, prefixes)):
        output.note(
            f"qdo: The key lists only queues that match {', '.join(page.patterns or ())}. Others that match --pattern "
            "are left out. Use a key for all queues, or name them with --queue."
        )


def id_of(text: str, now: float) -> str:
    """Returns the id up to which everything counts as processed: the one given, or the last before an instant.

    Args:
        text: An id, or an instant in a form of ``queuey read --since``.
        now: Seconds since 1970, for relative instants.

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
    """Returns an instant, cut to microseconds, so that a message of that very instant is not before it."""
    try:
        return _EPOCH + timedelta(microseconds=int(Decimal(time_parsing.point(text, now)) * 1_000_000))
    except InvalidOperation as error:
        raise InvalidArgument(f"{text!r} is a cursor, not a time") from error
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(str(error)) from error


def point(identifier: str | None, _: object = None) -> str:
    """Returns an id with its time."""
    if identifier in {None, EARLIEST}:
        return "none" if identifier is None else "earliest"
    return f"{identifier} ({time_parsing.iso(time_of(identifier).timestamp())})"
