"""Dead letters: messages that could not be handled, kept with the reason, and sent back when it is gone.

Their format is in :mod:`queuey.client.deadletters`; here it is put to use over HTTP.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

import msgspec

from qdo.errors import InvalidArgument
from queuey.client import (
    ApiError,
    AsyncClient,
    ClientError,
    InvalidRequest,
    Message,
    MessageNotFound,
    Outgoing,
    QueueExists,
    QueueNotFound,
)
from queuey.client import deadletters as letters_
from queuey.client.deadletters import (
    SUFFIX,
    TTL,
    WAYS,
    Cause,
    DeadLetter,
    DeadLetterChoice,
    Origin,
    Way,
    holds_dead,
    queue_for,
)

__all__ = [
    "SUFFIX",
    "TTL",
    "Cause",
    "DeadLetter",
    "Filter",
    "Redriven",
    "bury",
    "dead_letters",
    "headers_for",
    "holds_dead",
    "queue_for",
    "read_dead_letter",
    "redrive",
]

_PAGE = 200
_REFUSED_HEADERS = frozenset({400, 413, 431})


class Filter(TypedDict, total=False):
    """Which dead letters are meant; each that is given must hold.

    Attributes:
        partitions: In which partitions they lie; None: all.
        since: Given up then or later: seconds since 1970, or an aware datetime.
        until: Given up then or before.
        error: Class of the error, bare or with its module; a shell pattern.
        limit: At most so many, those of the lowest ids in each partition first; None: all.
        dead_queue: Where they lie; None: the queue's own.
    """

    partitions: Iterable[int] | None
    since: float | datetime | None
    until: float | datetime | None
    error: str | None
    limit: int | None
    dead_queue: str | None


class Redriven(msgspec.Struct, frozen=True):
    """What a redrive did, or would do.

    Attributes:
        sent: How many went back; with ``dry_run``: would.
        left: Those that cannot go back, with the reason.
    """

    sent: int
    left: tuple[tuple[DeadLetter, str], ...] = ()


# -- publishing


async def bury(
    client: AsyncClient, queue: str, message: Message, cause: Cause, *, dead_queue: str | None = None, ttl: int = TTL
) -> str:
    """Stores a message as a dead letter; doing so again overwrites it. The message itself stays where it is.

    The queue of dead letters is created, with as many partitions as the queue has, if it is not there.

    Returns:
        The queue in which it lies.

    Raises:
        ClientError: It may not be stored; ``temporary`` says whether trying again is of use.
    """
    target = queue_for(queue, dead_queue)
    body = message.body if isinstance(message.body, str | bytes) else await _json_text(client, queue, message)
    for way in WAYS:
        headers = headers_for(queue, message, cause, way)
        kind = message.content_type if letters_.is_carried(message.content_type) else None
        try:
            await _put(client, queue, target, message, body, headers=headers, content_type=kind, ttl=ttl)
        except ApiError as error:
            if error.status not in _REFUSED_HEADERS or way == WAYS[-1]:
                raise
        else:
            break
    return target


def headers_for(queue: str, message: Message, cause: Cause, way: Way = "as they are") -> dict[str, str]:
    """Returns the headers of the dead letter that a message of this queue becomes."""
    origin = Origin(
        queue=queue,
        partition=message.partition,
        id=message.id,
        json=not isinstance(message.body, str | bytes),
        content_type=message.content_type,
        headers=message.headers,
    )
    return letters_.headers_of(origin, cause, way)


async def _json_text(client: AsyncClient, queue: str, message: Message) -> str:
    """Returns the JSON value of a message as it was written, or as we would write it if the message is gone."""
    try:
        raw = await client.get_raw(queue, message)
    except MessageNotFound:
        return json.dumps(message.body)
    return raw.body.decode()


async def _put(
    client: AsyncClient,
    queue: str,
    target: str,
    message: Message,
    body: str | bytes,
    *,
    headers: Mapping[str, str],
    content_type: str | None,
    ttl: int,
) -> None:
    """Stores the dead letter; makes room for it, once, where there is none."""
    for last in (False, True):
        try:
            await client.put(target, message, body, headers=headers, content_type=content_type, ttl=ttl)
        except QueueNotFound:
            if last:
                raise
            await _create(client, queue, target, message.partition)
        except InvalidRequest as error:
            if last or "partition" not in error.fields:
                raise
            await client.update_queue(target, partitions=max(message.partition, (await _shape(client, queue))[0]))
        else:
            return


async def _create(client: AsyncClient, queue: str, target: str, partition: int) -> None:
    partitions, consistency = await _shape(client, queue)
    try:
        await client.create_queue(target, partitions=max(partition, partitions), consistency=consistency)
    except QueueExists:
        return  # somebody else was quicker, with a queue of another shape


async def _shape(client: AsyncClient, queue: str) -> tuple[int, str | None]:
    """Returns the number of partitions and the consistency of a queue."""
    try:
        info = await client.info(queue)
    except QueueNotFound:
        return 1, None
    return info.partitions, info.consistency


# -- reading


def read_dead_letter(message: Message, lies_in: str) -> DeadLetter | None:
    """Reads a message of a queue of dead letters; None: it is none."""
    plain = isinstance(message.body, str | bytes)
    body = message.body if plain else json.dumps(message.body)
    return letters_.dead_letter_from(
        message.headers, body, lies_in=lies_in, content_type=message.content_type, json=not plain
    )


async def dead_letters(client: AsyncClient, queue: str, **wanted: Unpack[Filter]) -> AsyncIterator[DeadLetter]:
    """Iterates over a queue's dead letters, partition after partition, in the order in which they were sent first.

    Raises:
        InvalidArgument: A filter makes no sense.
        QueueNotFound: The queue has no dead letters, and never had.
    """
    async for page in _pages(client, queue, wanted):
        for each in page:
            yield each


async def redrive(
    client: AsyncClient, queue: str, *, dry_run: bool = False, ttl: int | None = None, **wanted: Unpack[Filter]
) -> Redriven:
    """Sends dead letters back to the end of the partitions that they came from, and removes them here.

    At least once: each is sent, then removed, so that one whose removal failed is sent again next time; so is one
    whose sending ended in doubt.

    Args:
        client: Of the application.
        queue: The queue whose dead letters they are.
        dry_run: Change nothing.
        ttl: Seconds that they are to live; None: the queue's default.
        **wanted: Which of them.

    Raises:
        InvalidArgument: A filter makes no sense.
        QueueNotFound: The queue has no dead letters, and never had.
        ClientError: What was not yet sent stays where it is; a note says how many were.
    """
    sent = 0
    left: list[tuple[DeadLetter, str]] = []
    shapes: dict[str, int | None] = {}
    try:
        async for page in _pages(client, queue, wanted):
            for origin, mine in _by_origin(page).items():
                if origin not in shapes:
                    shapes[origin] = await _partitions(client, origin)
                able = [each for each in mine if each.partition <= (shapes[origin] or 0)]
                reason = "is gone" if shapes[origin] is None else f"has only {shapes[origin]} partitions"
                left += [(each, f"queue {origin} {reason}") for each in mine if each.partition > (shapes[origin] or 0)]
                sent += len(able) if dry_run else await _send_back(client, origin, able, ttl)
    except ClientError as error:
        error.add_note(f"at least {sent + len(error.receipts)} dead letters were sent back before")
        raise
    return Redriven(sent, tuple(left))


async def _send_back(client: AsyncClient, queue: str, chosen: list[DeadLetter], ttl: int | None) -> int:
    """Sends dead letters to their queue and removes those that were stored; returns how many."""
    stored = 0
    try:
        stored = len(await client.send_many(queue, [_outgoing(each, ttl) for each in chosen]))
    except ClientError as error:
        stored = len(error.receipts)
        raise
    finally:
        gone = chosen[:stored]
        if gone:
            await client.delete(gone[0].lies_in, [(each.partition, each.id) for each in gone])
    return stored


def _outgoing(one: DeadLetter, ttl: int | None) -> Outgoing:
    body: dict[str, Any] = {"json": msgspec.Raw(_bytes(one.body))} if one.json else {"body": one.body}
    return Outgoing(**body, partition=one.partition, headers=one.headers, content_type=one.content_type, ttl=ttl)


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body


def _by_origin(page: Iterable[DeadLetter]) -> dict[str, list[DeadLetter]]:
    found: dict[str, list[DeadLetter]] = defaultdict(list)
    for each in page:
        found[each.queue].append(each)
    return found


async def _partitions(client: AsyncClient, queue: str) -> int | None:
    try:
        return (await client.info(queue)).partitions
    except QueueNotFound:
        return None


async def _pages(client: AsyncClient, queue: str, wanted: Filter) -> AsyncIterator[list[DeadLetter]]:
    """Yields the dead letters that are wanted, as they come."""
    lies_in = queue_for(queue, wanted.get("dead_queue"))
    since, until = _seconds(wanted.get("since")), _seconds(wanted.get("until"))
    choice = DeadLetterChoice(since=since, until=until, error=wanted.get("error"))
    limit, partitions = wanted.get("limit"), wanted.get("partitions")
    if limit is not None and limit < 1:
        raise InvalidArgument("a limit is at least 1")
    asked: Any = "*" if partitions is None else list(partitions)
    async for page in client.read_pages(lies_in, limit=_PAGE, partitions=asked, delay=False):
        found = [each for message in page.messages if (each := read_dead_letter(message, lies_in)) is not None]
        found = [each for each in found if each.queue == queue and choice.takes(each.cause)][:limit]
        yield found
        if limit is not None:
            limit -= len(found)
            if not limit:
                return


def _seconds(instant: float | datetime | None) -> float | None:
    if not isinstance(instant, datetime):
        return instant
    if instant.tzinfo is None:
        raise InvalidArgument("a datetime without a time zone names no instant")
    return instant.timestamp()
