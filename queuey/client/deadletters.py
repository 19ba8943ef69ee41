"""Dead letters over HTTP: stored with the reason, listed, and sent back when it is gone.

Their format is in :mod:`queuey.deadletters`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import blake2b
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
from queuey.client.lookup import look_up
from queuey.client.results import Message, Queue
from queuey.deadletters import (
    SUFFIX,
    TTL,
    WAYS,
    Attempt,
    Cause,
    DeadLetter,
    DeadLetterFilter,
    Redriven,
    UnsentDeadLetter,
    Way,
    by_origin,
    dead_letter_from,
    headers_of,
    holds_dead,
    is_carried,
    left_of,
    matches_patterns,
    place_of,
    queue_for,
    queues_for,
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
_PAGE = 200
_REFUSED_HEADERS = frozenset({400, 413, 431})
_SPECIAL = re.compile(r"[*?\[]")


# -- publishing


async def bury(
    client: AsyncClient, queue: str, message: Message, cause: Cause, *, dead_queue: str | None = None, ttl: int = TTL
) -> str:
    """Stores a message as a dead letter, once if this is repeated. The message itself stays where it is.

    The queue of dead letters is created, with as many partitions as the queue has, if it is not there. In a queue of
    another name than ``<queue>.dead``, a dead letter overwrites nothing and gets an id of its own.

    Returns:
        The queue of the dead letter.

    Raises:
        ClientError: It could not be stored; ``temporary`` says whether trying again is of use.
    """
    target = queue_for(queue, dead_queue)
    plain = isinstance(message.body, str | bytes)
    text = message.body if plain else json.dumps(message.body)
    body = await _body(client, queue, message, text, is_json=not plain)
    kind = message.content_type if is_carried(message.content_type) else None
    for way in WAYS:
        headers = headers_for(queue, message, cause, way)
        try:
            await _store(client, queue, target, message, body | {"headers": headers, "content_type": kind, "ttl": ttl})
        except ApiError as error:
            if error.status not in _REFUSED_HEADERS or way == WAYS[-1]:
                raise
        else:
            break
    return target


def headers_for(queue: str, message: Message, cause: Cause, way: Way = "as they are") -> dict[str, str]:
    """Returns the headers of the dead letter that a message of this queue becomes."""
    place = queue, message.partition, message.id
    return headers_of(place, message.content_type, message.headers, cause, way, message.key)


async def _body(
    client: AsyncClient, queue: str, location: MessageLocation, text: str | bytes, *, is_json: bool
) -> dict[str, Any]:
    """Returns the body of a message as an option of a send: JSON as it was written, or ``text`` if that is gone."""
    if not is_json:
        return {"body": text}
    with suppress(MessageNotFound):
        text = (await client.get_raw(queue, location)).body
    return {"json": msgspec.Raw(text if isinstance(text, bytes) else text.encode())}


async def _store(client: AsyncClient, queue: str, target: str, message: Message, dead: dict[str, Any]) -> None:
    """Stores the dead letter, given as options of a send; if its queue is missing or too small, fixes that once.

    In ``<queue>.dead`` it lies where the message was. Elsewhere, and without the right to overwrite, it is posted.
    """
    own = target == queue_for(queue)
    for last in (False, False, True):
        try:
            posted = Outgoing(**dead, partition=message.partition)
            await (client.put(target, message, **dead) if own else _post(client, target, posted))
        except QueueNotFound:
            if last:
                raise
            await _create(client, queue, target, message.partition)
        except NotAllowed:
            if not own:
                raise
            own = False
        except InvalidRequest as error:
            if last or not own or "partition" not in error.fields:
                raise
            try:
                await client.update_queue(target, partitions=max(message.partition, (await _shape(client, queue))[0]))
            except NotAllowed:
                own = False
        else:
            return


async def _post(client: AsyncClient, target: str, outgoing: Outgoing) -> None:
    """Posts a dead letter under a key of its own; if its partition is not there, into any."""
    key = f"dead-{blake2b(msgspec.msgpack.encode(outgoing), digest_size=16).hexdigest()}"
    try:
        await client.send_many(target, [outgoing], idempotency_key=key)
    except InvalidRequest as error:
        if outgoing.partition is None or "0.partition" not in error.fields:
            raise
        await _post(client, target, msgspec.structs.replace(outgoing, partition=None))


async def _create(client: AsyncClient, queue: str, target: str, partition: int) -> None:
    partitions, consistency = await _shape(client, queue)
    try:
        await client.create_queue(target, partitions=max(partition, partitions), consistency=consistency)
    except QueueExists:
        return  # another program created it first, with other fields


async def _shape(client: AsyncClient, queue: str) -> tuple[int, str | None]:
    """Returns the number of partitions and the consistency of a queue."""
    info = await _info(client, queue)
    return (info.partitions, info.consistency) if info else (1, None)


# -- reading


def read_dead_letter(message: Message, lies_in: str) -> DeadLetter | None:
    """Reads a message of a queue of dead letters; None: it is none."""
    plain = isinstance(message.body, str | bytes)
    body = message.body if plain else json.dumps(message.body)
    lies = lies_in, message.partition, message.id
    kind = message.content_type
    return dead_letter_from(message.headers, body, lies=lies, content_type=kind, json=not plain, key=message.key)


async def dead_queues(client: AsyncClient, wanted: DeadLetterFilter) -> list[str]:
    """Returns the queues that hold the dead letters that are meant, sorted; those that never had any have none.

    Patterns find only queues that the credential lists (:meth:`queuey.client.QueuePage.lists_all`).

    Raises:
        ClientError: The service refuses or is away.
    """
    if wanted.dead_queue:
        found, places = set[str](), {wanted.dead_queue}
    else:
        found, places = await _matching(client, wanted.patterns)
        for name in wanted.queues:
            places |= queues_for(name, await _chosen(client, name))
    return sorted(found | {name for name in places - found if await _info(client, name)})


async def _chosen(client: AsyncClient, queue: str) -> str:
    """Returns the ``dead_letter`` of a queue; nothing if the caller may not know: perhaps of ``….dead`` only."""
    try:
        info = await _info(client, queue)
    except NotAllowed:
        return ""
    return info.dead_letter if info else ""


async def _matching(client: AsyncClient, patterns: Iterable[str]) -> tuple[set[str], set[str]]:
    """Returns the queues of dead letters whose names match, and those that queues which match name as theirs."""
    found, named = set(), set()
    for pattern in patterns:
        begins = _SPECIAL.split(pattern, 1)[0]
        async for queue in client.queues(start=begins or None):
            if not queue.name.startswith(begins):
                break
            if fnmatchcase(queue.name, queue_for(pattern)):
                found.add(queue.name)
            if queue.dead_letter and fnmatchcase(queue.name, pattern):
                named.add(queue.dead_letter)
    return found, named


async def dead_letters(client: AsyncClient, wanted: DeadLetterFilter) -> AsyncIterator[DeadLetter]:
    """Iterates over dead letters, queue after queue and partition after partition, in the order of their ids.

    Raises:
        ClientError: The service refuses or is away.

    Example:
        >>> async for one in dead_letters(client, DeadLetterFilter(queues=("reports",), error="ValueError")):
        ...     print(one.partition, one.id, one.cause.text)
    """
    async for page in _pages(client, wanted):
        for each in page:
            yield each


async def redrive(
    client: AsyncClient, wanted: DeadLetterFilter, *, dry_run: bool = False, ttl: int | None = None
) -> Redriven:
    """Sends dead letters back to the end of the partitions that they came from, and removes them here.

    At least once: each is sent, then removed, so that one whose removal failed is sent again next time; so is one
    whose sending ended in doubt.

    Args:
        client: Of the application.
        wanted: Selects them.
        dry_run: Change nothing.
        ttl: Their TTL in seconds; None: the queue's default.

    Raises:
        ClientError: A temporary one. Those not yet sent stay where they are; a note counts the others. What the
            service will never take stays, and is in ``left``.

    Example:
        >>> await redrive(client, DeadLetterFilter(queues=("reports",)), dry_run=True)
        Redriven(sent={'reports': 2}, moved=0, kept=0, left={}, samples=())
    """
    done = Redriven()
    targets: dict[str, Target] = {}
    queues: dict[str, tuple[int, str] | None] = {}
    hidden: set[str] = set()
    try:
        async for page in _pages(client, wanted):
            looked = await look_up(client, {one.queue for one in page} - queues.keys() - hidden)
            targets |= looked.found
            queues |= {name: (queue.partitions, queue.dead_letter) for name, queue in looked.found.items()}
            queues |= dict.fromkeys(looked.absent)
            hidden |= looked.hidden
            unseen = Counter(f"the credential may not see queue {one.queue}" for one in page if one.queue in hidden)
            seen = [one for one in page if one.queue not in hidden]
            going, staying = by_origin(seen, queues, wanted.dead_queue)
            done += staying + Redriven(left=dict(unseen))
            for name, indexes in going.items():
                mine = [seen[index] for index in indexes]
                done += Redriven({name: len(mine)}) if dry_run else await _send_back(client, targets[name], mine, ttl)
    except ClientError as error:
        error.add_note(f"at least {sum(done.sent.values()) + len(error.receipts)} dead letters were sent back before")
        raise
    return done


async def _send_back(client: AsyncClient, queue: Target, chosen: list[DeadLetter], ttl: int | None) -> Redriven:
    """Sends dead letters to their queue and removes those that were stored."""
    refusal = None
    try:
        stored = len(await client.send_many(queue.name, [await _outgoing(client, queue, one, ttl) for one in chosen]))
    except ClientError as error:
        stored, refusal = len(error.receipts), error
    await client.delete(chosen[0].lies_in, [(one.stored_partition, one.stored_id) for one in chosen[:stored]])
    if refusal is None:
        return Redriven({queue.name: stored})
    if refusal.temporary:
        raise refusal
    return Redriven({queue.name: stored} if stored else {}) + left_of(chosen[stored:], str(refusal))


async def _outgoing(client: AsyncClient, queue: Target, one: DeadLetter, ttl: int | None) -> Outgoing:
    body = await _body(client, one.lies_in, (one.stored_partition, one.stored_id), one.body, is_json=one.json)
    keeps_keys = queue.kind == "ordered" or queue.max_claimed_per_key > 0
    partition, key = place_of(one, queue.kind, keeps_keys=keeps_keys)
    return Outgoing(**body, partition=partition, key=key, headers=one.headers, content_type=one.content_type, ttl=ttl)


async def _info(client: AsyncClient, queue: str) -> QueueInfo | None:
    """Returns the state of a queue; None: it does not exist."""
    try:
        return await client.info(queue)
    except QueueNotFound:
        return None


async def _pages(client: AsyncClient, wanted: DeadLetterFilter) -> AsyncIterator[list[DeadLetter]]:
    """Yields pages of the wanted dead letters; those of a page are in one queue."""
    asked: Any = list(wanted.partitions) or "*"
    for lies_in in await dead_queues(client, wanted):
        left = wanted.limit
        async for page in client.read_pages(lies_in, limit=_PAGE, partitions=asked, delay=False):
            read = (read_dead_letter(message, lies_in) for message in page.messages)
            found = [one for one in read if one is not None and wanted.takes(one)][:left]
            yield found
            left = None if left is None else left - len(found)
            if left == 0:
                break
