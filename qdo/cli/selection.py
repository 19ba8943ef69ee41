"""Selects the partitions of a command, and parses the positions for their offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from qdo.errors import InvalidArgument
from qdo.group.discovery import discover_queues
from qdo.partitions import Partition, Queue, Subscription, subscribe
from queuey.client import EARLIEST, ClientError, id_before, order_of, time_of
from queuey.client.lookup import find_queues
from queuey.model import time_parsing
from queuey.model.texts import did_you_mean
from queuey.terminal import output

if TYPE_CHECKING:
    from qdo.cli.opening import OpenedGroup
    from qdo.cli.settings import WorkSettings
    from queuey.client import AsyncClient

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_NAMES = 1000
"""Max queue names that a misspelled name is compared with."""


def select_partitions(
    partitions: Iterable[Partition], settings: WorkSettings, numbers: Collection[int] = ()
) -> list[Partition]:
    """Returns the partitions that match ``queue`` and ``pattern`` of the settings and these numbers, sorted.

    Without ``queue`` and ``pattern`` all queues match, without numbers all partitions.
    """
    queues = make_subscription(settings)
    return sorted(
        partition
        for partition in partitions
        if (not numbers or partition.number in numbers)
        and (queues is None or queues.matches_name(partition.queue.name))
    )


def make_subscription(settings: WorkSettings) -> Subscription | None:
    return subscribe(settings.queue, settings.pattern) if settings.queue or settings.pattern else None


async def find_selected(opened: OpenedGroup, settings: WorkSettings, numbers: Collection[int] = ()) -> list[Partition]:
    """Returns the selected partitions: of the queues in the settings, or without queues all that have an offset.

    Only partitions of the client's store and application are selected. Prints a note if a pattern may have matches that
    the credential does not list.

    Raises:
        InvalidArgument: A named queue does not exist or is hidden, or the selection is empty.
    """
    selection = make_subscription(settings)
    if selection is not None:
        lookup = await find_queues(opened.client, selection.names)
        if lookup.absent:
            raise InvalidArgument(f"there is no queue {', '.join(sorted(lookup.absent))}")
        if lookup.hidden:
            raise InvalidArgument(f"{describe_hidden_queues(lookup.hidden)}. Use a key that may see them")
        counts = {name: queue.partitions for name, queue in lookup.found.items()}
        if selection.patterns:
            counts |= await discover_queues(opened.client, subscribe((), selection.patterns))
            await print_note_if_queues_are_unlisted(opened.client, selection.literal_prefixes())
        candidates = [
            Partition(Queue(opened.service, opened.client.application, name), number)
            for name, count in counts.items()
            for number in range(1, count + 1)
        ]
    else:
        candidates = [
            partition
            for partition in await opened.coordinator.offsets()
            if partition.queue[:2] == (opened.service, opened.client.application)
        ]
    partitions = select_partitions(candidates, settings, numbers)
    if not partitions:
        raise InvalidArgument("no partition is selected: name queues with --queue or --pattern")
    return partitions


async def find_deleted_queues(
    opened: OpenedGroup, partitions: Iterable[Partition], former: str | None = None
) -> tuple[set[Queue], frozenset[str]]:
    """Returns the queues of this store and application that do not exist, or all queues of a former store.

    Also returns the names of queues that the credential may not see: these may exist or not.

    Raises:
        InvalidArgument: ``former`` is the current store.
    """
    queues = {partition.queue for partition in partitions}
    if former is not None:
        if former == opened.service:
            raise InvalidArgument(f"{former} is the current store of the service: use the id of a former store")
        return {queue for queue in queues if queue.service == former}, frozenset()
    ours = {queue.name: queue for queue in queues if queue[:2] == (opened.service, opened.client.application)}
    lookup = await find_queues(opened.client, ours)
    return {ours[name] for name in lookup.absent}, lookup.hidden


def describe_hidden_queues(names: Iterable[str]) -> str:
    return f"the credential may not see {', '.join(sorted(names))}"


async def suggest_similar(client: AsyncClient, missing: Collection[str]) -> str:
    names: tuple[str, ...] = ()
    with suppress(ClientError):
        names = (await client.name_page(limit=MAX_NAMES)).names
    return did_you_mean(missing, names)


async def print_note_if_queues_are_unlisted(client: AsyncClient, prefixes: Iterable[str]) -> None:
    page = await client.queue_page(limit=1)
    if not all(map(page.lists_all, prefixes)):
        output.print_note(
            f"qdo: The key lists only queues that match {', '.join(page.patterns or ())}. Others that match --pattern "
            "are left out. Use a key for all queues, or name them with --queue."
        )


def parse_position(text: str, now: float) -> str:
    """Returns the id up to which messages count as processed: the id in the text, or the last one before an instant.

    Args:
        text: An id, or an instant in a format of ``queuey read --since``.
        now: Seconds since 1970, for relative instants.

    Raises:
        InvalidArgument: The text is neither an id nor an instant.
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
        return id_before(parse_instant(text, now))
    except ValueError as error:
        raise InvalidArgument(str(error)) from error


def parse_instant(text: str, now: float) -> datetime:
    """Returns an instant, truncated to microseconds, so that a message of that instant is not before it."""
    try:
        return _EPOCH + timedelta(microseconds=int(Decimal(time_parsing.parse_point(text, now)) * 1_000_000))
    except InvalidOperation as error:
        raise InvalidArgument(f"{text!r} is a cursor, not a time") from error
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(str(error)) from error


def format_point(identifier: str | None, _: object = None) -> str:
    if identifier in {None, EARLIEST}:
        return "none" if identifier is None else "earliest"
    return f"{identifier} ({time_parsing.format_instant(time_of(identifier).timestamp())})"
