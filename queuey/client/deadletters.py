"""Dead letters over HTTP: stores them with a reason, lists them, and sends them back.

For their format see :mod:`queuey.model.deadletters`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import blake2b
from time import monotonic
from typing import Any

import msgspec

from queuey.api.queues import QueueInfo
from queuey.client._async.client import AsyncClient
from queuey.client.calls.call import MessageLocation
from queuey.client.calls.send_calls import Outgoing
from queuey.client.errors import (
    ApiError,
    ClientError,
    InvalidRequest,
    MessageNotFound,
    NotAllowed,
    QueueExists,
    QueueNotFound,
)
from queuey.client.results import Message, Queue
from queuey.model.deadletters import (
    HEADER_MODES,
    SUFFIX,
    TTL,
    Attempt,
    Cause,
    DeadLetter,
    DeadLetterFilter,
    HeaderMode,
    Redriven,
    UnsentDeadLetter,
    decode_dead_letter,
    holds_dead,
    is_header_safe,
    list_dead_letter_queues,
    make_headers,
    matches_patterns,
    queue_for,
)

__all__ = [
    "SUFFIX",
    "TTL",
    "Attempt",
    "Cause",
    "DeadLetter",
    "DeadLetterFilter",
    "Redriven",
    "UnsentDeadLetter",
    "bury",
    "dead_letters",
    "dead_queues",
    "headers_for",
    "holds_dead",
    "matches_patterns",
    "queue_for",
    "read_dead_letter",
    "redrive",
]

Target = Queue | QueueInfo
MAX_STORE_WAIT = 20.0
"""Max seconds to wait for dead letters that are being stored: a process that starts stores them within 15."""
_STORE_WAIT_INTERVAL = 0.5
_PAGE_SIZE = 200
_REFUSED_HEADERS = frozenset({400, 413, 431})
_SPECIAL = re.compile(r"[*?\[]")


# -- publishing


async def bury(
    client: AsyncClient, queue: str, message: Message, cause: Cause, *, dead_queue: str | None = None, ttl: int = TTL
) -> str:
    """Stores a copy of a message as a dead letter. Idempotent. The message itself is not changed.

    If the dead-letter queue does not exist, it is created with as many partitions as the queue. In ``<queue>.dead``,
    the dead letter has the message's id; in any other queue it gets a new id and overwrites nothing. If the service
    refuses the headers, they are packed into one, or left out.

    Returns:
        The queue of the dead letter.

    Raises:
        ClientError: The dead letter was not stored. See ``temporary`` for whether a retry may succeed.
    """
    target = queue_for(queue, dead_queue)
    plain = isinstance(message.body, str | bytes)
    text = message.body if plain else json.dumps(message.body)
    body = await _read_body(client, queue, message, text, is_json=not plain)
    kind = message.content_type if is_header_safe(message.content_type) else None
    for way in HEADER_MODES:
        headers = headers_for(queue, message, cause, way)
        try:
            await _store(client, queue, target, message, body | {"headers": headers, "content_type": kind, "ttl": ttl})
        except ApiError as error:
            if error.status not in _REFUSED_HEADERS or way == HEADER_MODES[-1]:
                raise
        else:
            break
    return target


def headers_for(queue: str, message: Message, cause: Cause, way: HeaderMode = "as they are") -> dict[str, str]:
    origin = queue, message.partition, message.id
    return make_headers(origin, message.content_type, message.headers, cause, way, message.key)


async def _read_body(
    client: AsyncClient, queue: str, location: MessageLocation, text: str | bytes, *, is_json: bool
) -> dict[str, Any]:
    """Returns a message's body as a send option.

    With ``is_json`` reads the original JSON, and uses ``text`` as JSON if the message is gone. Otherwise returns
    ``text`` without a request.
    """
    if not is_json:
        return {"body": text}
    with suppress(MessageNotFound):
        text = (await client.get_raw(queue, location)).body
    return {"json": msgspec.Raw(text if isinstance(text, bytes) else text.encode())}


async def _store(client: AsyncClient, queue: str, target: str, message: Message, dead: dict[str, Any]) -> None:
    """Stores a dead letter, given as send options. Creates its queue or adds partitions to it if needed.

    In ``<queue>.dead``, writes it at the message's id. In another queue, or without the right to overwrite, posts it.
    """
    own = target == queue_for(queue)
    for last in (False, False, True):
        try:
            posted = Outgoing(**dead, partition=message.partition)
            await (client.put(target, message, **dead) if own else _post(client, target, posted))
        except QueueNotFound:
            if last:
                raise
            await _create_dead_queue(client, queue, target, message.partition)
        except NotAllowed:
            if not own:
                raise
            own = False
        except InvalidRequest as error:
            if last or not own or "partition" not in error.fields:
                raise
            try:
                await client.update_queue(
                    target,
                    partitions=max(message.partition, (await _read_partitions_and_consistency(client, queue))[0]),
                )
            except NotAllowed:
                own = False
        else:
            return


async def _post(client: AsyncClient, target: str, outgoing: Outgoing) -> None:
    """Posts a dead letter with an idempotency key made from its content. Uses any partition if its own is missing."""
    key = f"dead-{blake2b(msgspec.msgpack.encode(outgoing), digest_size=16).hexdigest()}"
    try:
        await client.send_many(target, [outgoing], idempotency_key=key)
    except InvalidRequest as error:
        if outgoing.partition is None or "0.partition" not in error.fields:
            raise
        await _post(client, target, msgspec.structs.replace(outgoing, partition=None))


async def _create_dead_queue(client: AsyncClient, queue: str, target: str, partition: int) -> None:
    partitions, consistency = await _read_partitions_and_consistency(client, queue)
    try:
        await client.create_queue(target, partitions=max(partition, partitions), consistency=consistency)
    except QueueExists:
        return  # Another program created the queue first, with other fields.


async def _read_partitions_and_consistency(client: AsyncClient, queue: str) -> tuple[int, str | None]:
    """Returns both properties of a queue, or one partition and no consistency if it does not exist."""
    info = await _find_info(client, queue)
    return (info.partitions, info.consistency) if info else (1, None)


# -- reading


def read_dead_letter(message: Message, stored_in: str) -> DeadLetter | None:
    plain = isinstance(message.body, str | bytes)
    body = message.body if plain else json.dumps(message.body)
    location = stored_in, message.partition, message.id
    kind = message.content_type
    return decode_dead_letter(message.headers, body, lies=location, content_type=kind, json=not plain, key=message.key)


async def dead_queues(client: AsyncClient, wanted: DeadLetterFilter) -> list[str]:
    """Returns the existing dead-letter queues that a filter selects, sorted.

    If the filter names a ``dead_queue``, only that one counts.
    Patterns find only queues that the credential may list (:meth:`queuey.client.QueuePage.lists_all`).

    Raises:
        ClientError: The service refuses the call or is unavailable.
    """
    if wanted.dead_queue:
        existing, candidates = set[str](), {wanted.dead_queue}
    else:
        existing, candidates = await _find_matching(client, wanted.patterns)
        for name in wanted.queues:
            candidates |= list_dead_letter_queues(name, await _read_dead_letter_field(client, name))
    return sorted(existing | {name for name in candidates - existing if await _find_info(client, name)})


async def _read_dead_letter_field(client: AsyncClient, queue: str) -> str:
    """Returns a queue's ``dead_letter``, or an empty text if the queue does not exist or the caller may not see it."""
    try:
        info = await _find_info(client, queue)
    except NotAllowed:
        return ""
    return info.dead_letter if info else ""


async def _find_matching(client: AsyncClient, patterns: Iterable[str]) -> tuple[set[str], set[str]]:
    """Returns the dead-letter queues that match a pattern, and the ``dead_letter`` of all queues that match one."""
    existing, configured = set(), set()
    for pattern in patterns:
        prefix = _SPECIAL.split(pattern, 1)[0]
        async for queue in client.queues(start=prefix or None):
            if not queue.name.startswith(prefix):
                break
            if fnmatchcase(queue.name, queue_for(pattern)):
                existing.add(queue.name)
            if queue.dead_letter and fnmatchcase(queue.name, pattern):
                configured.add(queue.dead_letter)
    return existing, configured


async def dead_letters(client: AsyncClient, wanted: DeadLetterFilter) -> AsyncIterator[DeadLetter]:
    """Iterates over dead letters by queue, then by partition, then in the order of their ids.

    Raises:
        ClientError: The service refuses the call or is unavailable.

    Example:
        >>> async for one in dead_letters(client, DeadLetterFilter(queues=("reports",), error="ValueError")):
        ...     print(one.partition, one.id, one.cause.text)
    """
    async for page in _read_pages(client, wanted, await dead_queues(client, wanted)):
        for dead_letter in page:
            yield dead_letter


async def redrive(
    client: AsyncClient, wanted: DeadLetterFilter, *, dry_run: bool = False, ttl: int | None = None
) -> Redriven:
    """Sends dead letters back to the end of their original partitions, and removes them from their queue.

    Each is sent once; after an interruption, repeat the call within a day. See :meth:`~queuey.client.Client.redrive`.
    Waits first while the service is storing dead letters, for ``MAX_STORE_WAIT`` seconds; ``left`` counts the others.

    Args:
        client: A client of the application.
        wanted: Selects the dead letters.
        dry_run: Only report what would be done.
        ttl: TTL of the messages in seconds. By default the queue decides.

    Raises:
        ClientError: The service refuses the call or is unavailable. A note on the error counts what was sent before.

    Example:
        >>> await redrive(client, DeadLetterFilter(queues=("reports",)), dry_run=True)
        Redriven(sent={'reports': 2}, already_sent=0, left={}, samples=(), error=None)
    """
    names = await dead_queues(client, wanted)
    sources = {*wanted.queues, *(name.removesuffix(SUFFIX) for name in names if holds_dead(name))}
    total = Redriven(left=await _wait_until_stored(client, sources, 0 if dry_run else MAX_STORE_WAIT))
    trusted = wanted.dead_queue is not None
    try:
        async for page in _read_pages(client, wanted, names):
            places = [(letter.stored_partition, letter.stored_id) for letter in page]
            total += await client.redrive(page[0].lies_in, places, ttl=ttl, trusted=trusted, dry_run=dry_run)
            if total.error:
                break
    except ClientError as error:
        error.add_note(f"at least {sum(total.sent.values())} dead letters were sent back before")
        raise
    return total


async def _find_info(client: AsyncClient, queue: str) -> QueueInfo | None:
    try:
        return await client.info(queue)
    except QueueNotFound:
        return None


async def _wait_until_stored(client: AsyncClient, queues: Iterable[str], seconds: float) -> dict[str, int]:
    """Waits until all dead letters of these queues are stored. Returns how many are not, by reason."""
    until = monotonic() + seconds
    while True:
        counts: dict[str, int] = {}
        for queue in queues:
            try:
                if count := (await client.job_queue(queue).backlog(1)).publishing:
                    counts[f"queue {queue} is still storing dead letters. Try again"] = count
            except ApiError as error:  # The queue is gone, or the caller may not know.
                if error.temporary:
                    raise
        if not counts or monotonic() >= until:
            return counts
        await asyncio.sleep(_STORE_WAIT_INTERVAL)


async def _read_pages(
    client: AsyncClient, selection: DeadLetterFilter, names: Iterable[str]
) -> AsyncIterator[list[DeadLetter]]:
    """Yields lists of the selected dead letters, at most ``limit`` of each queue. Ignores the read delay."""
    partitions: Any = list(selection.partitions) or "*"
    for lies_in in names:
        remaining = selection.limit
        async for page in client.read_pages(lies_in, limit=_PAGE_SIZE, partitions=partitions, delay=False):
            letters = (read_dead_letter(message, lies_in) for message in page.messages)
            selected = [letter for letter in letters if letter is not None and selection.matches_letter(letter)][
                :remaining
            ]
            if selected:
                yield selected
            remaining = None if remaining is None else remaining - len(selected)
            if remaining == 0:
                break
