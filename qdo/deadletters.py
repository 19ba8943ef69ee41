"""Dead letters: messages that could not be handled, kept with the reason, and sent back when it is gone.

A dead letter lies in the queue ``<queue>.dead``, in the partition and under the id of the message that it was, so that
publishing it twice is the same as once. Its body and content type are the message's, its headers too, and beside them:

========================  ===========================================================================
``queuey-dead-queue``     the queue that it came from
``queuey-dead-partition`` the partition
``queuey-dead-id``        its id
``queuey-dead-attempts``  how often it was tried
``queuey-dead-error``     class of the last error
``queuey-dead-text``      what that error said, cut; absent if it said nothing
``queuey-dead-at``        when it was given up, ISO 8601 in UTC
``queuey-dead-json``      ``1``: the body is the text of what was a JSON value
``queuey-dead-type``      the content type, where HTTP cannot carry it as it is
``queuey-dead-headers``   a JSON object of headers that could not be kept as they are
``queuey-dead-lost``      so many headers had no room at all
========================  ===========================================================================

Text in these headers is printable ASCII; ``%`` and everything else is percent-encoded as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, TypedDict, Unpack
from urllib.parse import quote, unquote

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

SUFFIX = ".dead"
TTL = 2_592_000
"""Seconds (30 days)."""
_PREFIX = "queuey-dead-"
_PAGE = 200
_TEXT = 500
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^`|~-]+")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_REFUSED_HEADERS = frozenset({400, 413, 431})
_WAYS = ("as they are", "packed", "left out")
"""What becomes of the message's own headers, until the server takes them: it keeps only so many, of so many bytes."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a message was given up.

    Attributes:
        attempts: How often it was tried.
        error: Class of the last error.
        text: What that error said.
        at: Seconds since 1970.
    """

    attempts: int
    error: str
    text: str = ""
    at: float


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a queue of dead letters, as what it was.

    Attributes:
        lies_in: The queue of dead letters.
        queue: Where it came from.
        partition: Where it came from, and the partition in which it lies.
        id: Its id, there and here.
        body: As it was: text, or bytes if it is none.
        json: The body is the text of what was a JSON value.
        content_type: As it was.
        headers: As they were.
        lost: How many headers could not be kept.
        cause: Why it lies here.
    """

    lies_in: str
    queue: str
    partition: int
    id: str
    body: str | bytes
    json: bool
    content_type: str | None
    headers: Mapping[str, str]
    lost: int
    cause: Cause


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


def queue_for(queue: str, dead_queue: str | None = None) -> str:
    """Returns the queue in which a queue's dead letters lie."""
    return dead_queue or queue + SUFFIX


def holds_dead(queue: str, dead_queue: str | None = None) -> bool:
    """Tells whether a queue is one of dead letters."""
    return queue == dead_queue or queue.endswith(SUFFIX)


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
    for way in _WAYS:
        headers = headers_for(queue, message, cause, way)
        kind = message.content_type if _carried(message.content_type) else None
        try:
            await _put(client, queue, target, message, body, headers=headers, content_type=kind, ttl=ttl)
        except ApiError as error:
            if error.status not in _REFUSED_HEADERS or way == _WAYS[-1]:
                raise
        else:
            break
    return target


def headers_for(queue: str, message: Message, cause: Cause, way: str = _WAYS[0]) -> dict[str, str]:
    """Returns the headers of a dead letter.

    Args:
        queue: Where the message came from.
        message: The message.
        cause: Why it was given up.
        way: What becomes of its own headers: ``as they are`` (those that HTTP can carry), ``packed`` into one, or
            ``left out``.
    """
    plain = {name: text for name, text in message.headers.items() if way == _WAYS[0] and _fits(name, text)}
    packed = {name: text for name, text in message.headers.items() if name not in plain}
    own = {
        "queue": _ascii(queue),
        "partition": str(message.partition),
        "id": message.id,
        "attempts": str(cause.attempts),
        "error": _ascii(cause.error),
        "text": _ascii(cause.text[:_TEXT]),
        "at": datetime.fromtimestamp(cause.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "json": "" if isinstance(message.body, str | bytes) else "1",
        "type": "" if _carried(message.content_type) else _ascii(message.content_type or ""),
        "headers": json.dumps(packed) if packed and way != _WAYS[2] else "",
        "lost": str(len(packed)) if packed and way == _WAYS[2] else "",
    }
    return plain | {_PREFIX + name: text for name, text in own.items() if text}


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


def _fits(name: str, text: str) -> bool:
    """Tells whether a header can travel as it is beside ours."""
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(text) is not None and not name.startswith(_PREFIX)


def _carried(kind: str | None) -> bool:
    return kind is None or _VALUE.fullmatch(kind) is not None


def _ascii(text: str) -> str:
    """Returns text as a header's value; HTTP would drop spaces at its ends."""
    inner = quote(text.encode("utf-8", "backslashreplace"), safe=_PRINTABLE)
    start, end = len(inner) - len(inner.lstrip()), len(inner) - len(inner.rstrip())
    return "%20" * len(inner) if start == len(inner) else "%20" * start + inner.strip() + "%20" * end


# -- reading


def letter(message: Message, lies_in: str) -> DeadLetter | None:
    """Reads a message of a queue of dead letters; None: it is none."""
    said = {name.removeprefix(_PREFIX): text for name, text in message.headers.items() if name.startswith(_PREFIX)}
    plain = isinstance(message.body, str | bytes)
    try:
        packed = msgspec.json.decode(said.get("headers", "{}"), type=dict[str, str])
        return DeadLetter(
            lies_in=lies_in,
            queue=unquote(said["queue"]),
            partition=int(said["partition"]),
            id=said["id"],
            body=message.body if plain else json.dumps(message.body),
            json="json" in said or not plain,
            content_type=unquote(said["type"]) if "type" in said else message.content_type,
            headers={name: text for name, text in message.headers.items() if not name.startswith(_PREFIX)} | packed,
            lost=int(said.get("lost", 0)),
            cause=Cause(
                attempts=int(said["attempts"]),
                error=unquote(said["error"]),
                text=unquote(said.get("text", "")),
                at=datetime.fromisoformat(said["at"]).timestamp(),
            ),
        )
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
        return None


async def letters(client: AsyncClient, queue: str, **wanted: Unpack[Filter]) -> AsyncIterator[DeadLetter]:
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
    """Sends letters to their queue and removes those that were stored; returns how many."""
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
    """Yields the letters that are wanted, as they come."""
    lies_in = queue_for(queue, wanted.get("dead_queue"))
    since, until = _seconds(wanted.get("since")), _seconds(wanted.get("until"))
    error, limit, partitions = wanted.get("error"), wanted.get("limit"), wanted.get("partitions")
    if limit is not None and limit < 1:
        raise InvalidArgument("a limit is at least 1")
    asked: Any = "*" if partitions is None else list(partitions)
    async for page in client.read_pages(lies_in, limit=_PAGE, partitions=asked, delay=False):
        found = [each for message in page.messages if (each := letter(message, lies_in)) is not None]
        found = [each for each in found if each.queue == queue and _matches(each.cause, since, until, error)][:limit]
        yield found
        if limit is not None:
            limit -= len(found)
            if not limit:
                return


def _matches(cause: Cause, since: float | None, until: float | None, error: str | None) -> bool:
    if (since is not None and cause.at < since) or (until is not None and cause.at > until):
        return False
    return error is None or fnmatchcase(cause.error, error) or fnmatchcase(cause.error.rpartition(".")[2], error)


def _seconds(instant: float | datetime | None) -> float | None:
    if not isinstance(instant, datetime):
        return instant
    if instant.tzinfo is None:
        raise InvalidArgument("a datetime without a time zone names no instant")
    return instant.timestamp()
